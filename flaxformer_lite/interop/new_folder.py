"""A folder for another system: it appears complete or not at all."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flaxformer_lite.base.atomic_files import atomic_write, require_absent


@contextmanager
def new_folder(output: Path, documents: Mapping[str, Any]) -> Iterator[Path]:
    """Yields the unfinished folder, with these documents in it by file name, texts or JSON; it gets its own name at the end.

    Raises: ValueError where the folder exists or cannot be made.
    """
    require_absent(output)
    with atomic_write(output) as unfinished:
        unfinished.mkdir()
        for name, document in documents.items():
            (unfinished / name).parent.mkdir(exist_ok=True)
            if not isinstance(document, str):
                document = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
            (unfinished / name).write_text(document, encoding="utf-8")
        yield unfinished
