"""`-o OUT/` of the commands of lines: their answers as a folder of pieces (`tools/corpus`) in place of stdout."""

import dataclasses
import functools
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flaxformer_lite.base.atomic_files import require_writable
from flaxformer_lite.base.console import counted, note
from flaxformer_lite.base.remote_files import is_url
from flaxformer_lite.cli.answering import Answering, AnswerT, answer_lines, printed, with_headers
from flaxformer_lite.cli.input_lines import LineChunk
from flaxformer_lite.core.base.progress import ProgressCallback
from flaxformer_lite.files.text.tables import container
from flaxformer_lite.tools import corpus

if TYPE_CHECKING:
    from flaxformer_lite.engine.engine_run import EngineRun
    from flaxformer_lite.run import Run
    from flaxformer_lite.tasks.engine_model import EngineModel

COMPRESSIONS = (*corpus.PACKERS, ".zst")
"""Compressions that are read; answers to zstd, which Python does not write, are not packed."""
Runs = Sequence["Run | EngineRun | EngineModel"]
"""The runs that decide the answers: RUN, and the run of `--best-by`."""
Write = Callable[[LineChunk], bytes]
"""Returns the answers to a chunk as its piece has them."""


@dataclass(frozen=True)
class Output:
    """`-o` and the options of a folder of answers, by their names."""

    output: str | None
    """The file or the folder; None: answers go to stdout."""
    pieces: int | None
    part: str | None
    join: bool
    files: Sequence[str]
    """The files whose lines are answered."""
    terms: str | None
    """The file of `--terms`, whose content decides."""
    decides: Mapping[str, Any]
    """The options that decide the answers, and the names of runs and files, which may lie elsewhere on other hosts."""

    @property
    def is_folder(self) -> bool:
        """Whether -o is a folder of pieces."""
        return self.output is not None and (self.output.endswith("/") or self.pieces is not None)

    def join_if_alone(self, takes_file: bool = False) -> bool:
        """Checks the options; joins the folder, without a model, and returns True if --join stands without FILEs.

        Raises: ValueError if the options do not go together, or the folder cannot be written or joined.
        """
        self.check(takes_file)
        if not self.is_folder or self.files:
            return False
        join_pieces(str(self.output))
        return True

    def check(self, takes_file: bool) -> None:
        """Raises: ValueError if the options do not go together, or the folder cannot be written."""
        output, given = self.output, {"pieces": self.pieces, "part": self.part, "join": self.join or None}
        typed = [name for name, value in given.items() if value is not None]
        if output is None and typed:
            raise ValueError(f"--{typed[0]} is for a folder of answers: add -o OUT/, or leave it out")
        if output is not None and not self.is_folder and (typed or not takes_file):
            raise ValueError(
                f"-o {output} has no slash at its end: write -o {output}/ for a folder of pieces; > {output} writes a file"
            )
        if self.pieces is not None and self.pieces < 1:
            raise ValueError(f"--pieces is {self.pieces}: it must be at least 1")
        if self.part is not None:
            corpus.typed_part(self.part)
        if self.is_folder and not (self.files or self.join):
            raise ValueError(f"-o {output} needs lines that can be read again: name a FILE in place of stdin")
        if self.is_folder and self.files and not is_url(str(output)):
            require_writable(Path(str(output)) / "corpus.json")

    def facts(self, runs: Runs) -> dict[str, Any]:
        """Returns what decides the answers: the options, and the weights and configs of the runs."""
        origin = list(itertools.chain.from_iterable(run.origin for run in runs))
        return {
            **self.decides,
            "steps": [step for step, _, _ in origin],
            "settings_of_runs": [settings for _, settings, _ in origin],
            "parameters": [params for *_, params in origin],
            "content_of_terms": self.terms and corpus.digest(Path(self.terms).read_bytes()),
        }


def join_pieces(folder: str) -> None:
    note(f"{corpus.join(folder)}: all answers, in the order of the lines")


def write_answers(blocks: Iterable[LineChunk], answering: Answering[AnswerT], output: Output, runs: Runs) -> None:
    """Writes the answers of a command to stdout, or into its folder."""
    if not output.is_folder:
        answer_lines(blocks, answering)
        return
    path = Path(output.files[0].lower())
    is_table = answering.columns and container(path.name) == "a table"
    kind = ".txt"
    if is_table:
        kind = Path(path.stem if path.suffix in COMPRESSIONS else path.name).suffix
    packed = path.suffix if path.suffix in corpus.PACKERS else ""
    write_pieces(functools.partial(texts_of, blocks, answering), output, runs, kind + packed)


def texts_of(blocks: Iterable[LineChunk], answering: Answering[AnswerT]) -> Iterator[tuple[LineChunk, Write]]:
    """Yields each chunk with the function that returns its answers as they are printed."""

    def text(header: Sequence[str], block: LineChunk) -> bytes:
        return "".join(f"{line}\n" for line in printed(block, answering, header)).encode()

    for block, header in with_headers(blocks, answering):
        yield block, functools.partial(text, header)


def write_pieces(
    blocks: Callable[[], Iterable[tuple[LineChunk, Write]]], output: Output, runs: Runs, ending: str
) -> None:
    """Writes the pieces that are missing in the folder of a command; joins them if that was asked for and none is missing.

    Without `--part`, first those of the process's place, then all that no other process answers: each may have FILEs of its own.
    """
    folder = corpus.Corpus(str(output.output).rstrip("/"), ending)
    share = corpus.part_of_process(os.environ) if output.part is None else corpus.typed_part(output.part)
    decides = output.facts(runs)
    missing = corpus.answer_pieces(folder, decides, pieces_of(blocks()), share)
    if missing and output.part is None:
        rest = corpus.Part(origin="what no other process answers")
        missing = corpus.answer_pieces(folder, decides, pieces_of(blocks()), rest)
    if output.join and missing:
        note(f"{folder.folder} is not joined: {counted(missing, 'piece')} of other processes are missing")
    elif output.join:
        join_pieces(str(folder.folder))


def pieces_of(blocks: Iterable[tuple[LineChunk, Write]]) -> Iterator[corpus.Piece]:
    """Yields each chunk as a piece."""

    def answer(block: LineChunk, write: Write, progress: ProgressCallback) -> bytes:
        return write(dataclasses.replace(block, progress=progress))

    for index, (block, write) in enumerate(blocks):
        names = [] if block.table is None else block.table.names
        bad = sorted(block.bad.numbers & {*range(block.before + 1, block.before + len(block.lines) + 1)})
        yield corpus.Piece(
            index,
            f"{block.name}, {block.unit}s {block.before + 1} to {block.before + len(block.lines)}",
            len(block.lines),
            corpus.digest(json.dumps([names, block.lines, block.rows, bad]).encode()),
            functools.partial(answer, block, write),
            block.share,
        )
