"""A run in a bucket: the arrays are there only, all other files also in a local working copy; one file says what is complete.

.run.json                       the ledger: who trains (holder), the number of starts (start), a number that the holder raises as a
                                sign of life (beat), and the folder of the arrays of each complete checkpoint (steps)
checkpoints/40/meta/meta.json   the manifest, as in a folder; so are all other files of a run
checkpoints/40/state.3-0/       the arrays of step 40, as the first save of the third start wrote them: managers/bucket.py

A checkpoint exists if the ledger lists it. Each change of the ledger is a compare-and-swap, so a process that has lost the run
completes no checkpoint any more. No clocks of two machines are compared: who wants a run that another one holds watches its beat.

A training and the readers on its machine have different working copies: a reader brings its copy to the state of the bucket, where
rows are missing that the training has not copied yet.
"""

import contextlib
import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from flaxformer_lite.base.atomic_files import atomic_write, write_whole
from flaxformer_lite.base.console import note
from flaxformer_lite.base.remote_files import cache_folder, is_store, is_url
from flaxformer_lite.base.stores import (
    BEAT_SECONDS,
    LEDGER,
    PATIENCE,
    ConflictError,
    Store,
    StoreError,
    Unreachable,
    in_one_line,
)
from flaxformer_lite.workdir.arrays import Arrays, check_arrays, in_store
from flaxformer_lite.workdir.manifest import META, read_manifest, step_of, why_damaged

NOT_COPIED = ("engine/",)
"""Folders of the working copy that stay there."""


@dataclass(frozen=True)
class Ledger:
    """The content of `.run.json`."""

    holder: dict[str, str] | None = None
    """The process that trains: a random mark, and its place as `place_of_process` returns it."""
    start: int = 0
    beat: int = 0
    steps: dict[int, str] = field(default_factory=dict)
    """The folder of the arrays of each complete checkpoint."""

    def as_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def read_ledger(content: bytes | None, url: str) -> Ledger:
    """Returns the ledger in a file, an empty one if there is no file. Raises: ValueError for a file that is no ledger."""
    if content is None:
        return Ledger()
    try:
        ledger = Ledger(**json.loads(content))
        return replace(ledger, steps={int(step): str(place) for step, place in dict(ledger.steps).items()})
    except (ValueError, TypeError, RecursionError):
        raise ValueError(
            f"{url}/{LEDGER} is garbled, or of a newer version of flaxformer_lite: restore it from a copy of the run"
        ) from None


