"""Copies of runs: those that `flaxformer-lite sync` makes, one way, any number of times; and the local copies by which commands
read runs at URLs.

A copy is a whole run after every single write, at worst an older one: the marker of a checkpoint is written last and deleted first,
and the ledger of a run in a bucket is written after its checkpoints. `.run_id` has a random number, the same in a run and in its
copies: so no copy is mixed with another run.
"""

import contextlib
import fcntl
import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from flaxformer_lite.base.console import Failure, Progress, note, warn
from flaxformer_lite.base.remote_files import cache_folder, describe_error, is_store, is_url, reading
from flaxformer_lite.base.stores import BEAT_SECONDS, LEDGER, PATIENCE
from flaxformer_lite.engine.exports import EXPORTS
from flaxformer_lite.workdir.bucket import Ledger, RunBucket, is_dead, read_ledger
from flaxformer_lite.workdir.folder import RunFolder
from flaxformer_lite.workdir.manifest import DIGESTS, step_of
from flaxformer_lite.workdir.remote_run import MARKER, RemoteRun, complete_steps

COPY_ATTEMPTS = 5
"""Times that a copy starts again because the run's writer has deleted a checkpoint meanwhile."""
ANSWER_FOLDERS = ("samples/", "hypotheses/")
"""Folders whose old files the run deletes."""
RUN_ID = ".run_id"
WAIT_SECONDS = 300.0
"""Longest time to wait for the start of a training, and after its end for a place that fails."""


class Copying:
    """The copies of a run to one place."""

    is_cache = False
    """Whether the copy is this machine's own: it may have no complete checkpoint for a while."""

    def __init__(self, run: str, copy: str, progress: Progress) -> None:
        self.run, self.copy, self.progress = RemoteRun(run), RemoteRun(copy), progress
        self._copied = dict[str, bytes]()
        """For each file that this process has copied its content; of a file in a checkpoint, the content of the manifest there."""

    def once(self) -> None:
        """Brings the copy to the state of the run. Raises: ValueError as `_check`; whatever the file systems raise."""
        for _ in range(COPY_ATTEMPTS - 1):
            with contextlib.suppress(FileNotFoundError):
                return self._copy()
        return self._copy()

    def _copy(self) -> None:
        ledger = ledger_of(self.run)
        here, there = sorted(filter(is_copied, self.run.files())), self.copy.files()
        places = {step: f"checkpoints/{step}/state" for step in complete_steps(here)}
        places = places if ledger is None else ledger.steps
        here = [name for name in here if step_of(name) is None or step_of(name) in places]
        self._check(here, there, newest := max(places, default=-1))
        for name in sorted((name for name in here if step_of(name) is None), key=lambda name: name != "config.json"):
            self._put(name, self.run.read(name), there)
        for step, place in sorted(places.items()):
            self._copy_step(step, place, {name for name in here if step_of(name) == step}, there)
        if ledger is not None:
            self._put(LEDGER, replace(ledger, holder=None).as_json(), there)  # nobody trains in the copy
        old = [name for name in there.difference(here) if self._is_old(name, newest)]
        self.copy.delete(sorted(old, key=lambda name: (not name.endswith(MARKER), name)))

    def _is_old(self, name: str, newest: int) -> bool:
        """Returns whether a file of the copy that the run does not have is deleted."""
        return name.startswith(ANSWER_FOLDERS) or step_of(name) in range(newest)

    def _check(self, here: Sequence[str], there: set[str], newest: int) -> None:
        """Gives the run and its copy one number.

        Raises: ValueError if there is no run, or what is there is another run, other files, or ahead; OSError if it has vanished.
        """
        run, copy = self.run.url, self.copy.url
        if "config.json" not in here:
            raise ValueError(f"{run} holds no run (there is no config.json in it): name the folder or the URL of a run")
        if self.copy.is_local and not (parent := Path(self.copy.root).absolute().parent).is_dir():
            raise (OSError if self._copied else ValueError)(
                f"there is no folder {parent}: create it, or mount its drive"
            )
        if self._copied and RUN_ID not in there:
            raise OSError("what was copied is gone")
        if RUN_ID not in there and any("/." not in f"/{name}" for name in there):
            raise ValueError(f"{copy} holds files, but no copy that `sync` made: choose a new or an empty place")
        if RUN_ID not in self.run.files():
            self.run.write(RUN_ID, secrets.token_hex().encode())
        number = self.run.read(RUN_ID)
        if RUN_ID in there and self.copy.read(RUN_ID) != number:
            raise ValueError(f"{copy} is a copy of another run than {run}: choose another place")
        if (step := max(complete_steps(there), default=-1)) > newest:
            raise ValueError(f"{copy} has step {step} already, and {run} has step {newest}: nothing was copied")
        if is_trained_in(self.copy):
            raise ValueError(f"a process is training in {copy}: choose another place for the copy")
        self._put(RUN_ID, number, there)

    def _copy_step(self, step: int, place: str, names: set[str], there: set[str]) -> None:
        """Copies a checkpoint, its marker last; of one that the copy has, only the marker, which has the metrics."""
        manifest, digests, marker = f"{place}/manifest.ocdbt", f"{place}/{DIGESTS}", f"checkpoints/{step}/{MARKER}"
        state = self.run.read(manifest)
        if digests in names and not names.issuperset(
            f"{place}/{name}" for name in json.loads(self.run.read(digests))["content"]
        ):
            raise FileNotFoundError(f"{place} is being deleted")
        if marker in there:
            if manifest in there and self.copy.read(manifest) == state:
                return self._put(marker, self.run.read(marker), there)
            if not self.is_cache and len(complete_steps(there)) == 1:
                return None  # until another one is complete: a rollback has saved this one anew
            self.copy.delete([marker])
        for name in sorted(names - {marker}):
            if name not in there or self._copied.get(name) != state:
                self._begin(name)
                if self.copy.is_local:
                    self.run.get(name, Path(self.copy.root, name))
                elif self.run.is_local:
                    self.copy.put(Path(self.run.root, name), name)
                else:
                    with tempfile.NamedTemporaryFile() as file:
                        self.run.get(name, Path(file.name))
                        self.copy.put(Path(file.name), name)
                self._copied[name] = state
        return self._put(marker, self.run.read(marker), there - {marker})

    def _put(self, name: str, content: bytes, there: set[str]) -> None:
        """Copies a file, unless this process has copied it as it is."""
        if name not in there or self._copied.get(name) != content:
            self._begin(name)
            self.copy.write(name, content)
            self._copied[name] = content

    def _begin(self, name: str) -> None:
        """Reports the copy of a file. Raises: OSError if the drive has vanished meanwhile: its folders would be made anew."""
        if self._copied and self.copy.is_local and not Path(self.copy.root).is_dir():
            raise OSError("what was copied is gone")
        self.progress.update(f"copying {name} to {self.copy.url}")


