"""A corpus for tests: pieces of lines that are answered by their reverse, and processes that answer them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from flaxformer_lite.base.console import Failure
from flaxformer_lite.base.stores import BEAT_SECONDS
from flaxformer_lite.core.base.progress import ProgressCallback
from flaxformer_lite.tools.corpus import Corpus, Part, Piece, answer_pieces, digest, places
from tests.support.paths import ROOT

LINES = [f"line {number}" for number in range(1, 94)]
SIZE = 5
ENDING = ".txt.gz"
NUMBER = -(-len(LINES) // SIZE)
"""Pieces of LINES."""
WHOLE = Part()


def reverse(lines: Sequence[str]) -> bytes:
    return "".join(line[::-1] + "\n" for line in lines).encode()


def pieces(
    lines: Sequence[str] = LINES, answer: Callable[[Sequence[str]], bytes] = reverse, size: int = SIZE
) -> Iterator[Piece]:
    for index, start in enumerate(range(0, len(lines), size)):
        some = lines[start : start + size]

        def answers(progress: ProgressCallback, some: Sequence[str] = some) -> bytes:
            return answer(some)

        place, read = f"in.txt, lines {start + 1} to {start + len(some)}", (start + len(some)) / len(lines)
        yield Piece(index, place, len(some), digest("\n".join(some).encode()), answers, read)


def answer_corpus(
    folder: Path | str, some: Iterator[Piece] | None = None, part: Part = WHOLE, ending: str = ENDING, **facts: object
) -> None:
    answer_pieces(Corpus(folder, ending), facts, pieces() if some is None else some, part)


def content(folder: Path) -> dict[str, bytes]:
    """Returns the files of a folder with their bytes; the lock is no content."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != ".lock"}


def start_worker(
    folder: Path | str, *words: object, prepare: Callable[[], None] | None = None, beat: float | None = None
) -> subprocess.Popen[str]:
    """Starts a process that answers the corpus; `words`: those of `main` below, `beat`: seconds between its signs of life."""
    command = [sys.executable, "-m", "tests.support.corpora", str(folder), *map(str, words)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "BEAT_SECONDS": str(beat or BEAT_SECONDS)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, preexec_fn=prepare, **streams)


def main(folder: str, seconds: str = "0", part: str = "1/1", width: str = "0") -> None:
    """Answers the corpus, a piece in so many seconds, and names each on stdout; `width`: bytes that are added to an answer."""

    def answer(lines: Sequence[str]) -> bytes:
        print(lines[0], flush=True)
        time.sleep(float(seconds))
        return reverse(lines) + os.urandom(int(width))

    number, parts = map(int, part.split("/"))
    try:
        vars(places)["BEAT_SECONDS"] = float(os.environ["BEAT_SECONDS"])
        answer_corpus(folder, pieces(answer=answer), Part(number, parts))
    except Failure as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
