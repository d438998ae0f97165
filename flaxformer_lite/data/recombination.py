"""New sentences out of those of a corpus: words swapped where others stand between the same neighbours, and halves that meet in
three equal words. A teacher translates them, and its student reads more sources than the corpus has.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

MOST_COMMON = 30
"""The most frequent words, mostly function words and punctuation, are never swapped."""
SWAPPED = 0.2
"""Share of the words of a sentence that are swapped, as far as there are others for them."""
LEAST_COUNT = 3
"""Rarer words are not put into other sentences: many are misspelt."""
SWAPS_IN_JOINED = 0.3
"""Share of the joined sentences in which words are swapped, too."""
JOINED_WORDS = (6, 30)
"""The shortest and the longest sentence that is joined."""
TRIALS = 100
"""Draws in a row without a new sentence after which the corpus counts as used up."""

Words = Sequence[str]


class Recombination:
    """The contexts of a corpus, kept in memory. `draw` returns a sentence that is mostly, but not always, a new one.

        swapped   a man in a red shirt .   →   a man in a striped shirt .        ("a striped shirt" stands elsewhere)
        joined    a dog runs on the beach .  +  two boys play on the beach with a ball .  →  a dog runs on the beach with a ball .

    In spirit, Fadaee et al. 2017, arXiv:1705.00440 (with a language model), and Jacobs et al. 2016, arXiv:1606.03622 (splices).
    """

    def __init__(self, sentences: Sequence[Words]) -> None:
        self.sentences = sentences
        counts = Counter(word for sentence in sentences for word in sentence)
        self.fixed = {word for word, _ in counts.most_common(MOST_COMMON)}
        between: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self.trigrams: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
        for number, sentence in enumerate(sentences):
            for before, word, after in zip(["", *sentence], sentence, [*sentence[1:], ""], strict=False):
                if word not in self.fixed and counts[word] >= LEAST_COUNT:
                    between[before, after][word] += 1
            for place in range(len(sentence) - 2):
                self.trigrams[tuple(sentence[place : place + 3])].append((number, place))
        self.between = dict(between)

    def draw(self, generator: random.Random) -> list[str]:
        """Returns one sentence: half of them with words swapped, half joined of two."""
        sentence = generator.choice(self.sentences)
        if generator.random() < 0.5:
            return self.swapped(sentence, generator)
        joined = self.joined(sentence, generator)
        return self.swapped(joined, generator) if generator.random() < SWAPS_IN_JOINED else joined

    def swapped(self, sentence: Words, generator: random.Random) -> list[str]:
        """Returns the sentence with `SWAPPED` of its words swapped. Words are drawn by the root of their counts in that context."""
        words = ["", *sentence, ""]
        left = max(1, round(SWAPPED * len(sentence)))
        for place in generator.sample(range(1, len(words) - 1), len(sentence)):
            others = self.between.get((words[place - 1], words[place + 1]), Counter[str]())
            drawn = [word for word in others if word != words[place]]
            if left and drawn and words[place] not in self.fixed:
                (words[place],) = generator.choices(drawn, [others[word] ** 0.5 for word in drawn])
                left -= 1
        return words[1:-1]

    def joined(self, sentence: Words, generator: random.Random) -> list[str]:
        """Returns the sentence up to three words in its middle, and another one that has the same three from there on."""
        shortest, longest = JOINED_WORDS
        if len(sentence) <= shortest:
            return list(sentence)
        cut = generator.randrange(2, len(sentence) - 3)
        number, place = generator.choice(self.trigrams[tuple(sentence[cut : cut + 3])])
        joined = [*sentence[:cut], *self.sentences[number][place:]]
        return joined if shortest <= len(joined) <= longest else list(sentence)


def recombined(lines: Sequence[str], number: int, seed: int = 0) -> Iterator[str]:
    """Yields `number` sentences, each another one and none of `lines`, which are words between spaces: a function of the seed.

    Raises: ValueError if the lines give fewer.
    """
    corpus = Recombination([words for line in lines if (words := line.split())])
    known = {" ".join(words) for words in corpus.sentences}
    generator, found, trials = random.Random(seed), 0, 0
    while found < number:
        trials += 1
        if not corpus.sentences or trials > TRIALS:
            raise ValueError(
                f"{number:,} new sentences are asked for, but the {len(corpus.sentences):,} of the text gave {found:,}: ask for "
                "fewer, or give more text"
            )
        line = " ".join(corpus.draw(generator))
        if line not in known:
            known.add(line)
            found, trials = found + 1, 0
            yield line
