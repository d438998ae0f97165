"""Near duplicates between evaluation data and training data, by the n-grams of words that they share (contamination)."""

from collections import Counter
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

from flaxformer_lite.base.console import counted, note
from flaxformer_lite.config import Config
from flaxformer_lite.core.data import Pair
from flaxformer_lite.files.data.held_out import Split
from flaxformer_lite.files.text.normal_form import bare_words
from flaxformer_lite.files.text.words import words_of
from flaxformer_lite.run.recording import RecordPlace, located

WORDS_OF_PAIRS, WORDS_OF_DOCUMENTS = 3, 8
"""Words in an n-gram. Sentences are short; for documents as in Chowdhery et al. 2022, arXiv:2204.02311, section 8."""
MOST_SHARING = 1_000
"""Records that may share an n-gram: one that more have says nothing of any."""
NEAR = 0.7
"""The least share of common n-grams of a near duplicate. Reference: the same."""


@dataclass(frozen=True)
class Near:
    """A record of the evaluation data, and the record of the training data that has most of its n-grams."""

    share: float
    """The share of its n-grams that the other one has; of a pair those of both sides together."""
    place: RecordPlace
    pair: Pair
    train: tuple[RecordPlace, Pair] | None
    """None if no record has any of them."""

    def in_words(self) -> str:
        """Returns the share, both places and both texts, between tabs."""
        place, pair = self.train or ("none", Pair("", ""))
        shown = [shorten(" → ".join(filter(None, both[:2])), 100, placeholder=" …") for both in (self.pair, pair)]
        return "\t".join([f"{self.share:.2f}", str(self.place), str(place), *shown])

    def as_json(self) -> dict[str, Any]:
        train = None if self.train is None else self.train[0]._asdict() | self.train[1].as_json()
        return {"share": self.share, "eval": self.place._asdict() | self.pair.as_json(), "train": train}


def ngrams(pair: Pair) -> set[int]:
    """Returns hashes of the n-grams of both sides. Case and punctuation do not count; a shorter text is one n-gram."""
    n, hashes = WORDS_OF_PAIRS if pair.source else WORDS_OF_DOCUMENTS, set[int]()
    for side, text in enumerate(pair[:2]):
        words = words_of(bare_words(text))
        hashes |= {hash((side, *words[i : i + n])) for i in range(max(len(words) - n + 1, min(len(words), 1)))}
    return hashes


def near_duplicates(config: Config, split: Split = "eval") -> list[Near]:
    """Returns every record of a split with its nearest record of the training data, nearest first.

    It reads the training data once, and holds the n-grams of the split only.

    Raises: ValueError if there is no such data.
    """
    if config.data.source(split) is None or config.data.source("train") is None:
        raise ValueError(f"data.{split} or data.train is None: near duplicates are of two sets of data; set both")
    records = list(located(config, split))
    sizes, having = list[int](), dict[int, list[int]]()
    for number, (_, pair) in enumerate(records):
        grams = ngrams(pair)
        sizes.append(len(grams))
        for gram in grams:
            having.setdefault(gram, []).append(number)
    if common := [gram for gram, numbers in having.items() if len(numbers) > MOST_SHARING]:
        note(
            f"{counted(len(common), 'n-gram')} of more than {MOST_SHARING:,} records of data.{split} are not looked for"
        )
    for gram in common:
        del having[gram]
    best: list[tuple[int, tuple[RecordPlace, Pair] | None]] = [(0, None)] * len(records)
    for train in located(config, "train"):
        for number, shared in Counter(n for gram in ngrams(train[1]) for n in having.get(gram, ())).items():
            if shared > best[number][0]:
                best[number] = shared, train
    neighbours = [
        Near(shared / max(size, 1), *record, nearest)
        for record, size, (shared, nearest) in zip(records, sizes, best, strict=True)
    ]
    return sorted(neighbours, key=lambda near: -near.share)
