"""Files and folders that appear complete, or not at all."""

import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path


def require_absent(path: Path, kind: str = "folder") -> None:
    """Raises: ValueError if the path exists already, or cannot be created."""
    if os.path.lexists(path):
        raise ValueError(f"{path} exists already: give a {kind} that does not exist")
    require_writable(path)


def require_local(path: Path) -> None:
    """Raises: ValueError for a path that was typed as a URL: a folder `gs:` would be made for it."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+(:/|::)", str(path)):
        url = (
            str(path).replace("file:/", "file:///", 1)
            if path.parts[0] == "file:"
            else str(path).replace(":/", "://", 1)
        )
        raise ValueError(f"{url} is a URL, and this is written to the local disk only: choose a local path")


def require_writable(path: Path) -> None:
    """Raises: ValueError if no file can be written there. Missing parent folders are no error: `atomic_write` creates them."""
    require_local(path)
    if path.is_dir():
        raise ValueError(f"{path} cannot be written: it is a folder")
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir():
        raise ValueError(f"{path} cannot be created: {parent} is no folder")
    if not os.access(parent, os.W_OK):
        raise ValueError(f"{path} cannot be created: the folder {parent} is not writable")


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yields a temporary path for a file or folder, which is moved to `path` at the end.

    Creates missing parent folders. Leaves nothing behind after an error.

    Raises: ValueError for a URL.
    """
    require_local(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.unfinished")  # hosts share process ids
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        if unfinished.is_dir():
            shutil.rmtree(unfinished, ignore_errors=True)
        else:
            unfinished.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Writes a text file completely, or not at all."""
    write_chunks(path, [text.encode()])


def write_json(path: Path, value: object) -> None:
    """Writes a file of JSON completely, or not at all."""
    write_whole(path, json.dumps(value, indent=2) + "\n")


def write_chunks(path: Path, chunks: Iterable[bytes]) -> None:
    """Writes a file completely, chunk by chunk, or not at all."""
    with atomic_write(path) as unfinished, open(unfinished, "wb") as file:
        file.writelines(chunks)
        file.flush()
        os.fsync(file.fileno())  # a power cut must not leave a whole name with half a file
