"""Texts of the training data that are held out for evaluation and for the test: which ones says a hash of each text."""

import dataclasses
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from flaxformer_lite.data.mixture import Mixture
from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.source import DataSource, LocatedSource, Row
from flaxformer_lite.text.files import ReadProgress, ignore_progress

Split = Literal["train", "eval", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclass(frozen=True, kw_only=True)
class HeldOut(LocatedSource):
    """The pairs of a source that belong to one split: for each of the splits `held` a share of the texts, "train" the rest.

    The split of a pair is a function of its text and the seed alone, so no text is in two splits, however often, in whatever file
    and on whatever host it comes.
    """

    source: DataSource
    split: Split
    held: tuple[Split, ...]
    share: float
    seed: int

    def split_of(self, pair: Pair) -> Split:
        """Returns the split of a pair: by its source, so that all its targets are in the same one; of a document by its text.

        White space at both ends of words does not count.
        """
        text = " ".join((pair.source or pair.target).split()).encode(errors="surrogatepass")
        digest = hashlib.blake2b(text, digest_size=8, key=self.seed.to_bytes(8, "little")).digest()
        place = int.from_bytes(digest, "little") / 2**64 / self.share
        return self.held[int(place)] if place < len(self.held) else "train"

    def located(self, setting: str | None = None, progress: ReadProgress = ignore_progress) -> Iterator[Row]:
        found, left_out = False, 0
        train = setting and setting.replace(f"data.{self.split}", "data.train", 1)
        for row in self.source.located(train, progress):
            assert isinstance(row.pair, Pair)
            if self.split_of(row.pair) == self.split:
                found = True
                yield row
            else:
                left_out += 1
        if not found:
            raise ValueError(
                f"data.held_out is {self.share}, which leaves none of the {left_out:,} texts of {train or 'the data'} for "
                f"data.{self.split}: choose another share or data.held_out_seed, or cut the data into more texts"
            )

    def text_names(self, setting: str) -> tuple[str, str]:
        return self.source.text_names(setting)

    def target_names(self) -> list[str]:
        return self.source.target_names()

    def versions(self) -> list[str] | None:
        return self.source.versions()


@dataclass(frozen=True, kw_only=True)
class HeldOutMixture(Mixture):
    """A mixture of the pairs of each source that belong to one split."""

    sources: tuple[HeldOut, ...]  # type: ignore[assignment]  # no config names them


def held_out(source: DataSource, **rule: Any) -> DataSource:
    """Returns the pairs of a source that belong to a split; of a mixture, those of each of its sources. rule: as `HeldOut`."""
    if not isinstance(source, Mixture):
        return HeldOut(source=source, **rule)
    settings = {field.name: getattr(source, field.name) for field in dataclasses.fields(source)}
    settings["sources"] = tuple(HeldOut(source=part, **rule) for part in source.sources)
    return HeldOutMixture(**settings)
