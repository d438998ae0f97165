"""The contract of a recipe: the settings that a task chooses for rows of data, so that one command can train on them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.model import ModelConfig, Pooler
from flaxformer_lite.core.objectives import BaseObjective
from flaxformer_lite.files.data.mixture import MixedKinds
from flaxformer_lite.files.records import Record

TEXT_FIELDS = (
    "text",
    "sentence",
    "content",
    "review",
    "document",
    "comment",
    "tweet",
    "message",
    "utterance",
    "question",
)
"""Usual names of the field of a text, as data sets of the hub have them."""
ROW_NAMES = ("id", "_id", "idx", "index", "guid", "unnamed: 0", "__index_level_0__", "")
"""Names of fields that name a row."""


class Examples(NamedTuple):
    """The first rows of some data, and the ways to read all of it."""

    rows: Sequence[Mapping[str, Any]]
    sources: Sequence[Callable[[Record], MixedKinds]]
    """The functions that return the sources of training, evaluation and test for a kind of record; those that there are."""
    task: str | None = None
    """The name of the task that was asked for."""
    texts: Sequence[str] = ()
    """The fields of texts that were asked for."""
    labels: Sequence[str] = ()

    @property
    def fields(self) -> list[str]:
        """The fields of all rows."""
        return [*dict.fromkeys(name for row in self.rows for name in row)]

    def values(self, name: str) -> list[Any]:
        """Returns what the rows have in a field; null is nothing."""
        return [row[name] for row in self.rows if row.get(name) is not None]

    def has(self, name: str, *kinds: type) -> bool:
        """Returns whether a field has values, all of these types."""
        values = self.values(name)
        return bool(values) and all(isinstance(value, kinds) for value in values)

    def first(self, names: Sequence[str], *kinds: type) -> str | None:
        """Returns the first field of these names, in any case, that has values of these types."""
        spelled = {name.lower(): name for name in reversed(self.fields)}
        known = (spelled[name] for name in names if name in spelled)
        return next((name for name in known if self.has(name, *kinds)), None)

    def all_of(self, groups: Sequence[Sequence[str]]) -> list[str]:
        """Returns the first group of fields, in any case, that all have texts; none of them without such a group."""
        found = ([self.first([name], str) for name in group] for group in groups)
        return next(([*map(str, names)] for names in found if None not in names), [])

    def others(self, *names: str) -> list[str]:
        """Returns the fields without these, and without those that name a row."""
        return [name for name in self.fields if name not in names and name.lower() not in ROW_NAMES]

    def pairs(self, record: Record) -> Iterator[Pair]:
        """Yields all rows as such records, those of evaluation and test included."""
        for source in self.sources:
            yield from source(record).stream()


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings that a task chooses."""

    task: str
    """The name of the task."""
    source: MixedKinds
    objective: BaseObjective
    models: Callable[[ModelConfig], Sequence[ModelConfig]]
    """Returns models with heads of the task on the body of a given model. The first that the family can export is chosen."""
    best_metric: str
    rate: float = 5e-5
    """The peak of the learning rate of a model with 768 features."""
    rows: int = 16
    """The rows of a batch."""
    longest: int = 512
    """The most tokens of a row."""
    epochs: tuple[int, int] = (3, 20)
    """The fewest and the most epochs."""
    kept: tuple[str, ...] = ()
    """The settings of the start's objective that stay, where it is of this kind."""


def with_poolers(poolers: Sequence[Pooler]) -> Callable[[ModelConfig], Sequence[ModelConfig]]:
    """Returns the function that gives a model each of these heads."""

    def models(base: ModelConfig) -> Sequence[ModelConfig]:
        return [replace(base, head=None, sentence_embedding=None, pooler=pooler) for pooler in poolers]

    return models


def poolers_of_texts(classes: int) -> tuple[Pooler, ...]:
    """Returns the heads that families have for the classes of a text."""
    return (
        Pooler(num_classes=classes),
        Pooler(activation="gelu", dense_bias=False, norm=True, num_classes=classes),
        Pooler(token="late_mean", activation="gelu", num_classes=classes),
        Pooler(activation="relu", num_classes=classes),
        Pooler(activation="gelu", num_classes=classes),
        Pooler(token="last", activation=None, class_bias=False, num_classes=classes),
    )


def poolers_of_tokens(classes: int) -> tuple[Pooler, ...]:
    """Returns the heads that families have for the classes of each token."""
    return (
        Pooler(token="each", activation=None, num_classes=classes),
        Pooler(token="each", activation="gelu", dense_bias=False, norm=True, num_classes=classes),
    )
