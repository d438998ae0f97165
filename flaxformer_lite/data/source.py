"""The contract of data sources, and the base classes of those that read written text."""

import functools
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from flaxformer_lite.base.console import warn
from flaxformer_lite.data.records import Pair
from flaxformer_lite.text.files import ReadProgress, file_versions, ignore_progress

MOST_LISTED = 10
"""Bad rows that an error lists."""
warn_once = functools.cache(warn)
"""Warns of data, which a start reads several times, with each line once."""


class DataSource(ABC):
    """Sentence pairs, documents or labelled texts from anywhere: files, a hub, a generator.

    A new source is a frozen dataclass with a field `kind` (a `Literal` with its name) and the method `open`. Two calls of
    `open` return the same pairs in the same order, on every machine: batches are functions of (seed, step). To set it in a
    config file or on the command line, list it in `MixedKinds` (mixture.py).
    """

    kind: str

    @abstractmethod
    def open(self, setting: str | None = None) -> Sequence[Pair]:
        """Returns all pairs; a document is a pair with an empty source.

        `setting` is the path of this source in the config, such as "data.eval", for messages with a remedy.

        Raises: ValueError for anything wrong with the data.
        """

    def stream(self, setting: str | None = None, progress: ReadProgress = ignore_progress) -> Iterator[Pair]:
        """Yields the pairs of `open`. A source of any size overrides it, and holds a few pairs at a time."""
        pairs = self.open(setting)
        for number, pair in enumerate(pairs, 1):
            yield pair
            if number % 1024 == 0:
                progress(number / len(pairs))

    def parts(self, setting: str) -> list[tuple[str, "DataSource"]]:
        """Returns the sources that this one mixes, of other kinds the source itself, each with its path in the config."""
        return [(setting, self)]

    def text_names(self, setting: str) -> tuple[str, str]:
        """Returns the names of the source texts and of the target texts in messages: the setting, and the file if there is one."""
        name = f"{setting} {getattr(self, 'path', self.kind)}"
        return name, name

    def target_names(self) -> list[str]:
        """Returns the names of the files or fields of the target texts, which may end in their language: `train.zh`."""
        return []

    def versions(self) -> list[str] | None:
        """Returns what the pairs depend on besides the settings, such as the size and time of change of each file.

        Equal versions promise equal pairs, so what was made of the pairs is used again. None: unknown; all texts are read and
        compared at each start.
        """
        return None


class StreamedSource(DataSource):
    """A source that is read piece by piece: a subclass defines `stream`, which raises a ValueError for anything wrong."""

    def open(self, setting: str | None = None) -> Sequence[Pair]:
        return list(self.stream(setting))

    @abstractmethod
    def stream(self, setting: str | None = None, progress: ReadProgress = ignore_progress) -> Iterator[Pair]:
        """Yields all pairs in order, and holds a few at a time."""


