"""A table of words that translate each other, learned from the pairs themselves: IBM's first model, from nothing but counts.

Reference: Brown et al. 1993, Computational Linguistics 19(2), section 4.
"""

import itertools
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from flaxformer_lite.files.text.words import words_of

STEM = 5
"""Characters of a word that count: what follows is mostly its inflection."""
ROUNDS = 5
"""Rounds of expectation and maximization."""
SMOOTHING = 2.0
"""Imagined links of each word, spread as the words of the other language are: rare words have little to say."""
MOST_LINKS = 8_000_000
"""Links of words from which a model learns: a few hundred megabytes."""
SCORED_AT_ONCE = 5_000
"""Pairs that are scored at once."""

WordNumbers = Sequence[Sequence[int]]
"""Numbers of the distinct words of each text; 0 belongs to every source, and stands for no word."""


class WordTable:
    """The probability of each target word beside a source word."""

    def __init__(self, sources: WordNumbers, targets: WordNumbers, words: int) -> None:
        self.words = words
        source, target, place, _ = links(sources, targets)
        self.keys, key = np.unique(source * words + target, return_inverse=True)
        owner = self.keys // words
        last = int(place[-1]) + 1 if len(place) else 0
        table = 1.0 / np.bincount(owner, minlength=words)[owner]
        for _ in range(ROUNDS):
            share = table[key]
            share /= np.bincount(place, share, last)[place]
            self.counts = np.bincount(key, share, len(self.keys))
            self.totals = np.bincount(owner, self.counts, words)
            table = self.counts / self.totals[owner]
        counts = np.bincount(joined_numbers(targets), minlength=words)
        self.keys = np.append(self.keys, words**2)  # so that every key has a place
        self.counts = np.append(self.counts, 0.0)
        self.frequency = (counts + 0.5) / (counts.sum() + 0.5 * words)

    def scores(self, sources: WordNumbers, targets: WordNumbers) -> Float[np.ndarray, "N"]:
        """Returns for each pair the mean over its target words of log p(word | source) / p(word)."""
        source, target, place, pair = links(sources, targets)
        key = source * self.words + target
        at = np.searchsorted(self.keys, key)
        count = np.where(self.keys[at] == key, self.counts[at], 0.0)
        p = (count + SMOOTHING * self.frequency[target]) / (self.totals[source] + SMOOTHING)
        lengths = np.array([len(text) for text in sources])
        first = np.flatnonzero(np.diff(place, prepend=-1))
        gain = np.log(np.bincount(place, p)[place[first]] / lengths[pair[first]] / self.frequency[target[first]])
        words = np.bincount(pair[first], minlength=len(lengths))
        return np.bincount(pair[first], gain, len(lengths)) / np.maximum(words, 1)


def joined_numbers(texts: WordNumbers) -> Int[np.ndarray, "_"]:
    """Returns the numbers of the words of all texts, one text after the other."""
    return np.fromiter(itertools.chain.from_iterable(texts), np.int64)


def links(
    sources: WordNumbers, targets: WordNumbers
) -> tuple[Int[np.ndarray, "L"], Int[np.ndarray, "L"], Int[np.ndarray, "L"], Int[np.ndarray, "L"]]:
    """Returns every link of a source word to a target word of its pair: both words, the target word's place, the pair."""
    widths = np.array(list(map(len, sources)), int)
    heights = np.array(list(map(len, targets)), int)
    source, target = joined_numbers(sources), joined_numbers(targets)
    pair_of_place = np.repeat(np.arange(len(heights)), heights)
    width = widths[pair_of_place]
    place = np.repeat(np.arange(len(target)), width)
    begin = (np.cumsum(widths) - widths)[pair_of_place] - (np.cumsum(width) - width)
    return source[np.arange(len(place)) + begin[place]], target[place], place, pair_of_place[place]


def word_numbers(texts: Sequence[str], numbers: dict[str, int]) -> list[list[int]]:
    """Returns the numbers of the distinct words of each text; new words are added to `numbers`."""
    rows = []
    for text in texts:
        row: dict[int, None] = {}
        for word in words_of(text.lower()):
            row[numbers.setdefault(word[:STEM], len(numbers) + 1)] = None
        rows.append(list(row))
    return rows


def is_first(texts: Iterable[Hashable]) -> Bool[np.ndarray, "N"]:
    """Returns for each text whether no text before it is the same."""
    places: dict[Hashable, int] = {}
    return np.array([places.setdefault(text, i) == i for i, text in enumerate(texts)], bool)


def translation_scores(sources: Sequence[str], targets: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the score of each pair, the lower one of both directions, and the scores of as many pairs put together by chance.

    A pair is scored by the model of the other half of the pairs, so it cannot vouch for itself. A model learns from the first pair
    with a text: one that stands beside many others explains nothing.
    """
    numbers: dict[str, int] = {}
    sides = [word_numbers(texts, numbers) for texts in (sources, targets)]
    words = len(numbers) + 1
    count = len(sources)
    teaches = is_first(sources) & is_first(targets)
    paired, chance = np.full((2, count), np.inf)
    generator = np.random.default_rng(0)
    half = generator.permutation(count) % 2
    for fold in (0, 1):
        learned = generator.permutation(np.flatnonzero((half != fold) & teaches))
        sizes = np.cumsum([(len(sides[0][i]) + 1) * (len(sides[1][i]) + 1) for i in learned])
        learned = learned[: np.searchsorted(sizes, MOST_LINKS)]
        scored = np.flatnonzero(half == fold)
        others = generator.permutation(scored)
        for left, right in ((sides[0], sides[1]), (sides[1], sides[0])):
            table = WordTable([[0, *left[i]] for i in learned], [right[i] for i in learned], words)
            for start in range(0, len(scored), SCORED_AT_ONCE):
                here, there = (order[start : start + SCORED_AT_ONCE] for order in (scored, others))
                given = [[0, *left[i]] for i in here]
                for scores, order in ((paired, here), (chance, there)):
                    scores[here] = np.minimum(scores[here], table.scores(given, [right[i] for i in order]))
    return paired.round(9), chance.round(9)  # words that nothing is known of score 0