class RunBucket:
    """A run at the URL of a store, and its working copy in the folder `here`."""

    def __init__(self, url: str, here: Path) -> None:
        self.store, self.here = Store(url), here
        self.ledger = Ledger()
        """As this process read or wrote it last."""
        self.lost: str | None = None
        """Why this process trains no more."""
        self._version = b""
        self._known: dict[str, tuple[tuple[int, int], bytes]] = {}
        """Size and time of change of each file as it was copied last, and its version in the bucket."""
        self._changing, self._ended = threading.RLock(), threading.Event()
        self._beaten = time.monotonic()

    def arrays(self, step: int) -> Arrays:
        """Returns the arrays of a complete checkpoint. Raises: StoreError if it was deleted meanwhile."""
        if not self._version:  # another process changes the ledger
            self.reload()
        if step not in self.ledger.steps:
            raise StoreError(f"{self.store.url} has no checkpoint {step} any more")
        return in_store(self.store, self.ledger.steps[step])

    def why_damaged(self, step: int) -> str | None:
        """Returns why a checkpoint is damaged, in a few words, after reading all of it; None if all is as it was written."""
        if (reason := why_damaged(self.here / "checkpoints", step, None)) is not None:
            return reason
        try:
            with in_one_line(f"{self.store.url}/checkpoints/{step}"):
                check_arrays(self.arrays(step), read_manifest(self.here / "checkpoints", step)["leaves"])
        except Unreachable:
            raise
        except StoreError as error:
            return str(error)
        return None

    def reload(self) -> Ledger:
        """Reads the ledger, and returns it: the empty one if there is no run."""
        self.ledger = read_ledger(self.store.read(LEDGER).content, self.store.url)
        return self.ledger

    def pull(self) -> None:
        """Brings the working copy to the state of the bucket. Files and checkpoints that the bucket does not have are deleted."""
        self.reload()
        self._copy_files()

    def _copy_files(self) -> list[str]:
        """Brings the working copy to the state of the bucket; returns the names of files of checkpoints that are not complete."""
        self.here.mkdir(parents=True, exist_ok=True)
        names = self.store.names()
        files = self.store.read_versions(name for name in names if self._is_copied(name))
        for name, (content, version) in files.items():
            if content is None:
                continue  # deleted since it was listed
            path = self.here / name
            if not path.is_file() or path.read_bytes() != content:
                with atomic_write(path) as unfinished:
                    unfinished.write_bytes(content)
            self._known[name] = stamp(path), version
        for name in self._local().difference(files):
            (self.here / name).unlink()
        for step in self.ledger.steps:
            (self.here / "checkpoints" / str(step)).mkdir(parents=True, exist_ok=True)
        self.forget_others(self.ledger.steps)
        return [name for name in names if name.startswith("checkpoints/") and not self._is_complete(name)]

    def forget_others(self, steps: Iterable[int]) -> None:
        """Deletes checkpoints of the working copy except these."""
        steps = set(steps)
        for folder in {*self.here.glob("checkpoints/*")} - {self.here / "checkpoints" / str(step) for step in steps}:
            shutil.rmtree(folder, ignore_errors=True)
        self._known = {name: known for name, known in self._known.items() if step_of(name) in {None, *steps}}

    def push(self) -> None:
        """Copies the files that have changed to the bucket. Raises: ConflictError if another process has taken the run."""
        with self._changing:
            names = self._local()
            for name in sorted(names):
                with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                    self._push_file(name)
            gone = self._known.keys() - names
            self.store.delete(gone)
            for name in gone:
                del self._known[name]

    def _push_file(self, name: str) -> None:
        path = self.here / name
        before, version = self._known.get(name, (None, None))
        if before == (now := stamp(path)):
            return
        if time.monotonic() - self._beaten > BEAT_SECONDS:
            self.change()  # many files take longer than others wait for a sign of life
        self._known[name] = now, self._put(name, path.read_bytes(), version)

    def _put(self, name: str, content: bytes, version: bytes | None) -> bytes:
        """Writes a file that only this process may write, and returns its version. version: the one before; None: not known.

        Raises: ConflictError if another process has taken the run.
        """
        try:
            return self.store.write(name, content, version or self.store.read(name).version)
        except ConflictError:
            self.change()  # raises if this process has lost the run; else it was the last write of one that had lost it
            return self.store.write(name, content)

    def publish(self, names: Iterable[str]) -> None:
        """Copies files of the working copy to the bucket, whoever trains there; those that are not here are deleted there."""
        for name in names:
            path = self.here / name
            if path.is_file():
                self.store.write(name, path.read_bytes())
            else:
                self.store.delete([name])

    def change(self, **values: Any) -> None:
        """Changes the ledger. Raises: ConflictError if another process has taken the run."""
        with self._changing:
            new = replace(self.ledger, **values, beat=self.ledger.beat + 1)
            try:
                self._version = self.store.write(LEDGER, new.as_json(), self._version)
            except ConflictError as error:
                self.lost = f"another process has started to train in {self.store.url}"
                raise ConflictError(self.lost) from error
            self.ledger, self._beaten = new, time.monotonic()

    def add_step(self, step: int, place: str, document: str, old: Iterable[int]) -> None:
        """Completes a checkpoint, whose arrays are in the folder `place`: its manifest, all other files, the ledger without `old`.

        Raises: ConflictError if another process has taken the run.
        """
        with self._changing:
            name = f"checkpoints/{step}/meta/{META}"
            stored = self.store.read(name)
            if stored.content is not None:
                self.change()  # raises if this process has lost the run to one that has saved the same step
            version = self._put(name, document.encode(), stored.version)
            self.push()  # the rows up to here
            self.change(steps=self.steps_without(old) | {step: place})
            write_whole(self.here / name, document)
            self._known[name] = stamp(self.here / name), version

    def steps_without(self, old: Iterable[int]) -> dict[int, str]:
        return {step: place for step, place in self.ledger.steps.items() if step not in old}

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the run, with the working copy in the state of the bucket; the end copies what has changed.

        Raises: ValueError if another process trains there, or the place has other files or ignores the conditions of writes.
        """
        self._ended.clear()
        self.store.check_conditions()
        self._take()
        beats = threading.Thread(target=self._beat, name="bucket", daemon=True)
        untold = list[type[Exception]]()
        try:
            self.store.delete(self._copy_files())
            beats.start()
            yield
        except BaseException:
            untold.append(ValueError)  # the reason of the end is told, not that of the copy
            raise
        finally:
            self._ended.set()
            if beats.is_alive():
                beats.join()
            with contextlib.suppress(*untold):
                self._release()

    def empty(self) -> None:
        """Deletes the run, here and there, except for the ledger."""
        self.change(steps={})
        self.store.delete(name for name in self.store.names() if name != LEDGER)
        for name in self._local():
            (self.here / name).unlink()
        self.forget_others([])

    def _release(self) -> None:
        if self.lost is not None:
            return
        self.push()
        self.change(holder=None)
        if not self.ledger.steps and not self._local():
            self.store.delete([LEDGER])  # a mistake ended the run before its first step

    def check_empty(self) -> None:
        """Raises: ValueError if the place has files of others than a run."""
        others = [name for name in self.store.names() if not name.startswith(".")]
        if others and self.store.read(LEDGER).content is None:  # another process may start there now
            raise ValueError(
                f"--workdir {self.store.url} holds files, such as {others[0]}, but no {LEDGER}: choose an empty place; or copy a "
                "run there to a folder, and train in it"
            )

    def _take(self) -> None:
        """Makes this process the holder, after watching the beat of another one that may have died."""
        url = self.store.url
        stored = self.store.read(LEDGER)
        if stored.content is None:
            self.check_empty()
        refusal = f"another process is training in {url}: wait until it has ended, or choose another --workdir"
        ledger = read_ledger(stored.content, url)
        end = time.monotonic() + BEAT_SECONDS * PATIENCE
        if ledger.holder is not None and not is_dead(ledger.holder):
            note(f"{url}: the last training did not end, or still runs; watching for {BEAT_SECONDS * PATIENCE:.0f} s")
            while ledger.holder is not None and time.monotonic() < end:
                time.sleep(BEAT_SECONDS / 4)
                now = self.store.read(LEDGER)
                ledger = read_ledger(now.content, url)
                if now.version != stored.version and ledger.holder is not None:
                    raise ValueError(refusal)
                stored = now
        self.ledger, self._version = ledger, stored.version
        try:
            mark = {"mark": secrets.token_hex(), "process": place_of_process()}
            self.change(holder=mark, start=ledger.start + 1)
        except ConflictError:
            raise ValueError(refusal) from None

    def _beat(self) -> None:
        """Raises the beat and copies what has changed, again and again. While the store is away the next beat tries again."""
        while self.lost is None and not self._ended.wait(BEAT_SECONDS):
            with contextlib.suppress(ValueError, OSError):
                self.change()
                self.push()

    def _local(self) -> set[str]:
        names = (path.relative_to(self.here).as_posix() for path in self.here.rglob("*") if path.is_file())
        return {name for name in names if self._is_copied(name)}

    def _is_copied(self, name: str) -> bool:
        """Returns whether a file is in both places: hidden files, arrays and incomplete checkpoints are in one only."""
        is_array = name.startswith("checkpoints/") and not name.endswith(f"/meta/{META}")
        is_hidden = (
            "/." in f"/{name}" or "//" in f"/{name}"
        )  # the name of a file in a bucket may lead out of the folder
        return not is_array and not is_hidden and not name.startswith(NOT_COPIED) and self._is_complete(name)

    def _is_complete(self, name: str) -> bool:
        """Returns whether a file belongs to no checkpoint, or to one that the ledger lists."""
        if not name.startswith("checkpoints/"):
            return True
        place = self.ledger.steps.get(step_of(name))  # type: ignore[arg-type]  # None is no step
        return place is not None and (name.endswith(f"/meta/{META}") or name.startswith(f"{place}/"))


def bucket_to_train(url: str | Path, process: int = 0) -> RunBucket | None:
    """Returns the bucket at a URL with the working copy of a process that trains there; None for a folder.

    Raises: ValueError for a URL at which no run can be written.
    """
    if not is_url(url):
        return None
    if not is_store(url):
        raise ValueError(f"{url} cannot be written: choose a folder, or a URL with gs://, s3:// or file://")
    return RunBucket(str(url), cache_folder(str(url), f"-train-{process}"))


def stamp(path: Path) -> tuple[int, int]:
    """Returns size and time of change of a file."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def place_of_process() -> str:
    """Returns the start of this machine, the namespace of its processes, and the number of this process; "" where it is unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.getpid()}"
    except OSError:
        return ""


def is_dead(holder: dict[str, str]) -> bool:
    """Returns whether a holder was a process of this machine, and has ended."""
    there, _, number = holder.get("process", "").rpartition(" ")
    return there != "" and there == place_of_process().rpartition(" ")[0] and not Path(f"/proc/{number}").exists()
