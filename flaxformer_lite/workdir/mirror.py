"""The mirror: a copy of the run folder on another file system, made in the background and whole at any moment.

Whoever reads the mirror, at any instant, finds a complete older state of the run or a complete newer one. A push writes in
this order:

1. config.json, the tokenizers, metrics.jsonl and the other small files. Rows of steps after the newest complete checkpoint
   do no harm: a run that continues deletes them.
2. each checkpoint, oldest first; its marker (`remote_run.py`) last.
3. It deletes checkpoints that the run has deleted, marker first.

A push reads from a snapshot of the run folder made of hard links, so training may delete or replace its files meanwhile.
"""

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from flaxformer_lite.base.console import Progress, warn
from flaxformer_lite.base.remote_files import describe_error, reading
from flaxformer_lite.base.sealed_files import DamageError
from flaxformer_lite.config import Config
from flaxformer_lite.config.differences import describe_differences, differences, fixed
from flaxformer_lite.config.serialize import from_json
from flaxformer_lite.workdir.digests import DIGESTS, steps_in, unsealed
from flaxformer_lite.workdir.folder import RunFolder
from flaxformer_lite.workdir.orbax import why_damaged
from flaxformer_lite.workdir.remote_run import MARKER, RemoteRun, complete_steps, drop_checkpoints, step_of

POLL_SECONDS = 1.0
"""Time between two looks for a finished checkpoint."""

MAX_RETRY_SECONDS = 60.0
"""Longest time between two attempts to reach a mirror that failed; the first ones follow sooner."""

STUCK_SECONDS = 600.0
"""Time without a copied file after which the end of a run waits no longer."""

APPENDED = ("metrics.jsonl", "train.log")
"""Files that grow in place; all others are replaced as a whole."""

SNAPSHOT = ".mirror"
"""The folder in the run folder that holds the snapshot."""


def start_from_mirror(folder: RunFolder, config: Config) -> None:
    """Prepares `train.mirror`. If it is ahead of the run folder, the run continues from the mirror's checkpoints.

    Raises: ValueError if the mirror holds a run of another config, is written by another folder of which this one is a copy, or
        is the run folder itself; or if it cannot be reached and the run folder has no checkpoint, because the mirror may have some.
    """
    if config.train.mirror is None:
        return
    remote, trained, newest_here = RemoteRun(config.train.mirror), folder.trained, newest_valid(folder)
    check_place(remote, folder.path)
    different: dict[str, tuple[Any, Any]] = {}
    try:
        if (other := other_writer(remote, folder.path) if trained else None) is None:
            different = fetch_newer(remote, config, folder, newest_here)
    except Exception as error:
        problem = f"train.mirror {remote.url} cannot be used ({describe_error(error)})"
        if not trained:
            raise ValueError(
                f"{problem}, and {folder.path} has no checkpoint: make the mirror reachable, as it may have some, or set "
                "train.mirror to None"
            ) from None
        warn(f"{problem}: training continues, and it is copied as soon as that works")
        return
    if other is not None:
        raise ValueError(
            f"train.mirror {remote.url} is the mirror of the run folder {other}, of which {folder.path} is a copy: give the copy "
            f"another train.mirror, or delete {other}"
        )
    if different:
        raise ValueError(
            f"train.mirror {remote.url} holds a run of another config: {describe_differences(different)}. Use another "
            "train.mirror, or the old settings"
            + ("" if fixed(different) else "; --continue-with-changes continues it with the new ones")
        )


def fetch_newer(remote: RemoteRun, config: Config, folder: RunFolder, newest_here: int) -> dict[str, tuple[Any, Any]]:
    """Copies the mirror's checkpoints after `newest_here` into the run folder; writes the first file of an empty mirror.

    Returns the settings in which the mirror's run is another one, of which nothing is copied.
    """
    newest = max(complete_steps(remote.files()), default=None)
    if newest is None:
        remote.put(folder.path / "config.json", "config.json")  # also shows whether the mirror can be written
        return {}
    there = from_json(remote.read("config.json"), f"{remote.url}/config.json")
    different = differences(there, config, on_request=folder.with_changes)
    if not different:
        with contextlib.suppress(Exception):  # a full mirror can be read; the next push says that it cannot be written
            remote.set_writer(folder.path)
    if not different and newest > newest_here:
        with Progress() as progress:
            progress.say(f"continuing from train.mirror {remote.url}, which has step {newest}")
            show = progress.within
            remote.fetch(folder.path, lambda step: step <= newest_here, lambda name: show(f"copying {name}"))
        warn_without_rows(remote, newest)
    return different


