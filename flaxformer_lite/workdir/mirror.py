"""Run folders at URLs: reading one, and the mirror, a copy of a run folder that is made while it trains.

A checkpoint at a URL is *complete* once its MARKER exists: the writer creates it last and deletes it first, because most of
these file systems cannot rename a folder in one step. So a reader of a mirror finds a complete state of the run at any instant, an
older or a newer one. A push writes in this order:

1. config.json, the tokenizers, metrics.jsonl and the other small files. Rows of steps after the newest complete checkpoint
   do no harm: a run that continues deletes them.
2. each checkpoint, oldest first; its marker last.
3. It deletes checkpoints that the run has deleted, marker first.

A push reads from a snapshot of the run folder made of hard links, so training may delete or replace its files meanwhile.
"""

import contextlib
import json
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock

from flaxformer_lite.base.atomic_files import atomic_write
from flaxformer_lite.base.console import Progress, warn
from flaxformer_lite.base.remote_files import cache_folder, describe_error, is_store, is_url, open_filesystem, reading
from flaxformer_lite.base.sealed_files import DamageError
from flaxformer_lite.config import Config, from_json
from flaxformer_lite.config.differences import describe_differences, differences
from flaxformer_lite.engine.exports import EXPORTS
from flaxformer_lite.workdir.bucket import RunBucket
from flaxformer_lite.workdir.folder import RunFolder
from flaxformer_lite.workdir.manifest import DIGESTS, META, read_document, steps_in, why_damaged
from flaxformer_lite.workdir.state import mark, marks

MARKER = f"meta/{META}"
"""The file of a checkpoint that is written last."""

FETCH_ATTEMPTS = 5
"""Times that a copy starts again because the run's writer has deleted a checkpoint meanwhile."""

POLL_SECONDS = 1.0
"""Time between two looks for a finished checkpoint."""

MAX_RETRY_SECONDS = 60.0
"""Longest time between two attempts to reach a mirror that failed; the first ones follow sooner."""

STUCK_SECONDS = 600.0
"""Time without a copied file after which the end of a run waits no longer."""


APPENDED = ("metrics.jsonl", "train.log")
"""Files that grow in place; all others are replaced as a whole."""


def step_of(name: str) -> int | None:
    """Returns the step of the checkpoint that a file belongs to; None if it belongs to none."""
    match = re.match(r"checkpoints/(\d+)/", name)
    return None if match is None else int(match[1])


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
        """Copies a file to the mirror, complete or not at all."""
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

    def fetch(self, folder: Path, progress: Progress, *, verify: bool) -> list[int]:
        """Brings a local folder to the state of this run, except for config.json; returns the complete steps.

        The newest checkpoint comes last: once it is here, everything is.

        Args:
            verify: whether local checkpoints may be damaged, so that they are kept only if their files are as they were written.
        """
        for _ in range(FETCH_ATTEMPTS - 1):
            with contextlib.suppress(FileNotFoundError):
                return self._fetch(folder, progress, verify)
        return self._fetch(folder, progress, verify)

    def _fetch(self, folder: Path, progress: Progress, verify: bool) -> list[int]:
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
            trusted = not verify or why_damaged(here.parent, step) is None
            if trusted and self.has_same_state(here, there):
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
        return RunFolder(path)
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
            steps = remote.fetch(copy, progress, verify=False)
            remote.get("config.json", copy / "config.json")
            drop_other_checkpoints(copy / "checkpoints", steps)
    if not is_run:
        raise ValueError(
            f"{path} holds no run (there is no config.json in it): give the URL of a run folder, or of a mirror"
        )
    return RunFolder(copy)


def drop_other_checkpoints(folder: Path, kept: list[int]) -> None:
    for step in set(steps_in(folder)) - set(kept):
        shutil.rmtree(folder / str(step), ignore_errors=True)


def newest_whole(folder: RunFolder) -> int:
    """Returns the newest step whose files are as they were written; -1 if there is none."""
    whole = (step for step in steps_in(folder.checkpoints)[::-1] if why_damaged(folder.checkpoints, step) is None)
    return next(whole, -1)


def with_mirror(folder: RunFolder, config: Config) -> contextlib.AbstractContextManager[None]:
    """Brings a run folder and `train.mirror` to one state before training; returns a context for the training.

    The process that writes has locked its folder.

    Raises: ValueError as the functions below, or if the folder has lost its checkpoints.
    """
    if not folder.silent:
        start_from_mirror(folder, config)
        folder.check_nothing_lost()
    return contextlib.nullcontext()


