"""`.state.json`: the marks of a run folder, which no copy has.

trained    true once a process that trains has begun or ended with a checkpoint: an empty `checkpoints/` is then not mounted
"""

import json
from pathlib import Path
from typing import Any

from flaxformer_lite.base.atomic_files import write_whole

STATE = ".state.json"


def marks(folder: Path) -> dict[str, Any]:
    """Returns the marks of a run folder; empty without a readable file of marks."""
    try:
        read = json.loads((folder / STATE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def mark(folder: Path, **changes: object) -> None:
    """Sets marks of a run folder, atomically; writes nothing if they have these values already."""
    before = marks(folder)
    if before != before | changes:
        write_whole(folder / STATE, json.dumps(before | changes))
