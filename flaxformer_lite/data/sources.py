"""Where pairs of sentences, documents and labelled texts come from: files, the Hugging Face hub, or a generator.

A source is a frozen dataclass; `source.open()` gives a sequence of `Pair`. Where it is a setting, `open` takes the
setting's path, for example "data.eval", which messages then name. To add a source: a dataclass with `kind` and `open`,
and its name in the union at the bottom.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Discriminator

from flaxformer_lite.bounds import NonNegativeInt, check_bounds
from flaxformer_lite.data.corpora import PlainText, PythonDocs
from flaxformer_lite.data.dates import Dates
from flaxformer_lite.data.records import Pair
from flaxformer_lite.text.files import matching_files, read_lines

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True, kw_only=True)
class _TextSource:
    """What all sources of written text share: a rule for pairs with an empty side."""

    kind: str
    empty_lines: Literal["error", "drop"] = "error"
    """What happens to a pair with an empty or all-white side: error stops and says where it is, drop leaves it out."""

    def _checked(
        self, pairs: Iterable[Pair], source_place: str | None, target_place: str, setting: str | None
    ) -> list[Pair]:
        """The pairs, with the rule for empty lines applied; messages call the sides by their places, documents have no source."""
        kept = []
        for number, pair in enumerate(pairs, 1):
            no_source = source_place is not None and not pair.source.strip()
            if not no_source and pair.target.strip():
                kept.append(pair)
            elif self.empty_lines == "error":
                place, side = (source_place, "source") if no_source else (target_place, "target")
                side = "text" if source_place is None else side
                other = f", or leave such pairs out (--{setting}.empty-lines drop)" if setting else ""
                raise ValueError(f"{place}:{number}: the {side} is empty; mend the data{other}")
        if not kept:
            raise ValueError(
                f"{source_place or target_place}: no {'pair of sentences' if source_place else 'text'} in it"
            )
        return kept


@dataclass(frozen=True, kw_only=True)
class ParallelText(_TextSource):
    """Two text files, plain or gzipped: line n of one belongs to line n of the other."""

    kind: Literal["parallel_text"] = "parallel_text"
    source: str
    """File with the sentences to read, one a line, UTF-8."""
    target: str
    """File with the sentences to write, one a line, UTF-8."""

    def open(self, setting: str | None = None) -> Sequence[Pair]:
        """All pairs, in the order of the files. Raises: ValueError for anything wrong with the files."""
        sources, targets = _some_lines(self.source), _some_lines(self.target)
        if len(sources) != len(targets):
            counts = f"{len(sources)} lines in {self.source} but {len(targets)} in {self.target}"
            raise ValueError(f"{counts}: parallel files need a line for a line")
        return self._checked(map(Pair, sources, targets), self.source, self.target, setting)


@dataclass(frozen=True, kw_only=True)
class TSV(_TextSource):
    """A text file, plain or gzipped, with columns between tabs; no quotes, no escapes, no header."""

    kind: Literal["tsv"] = "tsv"
    path: str
    """The file, UTF-8."""
    source_column: NonNegativeInt | None = 0
    """Column of the sentences to read, counted from 0; None: there is none, and each row is a document."""
    target_column: NonNegativeInt = 1
    """Column of the sentences to write, or of the documents, counted from 0."""
    label_column: NonNegativeInt | None = None
    """Column of the labels, counted from 0; None: there are none."""

    def __post_init__(self) -> None:
        check_bounds(self, "tsv")
        taken: dict[int, str] = {}
        for name in ("source_column", "target_column", "label_column"):
            column = getattr(self, name)
            if column is None:
                continue
            if column in taken:
                raise ValueError(f"tsv.{taken[column]} and tsv.{name} are both {column}: choose two columns")
            taken[column] = name

    def open(self, setting: str | None = None) -> Sequence[Pair]:
        """All pairs, in the order of the file. Raises: ValueError for anything wrong with the file."""
        return self._checked(self._pairs(), None if self.source_column is None else self.path, self.path, setting)

    def _pairs(self) -> Iterator[Pair]:
        columns_read = (self.source_column, self.target_column, self.label_column)
        needed = max(column for column in columns_read if column is not None)
        for number, line in enumerate(_some_lines(self.path), 1):
            columns = line.split("\t") if line.strip() else [""] * (needed + 1)
            if len(columns) <= needed:
                rule = f"column {needed}, counted from 0, is asked for"
                raise ValueError(f"{self.path}:{number}: {len(columns)} column(s) between tabs, but {rule}")
            yield Pair(*("" if column is None else columns[column] for column in columns_read))


@dataclass(frozen=True, kw_only=True)
class JSONLines(_TextSource):
    """A text file, plain or gzipped, with one JSON object a line."""

    kind: Literal["json_lines"] = "json_lines"
    path: str
    """The file, UTF-8."""
    source_field: str | None = "source"
    """Field of the sentences to read; a dot descends into an object: `translation.en`. None: each line is a document."""
    target_field: str = "target"
    """Field of the sentences to write, or of the documents; a dot descends into an object: `translation.de`."""
    label_field: str | None = None
    """Field of the labels, strings or numbers; None: there are none."""

    def open(self, setting: str | None = None) -> Sequence[Pair]:
        """All pairs, in the order of the file. Raises: ValueError for anything wrong with the file."""
        return self._checked(self._pairs(), None if self.source_field is None else self.path, self.path, setting)

    def _pairs(self) -> Iterator[Pair]:
        for number, line in enumerate(_some_lines(self.path), 1):
            place = f"{self.path}:{number}"
            if not line.strip():
                yield Pair("", "")
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{place}: not JSON ({error}); each line must be one JSON object") from None
            yield _pair(record, self, place)


@dataclass(frozen=True, kw_only=True)
class Parquet(_TextSource):
    """Parquet files, read by pyarrow, which comes with the extra `hub`."""

    kind: Literal["parquet"] = "parquet"
    path: str
    """The file, or several by a pattern, `data/train-*.parquet`; they come in the order of their names."""
    source_field: str | None = "source"
    """Field of the sentences to read; a dot descends into a nested field. None: each row is a document."""
    target_field: str = "target"
    """Field of the sentences to write, or of the documents; a dot descends into a nested field."""
    label_field: str | None = None
    """Field of the labels, strings or numbers; None: there are none."""

    def open(self, setting: str | None = None) -> Sequence[Pair]:
        """All pairs, in the order of the files. Raises: ValueError for anything wrong with the files."""
        return self._checked(self._pairs(), None if self.source_field is None else self.path, self.path, setting)

    def _pairs(self) -> Iterator[Pair]:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise ValueError(
                f'{self.path}: a Parquet file needs the pyarrow package: pip install "flaxformer_lite[hub]"'
            ) from None
        for path in matching_files(self.path):
            try:
                with pyarrow.parquet.ParquetFile(path) as file:
                    found = file.schema_arrow.names
                    columns = [name for name in found if name in _tops(self)]
                    rows = file.read(columns=columns or found).to_pylist()
            except (OSError, ValueError, pyarrow.ArrowException) as error:
                raise ValueError(f"{path}: cannot be read as Parquet ({' '.join(str(error).split())})") from None
            for number, record in enumerate(rows, 1):
                yield _pair(record, self, f"{path}:{number}")


@dataclass(frozen=True, kw_only=True)
class HubDataset(_TextSource):
    """A Hugging Face dataset, by its name on the hub or from a local folder; needs the extra `hub`."""

    kind: Literal["hub_dataset"] = "hub_dataset"
    path: str
    """Name on the hub (`bentrevett/multi30k`), a folder of data files, or a folder written by `save_to_disk`."""
    name: str | None = None
    """The dataset's configuration, where it has several; none for its default."""
    split: str = "train"
    """Which part of the dataset; on the hub also a slice such as `train[:1000]`."""
    source_field: str | None = "translation.en"
    """Field of the sentences to read; a dot descends into a nested field. None: each record is a document."""
    target_field: str = "translation.de"
    """Field of the sentences to write, or of the documents; a dot descends into a nested field."""
    label_field: str | None = None
    """Field of the labels: strings, numbers, or the dataset's classes, which are called by their names. None: there are none."""

    def open(self, setting: str | None = None) -> Sequence[Pair]:
        """All pairs, in the order of the dataset. Raises: ValueError if it cannot be loaded or lacks the fields."""
        place = f"{self.path} ({self.split})"
        return self._checked(self._pairs(), None if self.source_field is None else place, place, setting)

    def _pairs(self) -> Iterator[Pair]:
        dataset = self._load()
        if _tops(self) <= set(dataset.column_names):
            dataset = dataset.select_columns(sorted(_tops(self)))  # so that pictures and sound are never decoded
        names: list[str] = getattr(dataset.features.get(self.label_field), "names", [])
        for number, record in enumerate(dataset, 1):
            pair = _pair(record, self, f"{self.path} ({self.split}):{number}")
            named = names and pair.label.isdecimal()  # -1 stands for no label
            yield pair._replace(label=names[int(pair.label)]) if named else pair

    def _load(self) -> "datasets.Dataset":
        try:
            import datasets
        except ImportError:
            needed = 'needs the datasets package: pip install "flaxformer_lite[hub]"'
            raise ValueError(f"{self.path}: a Hugging Face dataset {needed}") from None
        folder = Path(self.path)
        try:
            if (folder / "dataset_dict.json").is_file():
                return self._part(datasets.load_from_disk(self.path))
            if (folder / "state.json").is_file():
                return self._part({"train": datasets.load_from_disk(self.path)})
            return datasets.load_dataset(self.path, self.name, split=self.split)
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            reason = " ".join(str(error.__cause__ or error).split())
            raise ValueError(f"{self.path} ({self.split}): cannot load this dataset: {reason}") from error

    def _part(self, parts: "dict[str, datasets.Dataset]") -> "datasets.Dataset":
        """The split of a saved dataset; one saved without splits counts as `train`. Raises: ValueError."""
        if self.name is not None:
            raise ValueError(f"a saved dataset has no configurations, so name {self.name!r} must go")
        if self.split not in parts:
            raise ValueError(f"no split {self.split!r}; it has {', '.join(parts)}")
        return parts[self.split]


