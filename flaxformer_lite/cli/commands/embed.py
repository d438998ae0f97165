"""Writes one vector for each line: as a JSON list, or all of them into an .npy file, or a folder of them.

With --similarity a line is a query and a document, separated by a tab, and the result is the cosine of their vectors. A line that
is not UTF-8 is reported; its answer is empty, in an .npy file a row of nan. The result for a TSV or CSV is the same table with one
more column.
"""

import argparse
import dataclasses
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from flaxformer_lite.base.atomic_files import atomic_write, require_absent
from flaxformer_lite.cli import input_lines
from flaxformer_lite.cli.answering import Answering
from flaxformer_lite.cli.input_lines import LineChunk, chosen_blocks, columns, text_columns
from flaxformer_lite.cli.options import chosen_weights
from flaxformer_lite.cli.output import add_output, is_folder, is_joined_alone, write_answers, write_pieces

if TYPE_CHECKING:
    from flaxformer_lite.run import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    input_lines.add_arguments(parser)
    add_output(parser, "embed", "FILE.npy")
    parser.add_argument("--similarity", action="store_true", help="lines are pairs of texts: write their cosines")
    parser.add_argument("--prompt", metavar="NAME", help="which of objective.prompts is before each text; '': none")
    parser.add_argument("--width", type=int, metavar="N", help="write the first N values alone, scaled to length 1")


def run(arguments: argparse.Namespace) -> None:
    if arguments.output is not None and arguments.similarity:
        raise ValueError("--output writes vectors and --similarity cosines: leave one of them out")
    if is_joined_alone(arguments, takes_file=True):
        return
    if arguments.output is not None and not is_folder(arguments):
        require_absent(Path(arguments.output), "file")
    texts = text_columns(arguments, arguments.files, wanted=2 if arguments.similarity else 1)
    blocks = chosen_blocks(arguments.files, "embed", texts, arguments.pieces)
    from flaxformer_lite.run import load  # with JAX

    write_vectors(blocks, load(arguments.folder, **chosen_weights(arguments)), arguments)


def write_vectors(blocks: Iterable[LineChunk], run: "Run", arguments: argparse.Namespace) -> None:
    """Writes the vectors or cosines to stdout, or the vectors into a file or a folder of files."""
    embedding = Embedding(run, {"prompt": arguments.prompt, "width": arguments.width})
    embedding.run.embed([], **embedding.options)  # an unknown prompt is refused before anything is written
    if is_folder(arguments):
        write_pieces(lambda: ((block, embedding.as_file) for block in blocks), arguments, run, ".npy")
    elif arguments.output is not None:
        save_vectors(blocks, embedding, Path(arguments.output))
    else:
        write_answers(blocks, Comparing(embedding) if arguments.similarity else embedding, arguments, run)


@dataclass(frozen=True)
class Embedding(Answering[Float[np.ndarray, "D"]]):
    """Vectors of texts."""

    run: "Run"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The prompt and the width of the vectors, as `Run.embed` takes them."""

    @property
    def beside(self) -> Sequence[str]:
        return ["vector"]

    def answers(self, block: LineChunk) -> Float[np.ndarray, "N D"]:
        with block.reporting("embedding") as report:
            return self.run.embed(block.lines, **self.options, **report)

    def rows(self, block: LineChunk) -> Float[np.ndarray, "N D"]:
        """Returns the vectors of a chunk, for a bad line a row of nan."""
        missing = np.full((1, self.run.embed([], **self.options).shape[1]), np.nan, np.float32)
        return np.concatenate([missing if lines is None else self.answers(lines) for lines in block.answerable()])

    def as_file(self, block: LineChunk) -> bytes:
        """Returns the vectors of a chunk as an .npy file."""
        file = io.BytesIO()
        np.save(file, self.rows(block))
        return file.getvalue()

    def written(self, index: int, answer: Float[np.ndarray, "D"]) -> list[str]:
        return [json.dumps([float(str(x)) for x in answer])]  # the shortest digits that give the same float32


@dataclass(frozen=True)
class Comparing(Answering[float]):
    """Cosines of the vectors of two texts."""

    embedding: Embedding

    @property
    def beside(self) -> Sequence[str]:
        return ["similarity"]

    def read(self, block: LineChunk, number: int) -> Sequence[str]:
        return columns(block, number, wanted=2)

    def answers(self, block: LineChunk) -> list[float]:
        with block.reporting("embedding") as report:
            pairs = [(first, second) for first, second in block.read]
            return self.embedding.run.similarity(pairs, **self.embedding.options, **report).tolist()

    def written(self, index: int, answer: float) -> list[str]:
        return [f"{answer:.6f}"]


def save_vectors(blocks: Iterable[LineChunk], embedding: Embedding, path: Path) -> None:
    """Writes the vectors of all lines into a new file, for a bad line a row of nan."""
    vectors = [embedding.run.embed([], **embedding.options), *map(embedding.rows, blocks)]
    with atomic_write(path) as unfinished, open(unfinished, "wb") as file:
        np.save(file, np.concatenate(vectors))
