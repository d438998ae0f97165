"""JSON in files, objects in their lines, and the fields of these."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flaxformer_lite.core.base.mistake import known
from flaxformer_lite.files.text.files import in_utf8


def read_any_json(path: Path) -> object:
    """Returns the content of a JSON file; an empty object without the file. Raises: ValueError where it is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from None


def json_value(line: str) -> object:
    """Returns the value of a line. Raises: ValueError for a line that is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        what = f"not JSON ({error})"
        if isinstance(error, ValueError) and line.lstrip()[:1] in "[{" and line.rstrip()[-1:] in "[{,":
            what = "JSON that does not end in its line"
        raise ValueError(f"{what}; each line must be one JSON object") from None


def object_in(line: str) -> dict[str, object]:
    """Returns the JSON object in a line. Raises: ValueError for anything else, and for half a surrogate pair."""
    record = json_value(line)
    if not isinstance(record, dict):
        raise ValueError(f"{line[:60]!r} is no JSON object: write one in each line")
    in_utf8(json.dumps(record, ensure_ascii=False) if "\\u" in line else "", "a text")
    return record


def json_object(line: str, place: str) -> dict[str, object]:
    """Returns the JSON object in a line. Raises: Mistake, with the place, as `object_in`."""
    with known(file=place):
        return object_in(line)


def field_value(record: object, field: int | str) -> object:
    """Returns the value in a field of a record; None inside a null. Raises: ValueError if it has no such field.

    A dot in a name goes down into a nested field, unless the record has the whole name.
    """
    value: Any = record
    whole = isinstance(record, dict) and field in record
    for name in [field] if whole else str(field).split("."):
        if value is None and record is not None:
            return None
        if not isinstance(value, dict) or name not in value:
            available = ", ".join(_field_names(record)) or "none: it is not an object with fields"
            raise ValueError(f"no field {field}; the fields are {available}")
        value = value[name]
    return value


def _field_names(record: object) -> Iterator[str]:
    """Yields the names of a record's fields, nested ones with dots."""
    if isinstance(record, dict):
        for name, value in record.items():
            nested = [f"{name}.{inner}" for inner in _field_names(value)]
            yield from nested or [str(name)]
