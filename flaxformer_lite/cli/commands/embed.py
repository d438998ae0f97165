"""Writes one vector for each line: as a JSON list, or all of them into an .npy file.

With --similarity a line is two texts separated by a tab, and the result is the cosine of their vectors. A line that is not UTF-8 is
reported; its answer is empty, in an .npy file a row of nan. The result for a TSV or CSV is the same table with one more column.
"""

import argparse
import dataclasses
import functools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Float

from flaxformer_lite.base.atomic_files import atomic_write, require_absent
from flaxformer_lite.cli import input_lines
from flaxformer_lite.cli.input_lines import LineChunk, answer_lines, chosen_blocks, columns, text_columns
from flaxformer_lite.cli.options import chosen_weights


def add_arguments(parser: argparse.ArgumentParser) -> None:
    input_lines.add_arguments(parser)
    parser.add_argument("-o", "--output", metavar="FILE.npy", help="write all vectors, [N, D], into this new file")
    parser.add_argument("--similarity", action="store_true", help="lines are pairs of texts: write their cosines")


def run(arguments: argparse.Namespace) -> None:
    if arguments.output is not None and arguments.similarity:
        raise ValueError("--output writes vectors and --similarity cosines: leave one of them out")
    if arguments.output is not None:
        require_absent(Path(arguments.output), "file")
    wanted = 2 if arguments.similarity else 1
    blocks = chosen_blocks(arguments.files, "embed", text_columns(arguments, arguments.files, wanted))
    from flaxformer_lite.run import load  # with JAX

    loaded = load(arguments.folder, **chosen_weights(arguments))

    def embedded(block: LineChunk) -> Float[np.ndarray, "N D"]:
        with block.reporting("embedding") as report:
            return loaded.embed(block.lines, **report)

    def vectors(block: LineChunk) -> Iterator[str]:
        for vector in embedded(block):
            yield json.dumps([float(str(x)) for x in vector])  # the shortest digits that give the same float32

    def similarities(block: LineChunk) -> Iterator[str]:
        pairs = [columns(block, number) for number in range(len(block.lines))]
        first, second = (embedded(dataclasses.replace(block, lines=list(side))) for side in zip(*pairs, strict=True))
        lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        for cosine in (first * second).sum(1) / np.maximum(lengths, 1e-12):
            yield f"{cosine:.6f}"

    if arguments.output is None and arguments.similarity:
        two = functools.partial(columns, wanted=2)
        answer_lines(blocks, similarities, two, beside=["similarity"])
    elif arguments.output is None:
        answer_lines(blocks, vectors, beside=["vector"])
    else:
        kept = [loaded.embed([])]
        missing = np.full((1, kept[0].shape[1]), np.nan, np.float32)
        for block in blocks:
            kept += [missing if lines is None else embedded(lines) for lines in block.answerable()]
        with atomic_write(Path(arguments.output)) as unfinished, open(unfinished, "wb") as file:
            np.save(file, np.concatenate(kept))
