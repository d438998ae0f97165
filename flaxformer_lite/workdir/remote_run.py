"""A run folder on another file system: read it, copy it here, write its files.

The layout is that of `RunFolder`. A checkpoint is *complete* once its MARKER is there: the writer creates it last and deletes
it first, because most of these file systems cannot rename a folder in one step.
"""

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Container, Iterable
from pathlib import Path

from filelock import FileLock

from flaxformer_lite.base.atomic_files import atomic_write
from flaxformer_lite.base.console import Progress
from flaxformer_lite.base.remote_files import cache_root, is_url, open_filesystem, reading
from flaxformer_lite.workdir.digests import DIGESTS, META, steps_in
from flaxformer_lite.workdir.folder import RunFolder

MARKER = f"meta/{META}"
"""The file of a checkpoint that is written last."""

WRITER = ".written_by"
"""The file of a mirror with the path of the run folder that writes it; no part of the run."""

FETCH_ATTEMPTS = 5
"""Times that a copy starts again because the run's writer has deleted a checkpoint meanwhile."""

ShowCallback = Callable[[str], None]


def step_of(name: str) -> int | None:
    """Returns the step of the checkpoint that a file belongs to; None if it belongs to none."""
    found = re.match(r"checkpoints/(\d+)/", name)
    return None if found is None else int(found[1])


def complete_steps(names: Iterable[str]) -> list[int]:
    """Returns the steps of the complete checkpoints among the files, ascending."""
    return sorted(int(found[1]) for name in names if (found := re.fullmatch(rf"checkpoints/(\d+)/{MARKER}", name)))


class RemoteRun:
    """A run folder at a path or URL. Its methods raise whatever the file system raises.

    On a local file system (a mounted drive), files are written under a temporary name and renamed; object stores write
    each file whole.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.filesystem, self.root = open_filesystem(url)
        self.is_local = "file" in self.filesystem.protocol and not isinstance(self.filesystem.protocol, str)

    def files(self) -> dict[str, int]:
        """Returns the name of every file, relative to the run folder, and its size; none if there is no folder."""
        if not self.is_local:
            self.filesystem.invalidate_cache()
            found = self.filesystem.find(self.root, detail=True)
            files = {path[len(self.root) + 1 :]: info["size"] for path, info in found.items()}
        else:
            files = self._local_files()
        files.pop(WRITER, None)
        return files

    def _local_files(self) -> dict[str, int]:
        """Returns the same of a local folder: fsspec's own listing hides errors, so a drive that is gone would look empty.

        What another process renames or deletes meanwhile is left out.
        """

        def fail(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise error

        try:
            os.stat(self.root)
        except FileNotFoundError:
            return {}
        paths = [Path(folder, name) for folder, _, names in os.walk(self.root, onerror=fail) for name in names]
        sizes = {}
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                sizes[path.relative_to(self.root).as_posix()] = path.stat().st_size
        return sizes

    def read(self, name: str) -> bytes:
        """Returns the content of a file."""
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

    def writer(self) -> Path | None:
        """Returns the run folder that writes this mirror, on the machine where it was written last; None if it is not known."""
        try:
            return Path(os.fsdecode(self.read(WRITER)))
        except FileNotFoundError:  # written by an earlier version
            return None

    def set_writer(self, folder: Path) -> None:
        """Notes the run folder that writes this mirror."""
        path = os.fsencode(folder.resolve())
        if self.is_local:
            with atomic_write(Path(self.root, WRITER)) as unfinished:
                unfinished.write_bytes(path)
        else:
            self.filesystem.pipe_file(f"{self.root}/{WRITER}", path)

    def delete(self, names: Iterable[str]) -> None:
        """Deletes files, in this order, and folders that this leaves empty."""
        for name in names:
            path = f"{self.root}/{name}"
            if not self.is_local:
                self.filesystem.rm_file(path)
                continue
            Path(path).unlink(missing_ok=True)
            for folder in Path(name).parents[:-1]:
                if any(Path(self.root, folder).iterdir()):
                    break
                Path(self.root, folder).rmdir()

    def fetch(self, folder: Path, trusted: Callable[[int], bool], show: ShowCallback) -> list[int]:
        """Brings a local folder to the state of this run, except for config.json; returns the complete steps.

        The newest checkpoint comes last: once it is here, everything is.

        Args:
            trusted: whether a checkpoint of that step in `folder` may be kept, if it has the same digests as the one there.
            show: called with the name of each file before it is copied.
        """
        for attempt in range(FETCH_ATTEMPTS):
            try:
                return self._fetch(folder, trusted, show)
            except FileNotFoundError:
                if attempt == FETCH_ATTEMPTS - 1:
                    raise
        raise AssertionError

    def _fetch(self, folder: Path, trusted: Callable[[int], bool], show: ShowCallback) -> list[int]:
        files = {name: size for name, size in sorted(self.files().items()) if "/." not in f"/{name}"}
        for name, size in files.items():
            here = folder / name
            if name == "config.json" or name.startswith("checkpoints/"):
                continue
            # The files in folders, samples and hypotheses, are written once.
            if "/" not in name or not here.is_file() or here.stat().st_size != size:
                show(name)
                self.get(name, here)
        steps = complete_steps(files)
        for step in steps:
            here, there = folder / "checkpoints" / str(step), f"checkpoints/{step}"
            if trusted(step) and self.has_same_state(here, there):
                self.get(f"{there}/{MARKER}", here / MARKER)  # an evaluation may have been added
                continue
            shutil.rmtree(here, ignore_errors=True)
            with atomic_write(here) as unfinished:
                for name in (name for name in files if step_of(name) == step):
                    show(name)
                    self.get(name, unfinished / name.removeprefix(f"{there}/"))
        return steps

    def has_same_state(self, here: Path, there: str) -> bool:
        """Returns whether a local checkpoint has the same digests as the complete one `there`."""
        digests = here / "state" / DIGESTS
        return digests.is_file() and digests.read_bytes() == self.read(f"{there}/state/{DIGESTS}")


def open_run(path: str | Path) -> RunFolder:
    """Returns a run folder for reading: a local one, or the local copy of the one at a URL.

    The copy lies in `~/.cache/flaxformer_lite` (or below `XDG_CACHE_HOME`). Only what has changed is copied again, by one process
    at a time.

    Raises: ValueError if the URL holds no run, or cannot be read.
    """
    if not (isinstance(path, str) and is_url(path)):
        return RunFolder(path)
    remote, copy = RemoteRun(path), cache_folder(path)
    copy.parent.mkdir(parents=True, exist_ok=True)
    with reading(path), Progress() as progress, FileLock(f"{copy}.lock"):
        is_run = "config.json" in remote.files()
        if is_run:
            steps = remote.fetch(copy, lambda _: True, lambda name: progress.update(f"copying {name} from {path}"))
            remote.get("config.json", copy / "config.json")
            drop_checkpoints(copy / "checkpoints", steps)
    if not is_run:
        raise ValueError(
            f"{path} holds no run (there is no config.json in it): give the URL of a run folder, or of a mirror"
        )
    return RunFolder(copy)


def drop_checkpoints(folder: Path, kept: Container[int]) -> None:
    """Deletes the checkpoints of all other steps."""
    for step in steps_in(folder):
        if step not in kept:
            shutil.rmtree(folder / str(step), ignore_errors=True)


def cache_folder(url: str) -> Path:
    """Returns the folder of the local copy of a URL."""
    name = url.rstrip("/").rpartition("/")[2]
    return cache_root() / f"{name}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"