@dataclass(frozen=True, kw_only=True)
class TextSource(StreamedSource):
    """A source of written text, with a rule for empty lines. A subclass implements `_origins` and `_pairs`."""

    kind: str
    empty_lines: Literal["error", "drop"] = "error"
    """Treatment of a pair with an empty or blank side. error: stop and report its line; drop: leave it out."""
    bad_rows: Literal["error", "drop"] = "error"
    """Treatment of rows that are no pair, such as a missing column or field. error: stop and list the first ten; drop: leave them
    out, with a warning that has their number."""

    @property
    @abstractmethod
    def _origins(self) -> tuple[str | None, str]:
        """The names of source and target data in messages, such as file names; None for documents, which have no source."""

    @abstractmethod
    def _pairs(self, progress: ReadProgress) -> Iterable[Pair | ValueError]:
        """Yields a pair for every line, blank ones included; for a bad row the error that names it."""

    def _place(self, origin: str, number: int) -> str:
        """Returns the place of row `number` of an origin, counted from 1, for messages."""
        return f"{origin}:{number}"

    def stream(self, setting: str | None = None, progress: ReadProgress = ignore_progress) -> Iterator[Pair]:
        source, target = self._origins
        found, bad, num_bad = False, [], 0
        for number, pair in enumerate(self._pairs(progress), 1):
            if isinstance(pair, ValueError):
                num_bad += 1
                bad += [str(pair)] * (num_bad <= MOST_LISTED)
                if number == 1 and self.bad_rows == "error":
                    raise pair  # the settings rather than all rows are wrong
                continue
            if bad and self.bad_rows == "error":
                continue  # the other bad rows are to be listed too
            no_source = source is not None and not pair.source.strip()
            if not no_source and pair.target.strip():
                found = True
                yield pair
            elif self.empty_lines == "error":
                origin, side = (source or "", "source") if no_source else (target, "target")
                side = "text" if source is None else side
                other = f", or drop such pairs (--{setting}.empty-lines drop)" if setting else ""
                raise ValueError(f"{self._place(origin, number)}: the {side} is empty; correct the data{other}")
        if bad and self.bad_rows == "error":
            other = f"; or leave out such rows (--{setting}.bad-rows drop)" if setting else ""
            raise ValueError(
                (f"{num_bad} bad rows, the first of them: " if num_bad > 1 else "") + "; ".join(bad) + other
            )
        if bad:
            warn_once(f"{num_bad} bad rows were left out, the first of them: {bad[0]}")
        if not found:
            raise ValueError(f"{source or target}: no {'pair of sentences' if source else 'text'} in it")


@dataclass(frozen=True, kw_only=True)
class FieldSource(TextSource):
    """Records with named fields. In a field name a dot descends into a nested field: `translation.en`."""

    path: str
    source_field: str | None = "source"
    """Field of the source sentences, `a.b` for a nested one; None: each record is a document."""
    target_field: str = "target"
    """Field of the target sentences, or of the documents; `a.b` for a nested one."""
    label_field: str | None = None
    """Field of the labels, strings or numbers; None: no labels."""

    @property
    def _origins(self) -> tuple[str | None, str]:
        return None if self.source_field is None else self.path, self.path

    def target_names(self) -> list[str]:
        return [self.target_field]

    def versions(self) -> list[str] | None:
        return file_versions(self.path)

    @property
    def _top_fields(self) -> set[str]:
        """The outermost names of the fields that are read."""
        fields = (self.source_field, self.target_field, self.label_field)
        return {field.split(".")[0] for field in fields if field is not None}

    def _pair(self, record: object, location: str) -> Pair | ValueError:
        """Returns the fields of a record, or the error with the location of a bad one."""
        try:
            source = "" if self.source_field is None else text_field(record, self.source_field, location)
            target = text_field(record, self.target_field, location)
            label = "" if self.label_field is None else label_field(record, self.label_field, location)
        except ValueError as error:
            return error
        return Pair(source, target, label)


def label_field(record: object, field: str, location: str) -> str:
    """Returns the label in a field: a string as it is, a number as JSON writes it. Raises: ValueError with the location."""
    value = _find(record, field, location)
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return json.dumps(value)
    return text_field(record, field, location)


def text_field(record: object, field: str, location: str) -> str:
    """Returns the string in a field of a record. Raises: ValueError with the location."""
    value = _find(record, field, location)
    if not isinstance(value, str):
        raise ValueError(f"{location}: field {field} holds {type(value).__name__} {str(value)[:60]!r}, not a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{location}: field {field} holds half a surrogate pair, which is no character") from None
    return value


def _find(record: object, field: str, location: str) -> object:
    """Returns the value of a field; dots descend into nested objects. Raises: ValueError with the location."""
    value = record
    for name in field.split("."):
        if not isinstance(value, dict) or name not in value:
            available = ", ".join(_field_names(record)) or "none: it is not an object with fields"
            raise ValueError(f"{location}: no field {field}; the fields are {available}")
        value = value[name]
    return value


def _field_names(record: object) -> Iterator[str]:
    """Yields the names of a record's fields, nested ones with dots."""
    if not isinstance(record, dict):
        return
    for name, value in record.items():
        nested = [f"{name}.{inner}" for inner in _field_names(value)]
        yield from nested or [str(name)]