def start_from_mirror(folder: RunFolder, config: Config) -> None:
    """Prepares `train.mirror`. If it is ahead of the run folder, the run continues from the mirror's checkpoints.

    Raises: ValueError if the mirror holds a run of another config or is the run folder itself; or if it cannot be reached and the
        run folder has no checkpoint, because the mirror may have some.
    """
    if config.train.mirror is None:
        return
    remote, trained, newest_here = RemoteRun(config.train.mirror), folder.trained, newest_whole(folder)
    if remote.is_local:
        check_place(remote, folder.path)
    check_copy(folder.path, config.train.mirror)
    try:
        newest = max(complete_steps(remote.files()), default=None)
        if newest is None:
            remote.put(folder.path / "config.json", "config.json")  # also shows whether the mirror can be written
            return
        there = from_json(remote.read("config.json"), f"{remote.url}/config.json")
        different = differences(there.concrete, config.continuing(there).concrete, on_request=folder.with_changes)
        if not different and newest > newest_here:
            with Progress() as progress:
                progress.say(f"continuing from train.mirror {remote.url}, which has step {newest}")
                remote.fetch(folder.path, progress, verify=True)
    except Exception as error:
        problem = f"train.mirror {remote.url} cannot be used ({describe_error(error)})"
        if not trained:
            raise ValueError(
                f"{problem}, and {folder.path} has no checkpoint: make the mirror reachable, as it may have some, or set "
                "train.mirror to None"
            ) from None
        warn(f"{problem}: training continues, and it is copied as soon as that works")
        return
    if different:
        raise ValueError(
            f"train.mirror {remote.url} holds a run of another config: {describe_differences(different)}. Use another "
            "train.mirror, the old settings, or --continue-with-changes for settings that a run may change"
        )


def check_place(remote: RemoteRun, folder: Path) -> None:
    """Raises: ValueError for a mirror on this machine that is the run folder, or whose parent folder does not exist."""
    root = Path(remote.root).resolve()
    if root == folder.resolve():
        raise ValueError(f"train.mirror {remote.url} is the run folder: choose another place for one of them")
    if not root.parent.is_dir():
        raise ValueError(
            f"train.mirror {remote.url}: there is no folder {root.parent}: create it, or mount the drive that has it"
        )


def check_copy(folder: Path, url: str) -> None:
    """Notes the place of the run folder that writes the mirror.

    Raises: ValueError if it is a copy of another one on this machine, which writes the mirror already.
    """
    other = Path(marks(folder).get("place", folder))
    try:
        mirror = json.loads((other / "config.json").read_bytes())["train"]["mirror"]
        is_copy = mirror == url and not os.path.samefile(other, folder)
    except (OSError, LookupError, TypeError, ValueError, RecursionError):
        is_copy = False  # the other one was moved or deleted, or is not a run any more
    if is_copy:
        raise ValueError(
            f"train.mirror {url} is the mirror of the run folder {other}, of which {folder} is a copy: give the copy another "
            f"train.mirror, or delete {other}"
        )
    mark(folder, place=str(folder.resolve()))


def mirroring(config: Config, folder: RunFolder, progress: Progress) -> contextlib.AbstractContextManager[object]:
    """Returns a context in which the run folder is copied to `train.mirror`, if that is set and this process writes."""
    if config.train.mirror is None or folder.silent:
        return contextlib.nullcontext()
    return Mirror(config.train.mirror, folder.path, progress)


