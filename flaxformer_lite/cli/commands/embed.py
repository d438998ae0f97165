"""Writes one vector for each line: as a JSON list, or all of them into an .npy file.

With --similarity a line is two texts separated by a tab, and the result is the cosine of their vectors. A line that is not UTF-8 is
reported; its answer is empty, in an .npy file a row of nan.
"""

import argparse
import dataclasses
import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from flaxformer_lite.base.atomic_files import atomic_write, require_absent
from flaxformer_lite.cli import input_lines
from flaxformer_lite.cli.input_lines import LineChunk, chosen_blocks, columns, no_check
from flaxformer_lite.cli.options import chosen_weights

if TYPE_CHECKING:
    import flaxformer_lite.run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    input_lines.add_arguments(parser)
    parser.add_argument("-o", "--output", metavar="FILE.npy", help="write all vectors, [N, D], into this new file")
    parser.add_argument("--similarity", action="store_true", help="lines are pairs of texts: write their cosines")


def run(arguments: argparse.Namespace) -> None:
    if arguments.output is not None and arguments.similarity:
        raise ValueError("--output writes vectors and --similarity cosines: leave one of them out")
    if arguments.output is not None:
        require_absent(Path(arguments.output), "file")
    blocks = chosen_blocks(arguments.files, "embed")
    from flaxformer_lite.run import load  # with JAX

    loaded = load(arguments.folder, **chosen_weights(arguments))
    kept = [loaded.embed([])]
    missing = np.full((1, kept[0].shape[1]), np.nan, np.float32)
    for block in blocks:
        check = functools.partial(columns, block, wanted=2) if arguments.similarity else no_check
        for part in block.answerable(check):
            if arguments.output is not None:
                kept.append(missing if part is None else embedded(loaded, part))
            elif part is None:
                print()
            else:
                for line in similarities(loaded, part) if arguments.similarity else vectors(loaded, part):
                    print(line)
        sys.stdout.flush()
    if arguments.output is not None:
        with atomic_write(Path(arguments.output)) as unfinished, open(unfinished, "wb") as file:
            np.save(file, np.concatenate(kept))


def similarities(loaded: "flaxformer_lite.run.Run", block: LineChunk) -> Iterator[str]:
    """Yields the lines to write for pairs of texts."""
    pairs = [columns(block, number) for number in range(len(block.lines))]
    sides = (dataclasses.replace(block, lines=list(side)) for side in zip(*pairs, strict=True))
    first, second = (embedded(loaded, side) for side in sides)
    for cosine in cosines(first, second):
        yield f"{cosine:.6f}"


def vectors(loaded: "flaxformer_lite.run.Run", block: LineChunk) -> Iterator[str]:
    """Yields the lines to write for texts."""
    for vector in embedded(loaded, block):
        yield json.dumps([float(str(x)) for x in vector])  # the shortest digits that give the same float32


def embedded(loaded: "flaxformer_lite.run.Run", block: LineChunk) -> Float[np.ndarray, "N D"]:
    with block.reporting("embedding") as report:
        return loaded.embed(block.lines, **report)


def cosines(first: Float[np.ndarray, "N D"], second: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N"]:
    """Returns the cosine of the angle between the vectors of each row."""
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return (first * second).sum(1) / np.maximum(lengths, 1e-12)
