"""Translates lines: from files, from a pipe, or typed.

Only results go to stdout, one line for each input line, in order; everything else goes to stderr. With --n-best each
hypothesis is a line `index ||| text ||| score`, the index counting input lines from 0.
"""

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from flaxformer_lite.data.sources import read_lines
from flaxformer_lite.progress import Progress, warn
from flaxformer_lite.run import Run, Translation, load

LINES_AT_ONCE = 4096
"""Results are written after that many lines, so that a long input does not wait for its end."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the run folder")
    parser.add_argument("files", metavar="FILE", nargs="*", help="text files, plain or gzipped; by default stdin")
    parser.add_argument("--beam", type=int, help="beam size, 1 is greedy; by default the config's decode.beam_size")
    parser.add_argument("--n-best", type=int, metavar="N", help="write the N best of the beam instead of one")
    parser.add_argument("--scores", action="store_true", help="add a tab and the score to each line")
    parser.add_argument("--weights", help="last, best, ema or average:N; by default the config's weights")


def run(arguments: argparse.Namespace) -> None:
    loaded = load(arguments.folder, weights=arguments.weights)
    decode: dict[str, Any] = {} if arguments.beam is None else {"beam_size": arguments.beam}
    if arguments.n_best is not None:
        decode["num_hypotheses"] = arguments.n_best
    loaded.decoder(**decode)
    if not arguments.files and sys.stdin.isatty():
        converse(loaded, decode, arguments)
        return
    lines = itertools.chain.from_iterable(map(read_lines, arguments.files)) if arguments.files else stdin_lines()
    start = 0
    while chunk := list(itertools.islice(lines, LINES_AT_ONCE)):
        write(translated(loaded, chunk, decode, start), start, arguments)
        start += len(chunk)


def translated(loaded: Run, lines: list[str], decode: dict[str, Any], start: int) -> list[list[Translation]]:
    with Progress(len(lines)) as progress:
        return loaded.hypotheses(
            lines,
            progress=lambda done, of: progress.update("translating", done),
            warn=warn,
            first_line=start + 1,
            **decode,
        )


def write(translations: Iterable[list[Translation]], start: int, arguments: argparse.Namespace) -> None:
    for index, hypotheses in enumerate(translations, start):
        if arguments.n_best is not None:
            for hypothesis in hypotheses:
                print(f"{index} ||| {hypothesis.text} ||| {hypothesis.score:.6f}")
        elif arguments.scores:
            print(f"{hypotheses[0].text}\t{hypotheses[0].score:.6f}")
        else:
            print(hypotheses[0].text)
    sys.stdout.flush()


def stdin_lines() -> Iterator[str]:
    """The lines of stdin. Raises: ValueError with the number of a line that is not UTF-8."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise ValueError(f"stdin, line {number}: not UTF-8; convert it, for example with iconv") from None


def converse(loaded: Run, decode: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Answers line by line until the end of input."""
    import readline  # noqa: F401  (input() then has line editing and a history)

    print("Type a line to translate; Ctrl-D ends.", file=sys.stderr)
    for index in itertools.count():
        try:
            line = input("> ")
        except EOFError:
            print(file=sys.stderr)
            return
        write(loaded.hypotheses([line], **decode), index, arguments)
