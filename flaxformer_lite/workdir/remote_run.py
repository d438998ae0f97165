"""Run folders at URLs, of copies and of mirrors of older releases: reading one.

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

from filelock import FileLock

from flaxformer_lite.base.atomic_files import atomic_write
from flaxformer_lite.base.console import Progress
from flaxformer_lite.base.remote_files import cache_folder, is_store, is_url, open_filesystem, reading
from flaxformer_lite.workdir.bucket import LEDGER, RunBucket
from flaxformer_lite.workdir.folder import RunFolder
from flaxformer_lite.workdir.manifest import DIGESTS, META, step_of, steps_in

MARKER = f"meta/{META}"
"""The file of a checkpoint that is written last."""

FETCH_ATTEMPTS = 5
"""Times that a copy starts again because the run's writer has deleted a checkpoint meanwhile."""


def steps_of(names: Iterable[str]) -> set[int]:
    """Returns the steps of all checkpoints that have any of the files."""
    return {step for step in map(step_of, names) if step is not None}


def complete_steps(names: Iterable[str]) -> list[int]:
    """Returns the steps of the complete checkpoints among the files, ascending."""
    return sorted(steps_of(name for name in names if name.endswith(f"/{MARKER}")))


class RemoteRun:
    """A run folder at a path or URL. Its methods raise whatever the file system raises.

    On a local file system (a mounted drive), files are written under a temporary name and renamed; object stores write
    each file whole.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.filesystem, self.root = open_filesystem(url)
        self.is_local = self.filesystem.protocol == ("file", "local")

    def files(self) -> dict[str, int]:
        """Returns the name of every file, relative to the run folder, and its size; none if there is no folder."""
        if self.is_local:
            return self._local_files()
        self.filesystem.invalidate_cache()
        listing = self.filesystem.find(self.root, detail=True)
        return {path[len(self.root) + 1 :]: info["size"] for path, info in listing.items()}

    def _local_files(self) -> dict[str, int]:
        """Returns the files of a local folder. The listing of fsspec hides errors, so a missing drive would look empty.

        A file that another process renames or deletes meanwhile is left out.
        """

        def fail(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise error

        sizes = {}
        for folder, _, names in os.walk(self.root, onerror=fail):
            for path in (Path(folder, name) for name in names):
                with contextlib.suppress(FileNotFoundError):
                    sizes[path.relative_to(self.root).as_posix()] = path.stat().st_size
        return sizes

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

    def has_same_state(self, here: Path, there: str) -> bool:
        """Returns whether a local checkpoint has the same digests as the complete one `there`."""
        digests = here / "state" / DIGESTS
        return digests.is_file() and digests.read_bytes() == self.read(f"{there}/state/{DIGESTS}")

    def fetch(self, folder: Path, progress: Progress) -> list[int]:
        """Brings a local folder to the state of this run, except for config.json; returns the complete steps.

        The newest checkpoint comes last: once it is here, everything is.
        """
        for _ in range(FETCH_ATTEMPTS - 1):
            with contextlib.suppress(FileNotFoundError):
                return self._fetch(folder, progress)
        return self._fetch(folder, progress)

    def _fetch(self, folder: Path, progress: Progress) -> list[int]:
        files = {name: size for name, size in sorted(self.files().items()) if "/." not in f"/{name}"}

        def get(name: str, path: Path) -> None:
            progress.update(f"copying {name} from {self.url}")
            self.get(name, path)

        for name, size in files.items():
            here = folder / name
            if name == "config.json" or name.startswith("checkpoints/"):
                continue
            # The files in folders, samples and hypotheses, are written once.
            if "/" not in name or not here.is_file() or here.stat().st_size != size:
                get(name, here)
        steps = complete_steps(files)
        for step in steps:
            here, there = folder / "checkpoints" / str(step), f"checkpoints/{step}"
            if self.has_same_state(here, there):
                self.get(f"{there}/{MARKER}", here / MARKER)  # an evaluation may have been added
                continue
            shutil.rmtree(here, ignore_errors=True)
            with atomic_write(here) as unfinished:
                for name in (name for name in files if step_of(name) == step):
                    get(name, unfinished / name.removeprefix(f"{there}/"))
        return steps


def open_run(path: str | Path) -> RunFolder:
    """Returns a run folder for reading: a local one; or for a URL a local copy, without the arrays if the run lives in a bucket.

    The copy lies in `~/.cache/flaxformer_lite` (or below `XDG_CACHE_HOME`). Only what has changed is copied again, by one process
    at a time.

    Raises: ValueError if the URL holds no run, or cannot be read.
    """
    if not (isinstance(path, str) and is_url(path)):
        is_of_bucket = Path(path, LEDGER).is_file()
        return open_run(f"file://{Path(path).absolute()}") if is_of_bucket else RunFolder(path)
    copy = cache_folder(path)
    copy.parent.mkdir(parents=True, exist_ok=True)
    if is_store(path) and (bucket := RunBucket(path, copy)).has_run():
        with FileLock(f"{copy}.lock"), Progress() as progress:
            progress.update(f"copying the small files of {path}")
            bucket.pull()
        return RunFolder(path, bucket=bucket)
    remote = RemoteRun(path)
    with reading(path), Progress() as progress, FileLock(f"{copy}.lock"):
        is_run = "config.json" in remote.files()
        if is_run:
            steps = remote.fetch(copy, progress)
            remote.get("config.json", copy / "config.json")
            drop_other_checkpoints(copy / "checkpoints", steps)
    if not is_run:
        raise ValueError(f"{path} holds no run (there is no config.json in it): give the URL of a run folder")
    return RunFolder(copy)


def drop_other_checkpoints(folder: Path, kept: list[int]) -> None:
    for step in set(steps_in(folder)) - set(kept):
        shutil.rmtree(folder / str(step), ignore_errors=True)
