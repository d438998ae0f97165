"""The loop over the pieces of a corpus: each is answered once, or left for the next start after two failures."""

import time
from collections.abc import Iterable, Mapping

from flaxformer_lite.base.console import Failure, Progress, counted, describe_seconds, note
from flaxformer_lite.tools.corpus.folder import Corpus, Piece
from flaxformer_lite.tools.corpus.part import Part

MOST_FAILURES = 3
"""Pieces one after the other that fail twice: then the fault is not theirs, and it ends the work."""


def answer_pieces(corpus: Corpus, facts: Mapping[str, object], pieces: Iterable[Piece], part: Part) -> int:
    """Writes the answers of those pieces of a part that are missing in the folder of the corpus.

    Returns the number of pieces that are missing after it: those of other processes.

    Args:
        facts: whatever decides the answers, with values that JSON has. An earlier start in the folder must have had the same.
        pieces: all pieces of the input, in order.

    Raises: ValueError if facts or lines differ from those of an earlier start; Failure if pieces failed, or if the disk did.
    """
    failed, failed_last, speed = list[str](), 0, Speed()
    with corpus.place.writing(), Progress() as progress:
        corpus.agree({"ending": corpus.ending, **facts})
        corpus.place.sweep()
        progress.say(f"{corpus.folder}: part {part.number}/{part.parts} ({part.origin})")
        progress.update("answering")
        for piece in corpus.unanswered(pieces, part):
            try:
                answers = answer_twice(piece, progress)
            except OSError:
                raise
            except Exception as error:
                failed, failed_last = [*failed, piece.place], failed_last + 1
                if failed_last == MOST_FAILURES:
                    raise
                progress.warn(
                    f"{piece.place}: failed twice ({error or type(error).__name__}), and is left for the next start"
                )
                continue
            corpus.write(piece, answers)
            failed_last = 0
            speed.add(piece)
            progress.show("corpus", speed.told(piece.share))
        missing = len(corpus.missing())
    note(
        f"{corpus.folder}: {speed.told()}; " + (f"{counted(missing, 'piece')} missing" if missing else "all are there")
    )
    if failed:
        raise Failure(
            f"{counted(len(failed), 'piece')} failed twice: {'; '.join(failed)}; start the same command again"
        )
    return missing


def answer_twice(piece: Piece, progress: Progress) -> bytes:
    """Returns the answers of a piece, of the second attempt if the first one failed. Raises: the error of the second."""
    try:
        return piece.answer(progress.within)
    except OSError:
        raise
    except Exception as error:
        progress.warn(f"{piece.place}: failed ({error or type(error).__name__}), and is tried again")
    return piece.answer(progress.within)


class Speed:
    """Lines a second, and the time left. The first piece does not count: its time is that of compiling."""

    def __init__(self) -> None:
        self.lines, self.pieces, self.started, self.before = 0, 0, 0.0, 0.0

    def add(self, piece: Piece) -> None:
        """Adds a piece that has been answered."""
        self.pieces += 1
        if self.pieces == 1:
            self.first, self.started, self.before = piece.lines, time.monotonic(), piece.share
        self.lines += piece.lines

    def told(self, share: float = 0.0) -> str:
        """Returns the lines so far, the speed if it is known, and the time left if a share of the input has been read."""
        words = [f"{counted(self.lines, 'line')} answered"]
        if self.pieces > 1:
            seconds = time.monotonic() - self.started
            words.append(f"{(self.lines - self.first) / seconds:,.1f} a second")
            if share > self.before:
                words.append(f"{share:.0%} read")
                words.append(f"{describe_seconds(seconds * (1 - share) / (share - self.before))} left")
        return ", ".join(words)