def other_writer(remote: RemoteRun, folder: Path) -> Path | None:
    """Returns the run folder on this machine that writes the mirror, if that is another one than `folder`."""
    if (other := remote.writer()) is None:
        return None
    try:
        url = json.loads((other / "config.json").read_text(encoding="utf-8"))["train"]["mirror"]
        return other if RemoteRun(url).root == remote.root and not os.path.samefile(other, folder) else None
    except (OSError, AttributeError, LookupError, TypeError, ValueError):
        return None  # it was moved or deleted, or is no run any more


def warn_without_rows(remote: RemoteRun, step: int) -> None:
    """Warns if the rows of a run that was copied from its mirror are not there."""
    if "metrics.jsonl" not in remote.files():
        warn(
            f"train.mirror {remote.url} has no metrics.jsonl: the rows up to step {step} are lost, and training continues"
        )


def push_once(folder: RunFolder, config: Config) -> None:
    """Brings the mirror to the state of the run folder. Raises: ValueError if that fails: other hosts need the mirror."""
    mirror = Mirror(str(config.train.mirror), folder.path, Progress(silent=True))
    try:
        mirror.push()
    except Exception as error:
        raise ValueError(
            f"train.mirror {mirror.remote.url} cannot be written ({describe_error(error)}): hosts that do not share the run "
            "folder need it"
        ) from None
    finally:
        shutil.rmtree(mirror.snapshot, ignore_errors=True)


@contextlib.contextmanager
def follow_mirror(folder: RunFolder, config: Config) -> Iterator[None]:
    """Locks the run folder of a host that writes no checkpoints, after bringing it to the state of the mirror.

    Raises: ValueError if the mirror cannot be read.
    """
    remote = RemoteRun(str(config.train.mirror))
    with folder.lock(config):
        with reading(f"train.mirror {remote.url}"), Progress(silent=True) as progress:
            steps = remote.fetch(
                folder.path,
                lambda step: why_damaged(folder.checkpoints, step) is None,
                lambda name: progress.update(f"copying {name}"),
            )
        drop_checkpoints(folder.checkpoints, steps)
        yield


def check_place(remote: RemoteRun, folder: Path) -> None:
    """Raises: ValueError for a mirror on this machine that is the run folder, or whose parent folder does not exist."""
    if not remote.is_local:
        return
    root = Path(remote.root).resolve()
    if root == folder.resolve():
        raise ValueError(f"train.mirror {remote.url} is the run folder: choose another place for one of them")
    if not root.parent.is_dir():
        raise ValueError(
            f"train.mirror {remote.url}: there is no folder {root.parent}: create it, or mount the drive that has it"
        )