class Mirror:
    """Pushes the run folder to its mirror in a thread, whenever a checkpoint is finished and at the end.

    A mirror that fails stops no training. It is reported once, and tried again until it works.

    Args:
        progress: shows one line for each failure and each recovery, and what the end of the run waits for.
    """

    def __init__(self, url: str, folder: Path, progress: Progress) -> None:
        self.remote, self.folder, self.progress = RemoteRun(url), folder, progress
        self.snapshot = folder / ".mirror"
        self.pushed: dict[str, tuple[int, int]] = {}
        """Size and time of change of each file as it was last copied by this process."""
        self.failure: str | None = None
        """Why the last push failed."""
        self.last_activity = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)

    def __enter__(self) -> "Mirror":
        shutil.rmtree(self.snapshot, ignore_errors=True)  # of a process that was killed
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Pushes once more and reports what could not be copied. Ctrl-C twice leaves at once."""
        self._stop.set()
        if error is not None and not isinstance(error, Exception):
            return
        self.last_activity = time.monotonic()
        while self._thread.is_alive() and time.monotonic() - self.last_activity < STUCK_SECONDS:
            self._thread.join(0.2)
        if self._thread.is_alive():
            self.failure = f"no file was copied for {STUCK_SECONDS:.0f} s"
        else:
            shutil.rmtree(self.snapshot, ignore_errors=True)
        if self.failure is not None:
            self.progress.warn(
                f"train.mirror {self.remote.url} is not up to date at the end ({self.failure}): the same command copies the rest"
            )

    def push(self) -> None:
        """Brings the mirror to the state of the run folder. Raises whatever the file system raises."""
        names = self._take_snapshot()
        ours = whole_steps(self.snapshot, names)
        if not ours:
            return
        there = set(self.remote.files())
        self.last_activity = time.monotonic()
        if self.pushed and "config.json" not in there:
            raise OSError("what was copied is gone")
        if (complete := complete_steps(there)) and complete[-1] > ours[-1]:
            raise OSError(f"it has step {complete[-1]} already, and this run is at step {ours[-1]}")
        small = [name for name in names if not name.startswith("checkpoints/")]
        for name in sorted(small, key=lambda name: (name != "config.json", name)):
            self._put(name, there)
        answers = (name for name in there if name.startswith(("samples/", "hypotheses/")))
        self.remote.delete(sorted(name for name in answers if name not in names))
        for step in ours:
            self._put_checkpoint(step, [name for name in names if step_of(name) == step], there)
        for step in sorted(steps_of(there) - set(ours)):
            if step < ours[-1]:
                old = (name for name in there if step_of(name) == step)
                self.remote.delete(sorted(old, key=lambda name: (not name.endswith(MARKER), name)))

    def _take_snapshot(self) -> list[str]:
        """Makes the snapshot, of links where the file system has them; returns the names of its files."""
        while True:
            shutil.rmtree(self.snapshot, ignore_errors=True)
            files = run_files(self.folder)
            try:
                for name, path in files:
                    place = self.snapshot / name
                    place.parent.mkdir(parents=True, exist_ok=True)
                    try:
                        (shutil.copy2 if name in APPENDED else os.link)(path, place)
                    except OSError:
                        shutil.copy2(path, place)
            except FileNotFoundError:
                continue  # a checkpoint was deleted meanwhile
            return [name for name, _ in files]

    def _put(self, name: str, there: set[str]) -> None:
        """Copies a file, unless this process has copied it as it is."""
        mark = stamp(self.snapshot / name)
        if name not in there or self.pushed.get(name) != mark:
            if self._stop.is_set():
                self.progress.within(f"copying {name} to the mirror")
            self.remote.put(self.snapshot / name, name)
            self.pushed[name] = mark
            self.last_activity = time.monotonic()

    def _put_checkpoint(self, step: int, names: list[str], there: set[str]) -> None:
        """Copies a checkpoint, its marker last; of one that the mirror has only the marker, which has its metrics."""
        folder = f"checkpoints/{step}"
        marker = f"{folder}/{MARKER}"
        if marker in there:
            if self.remote.has_same_state(self.snapshot / folder, folder):  # a rollback saves steps anew
                self._put(marker, there)
                return
            if complete_steps(there) == [step]:
                return  # until another one is complete
            self.remote.delete([marker])
        self.remote.delete(sorted(name for name in there if step_of(name) == step and name not in names))
        for name in sorted(names, key=lambda name: (name == marker, name)):
            self._put(name, there - {marker})

    def _run(self) -> None:
        """Pushes each new state of the checkpoints until the end of the run, and then once more."""
        done, delay, ending = None, POLL_SECONDS, False
        while not ending:
            ending = self._stop.wait(delay)
            try:
                state = self._state()
                if not state or (state == done and not ending):
                    continue
                self.push()
            except Exception as error:
                self._report(describe_error(error))
                delay = min(2 * delay, MAX_RETRY_SECONDS)
            else:
                self._report(None)
                done, delay = state, POLL_SECONDS

    def _state(self) -> list[tuple[Path, tuple[int, int]]]:
        """Returns the markers of the finished checkpoints, with their stamps."""
        markers = []
        for marker in sorted(self.folder.glob(f"checkpoints/[0-9]*/{MARKER}")):
            with contextlib.suppress(FileNotFoundError):
                markers.append((marker, stamp(marker)))
        return markers

    def _report(self, failure: str | None) -> None:
        """Reports the first failure, and that the mirror works again."""
        before, self.failure = self.failure, failure
        name = f"train.mirror {self.remote.url}"
        if before is None and failure is not None and not self._stop.is_set():
            self.progress.warn(
                f"{name} cannot be written ({failure}): training continues, and it is copied as soon as that works"
            )
        elif before is not None and failure is None:
            self.progress.say(f"{name} works again, and all is copied")


def run_files(folder: Path) -> list[tuple[str, Path]]:
    """Returns the name and the path of every file of a run, without hidden ones, unfinished checkpoints and exports."""
    files = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and Path(place, name) != folder / EXPORTS]
        for name in names:
            path = Path(place, name)
            relative = path.relative_to(folder).as_posix()
            if not name.startswith(".") and (step_of(relative) is not None or not relative.startswith("checkpoints/")):
                files.append((relative, path))
    return sorted(files)


def stamp(path: Path) -> tuple[int, int]:
    """Returns size and time of change of a file."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def whole_steps(folder: Path, names: list[str]) -> list[int]:
    """Returns the steps whose files are all in `names`; a checkpoint that is being deleted lacks some."""
    there = set(names)

    def is_whole(step: int) -> bool:
        state = f"checkpoints/{step}/state"
        try:
            return all(f"{state}/{name}" in there for name in read_document(folder / state / DIGESTS))
        except DamageError:
            return False

    return [step for step in complete_steps(names) if is_whole(step)]
