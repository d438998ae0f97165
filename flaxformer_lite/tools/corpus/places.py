"""The places of a corpus: a folder, whose pieces are claimed by locks, or a URL, whose claims are objects of a store."""

import contextlib
import errno
import fcntl
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from flaxformer_lite.base.atomic_files import require_writable, write_chunks
from flaxformer_lite.base.console import Failure, warn_once
from flaxformer_lite.base.remote_files import is_url, open_filesystem, reading
from flaxformer_lite.base.stores import BEAT_SECONDS, PATIENCE, ConflictError, Store, StoreError

MANIFEST, ANSWERS = "corpus", "answers"
NO_LOCKS = (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS)
CLAIMS = ".claims/"
"""The folder of the claims."""


class CorpusFiles(Protocol):
    """The files of a corpus, by their names."""

    def names(self) -> list[str]:
        """Returns the names of all files but hidden ones."""

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file; None if there is no such file."""

    def read_all(self, names: Iterable[str]) -> dict[str, bytes]:
        """Returns the contents of those of the files that exist."""

    def write(self, name: str, content: bytes) -> None:
        """Writes a file as a whole. Raises: ConflictError if another process has written it since `read`."""

    def write_all(self, name: str, contents: Iterable[bytes]) -> None:
        """Writes the contents into one file, whatever was there."""

    def claim(self, name: str, *, wait: bool = False) -> contextlib.AbstractContextManager[bool]:
        """Claims a piece, the manifest or all answers; yields whether no other process has claimed it.

        wait: the manifest and all answers are waited for; a piece until its process gives a sign of life, or is found dead.
        """

    def writing(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context for writing. Raises: ValueError if nothing can be written there; Failure if the place fails."""

    def sweep(self) -> None:
        """Deletes what killed processes left unfinished."""


class FolderPlace:
    """A folder, also one that several hosts share.

    The kernel releases a claim however the process ends. It is the lock of a byte of one file: no claim leaves a file behind. A
    process has one claim at a time, because the system drops all its locks of a file as it closes one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        return [file.name for file in self.folder.iterdir() if not file.name.startswith(".")]

    def read(self, name: str) -> bytes | None:
        return self.read_all([name]).get(name)

    def read_all(self, names: Iterable[str]) -> dict[str, bytes]:
        files = ((name, self.folder / name) for name in names)
        return {name: file.read_bytes() for name, file in files if file.is_file()}

    def write(self, name: str, content: bytes) -> None:
        write_chunks(self.folder / name, [content])

    def write_all(self, name: str, contents: Iterable[bytes]) -> None:
        write_chunks(self.folder / name, contents)

    @contextlib.contextmanager
    def claim(self, name: str, *, wait: bool = False) -> Iterator[bool]:
        byte = 2 + int(name) if name.isdecimal() else (MANIFEST, ANSWERS).index(name)
        wait = wait and not name.isdecimal()  # a piece that another process has is answered there
        # In a folder from elsewhere it may be a link to a file outside.
        here = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        with open(here, "a", encoding="utf-8") as file:
            is_free = True
            try:
                fcntl.lockf(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            except OSError as error:
                is_free = error.errno in NO_LOCKS
                if is_free:
                    warn_once(
                        f"{self.folder} cannot be locked ({error.strerror}): two processes of one part do the same work"
                    )
                elif error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
            yield is_free

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        require_writable(self.folder / f"{MANIFEST}.json")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            yield
        except OSError as error:
            raise Failure(
                f"{self.folder}: {error.strerror or error}; all finished pieces are kept: repair it, and start the same "
                "command again"
            ) from None

    def sweep(self) -> None:
        for file in self.folder.glob(".*.unfinished"):
            name = file.name.split(".")[1]
            with self.claim(name if name.isdecimal() else MANIFEST if name == MANIFEST else ANSWERS) as is_free:
                if is_free:
                    file.unlink(missing_ok=True)


class StorePlace:
    """A URL. A write depends on what this process has read, so that it overwrites nothing of another process.

    A claim is an object, which its process rewrites as a sign of life. Another process takes the claim after it has watched the
    object for PATIENCE × BEAT_SECONDS without a change: no clocks are compared.
    """

    def __init__(self, url: str) -> None:
        self.store = Store(url)
        self._versions = dict[str, bytes]()
        self._watched = dict[str, tuple[bytes, float]]()
        """The version of the claim of another process on each piece, and the time at which it was first seen."""

    def names(self) -> list[str]:
        return [name for name in self.store.names() if not name.startswith(".")]

    def read(self, name: str) -> bytes | None:
        content, self._versions[name] = self.store.read(name)
        return content

    def read_all(self, names: Iterable[str]) -> dict[str, bytes]:
        return self.store.read_all(names)

    def write(self, name: str, content: bytes) -> None:
        self._versions[name] = self.store.write(name, content, self._versions.get(name))

    def write_all(self, name: str, contents: Iterable[bytes]) -> None:
        filesystem, path = open_filesystem(f"{self.store.url}/{name}")
        with tempfile.NamedTemporaryFile() as file:
            file.writelines(contents)
            file.flush()
            with reading(f"{self.store.url}/{name}"):
                filesystem.put_file(file.name, path)

    @contextlib.contextmanager
    def claim(self, name: str, *, wait: bool = False) -> Iterator[bool]:
        if not name.isdecimal():  # the conditions of writes do the same
            yield True
            return
        claim = f"{CLAIMS}{name}"
        version = self._take(claim, wait)
        if version is None:
            yield False
            return
        with self._beating(claim, version):
            yield True

    def _take(self, claim: str, wait: bool) -> bytes | None:
        """Claims a piece; returns the version of the claim, or None if another process has it."""
        there = self.store.read(claim)
        while there.content is not None:
            version, since = self._watched.setdefault(claim, (there.version, time.monotonic()))
            if version != there.version:
                self._watched[claim] = there.version, time.monotonic()
                return None
            if time.monotonic() - since > PATIENCE * BEAT_SECONDS:
                break
            if not wait:
                return None
            time.sleep(BEAT_SECONDS / 4)
            there = self.store.read(claim)
        try:
            return self.store.write(claim, secrets.token_bytes(), there.version)
        except ConflictError:
            return None

    @contextlib.contextmanager
    def _beating(self, claim: str, version: bytes) -> Iterator[None]:
        """Gives signs of life within it; deletes the claim at its end, unless another process has taken it."""
        ended = threading.Event()

        def beat() -> None:
            nonlocal version
            mark = secrets.token_bytes()
            with contextlib.suppress(ConflictError):  # the claim was taken
                while not ended.wait(BEAT_SECONDS):
                    with contextlib.suppress(StoreError):  # the next attempt has the same mark: an answer may be lost
                        version, mark = self.store.write(claim, mark, version), secrets.token_bytes()

        thread = threading.Thread(target=beat, name=claim, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            with contextlib.suppress(ValueError):  # it was taken; or it stays, and is found dead
                self.store.write(claim, b"", version)
                self.store.delete([claim])

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        self.store.check_conditions()
        try:
            yield
        except StoreError as error:
            raise Failure(f"{error}; all finished pieces are kept: start the same command again") from None

    def sweep(self) -> None:
        """Does nothing: no file is ever unfinished."""


def place_of(folder: Path | str) -> CorpusFiles:
    """Returns the place of a corpus. Raises: ValueError for a URL whose files cannot be written under a condition."""
    return StorePlace(str(folder)) if is_url(folder) else FolderPlace(Path(folder))