def newest_valid(folder: RunFolder) -> int:
    """Returns the newest step whose files are as they were written; -1 if there is none."""
    valid = (step for step in steps_in(folder.checkpoints)[::-1] if why_damaged(folder.checkpoints, step) is None)
    return next(valid, -1)


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
        self.snapshot = folder / SNAPSHOT
        self.pushed: dict[str, tuple[int, int]] = {}
        """Size and time of change of each file as it was last copied by this process."""
        self.same: dict[int, tuple[int, int]] = {}
        """Checkpoints known to be complete in the mirror, with the stamps of their digests: a rollback saves steps anew."""
        self.failure: str | None = None
        """Why the last push failed."""
        self.last_activity = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)

    def __enter__(self) -> "Mirror":
        shutil.rmtree(self.snapshot, ignore_errors=True)  # of a process that was killed
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
                f"train.mirror {self.remote.url} is not up to date at the end ({self.failure}); "
                f"missing in it: {', '.join(self.missing())}. The same command copies it"
            )

    def missing(self) -> list[str]:
        """Returns the checkpoints, and the files at the top of the run folder, that are not in the mirror as they are here."""
        names = [name for name, path in run_files(self.folder) if self.pushed.get(name) != stamp(path)]
        steps = sorted(steps_of(names) - self.same.keys())
        return [*(f"checkpoint {step}" for step in steps), *(n for n in names if "/" not in n and n != "train.log")]

    def push(self) -> None:
        """Brings the mirror to the state of the run folder. Raises whatever the file system raises."""
        names = self._take_snapshot()
        ours = whole_steps(self.snapshot, names)
        if not ours:
            return
        there = set(self.remote.files())
        self.last_activity = time.monotonic()
        if self.pushed and "config.json" not in there:
            raise OSError("what was copied is no longer there")
        if (complete := complete_steps(there)) and complete[-1] > ours[-1]:
            raise OSError(f"it has step {complete[-1]} already, and this run is at step {ours[-1]}")
        if self.remote.writer() is None:
            self.remote.set_writer(self.folder)
        small = [name for name in names if not name.startswith("checkpoints/")]
        for name in sorted(small, key=lambda name: (name != "config.json", name)):
            self._put(name, there)
        self.remote.delete(
            sorted(name for name in there if name.startswith(("samples/", "hypotheses/")) and name not in names)
        )
        for step in ours:
            self._put_checkpoint(step, [name for name in names if step_of(name) == step], there)
        for step in sorted(steps_of(there) - set(ours)):
            if step < ours[-1]:
                self._delete_checkpoint(step, there)

    def _take_snapshot(self) -> list[str]:
        """Makes the snapshot, of links where the file system has them; returns the names of its files."""
        while True:
            shutil.rmtree(self.snapshot, ignore_errors=True)
            names = []
            try:
                for name, path in run_files(self.folder):
                    place = self.snapshot / name
                    place.parent.mkdir(parents=True, exist_ok=True)
                    link = shutil.copy2 if name in APPENDED else os.link
                    try:
                        link(path, place)
                    except FileNotFoundError:
                        raise
                    except OSError:
                        shutil.copy2(path, place)
                    names.append(name)
            except FileNotFoundError:
                continue  # a checkpoint was deleted meanwhile
            return names

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
        """Copies a checkpoint, its marker last; of one that is there already only the marker, which has its metrics."""
        folder = f"checkpoints/{step}"
        marker, mark = f"{folder}/{MARKER}", stamp(self.snapshot / folder / "state" / DIGESTS)
        if marker in there:
            if self.same.get(step) == mark or self.remote.has_same_state(self.snapshot / folder, folder):
                self.same[step] = mark
                self._put(marker, there)
                return
            if complete_steps(there) == [step]:
                return  # until another one is complete
            self.remote.delete([marker])
        self.same.pop(step, None)
        self.remote.delete(sorted(name for name in there if step_of(name) == step and name not in names))
        for name in names:
            if name != marker:
                self._put(name, there - {marker})
        self._put(marker, there - {marker})
        self.same[step] = mark

    def _delete_checkpoint(self, step: int, there: set[str]) -> None:
        """Deletes a checkpoint, its marker first."""
        names = (name for name in there if step_of(name) == step)
        self.remote.delete(sorted(names, key=lambda name: (not name.endswith(MARKER), name)))
        self.same.pop(step, None)

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
        found = []
        for marker in sorted(self.folder.glob(f"checkpoints/[0-9]*/{MARKER}")):
            with contextlib.suppress(FileNotFoundError):
                found.append((marker, stamp(marker)))
        return found

    def _report(self, failure: str | None) -> None:
        """Reports the first failure, and that the mirror works again."""
        before, self.failure = self.failure, failure
        name = f"train.mirror {self.remote.url}"
        if before is None and failure is not None and not self._stop.is_set():
            self.progress.warn(
                f"{name} cannot be written ({failure}): training continues, and it is copied as soon as that works"
            )
        elif before is not None and failure is None:
            self.progress.say(f"{name} works again: checkpoints {', '.join(map(str, sorted(self.same)))} are there")


def run_files(folder: Path) -> list[tuple[str, Path]]:
    """Returns the name and the path of every file of a run, without hidden ones and unfinished checkpoints."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(place, name)
            relative = path.relative_to(folder).as_posix()
            if not name.startswith(".") and (step_of(relative) is not None or not relative.startswith("checkpoints/")):
                found.append((relative, path))
    return sorted(found)


def steps_of(names: Iterable[str]) -> set[int]:
    """Returns the steps of all checkpoints that have any of the files."""
    return {step for step in map(step_of, names) if step is not None}


def stamp(path: Path) -> tuple[int, int]:
    """Returns size and time of change of a file."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def whole_steps(folder: Path, names: list[str]) -> list[int]:
    """Returns the complete checkpoints of which every file is among the names: one that is being deleted lacks some."""
    there = set(names)

    def is_whole(step: int) -> bool:
        state = f"checkpoints/{step}/state"
        try:
            return all(f"{state}/{name}" in there for name in unsealed(folder / state / DIGESTS))
        except DamageError:
            return False

    return [step for step in complete_steps(names) if is_whole(step)]
