"""A tokenizer with a token and pieces for one more language. All old ids keep their meaning.

A new piece joins pieces that the old tokenizer puts side by side, so a text is cut otherwise only where its old cut has neighbours
that spell a new piece, or a character that was unknown.
"""

import heapq
import itertools
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from flaxformer_lite.core.text import Tokenizer
from flaxformer_lite.files.tokenizers.described import as_described
from flaxformer_lite.files.tokenizers.json_tokenizer import JsonTokenizer
from flaxformer_lite.files.tokenizers.subwords import SentencePieceTokenizer

CutWords = Counter[tuple[str, ...]]
"""Words as their pieces, with their numbers."""


class Extension(NamedTuple):
    """A tokenizer with one more language, and what its new pieces are made of."""

    tokenizer: JsonTokenizer
    parts: list[list[int]]
    """For each new piece, in the order of their ids, the ids that the old tokenizer reads it as."""


def extended_tokenizer(
    tokenizer: Tokenizer, lines: Iterable[str], num_pieces: int, token: str, first_id: int, old: Iterable[str] = ()
) -> Extension:
    """Returns a tokenizer that also has a language's token, of the id `first_id`, and behind it pieces that the old one lacks.

    Byte-pair encoding goes on from the pieces that the lines are cut into. First come the characters that are unknown. Then the
    most frequent neighbours are joined, only letters, until there are `num_pieces` new ones or no neighbours occur twice.
    Neighbours in a line of `old` are never joined.

    Raises: ValueError for a kind of tokenizer to which no piece can be added, too few pieces, or a text without words.
    """
    if num_pieces < 1:
        raise ValueError(f"pieces is {num_pieces}: it must be 1 or more")
    base = as_described(tokenizer) if isinstance(tokenizer, SentencePieceTokenizer) else tokenizer
    if not isinstance(base, JsonTokenizer) or not base.model_type:
        name = type(tokenizer).__name__
        raise ValueError(f"the tokenizer is a {name}: a language is added only to SentencePiece models, BPE or unigram")
    words, unknown = cut_words(base, lines)
    if not words:
        raise ValueError("every line of the text is blank: pieces are learned from text of the new language")
    numbers = {base.piece(i): i for i in range(base.largest_id + 1)}
    taken = {*numbers, token}
    old_words, _ = cut_words(base, old)
    for word in old_words:
        taken |= {left + right for left, right in itertools.pairwise(word)}
    characters = {character: (character,) for character, _ in unknown.most_common(num_pieces)}
    joined = join_neighbours(words, num_pieces - len(characters), lambda text: text not in taken and is_word_part(text))
    spelled = {**characters, **joined}
    ids_of_unknown = {character: base.split([character])[0] for character in unknown}
    parts = list[list[int]]()
    for pieces in spelled.values():
        ids = [ids_of_unknown.get(piece) or [numbers[piece]] for piece in pieces]
        parts.append(list(itertools.chain.from_iterable(ids)))
    return Extension(base.with_more_pieces(token, spelled, first_id), parts)


def cut_words(tokenizer: JsonTokenizer, lines: Iterable[str]) -> tuple[CutWords, Counter[str]]:
    """Returns the words of the lines in pieces, and their characters that are not pieces. Such a character is a piece here."""
    texts = Counter[str]()
    for line in lines:
        texts.update(f"▁{word}" for word in tokenizer.normalized(line).split(" ") if word)
    characters: Counter[str] = Counter()
    for word, number in texts.items():
        characters.update(dict.fromkeys(word, number))
    unknown = {c for c in characters if tokenizer.pieces(tokenizer.split([c])[0]) != [c]}
    words: CutWords = Counter()
    for word, number in texts.items():
        pieces: list[str] = []
        for is_unknown, run in itertools.groupby(word, unknown.__contains__):
            letters = "".join(run)
            pieces += letters if is_unknown else tokenizer.pieces(tokenizer.split([letters])[0])
        words[tuple(pieces)] += number
    return words, Counter({c: characters[c] for c in sorted(unknown)})


def is_word_part(text: str) -> bool:
    """Returns whether a text has nothing but letters and their marks, behind the sign of a space or not."""
    return all(unicodedata.category(character)[0] in "LM" for character in text.removeprefix("▁"))


def join_neighbours(words: CutWords, number: int, allowed: Callable[[str], bool]) -> dict[str, tuple[str, ...]]:
    """Returns up to `number` allowed texts, each with the pieces that it joins, the most frequent neighbours first.

    Reference: Sennrich et al. 2016, arXiv:1508.07909, algorithm 1.
    """
    texts, counts = list(words), list(words.values())
    totals: Counter[tuple[str, str]] = Counter()
    places: dict[tuple[str, str], set[int]] = defaultdict(set)
    made: dict[str, tuple[str, ...]] = {}

    def count(n: int, sign: int) -> list[tuple[str, str]]:
        pairs = list(itertools.pairwise(texts[n]))
        for pair in pairs:
            totals[pair] += sign * counts[n]
            places[pair].add(n)
        return pairs

    for n in range(len(texts)):
        count(n, 1)
    heap = [(-total, pair) for pair, total in totals.items() if allowed("".join(pair))]
    heapq.heapify(heap)
    while heap and len(made) < number:
        total, pair = heapq.heappop(heap)
        if -total != totals[pair]:  # it has changed since it came into the heap
            heapq.heappush(heap, (-totals[pair], pair))
            continue
        if -total < 2:
            break
        left, right = pair
        made.setdefault(left + right, made.get(left, (left,)) + made.get(right, (right,)))
        changed: set[tuple[str, str]] = set()
        for n in places.pop(pair):
            count(n, -1)
            texts[n] = with_joined(texts[n], pair)
            changed.update(count(n, 1))
        for one in changed:
            if "".join(pair) in one and allowed("".join(one)):
                heapq.heappush(heap, (-totals[one], one))
    return made


def with_joined(word: Sequence[str], pair: tuple[str, str]) -> tuple[str, ...]:
    """Returns a word in which each such pair is one piece."""
    pieces: list[str] = []
    for piece in word:
        if pieces and (pieces[-1], piece) == pair:
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return tuple(pieces)


def cut_otherwise(before: Tokenizer, after: Tokenizer, lines: Sequence[str]) -> tuple[int, list[str]]:
    """Returns how many of the lines two tokenizers cut otherwise, and the new pieces in these, the most frequent first."""
    pairs = zip(before.encode_batch(lines), after.encode_batch(lines), strict=True)
    other = [new for old, new in pairs if old != new]
    pieces = Counter(i for i in itertools.chain.from_iterable(other) if not before.has_piece(i))
    return len(other), after.pieces(i for i, _ in pieces.most_common())
