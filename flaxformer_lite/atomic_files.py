"""Files and folders that come to be whole, in a place of their own, or not at all."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


def require_absent(path: Path, kind: str = "folder") -> None:
    """Raises: ValueError where something is there already, or nothing can be made there."""
    if os.path.lexists(path):
        raise ValueError(f"{path} exists already: give a {kind} that does not")
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir():
        raise ValueError(f"{path} cannot be made: {parent} is no folder")
    if not os.access(parent, os.W_OK):
        raise ValueError(f"{path} cannot be made: the folder {parent} may not be written to")


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Where to write what is to be at `path`, a file or a folder: at the end it takes its place there.

    Folders above it are made if need be. Nothing is left of what fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        if unfinished.is_dir():
            shutil.rmtree(unfinished, ignore_errors=True)
        else:
            unfinished.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Writes the file entirely or not at all."""
    with atomic_write(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
