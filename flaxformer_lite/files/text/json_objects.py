"""JSON objects in the lines of files."""

import json
from typing import Any

from flaxformer_lite.files.text.files import in_utf8


def json_object(line: str, place: str) -> dict[str, Any]:
    """Returns the JSON object in a line. Raises: ValueError with the place for anything else, and for half a surrogate pair."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: not JSON ({error}); each line must be one JSON object") from None
    if not isinstance(record, dict):
        raise ValueError(f"{place}: {line[:60]!r} is no JSON object: write one in each line")
    in_utf8(json.dumps(record, ensure_ascii=False) if "\\u" in line else "", f"{place}: a text")
    return record