class Following(Copying):
    """The copy of a run on this machine, to read it: it follows the run, whatever happens there."""

    is_cache = True

    def _is_old(self, name: str, newest: int) -> bool:
        return is_copied(name) and not name.startswith(
            ("evaluations/", "hypotheses/")
        )  # results of `evaluate URL` are here only

    def _check(self, here: Sequence[str], there: set[str], newest: int) -> None:
        """Does nothing: the copy is nobody else's."""


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
    if is_store(path) and (bucket := RunBucket(path, copy)).reload().start:
        with FileLock(f"{copy}.lock"), Progress() as progress:
            progress.update(f"copying the small files of {path}")
            bucket.pull()
        return RunFolder(path, bucket=bucket)
    with reading(path), Progress() as progress, FileLock(f"{copy}.lock"):
        following = Following(path, str(copy), progress)
        if is_run := "config.json" in following.run.files():
            following.once()
        for step in copy.glob("checkpoints/*"):
            if not (step / MARKER).is_file():  # its copy was cut short
                shutil.rmtree(step, ignore_errors=True)
    if not is_run:
        raise ValueError(f"{path} holds no run (there is no config.json in it): give the URL of a run folder")
    folder = open_run(copy)
    folder.name = path
    return folder


def is_copied(name: str) -> bool:
    """Returns whether a file belongs to a copy: not hidden ones, unfinished checkpoints and exports."""
    is_elsewhere = name.startswith("checkpoints/") and step_of(name) is None
    is_outside = "/." in f"/{name}" or "//" in f"/{name}"  # the name of a file in a bucket may lead out of a folder
    return not is_outside and not name.startswith(f"{EXPORTS}/") and not is_elsewhere


def ledger_of(run: RemoteRun) -> Ledger | None:
    """Returns the ledger of a run in a bucket; None of another run. Raises: ValueError if it is garbled."""
    with contextlib.suppress(FileNotFoundError):
        return read_ledger(run.read(LEDGER), run.url)
    return None


def is_trained_in(run: RemoteRun) -> bool:
    """Returns whether a process trains in a run now, as its ledger or the lock of its folder says."""
    if (ledger := ledger_of(run)) is not None:
        return ledger.holder is not None and not is_dead(ledger.holder)
    try:
        with open(Path(run.root, ".lock"), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return run.is_local and isinstance(error, BlockingIOError)
    return False


def sync(run: str, copy: str, every: float | None = None) -> None:
    """Copies a run once; or again every `every` seconds, until the training in it has ended.

    A failure is then reported once, and the copy tried again. A training in a bucket without signs of life has ended too.

    Raises: ValueError as `Copying`; Failure if the last copy failed.
    """
    with Progress() as progress:
        copying, was_trained, end = Copying(run, copy, progress), False, time.monotonic() + WAIT_SECONDS
        failure: str | None = None
        ledger: Ledger | None = None
        changes, since, is_silent = 0, 0.0, False
        while True:
            before, is_trained = failure, True
            try:
                if (now := ledger_of(copying.run)) != ledger:
                    ledger, changes, since = now, changes + 1, time.monotonic()
                is_silent = ledger is not None and time.monotonic() - since > PATIENCE * BEAT_SECONDS
                is_trained = is_trained_in(copying.run) and not is_silent
                if every is None or "config.json" in copying.run.files():
                    copying.once()
                failure = None
            except ValueError:
                raise
            except Exception as error:
                failure = describe_error(error)
            if before is None and failure is not None and every is not None:
                progress.warn(
                    f"the copy to {copy} failed ({failure}): the training goes on, and the copy is tried again"
                )
            # The first ledger may be that of a process that was killed.
            was_trained = was_trained or changes > 1 or (is_trained and ledger is None and failure is None)
            end = time.monotonic() + WAIT_SECONDS if is_trained else end
            is_done = was_trained and failure is None
            if every is None or (not is_trained and (is_done or time.monotonic() > end)):
                break
            wait = f"a training in {run} to start, at most {WAIT_SECONDS:.0f} s"
            progress.update(f"waiting for {'the next copy' if is_trained or was_trained else wait}")
            time.sleep(every)
    if is_silent and ledger is not None and ledger.holder is not None:
        warn(f"{run}: no sign of life of its training for {PATIENCE * BEAT_SECONDS:.0f} s, so it is taken as ended")
    if failure is not None:
        raise Failure(f"{copy} is not up to date ({failure}): the same command copies the rest")
    note(f"{copy} is up to date")
