"""All data sources that a config can name, and a mixture of them, each with a share of the rows.

The contract for a new one is `DataSource` in source.py.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flaxformer_lite.core.base.bounds import Checked, PositiveFloat
from flaxformer_lite.core.data import Pair
from flaxformer_lite.files.data.built_in import Dates, PythonDocs
from flaxformer_lite.files.data.hub import HubDataset, Parquet
from flaxformer_lite.files.data.source import DataSource
from flaxformer_lite.files.data.text_files import CSV, TSV, CoNLL, JSONLines, ParallelText, PlainText
from flaxformer_lite.files.text.files import ReadProgress, ignore_progress

MixedKinds = ParallelText | TSV | CSV | JSONLines | CoNLL | Parquet | HubDataset | PlainText | Dates | PythonDocs
"""The sources that a config file can mix."""


@dataclass(frozen=True, kw_only=True)
class Mixture(Checked, DataSource, at="mixture"):
    """Several sources: an epoch has as many rows as all of them together, and each source has a share of these rows.

    In training a row of a source that is drawn often comes again before the epoch ends, and one of a source that is drawn rarely
    comes in a later epoch: over all epochs the rows of a source come equally often. A pack has documents of one source.
    Evaluation reads every row of every source once, and reports each source and all together.

    Reference: Arivazhagan et al. 2019, arXiv:1907.05019, section 4 (temperature).
    """

    kind: Literal["mixture"] = "mixture"
    sources: tuple[MixedKinds, ...]
    """The sources, at least one."""
    names: tuple[str, ...] = ()
    """Name of each source in metrics, such as `de/loss`; (): source0, source1 and so on."""
    weights: tuple[PositiveFloat, ...] | None = None
    """Weight of each source; its share of the rows is its weight divided by their sum. None: shares by size, see temperature."""
    temperature: PositiveFloat = 1.0
    """Shares are proportional to size^(1/temperature), the size in rows. 1: as if the sources were one file; larger values
    favour small sources. Without weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        number = len(self.sources)
        if number == 0:
            raise ValueError("mixture.sources is (): it must have at least one source")
        for name, values in (("names", self.names), ("weights", self.weights)):
            if values and len(values) != number:
                raise ValueError(
                    f"mixture.{name} has {len(values)} values but mixture.sources has {number}: give one for each source"
                )
        if self.weights is not None and not self.weights:
            raise ValueError("mixture.weights is (): give one for each source, or None")
        if len(set(self.part_names)) < number or any("/" in name or not name for name in self.part_names):
            raise ValueError(
                f"mixture.names is {self.names}: names must differ, and have at least one character and no /"
            )
        if self.weights is not None and self.temperature != 1:
            raise ValueError(
                f"mixture.temperature is {self.temperature}, but mixture.weights is {self.weights}: set one of them only"
            )

    def parts(self, setting: str) -> list[tuple[str, DataSource]]:
        return [(f"{setting}.sources.{i}", source) for i, source in enumerate(self.sources)]

    @property
    def part_names(self) -> tuple[str, ...]:
        return self.names or tuple(f"source{i}" for i in range(len(self.sources)))

    def stream(self, setting: str | None = None, progress: ReadProgress = ignore_progress) -> Iterator[Pair]:
        for number, (at, source) in enumerate(self.parts(setting or "")):

            def report(fraction: float, number: int = number) -> None:
                progress((number + fraction) / len(self.sources))

            yield from source.stream(setting and at, report)

    def target_names(self) -> list[str]:
        return list(itertools.chain.from_iterable(source.target_names() for source in self.sources))

    def versions(self) -> list[str] | None:
        return joined_versions(self.sources)


def joined_versions(sources: Iterable[DataSource]) -> list[str] | None:
    """Returns the versions of several sources; None if those of one are unknown."""
    joined = list[str]()
    for source in sources:
        versions = source.versions()
        if versions is None:
            return None
        joined += versions
    return joined


SourceKinds = MixedKinds | Mixture
OptionalSource = SourceKinds | None


def open_parts(source: DataSource, setting: str) -> tuple[list[Pair], dict[str, slice]]:
    """Returns the pairs of a source and, of a mixture, where those of each part are, by its name.

    Raises: ValueError for anything wrong with the data.
    """
    opened = [member.open(at) for at, member in source.parts(setting)]
    stops = np.cumsum([0, *map(len, opened)]).tolist()
    places = map(slice, stops, stops[1:])
    names = source.part_names if isinstance(source, Mixture) else ()
    pairs = list(itertools.chain.from_iterable(opened))
    return pairs, dict(zip(names, places, strict=False))
