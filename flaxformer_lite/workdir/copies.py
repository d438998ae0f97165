"""A copy of a run: a folder or URL to which `flaxformer-lite sync` copies it, one way, any number of times.

A copy is a whole run after every single write, at worst an older one: the marker of a checkpoint is written last and deleted first,
and the ledger of a run in a bucket is written after its checkpoints. `.run_id` has a random number, the same in a run and in its
copies: so no copy is mixed with another run.
"""

import contextlib
import fcntl
import json
import secrets
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flaxformer_lite.base.console import Failure, Progress, note
from flaxformer_lite.base.remote_files import describe_error
from flaxformer_lite.engine.exports import EXPORTS
from flaxformer_lite.workdir.bucket import LEDGER, Ledger, read_ledger
from flaxformer_lite.workdir.manifest import DIGESTS, step_of
from flaxformer_lite.workdir.remote_run import FETCH_ATTEMPTS, MARKER, RemoteRun, complete_steps

ANSWERS = ("samples/", "hypotheses/")
"""Folders whose old files the run deletes."""
RUN_ID = ".run_id"
WAIT_SECONDS = 300.0
"""Longest time to wait for the start of a training, and after its end for a place that fails."""


class Copying:
    """The copies of a run to one place."""

    def __init__(self, run: str, copy: str, progress: Progress) -> None:
        self.run, self.copy, self.progress = RemoteRun(run), RemoteRun(copy), progress
        self._copied = dict[str, bytes]()
        """For each file that this process has copied its content; of a file in a checkpoint, the content of the manifest there."""

    def once(self) -> None:
        """Brings the copy to the state of the run. Raises: ValueError as `_check`; whatever the file systems raise."""
        for _ in range(FETCH_ATTEMPTS - 1):  # the run may delete a checkpoint meanwhile
            with contextlib.suppress(FileNotFoundError):
                return self._copy()
        return self._copy()

    def _copy(self) -> None:
        ledger = ledger_of(self.run)
        here, there = sorted(filter(is_copied, self.run.files())), {*self.copy.files()}
        places = {step: f"checkpoints/{step}/state" for step in complete_steps(here)}
        places = places if ledger is None else ledger.steps
        here = [name for name in here if step_of(name) is None or step_of(name) in places]
        self._check(here, there, newest := max(places, default=-1))
        for name in ("config.json", *(name for name in here if step_of(name) is None)):
            self._put(name, self.run.read(name), there)
        for step, place in sorted(places.items()):
            self._copy_step(step, place, {name for name in here if step_of(name) == step}, there)
        if ledger is not None:
            self._put(LEDGER, replace(ledger, holder=None).as_json(), there)  # nobody trains in the copy
        old = [name for name in there.difference(here) if name.startswith(ANSWERS) or step_of(name) in range(newest)]
        self.copy.delete(sorted(old, key=lambda name: (not name.endswith(MARKER), name)))

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
            if len(complete_steps(there)) == 1:
                return None  # until another one is complete: a rollback has saved this one anew
            self.copy.delete([marker])
        for name in sorted(names - {marker}):
            if name not in there or self._copied.get(name) != state:
                self.progress.update(f"copying {name} to {self.copy.url}")
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(self.run.root, name) if self.run.is_local else Path(folder, "file")
                    if not self.run.is_local:
                        self.run.get(name, path)
                    self.copy.put(path, name)
                self._copied[name] = state
        return self._put(marker, self.run.read(marker), there - {marker})

    def _put(self, name: str, content: bytes, there: set[str]) -> None:
        """Copies a file, unless this process has copied it as it is."""
        if name not in there or self._copied.get(name) != content:
            self.progress.update(f"copying {name} to {self.copy.url}")
            self.copy.write(name, content)
            self._copied[name] = content


def is_copied(name: str) -> bool:
    """Returns whether a file belongs to a copy: not hidden ones, unfinished checkpoints and exports."""
    is_elsewhere = name.startswith("checkpoints/") and step_of(name) is None
    return "/." not in f"/{name}" and not name.startswith(f"{EXPORTS}/") and not is_elsewhere


def ledger_of(run: RemoteRun) -> Ledger | None:
    """Returns the ledger of a run in a bucket; None of another run. Raises: ValueError if it is garbled."""
    with contextlib.suppress(FileNotFoundError):
        return read_ledger(run.read(LEDGER), run.url)
    return None


def is_trained_in(run: RemoteRun) -> bool:
    """Returns whether a process trains in a run now, as its ledger or the lock of its folder says."""
    if (ledger := ledger_of(run)) is not None:
        return ledger.holder is not None
    try:
        with open(Path(run.root, ".lock"), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return run.is_local and isinstance(error, BlockingIOError)
    return False


def sync(run: str, copy: str, every: float | None = None) -> None:
    """Copies a run once; or every so many seconds until the training in it has ended.

    A failure is then reported once, and the copy tried again.

    Raises: ValueError as `Copying`; Failure if the last copy failed.
    """
    with Progress() as progress:
        copying, failure, was_trained, end = Copying(run, copy, progress), None, False, time.monotonic() + WAIT_SECONDS
        while True:
            before, is_trained = failure, True
            try:
                is_trained = is_trained_in(copying.run)
                if every is None or "config.json" in copying.run.files():
                    copying.once()
                failure = None
            except ValueError:
                raise
            except Exception as error:
                failure = describe_error(error)
            if before is None and failure is not None and every is not None:
                progress.warn(
                    f"{copy} cannot be written ({failure}): the training goes on, and the copy is tried again"
                )
            was_trained, end = was_trained or is_trained, time.monotonic() + WAIT_SECONDS if is_trained else end
            is_done = was_trained and failure is None
            if every is None or (not is_trained and (is_done or time.monotonic() > end)):
                break
            time.sleep(every)
    if failure is not None:
        raise Failure(f"{copy} is not up to date ({failure}): the same command copies the rest")
    note(f"{copy} is up to date")
