"""`-o OUT/` of the commands of lines: their answers as a folder of pieces (`tools/corpus`) in place of stdout."""

import argparse
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flaxformer_lite.base.atomic_files import require_writable
from flaxformer_lite.base.console import counted, note
from flaxformer_lite.cli.answering import Answer, Answering, answer_lines, printed, with_headers
from flaxformer_lite.cli.input_lines import LINES_AT_ONCE, LineChunk
from flaxformer_lite.cli.options import add_option
from flaxformer_lite.core.base.progress import ProgressCallback
from flaxformer_lite.files.text.tables import container
from flaxformer_lite.tools import corpus

if TYPE_CHECKING:
    from flaxformer_lite.engine.engine_run import EngineRun
    from flaxformer_lite.run import Run

COMPRESSIONS = (*corpus.PACKERS, ".zst")
"""Compressions that are read; answers to zstd, which Python does not write, are not packed."""
Write = Callable[[LineChunk], bytes]
"""Returns the answers to a chunk as its piece has them."""


def add_output(parser: argparse.ArgumentParser, command: str, file: str = "") -> None:
    """Adds the options of a folder of answers. file: the name of the one file that `-o` may be too."""
    parser.set_defaults(command=command)
    add_option(
        parser,
        "-o",
        "--output",
        decides=False,
        metavar=f"{file}|OUT/" if file else "OUT/",
        help=("one new file, or " if file else "")
        + "a folder of pieces; killed, the same command goes on with the missing ones",
    )
    pieces = f"lines in a piece of OUT/; default: {LINES_AT_ONCE}"
    add_option(parser, "--pieces", decides=False, type=int, metavar="N", help=pieces)
    share = "the share of OUT/ that this process answers, such as 3/8; default: its place in SLURM or a TPU pod, or all"
    add_option(parser, "--part", decides=False, metavar="K/N", help=share)
    add_option(
        parser,
        "--join",
        decides=False,
        action="store_true",
        help="make one file of OUT/ if all pieces are there; alone without FILEs",
    )


def is_folder(arguments: argparse.Namespace) -> bool:
    """Returns whether -o is a folder of pieces."""
    return arguments.output is not None and (arguments.output.endswith("/") or arguments.pieces is not None)


def is_joined_alone(arguments: argparse.Namespace, takes_file: bool = False) -> bool:
    """Checks the options of a folder of answers; joins it, without a model, and returns True if --join stands without FILEs.

    Raises: ValueError if the options do not go together, or the folder cannot be written or joined.
    """
    output, given = arguments.output, vars(arguments)
    typed = [name for name in ("pieces", "part", "join") if given[name] is not None and given[name] is not False]
    if output is None and typed:
        raise ValueError(f"--{typed[0]} is for a folder of answers: add -o OUT/, or leave it out")
    if output is not None and not is_folder(arguments) and (typed or not takes_file):
        raise ValueError(
            f"-o {output} has no slash at its end: write -o {output}/ for a folder of pieces; > {output} writes a file"
        )
    if not is_folder(arguments):
        return False
    if arguments.pieces is not None and arguments.pieces < 1:
        raise ValueError(f"--pieces is {arguments.pieces}: it must be at least 1")
    if arguments.part is not None:
        corpus.typed_part(arguments.part)
    if not (arguments.files or arguments.join):
        raise ValueError(f"-o {output} needs lines that can be read again: name a FILE in place of stdin")
    if arguments.files:
        require_writable(Path(output) / "corpus.json")
        return False
    join(Path(output))
    return True


def join(folder: Path) -> None:
    note(f"{corpus.join(folder)}: all answers, in the order of the lines")


def write_answers(
    blocks: Iterable[LineChunk],
    answering: Answering[Answer],
    arguments: argparse.Namespace,
    run: "Run | EngineRun",
    rater: "Run | None" = None,
) -> None:
    """Writes the answers of a command to stdout, or into its folder. rater: the run of `--best-by`."""
    if not is_folder(arguments):
        answer_lines(blocks, answering)
        return
    path = Path(arguments.files[0].lower())
    is_table = answering.columns and container(path.name) == "a table"
    kind = Path(path.stem if path.suffix in COMPRESSIONS else path.name).suffix if is_table else ".txt"
    packed = path.suffix if path.suffix in corpus.PACKERS else ""
    write_pieces(functools.partial(texts_of, blocks, answering), arguments, run, kind + packed, rater)


def texts_of(blocks: Iterable[LineChunk], answering: Answering[Answer]) -> Iterator[tuple[LineChunk, Write]]:
    """Yields each chunk with the function that returns its answers as they are printed."""

    def text(header: Sequence[str], block: LineChunk) -> bytes:
        return "".join(f"{line}\n" for line in printed(block, answering, header)).encode()

    for block, header in with_headers(blocks, answering):
        yield block, functools.partial(text, header)


def write_pieces(
    blocks: Callable[[], Iterable[tuple[LineChunk, Write]]],
    arguments: argparse.Namespace,
    run: "Run | EngineRun",
    ending: str,
    rater: "Run | None" = None,
) -> None:
    """Writes the pieces that are missing in the folder of a command; joins them if that was asked for and none is missing.

    Without `--part`, first those of the process's place, then all that no other process answers: each may have FILEs of its own.
    """
    folder = corpus.Corpus(Path(arguments.output), ending)
    share = corpus.part_of_process(os.environ) if arguments.part is None else corpus.typed_part(arguments.part)
    decides = facts(arguments, run, rater)
    missing = corpus.answer_pieces(folder, decides, pieces_of(blocks()), share)
    if missing and arguments.part is None:
        rest = corpus.Part(origin="what no other process answers")
        missing = corpus.answer_pieces(folder, decides, pieces_of(blocks()), rest)
    if arguments.join and missing:
        note(f"{folder.folder} is not joined: {counted(missing, 'piece')} of other processes are missing")
    elif arguments.join:
        join(folder.folder)


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


def facts(arguments: argparse.Namespace, run: "Run | EngineRun", rater: "Run | None") -> dict[str, Any]:
    """Returns what decides the answers: the weights, the configs and the options. Names of folders may differ between hosts."""
    terms, origin = getattr(arguments, "terms", None), [*run.origin, *([] if rater is None else rater.origin)]
    deciding = {"command", *(name for name, mark in arguments.marks.items() if mark.decides)}
    return {
        "run": Path(arguments.folder).absolute().name,
        "ensemble": [Path(one).absolute().name for one in getattr(arguments, "ensemble", [])],
        "files": [Path(file).name for file in arguments.files],
        "pieces": arguments.pieces or LINES_AT_ONCE,
        **{name: value for name, value in vars(arguments).items() if name in deciding},
        "steps": [step for step, _, _ in origin],
        "settings_of_runs": [settings for _, settings, _ in origin],
        "parameters": [params for *_, params in origin],
        "content_of_terms": terms and corpus.digest(Path(terms).read_bytes()),
    }
