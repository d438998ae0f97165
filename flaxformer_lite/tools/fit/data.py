"""The data of `fit` by its name: files, data sets of the hub, folders of searches; and rows from Python, which become a file."""

import dataclasses
import glob
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from flaxformer_lite.base.remote_files import is_url
from flaxformer_lite.files.data import CSV, TSV, CoNLL, HubDataset
from flaxformer_lite.files.data.config import FILE_SOURCES
from flaxformer_lite.files.data.hub import with_class_names
from flaxformer_lite.files.data.mixture import MixedKinds
from flaxformer_lite.files.data.text_files import read_files
from flaxformer_lite.files.records import Record
from flaxformer_lite.files.records.base import BLANK
from flaxformer_lite.files.records.words import spelled_list
from flaxformer_lite.files.text.files import file_versions
from flaxformer_lite.files.text.tables import CONTAINERS, container, open_table
from flaxformer_lite.tools.search.folder import CORPUS, file_of, judgements_of, read_search_folder

FIRST_ROWS = 100
"""Rows that decide on the names and kinds of the fields."""
HUB_NAME = re.compile(r"(.+?)(?::([\w.-]+))?(?:@(.+))?")
"""NAME[:CONFIG][@SPLIT]."""
RowsOrName = str | Path | Iterable[Mapping[str, Any]]
"""A file or a data set by its name; or rows: dicts, a table of pandas, a `datasets.Dataset`."""
JUDGED = {"train": "train", "eval": "dev", "test": "test"}
"""The judgements in the folder of a search that are rows of each part of the data."""


@dataclass(frozen=True, kw_only=True)
class WholeRow(Record):
    """A row with all of its fields, before it is known what the fields are."""

    kind: Literal["whole_row"] = "whole_row"

    def asked(self, row: object) -> Any:
        return row


class OpenedData(NamedTuple):
    """Some data: its first rows, and how all of it is read."""

    rows: Sequence[Mapping[str, Any]]
    source: Callable[[Any], MixedKinds]
    """Returns the source that reads such records."""
    versions: list[str] | None


def open_data(name: str, columns: Sequence[str] = ()) -> OpenedData:
    """Returns the data of a name.

    columns: fields that were asked for. Numbers are numbers of columns: a table is then read without a header.

    Raises: ValueError for a file of no kind that is known, and for one that cannot be read.
    """
    kind: Any = FILE_SOURCES.get(container(name))
    is_hub = not (container(name) or glob.has_magic(name) or Path(name).exists())
    name = name if is_hub or is_url(name) else os.path.abspath(name)
    if kind is TSV:
        return opened_table(name, header=not (columns and all(map(str.isdecimal, columns))))
    if kind is CoNLL:
        first = itertools.islice(CoNLL(path=name).stream(), 1)
        rows = [{"tokens": [pair.target], "labels": ["O"]} for pair in first]
        return OpenedData(rows, lambda record: CoNLL(path=name), file_versions(name))
    if kind is not None:
        return opened_by(lambda record: kind(path=name, record=record))
    if not (is_hub or Path(name).is_dir()):
        known = ", ".join(end for end, of_end in CONTAINERS.items() if of_end in FILE_SOURCES)
        raise ValueError(f"{name}: its name says no kind of data that `fit` reads: give one of {known}")
    given = HUB_NAME.fullmatch(name) if is_hub else None
    path, config, split = (name, None, None) if given is None else given.groups()
    try:
        return opened_by(lambda record: HubDataset(path=path, name=config, split=split or "train", record=record))
    except ValueError as error:
        if not is_hub:
            raise
        raise ValueError(f"there is no file {name} here, and as a data set of the hub: {error}") from None


def opened_by(source: Callable[[Any], Any]) -> OpenedData:
    """Returns the data of a source of records."""
    reading = source(WholeRow())
    rows = [row for _, _, row in itertools.islice(reading.asked(), FIRST_ROWS) if row is not BLANK]
    for number, row in enumerate(rows, 1):
        if isinstance(row, ValueError):
            raise row
        if not isinstance(row, dict):
            raise ValueError(
                f"{reading.path}: row {number} is {str(row)[:60]!r}: each row must be one object with fields"
            )
    return OpenedData(rows, source, reading.versions())


def opened_table(name: str, header: bool) -> OpenedData:
    """Returns the data of a table."""
    _, lines = next(read_files(name))
    table = open_table(lines, name, header=header)
    names = table.names or [str(number) for number in range(table.usual_width())]
    rows = [dict(zip(names, map(cell, cells), strict=False)) for _, cells in table.first]

    def source(record: Any) -> MixedKinds:
        record = record if header else by_number(record)
        if not table.form.quoted:
            return TSV(path=name, header=header, record=record)
        return CSV(path=name, header=header, delimiter=table.form.delimiter, record=record)

    return OpenedData(rows[:FIRST_ROWS], source, file_versions(name))


def cell(text: str) -> str | list[Any]:
    """Returns the list that a cell spells; another text as it is."""
    with suppress(ValueError):
        return list(spelled_list(text)) if text[:1] + text[-1:] == "[]" else text
    return text


def by_number(record: Any) -> object:
    """Returns a record of columns with names like 0 and 1 as one of columns by number."""
    numbers = {name: int(value) for name, value in vars(record).items() if str(value).isdecimal()}
    return dataclasses.replace(record, **numbers)


def as_json_lines(rows: Iterable[Mapping[str, object]]) -> str:
    """Returns rows from Python as JSON lines.

    Raises: ValueError for anything but dicts, a table of pandas or a `datasets.Dataset`.
    """
    table: Any = rows
    features = table.features.to_dict() if getattr(table, "features", None) else {}
    lines = []
    for number, row in enumerate(table.to_dict("records") if hasattr(table, "iloc") else table, 1):
        if not isinstance(row, Mapping):
            raise ValueError(
                f"row {number} is {str(row)[:60]!r}: rows must be dicts, a table of pandas or a datasets.Dataset"
            )
        filled = {
            name: None if not hasattr(value, "__len__") and value != value else value for name, value in row.items()
        }
        lines.append(json.dumps(with_class_names(filled, features), ensure_ascii=False, default=plain_value) + "\n")
    return "".join(lines)


def plain_value(value: object) -> object:
    """Returns an array as a list, and any other value that JSON lacks, such as a date, as a text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def search_rows(folder: str) -> dict[str, list[dict[str, Any]]]:
    """Returns the rows of the folder of a search: a query with its documents, those of a gain of 0 as negatives; {} if the
    folder has no corpus.

    Raises: ValueError for a folder without judgements to learn from.
    """
    if not file_of(folder, CORPUS).is_file():
        return {}
    needed = judgements_of(folder, JUDGED["train"])
    if not needed.is_file():
        raise ValueError(
            f"{needed}: no such file: it must have the judgements that the model learns from, as qrels/test.tsv has"
        )
    rows = dict[str, list[dict[str, Any]]]()
    for name, split in JUDGED.items():
        if judgements_of(folder, split).is_file():
            read = read_search_folder(folder, split)
            rows[name] = []
            for query, judged in read.judgements.items():
                if not any(gain > 0 for gain in judged.values()):
                    continue
                gains = sorted(judged.items())
                positives = [read.corpus[document] for document, gain in gains if gain > 0]
                negatives = [read.corpus[document] for document, gain in gains if gain <= 0]
                rows[name].append({"query": read.queries[query], "positive": positives, "negative": negatives})
    return rows
