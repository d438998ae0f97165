"""The contract of a record: what a row of a source is, and how tokenizers read it; the values of the fields of a row."""

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from flaxformer_lite.core.base.bounds import Checked
from flaxformer_lite.core.data import Lengths, Pair
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.files.chats.translation_prompt import TranslationPrompt
from flaxformer_lite.files.text.files import in_utf8
from flaxformer_lite.files.text.json_objects import field_value

Field = int | str
"""The name of a field, `a.b` for a nested one; or of a column in the header, or the number of a column, from 0."""
OPTIONS = ("kind", "separator")
"""The settings of a record that name no field."""
FileRow = tuple[str, int, Any]
"""A file, the number of a row, from 1, and the row: its fields by their names, `BLANK`, or the error of a bad one."""
BLANK = Pair("", "")
"""A row without text."""


class Reading(NamedTuple):
    """The settings with which a run reads records."""

    objective: Any
    """An objective that `reads` the records: it has what its kind of objectives has."""
    folder: Path
    """The folder of the run."""
    longest: Lengths
    translation: TranslationPrompt | None = None
    whole: bool = False
    """As `LabelTokenizers.whole`."""


@dataclass(frozen=True, kw_only=True)
class Record(Checked, at="record"):
    """The fields of a row that hold the parts of a record: a frozen dataclass of their names, with a `Literal` `kind`."""

    kind: str
    reads: ClassVar[str] = "texts"
    """The name of what is read, as `BaseObjective.reads` has it: records of several kinds may be read alike."""
    published: ClassVar[bool] = False
    """Whether the names by default are usual in published files, so that a run without data reads such files."""
    names: ClassVar[tuple[str, ...]] = ()
    """The settings that name texts of a row, which commands ask."""
    beside: ClassVar[tuple[str, ...]] = ()
    """Optional fields of a row, beside those of the record's settings."""

    shares_target: ClassVar[bool] = False
    """Whether several rows have the same target, as questions have one text: they are held out together."""

    @property
    def fields(self) -> dict[str, Field]:
        """The fields that are read, by the settings that name them."""
        fields = dict[str, Field]()
        for name in (setting.name for setting in dataclasses.fields(self) if setting.name not in OPTIONS):
            value = getattr(self, name)
            if isinstance(value, tuple):
                fields |= {f"{name}.{i}": field for i, field in enumerate(value)}
            elif value is not None:
                fields[name] = value
        return fields

    @property
    def texts(self) -> tuple[tuple[Field, ...], ...]:
        """For each text of a row its field, and that of a text that follows it, if any; () if a row has no such texts."""
        return tuple((field,) for name, field in self.fields.items() if name in self.names)

    @property
    def has_source(self) -> bool:
        """Whether the pairs have a source, which must not be blank."""
        return len(self.texts) == 2

    def rows(self, rows: Iterator[FileRow]) -> Iterator[FileRow]:
        """Returns the rows of files, each a record."""
        return rows

    def pair(self, row: object) -> Pair:
        """Returns a row as a pair. Raises: ValueError for what it lacks or has wrong."""
        source, target = ["", *self.asked(row)][-2:]
        return Pair(source, target, self.label_in(row))

    def asked(self, row: object) -> tuple[Any, ...]:
        """Returns what a command asks of a row: its texts, without labels. Raises: ValueError for what it lacks or has wrong."""
        return tuple(text_at(row, fields) for fields in self.texts)

    def label_in(self, row: object) -> str:
        """Returns the label of a row. Raises: ValueError for a wrong one."""
        return ""

    @classmethod
    def reader(cls, tokenizers: Tokenizers, reading: Reading) -> Tokenizers:
        """Returns the tokenizers that read such pairs as the objective needs them. Raises: ValueError if they cannot."""
        return tokenizers

    @classmethod
    def learned(cls, objective: object, pairs: Iterable[Pair]) -> Iterable[Pair]:
        """Returns the texts that a tokenizer is trained on, in one pass or several."""
        return pairs


def text_at(row: object, fields: tuple[Field, ...]) -> str:
    """Returns the text of a row in a field, and after it that of a further field."""
    return with_input(*(text_field(row, field) for field in fields))


def with_input(text: str, more: str = "") -> str:
    return f"{text}\n\n{more}" if more.strip() else text


def text_field(row: object, field: Field) -> str:
    """Returns the string in a field of a row, an empty one for null. Raises: ValueError for anything else."""
    value = field_value(row, field)
    return "" if value is None else as_text(value, field)


def label_of(row: object, field: Field) -> str:
    """Returns the label in a field of a row, a list as JSON. Raises: ValueError for anything but strings and numbers."""
    value = field_value(row, field)
    if not isinstance(value, list):
        return as_text(as_json_number(value), field)
    return json.dumps([as_text(as_json_number(one), field) for one in value], ensure_ascii=False)


def as_json_number(value: object) -> object:
    """Returns a number as JSON writes it; anything else as it is."""
    return json.dumps(value) if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)) else value


def as_text(value: object, field: Field) -> str:
    """Returns the string that a field holds. Raises: ValueError for anything else, and for half a surrogate pair."""
    if not isinstance(value, str):
        raise ValueError(f"field {field} holds {type(value).__name__} {str(value)[:60]!r}: it must be a string")
    return in_utf8(value, f"field {field}")
