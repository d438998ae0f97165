"""Run folders at paths and URLs, file by file.

A checkpoint at a URL is *complete* once its MARKER exists: the writer creates it last and deletes it first, because most of
these file systems cannot rename a folder in one step. So a reader finds a complete state of the run at any instant, an older or a
newer one.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from flaxformer_lite.base.atomic_files import atomic_write
from flaxformer_lite.base.remote_files import open_filesystem
from flaxformer_lite.workdir.manifest import META, step_of

MARKER = f"meta/{META}"
"""The file of a checkpoint that is written last."""


def complete_steps(names: Iterable[str]) -> list[int]:
    """Returns the steps of the complete checkpoints among the files, ascending."""
    steps = {step_of(name) for name in names if name.endswith(f"/{MARKER}")}
    return sorted(step for step in steps if step is not None)


class RemoteRun:
    """A run folder at a path or URL. Its methods raise whatever the file system raises.

    On a local file system (a mounted drive), files are written under a temporary name and renamed; object stores write
    each file whole.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.filesystem, self.root = open_filesystem(url)
        self.is_local = self.filesystem.protocol == ("file", "local")

    def files(self) -> set[str]:
        """Returns the name of every file, relative to the run folder; none if there is no folder."""
        if self.is_local:
            return self._local_files()
        self.filesystem.invalidate_cache()
        return {path[len(self.root) + 1 :] for path in self.filesystem.find(self.root)}

    def _local_files(self) -> set[str]:
        """Returns the files of a local folder. The listing of fsspec hides errors, so a missing drive would look empty.

        A file that another process renames or deletes meanwhile is left out.
        """

        def fail(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise error

        files = set()
        for folder, _, names in os.walk(self.root, onerror=fail):
            for path in (Path(folder, name) for name in names):
                with contextlib.suppress(FileNotFoundError):
                    path.stat()
                    files.add(path.relative_to(self.root).as_posix())
        return files

    def read(self, name: str) -> bytes:
        return self.filesystem.cat_file(f"{self.root}/{name}")

    def get(self, name: str, path: Path) -> None:
        """Copies a file here, complete or not at all."""
        with atomic_write(path) as unfinished:
            self.filesystem.get_file(f"{self.root}/{name}", str(unfinished))

    def put(self, path: Path, name: str) -> None:
        """Copies a file there, complete or not at all."""
        if self.is_local:
            with atomic_write(Path(self.root, name)) as unfinished:
                shutil.copyfile(path, unfinished)
        else:
            self.filesystem.put_file(str(path), f"{self.root}/{name}")

    def write(self, name: str, content: bytes) -> None:
        """Writes a file, complete or not at all."""
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            self.put(Path(file.name), name)

    def delete(self, names: Iterable[str]) -> None:
        """Deletes files, in this order, and folders that this leaves empty."""
        for name in names:
            self.filesystem.rm_file(f"{self.root}/{name}")
            for folder in Path(self.root, name).parents[: name.count("/")] if self.is_local else ():
                with contextlib.suppress(OSError):  # it is not empty
                    folder.rmdir()
