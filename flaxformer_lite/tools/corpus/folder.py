"""The folder of a corpus: its manifest, its pieces with their digests, and the claims of processes on pieces.

corpus.json       what decides the answers; the number of pieces, once a process has read the input to its end
0000000.txt.gz    the answers to the first piece, which appear whole
0000000.json      the digests of its lines and of its answers, written before them
answers.txt.gz    all answers in the order of the lines, by `join`
.lock             a byte of it is locked for each piece that a process answers; at a URL .claims/ has a file for each
"""

import bz2
import contextlib
import functools
import gzip
import hashlib
import json
import lzma
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flaxformer_lite.base.sealed_files import DamageError, sealed_file, unsealed
from flaxformer_lite.base.stores import ConflictError
from flaxformer_lite.core.base.progress import ProgressCallback
from flaxformer_lite.tools.corpus.part import Part
from flaxformer_lite.tools.corpus.places import MANIFEST, CorpusFiles, place_of

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
        return piece_name(self.index)


def piece_name(index: int) -> str:
    return f"{index:07}"


@dataclass(frozen=True)
class Corpus:
    """A folder of answers.

    Args:
        folder: a path or a URL.
        ending: the end of the names of files with answers, such as .txt.gz or .npy.
    """

    folder: Path | str
    ending: str
    _sources: dict[int, str] = field(default_factory=dict, compare=False)

    @functools.cached_property
    def place(self) -> CorpusFiles:
        return place_of(self.folder)

    def answers(self, name: str) -> str:
        """Returns the file of a piece, or of all answers, for messages."""
        return f"{str(self.folder).rstrip('/')}/{name}{self.ending}"

    def finished(self, index: int) -> tuple[dict[str, Any], bytes] | None:
        """Returns the record of a finished piece, `lines` and the digests `source` and `answers`, and its file; None of another."""
        name = piece_name(index)
        content, answers = self.place.read(f"{name}.json"), self.place.read(f"{name}{self.ending}")
        record = None if content is None else record_of(content, name)
        return None if record is None or answers is None else (record, answers)

    def sources(self) -> dict[int, str]:
        """Returns the digests of the lines of all finished pieces, by their numbers."""
        names = {*self.place.names()}
        finished = {
            int(name): f"{name}.json"
            for name in (name.removesuffix(self.ending) for name in names if name.endswith(self.ending))
            if re.fullmatch(r"\d{7}", name) and f"{name}.json" in names
        }
        new = {index: name for index, name in finished.items() if index not in self._sources}
        records = self.place.read_all(new.values())
        for index, name in new.items():
            if name in records and (record := record_of(records[name], name)) is not None:
                self._sources[index] = record["source"]
        return {index: self._sources[index] for index in finished if index in self._sources}

    def write(self, piece: Piece, answers: bytes) -> None:
        """Writes a piece, which is then finished: by this process, or by another one that has taken the piece from it meanwhile."""
        content = PACKERS.get(Path(self.ending).suffix or self.ending, bytes)(answers)
        record = {"lines": piece.lines, "source": piece.source, "answers": digest(content)}
        with contextlib.suppress(ConflictError):
            self.place.write(f"{piece.name}.json", sealed_file(record))
            try:
                self.place.write(f"{piece.name}{self.ending}", content)
            except ConflictError:  # the other one's answers, whose record this process has just replaced
                theirs = self.place.read(f"{piece.name}{self.ending}") or b""
                self.place.write(f"{piece.name}.json", sealed_file(record | {"answers": digest(theirs)}))

    def agree(self, facts: Mapping[str, object], remedy: str = "start with the old value") -> None:
        """Adds facts to the manifest. Raises: ValueError if an earlier start had another value, or the folder has other files."""
        is_written = False
        while not is_written:
            with self.place.claim(MANIFEST, wait=True), contextlib.suppress(ConflictError):
                names = self.place.names()  # listed first: another process writes the manifest before its pieces
                before = read_corpus_manifest(self.folder, self.place)
                if names and not before:
                    raise ValueError(
                        f"{self.folder} holds files but no {MANIFEST}.json: choose a new or an empty folder as -o"
                    )
                new = {**before, **json.loads(json.dumps(facts))}
                for name, value in before.items():
                    if new[name] != value:
                        raise ValueError(
                            f"{self.folder} was begun with {name} = {value!r}, and this start has {new[name]!r}: {remedy}, or "
                            "choose another -o"
                        )
                if new != before:
                    self.place.write(f"{MANIFEST}.json", sealed_file(new))
                is_written = True

    def unanswered(self, pieces: Iterable[Piece], part: Part) -> Iterator[Piece]:
        """Yields the pieces of a part that nobody has answered, each of them claimed while it is answered.

        Raises: ValueError if the lines of a finished piece are others than they were.
        """
        sources, lines, finished, claimed = list[str](), 0, self.sources(), list[Piece]()
        for piece in pieces:
            sources.append(piece.source)
            lines += piece.lines
            if finished.get(piece.index, piece.source) != piece.source:
                raise ValueError(
                    f"{piece.place} are not the lines that {self.answers(piece.name)} answers: the input has changed; "
                    "restore it, or choose another -o"
                )
            if piece.index not in finished and part.takes(piece.index):
                with self.place.claim(piece.name) as is_free:
                    if not is_free:
                        claimed.append(piece)
                    elif self.finished(piece.index) is None:  # another process may just have finished it
                        yield piece
        for piece in claimed:
            with self.place.claim(piece.name, wait=True) as is_free:
                if is_free and self.finished(piece.index) is None:
                    yield piece
        if not sources:
            raise ValueError("the input has no lines: give a FILE with some")
        facts = {"number_of_lines": lines, "number_of_pieces": len(sources), "content_of_lines": content_of(sources)}
        self.agree(facts, "the input has changed; restore it")

    def missing(self) -> list[int]:
        """Returns the pieces that no process has finished. Raises: ValueError if their number is not known."""
        number = read_corpus_manifest(self.folder, self.place).get("number_of_pieces")
        if number is None:
            raise ValueError(
                f"{self.folder}: no process has read the input to its end: start the command with its FILEs again"
            )
        finished = self.sources()
        return [index for index in range(number) if index not in finished]


def content_of(sources: Sequence[str]) -> str:
    """Returns a digest of the whole input by those of its pieces."""
    return digest("".join(sources).encode())


def record_of(content: bytes, name: str) -> dict[str, Any] | None:
    """Returns the record in the content of a file; None if it is damaged."""
    with contextlib.suppress(DamageError):
        return unsealed(content, name, lines=int, source=str, answers=str)
    return None


def read_corpus_manifest(folder: Path | str, place: CorpusFiles) -> dict[str, Any]:
    """Returns the facts of a folder; {} if it has no manifest. Raises: ValueError if the manifest is damaged."""
    count, name = int | None, f"{MANIFEST}.json"
    content = place.read(name)
    if content is None:
        return {}
    try:
        facts = unsealed(content, name, ending=str, number_of_lines=count, number_of_pieces=count)
        if ENDINGS.fullmatch(facts["ending"]) and 0 <= (facts.get("number_of_pieces") or 0) <= MOST_PIECES:
            return facts
        raise DamageError(f"{name} is garbled")
    except DamageError as error:
        raise ValueError(f"{folder}: {error}: choose another -o") from None