def _some_lines(path: str) -> list[str]:
    """The lines of a file that has any. Raises: ValueError."""
    lines = read_lines(path)
    if not lines:
        raise ValueError(f"{path}: the file is empty")
    return lines


def _pair(record: object, source: JSONLines | Parquet | HubDataset, place: str) -> Pair:
    """The fields of a record that the source names. Raises: ValueError, naming the place."""

    def said(field: str | None, read: Callable[[object, str, str], str]) -> str:
        return "" if field is None else read(record, field, place)

    return Pair(said(source.source_field, _text), said(source.target_field, _text), said(source.label_field, _label))


def _tops(source: Parquet | HubDataset) -> set[str]:
    """The outermost names of the fields that the source names."""
    fields = (source.source_field, source.target_field, source.label_field)
    return {field.split(".")[0] for field in fields if field is not None}


def _label(record: object, field: str, place: str) -> str:
    """The label in a field: a string as it is, a number as JSON writes it. Raises: ValueError, naming the place."""
    value = _field(record, field, place)
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return json.dumps(value)
    return _text(record, field, place)


def _text(record: object, field: str, place: str) -> str:
    """The string in a field of a record. Raises: ValueError, naming the place."""
    value = _field(record, field, place)
    if not isinstance(value, str):
        found = f"{type(value).__name__} {str(value)[:60]!r}"
        raise ValueError(f"{place}: field {field} holds {found}, not a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{place}: field {field} holds half a surrogate pair, which is no character") from None
    return value


def _field(record: object, field: str, place: str) -> object:
    """What is in a field of a record; dots descend into nested objects. Raises: ValueError, naming the place."""
    value = record
    for name in field.split("."):
        if not isinstance(value, dict) or name not in value:
            available = ", ".join(_field_names(record)) or "none: it is not an object with fields"
            raise ValueError(f"{place}: no field {field}; the fields are {available}")
        value = value[name]
    return value


def _field_names(record: object) -> Iterator[str]:
    """The names of a record's fields, those of nested objects with dots."""
    if not isinstance(record, dict):
        return
    for name, value in record.items():
        nested = [f"{name}.{inner}" for inner in _field_names(value)]
        yield from nested or [str(name)]


Sources = ParallelText | TSV | JSONLines | Parquet | HubDataset | PlainText | Dates | PythonDocs
Source = Annotated[Sources, Discriminator("kind")]
OptionalSource = Annotated[Sources | None, Discriminator("kind")]
