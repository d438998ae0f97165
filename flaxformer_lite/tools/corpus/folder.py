"""The folder of a corpus: its manifest, its pieces with their digests, and the claims of processes on pieces.

corpus.json       what decides the answers; the number of pieces, once a process has read the input to its end
0000000.txt.gz    the answers to the first piece, which appear whole
0000000.json      the digests of its lines and of its answers, written before them
answers.txt.gz    all answers in the order of the lines, by `join`
.lock             a byte of it is locked for each piece that a process answers
"""

import bz2
import contextlib
import errno
import fcntl
import gzip
import hashlib
import json
import lzma
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flaxformer_lite.base.atomic_files import require_writable, write_chunks
from flaxformer_lite.base.console import Failure, warn_once
from flaxformer_lite.base.sealed_files import DamageError, read_sealed, write_sealed
from flaxformer_lite.core.base.progress import ProgressCallback
from flaxformer_lite.tools.corpus.part import Part

MANIFEST, ANSWERS = "corpus", "answers"
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda content: gzip.compress(content, compresslevel=6, mtime=0),  # no time: equal answers are equal bytes
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
"""Compressions by the ends of files' names. Packed pieces one after the other are a packed file of all."""
ENDINGS = re.compile(r"(\.(?!(json|lock)\b)\w+)+")
"""Ends of names that lead nowhere else, and that no other file of the folder has."""
MOST_PIECES = 10**7
"""The most pieces: their names have seven digits."""
NO_LOCKS = (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Piece:
    """Lines that are answered together, and whose answers are one file."""

    index: int
    """Counted from 0 through the whole input."""
    place: str
    """The lines in words, for messages: "in.txt, lines 1 to 4096"."""
    lines: int
    source: str
    """The digest of the lines."""
    answer: Callable[[ProgressCallback], bytes]
    """Returns the answers; it may be called again after an error."""
    share: float = 0.0
    """The share of the input that has been read with this piece; 0: unknown."""

    @property
    def name(self) -> str:
        return name_of(self.index)


def name_of(index: int) -> str:
    return f"{index:07}"


@dataclass(frozen=True)
class Corpus:
    """A folder of answers.

    Args:
        ending: the end of the names of files with answers, such as .txt.gz or .npy.
    """

    folder: Path
    ending: str

    def answers(self, name: str) -> Path:
        """Returns the file of a piece, or of all answers."""
        return self.folder / f"{name}{self.ending}"

    def record(self, index: int) -> dict[str, Any] | None:
        """Returns `lines` and the digests `source` and `answers` of a finished piece; None if it must be answered."""
        name = name_of(index)
        if not self.answers(name).is_file():
            return None
        try:
            return read_sealed(self.folder / f"{name}.json", lines=int, source=str, answers=str)
        except (DamageError, FileNotFoundError):
            return None

    def write(self, piece: Piece, answers: bytes) -> None:
        """Writes a piece, which is then finished."""
        content = PACKERS.get(Path(self.ending).suffix or self.ending, bytes)(answers)
        record = {"lines": piece.lines, "source": piece.source, "answers": digest(content)}
        write_sealed(self.folder / f"{piece.name}.json", record)
        write_chunks(self.answers(piece.name), [content])

    @contextlib.contextmanager
    def claim(self, name: str, *, wait: bool = False) -> Iterator[bool]:
        """Claims a piece, the manifest or all answers; yields whether no other process has claimed it.

        The kernel releases a claim however the process ends. It is the lock of a byte of one file: no claim leaves a file behind.
        A process has one claim at a time, because the system drops all its locks of a file as it closes one.
        """
        byte = 2 + int(name) if name.isdecimal() else (MANIFEST, ANSWERS).index(name)
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

    def agree(self, facts: Mapping[str, Any], remedy: str = "start with the old value") -> None:
        """Adds facts to the manifest. Raises: ValueError if an earlier start had another value, or the folder has other files."""
        with self.claim(MANIFEST, wait=True):
            before = read_manifest(self.folder)
            if not before and any(not file.name.startswith(".") for file in self.folder.iterdir()):
                raise ValueError(
                    f"{self.folder} holds files but no {MANIFEST}.json: choose a new or an empty folder as -o"
                )
            for name, value in json.loads(json.dumps(facts)).items():
                if name in before and before[name] != value:
                    raise ValueError(
                        f"{self.folder} was begun with {name} = {before[name]!r}, and this start has {value!r}: {remedy}, or "
                        "choose another -o"
                    )
            write_sealed(self.folder / f"{MANIFEST}.json", {**before, **facts})

    def sweep(self) -> None:
        """Deletes what killed processes left unfinished."""
        for file in self.folder.glob(".*.unfinished"):
            name = file.name.split(".")[1]
            with self.claim(name if name.isdecimal() else MANIFEST if name == MANIFEST else ANSWERS) as is_free:
                if is_free:
                    file.unlink(missing_ok=True)

    def unanswered(self, pieces: Iterable[Piece], part: Part) -> Iterator[Piece]:
        """Yields the pieces of a part that nobody has answered, each of them claimed while it is answered.

        Raises: ValueError if the lines of a finished piece are others than they were.
        """
        sources, lines = list[str](), 0
        for piece in pieces:
            sources.append(piece.source)
            lines += piece.lines
            record = self.record(piece.index)
            if record is not None and record["source"] != piece.source:
                raise ValueError(
                    f"{piece.place} are not the lines that {self.answers(piece.name)} answers: the input has changed; "
                    "restore it, or choose another -o"
                )
            if record is None and part.takes(piece.index):
                with self.claim(piece.name) as is_free:
                    if is_free and self.record(piece.index) is None:  # another process may just have finished it
                        yield piece
        if not sources:
            raise ValueError("the input has no lines: give a FILE with some")
        facts = {"number_of_lines": lines, "number_of_pieces": len(sources), "content_of_lines": content_of(sources)}
        self.agree(facts, "the input has changed; restore it")

    def missing(self) -> list[int]:
        """Returns the pieces that no process has finished. Raises: ValueError if their number is not known."""
        number = read_manifest(self.folder).get("number_of_pieces")
        if number is None:
            raise ValueError(
                f"{self.folder}: no process has read the input to its end: start the command with its FILEs again"
            )
        return [index for index in range(number) if self.record(index) is None]


def content_of(sources: Sequence[str]) -> str:
    """Returns a digest of the whole input by those of its pieces."""
    return digest("".join(sources).encode())


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns the facts of a folder; {} if it has no manifest. Raises: ValueError if the manifest is damaged."""
    count, file = int | None, folder / f"{MANIFEST}.json"
    try:
        facts = read_sealed(file, ending=str, number_of_lines=count, number_of_pieces=count)
        if ENDINGS.fullmatch(facts["ending"]) and 0 <= (facts.get("number_of_pieces") or 0) <= MOST_PIECES:
            return facts
        raise DamageError(f"{file.name} is garbled")
    except FileNotFoundError:
        return {}
    except DamageError as error:
        raise ValueError(f"{folder}: {error}: choose another -o") from None


@contextlib.contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Makes a folder to write to. Raises: ValueError if it cannot be made; Failure if its disk fails, for example a full one."""
    require_writable(folder / f"{MANIFEST}.json")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise Failure(
            f"{folder}: {error.strerror or error}; all finished pieces are kept: repair it, and start the same command again"
        ) from None
