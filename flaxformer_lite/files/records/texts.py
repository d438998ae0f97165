"""Records of texts: plain texts, and texts with a class, several classes, or a number."""

import json
from dataclasses import dataclass
from typing import Literal

from flaxformer_lite.files.records.base import Field, Record, as_json_number, label_of, text_field
from flaxformer_lite.files.text.json_objects import field_value

YES, NO = ("1", "1.0", "true"), ("0", "0.0", "false")
"""The values of a column of one label, in lower case."""


@dataclass(frozen=True, kw_only=True)
class Pairs(Record):
    """Two texts, such as a sentence and its translation."""

    kind: Literal["pairs"] = "pairs"
    source: Field = "source"
    """Field of the source texts; `a.b` for a nested one. In a table a column: a number from 0, or a name in the header."""
    target: Field = "target"
    """Field of the target texts."""
    input: Field | None = None
    """Field of a text that belongs to the source, such as `input` beside `instruction`: it follows after an empty line, unless it
    is blank or null. None: no such text."""

    @property
    def texts(self) -> tuple[tuple[Field, ...], ...]:
        return ((self.source,) if self.input is None else (self.source, self.input)), (self.target,)


@dataclass(frozen=True, kw_only=True)
class Documents(Record):
    """A text without a source."""

    kind: Literal["documents"] = "documents"
    text: Field = "text"
    """Field of the texts; `a.b` for a nested one. In a table a column: a number from 0, or a name in the header."""

    names, published = ("text",), True


@dataclass(frozen=True, kw_only=True)
class Classes(Record):
    """A text or a pair of texts with a class, several classes, or a number."""

    kind: Literal["classes"] = "classes"
    source: Field | None = None
    """Field of texts that come before the others, for pairs; None: single texts."""
    text: Field = "text"
    """Field of the texts; `a.b` for a nested one. In a table a column: a number from 0, or a name in the header."""
    label: Field | tuple[str, ...] = "label"
    """Field of the labels: a text or a number, or a list of them for any number of labels a text. Several fields: each is a label
    by its name, which the texts with 1 or true in it have, and those with 0 or false have not."""
    separator: str | None = None
    """The sign between the labels of a text, such as "," or "|", for any number of them; an empty text has none. None: a text is
    one label."""

    reads, names, published = "classes", ("source", "text"), True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.separator == "" or self.label == () or (isinstance(self.label, tuple) and self.separator):
            raise ValueError(
                f"record.separator is {self.separator!r} and record.label {self.label!r}: give a sign and one field of labels, or "
                "leave the separator out"
            )

    def label_in(self, row: object) -> str:
        if isinstance(self.label, tuple):
            labels = [name for name in self.label if is_set(row, name)]
        elif self.separator is None:
            label = label_of(row, self.label)
            if not label.strip():
                raise ValueError(f"field {self.label} is empty: give the row a label, or take it out")
            return label
        else:
            labels = [name.strip() for name in text_field(row, self.label).split(self.separator) if name.strip()]
        return json.dumps(labels, ensure_ascii=False)


def is_set(row: object, name: str) -> bool:
    """Returns whether a text has the label of a field. Raises: ValueError if the field has neither 0 nor 1."""
    value = str(as_json_number(field_value(row, name)))
    if value.strip().lower() not in YES + NO:
        raise ValueError(f"field {name} holds {value[:60]!r}: a field of one label must have 0 or 1, false or true")
    return value.strip().lower() in YES
