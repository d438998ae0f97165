"""Texts of the training data that are held out for evaluation and for the test. A hash of each text chooses them."""

import dataclasses
import hashlib
import itertools
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from flaxformer_lite.base.console import note_once, warn_once
from flaxformer_lite.core.data import Pair
from flaxformer_lite.files.data.mixture import Mixture, joined_versions
from flaxformer_lite.files.data.source import DataSource, LocatedPair, LocatedSource
from flaxformer_lite.files.records.candidates import TextCandidates
from flaxformer_lite.files.text.files import ReadProgress, ignore_progress
from flaxformer_lite.files.text.normal_form import bare_words

Split = Literal["train", "eval", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
LEFT_OUT: Literal["left out"] = "left out"
"""The training pairs that are left out because they share a text with a held-out pair."""
SplitOrLeftOut = Split | Literal["left out"]
PARTS: tuple[SplitOrLeftOut, ...] = (*SPLITS, LEFT_OUT)
MOST_LEFT_OUT = 0.1
"""The share of the training that may be left out without a warning."""


class HeldTexts:
    """The texts of all held-out pairs, both sides of each, as 64-bit hashes of their plain forms: eight bytes a text.

    For n texts, a training pair is left out by mistake with a probability of n / 2^63.
    """

    def __init__(self) -> None:
        self.sorted: array[int] | None = None
        """None until they have been read."""

    def fill(self, hashes: Iterator[int]) -> None:
        self.sorted = array("q", np.unique(np.fromiter(hashes, np.int64)).tobytes())

    def __contains__(self, text: str) -> bool:
        assert self.sorted is not None
        key = hash(text)
        place = bisect_left(self.sorted, key)
        return place < len(self.sorted) and self.sorted[place] == key


@dataclass(frozen=True, kw_only=True)
class HeldOut(LocatedSource):
    """The pairs of a source that belong to one split: for each of the splits `held` a share of the texts, "train" the rest.

    The split of a pair depends only on its text and the seed. So all copies of a text are in one split, in every file and on
    every host. A pair of "train" shares no text, on either side, with a held-out pair of any source in `among`: such pairs are left
    out.
    """

    source: DataSource
    split: SplitOrLeftOut
    held: tuple[Split, ...]
    share: float
    seed: int
    among: tuple[DataSource, ...] = ()
    """All sources of the training data."""
    texts: HeldTexts = field(default_factory=HeldTexts, compare=False, repr=False)
    """The texts that `among` holds out. The sources of a mixture share them, so that they are read once."""
    known: bytearray = field(default_factory=bytearray, init=False, compare=False, repr=False)
    """The index in `PARTS` of each row that was read before: a start reads the training data several times."""

    def split_of(self, pair: Pair) -> Split:
        """Returns the split of a pair by its source, so that all targets of a source are in one split; of a document by its text.

        If rows share their targets, as questions share a text, the target decides: else few pairs would be left to train on.

        Texts are compared by their `bare_words`.
        """
        texts = compared_texts(self.source, pair)
        return self.split_of_text(bare_words(texts[0]) if texts else "")

    def split_of_text(self, text: str) -> Split:
        hashed = self.hashing.copy()
        hashed.update(text.encode(errors="surrogatepass"))
        place = int.from_bytes(hashed.digest(), "little") / 2**64 / self.share
        return self.held[int(place)] if place < len(self.held) else "train"

    @cached_property
    def hashing(self) -> Any:
        """The keyed hash function before it has read a text."""
        return hashlib.blake2b(digest_size=8, key=self.seed.to_bytes(8, "little"))

    def part_of(self, pair: Pair) -> SplitOrLeftOut:
        """Returns the split of a pair, or LEFT_OUT for a training pair with a held-out text."""
        texts = [bare_words(text) for text in compared_texts(self.source, pair)]
        split = self.split_of_text(texts[0] if texts else "")
        return LEFT_OUT if split == "train" and any(text in self.texts for text in texts) else split

    def located(self, setting: str | None = None, progress: ReadProgress = ignore_progress) -> Iterator[LocatedPair]:
        train = self.setting_of_source(setting)
        part_of: Callable[[Pair], SplitOrLeftOut] = self.split_of
        if self.split not in self.held:
            part_of = self.part_of
            if self.texts.sorted is None:
                self.texts.fill(self.held_hashes(setting and "data.train", progress))
        counts = Counter[SplitOrLeftOut]()
        for number, row in enumerate(self.source.located(train, progress)):
            assert isinstance(row.pair, Pair)
            if number == len(self.known):
                self.known.append(PARTS.index(part_of(row.pair)))
            split = PARTS[self.known[number]]
            counts[split] += 1
            if split == self.split:
                yield row
        if self.split != LEFT_OUT:
            self.check(counts, train)

    def setting_of_source(self, setting: str | None) -> str | None:
        return setting and setting.replace(f"data.{self.split}", "data.train", 1)

    def bad_row_rule(self, setting: str | None) -> tuple[str | None, str]:
        return self.source.bad_row_rule(self.setting_of_source(setting))

    def check(self, counts: Counter[SplitOrLeftOut], setting: str | None) -> None:
        """Says how many pairs were left out. Raises: ValueError if the split has none. counts: the pairs of each part."""
        number = counts[LEFT_OUT]
        all_ = sum(counts.values())
        where = setting or "the data"
        left_out = f"{number:,} are left out: data.eval or data.test has a text of each"
        if not counts[self.split]:
            reason = f" ({left_out})" if number else ""
            raise ValueError(
                f"data.held_out is {self.share}, which leaves none of the {all_:,} texts of {where} for data.{self.split}{reason}: "
                "choose another share or data.held_out_seed, or cut the data into more texts"
            )
        line = f"{where}: of {all_:,} pairs {left_out}"
        if number > MOST_LEFT_OUT * all_:
            warn_once(f"{line}; where many pairs share a text, set data.eval and data.test to other data")
        elif number:
            note_once(line)

    def held_hashes(self, setting: str | None, progress: ReadProgress) -> Iterator[int]:
        """Yields a hash of each text of the held-out pairs; nothing if all sources have documents: these are held out whole."""
        names = [setting]
        if len(self.among) > 1:
            names = [setting and f"{setting}.sources.{i}" for i in range(len(self.among))]
        sources = list(zip(self.among, names, strict=False))
        if not any(has_pairs(source, name) for source, name in sources):
            return
        for source, name in sources:
            for row in source.located(name, lambda fraction: progress(0.0)):
                assert isinstance(row.pair, Pair)
                if self.split_of(row.pair) != "train":
                    yield from (hash(bare_words(text)) for text in compared_texts(source, row.pair))

    def text_names(self, setting: str) -> tuple[str, str]:
        return self.source.text_names(setting)

    def target_names(self) -> list[str]:
        return self.source.target_names()

    def versions(self) -> list[str] | None:
        if self.split in self.held:
            return self.source.versions()
        return joined_versions(dict.fromkeys((self.source, *self.among)))


@dataclass(frozen=True, kw_only=True)
class HeldOutMixture(Mixture):
    """A mixture of the pairs of each source that belong to one split."""

    sources: tuple[HeldOut, ...]  # type: ignore[assignment]  # no config names them


def has_pairs(source: DataSource, setting: str | None) -> bool:
    """Returns whether the first record of a source has two sides; a document has none."""
    return any(pair.source for pair in itertools.islice(source.stream(setting), 1))


def compared_texts(source: DataSource, pair: Pair) -> list[str]:
    """Returns the texts of a pair that no split may share, first the one that decides its split.

    They are its two sides; or a query and its positives, as any text is a negative; or the text that questions share: a question
    may be asked of several texts.
    """
    if source.record.shares_target:
        return [pair.target]
    return [text for text in (pair.source, *TextCandidates.of_pair(pair).positives) if text]


def held_out(source: DataSource, **rule: Any) -> DataSource:
    """Returns the pairs of a source that belong to a split; of a mixture, those of each of its sources. rule: as `HeldOut`."""
    if not isinstance(source, Mixture):
        return HeldOut(source=source, among=(source,), **rule)
    settings = {field.name: getattr(source, field.name) for field in dataclasses.fields(source)}
    rule |= {"among": source.sources, "texts": HeldTexts()}
    settings["sources"] = tuple(HeldOut(source=member, **rule) for member in source.sources)
    return HeldOutMixture(**settings)
