"""Writes the candidates of each query in their order, best first, each with its score.

A line is a JSON object {"query": "…", "candidates": ["…", …]}. Its answer is a JSON list of {"index": …, "score": …}; an index is
the place of a candidate in the line, from 0. The score is the number of a reranker, or the cosine of vectors. A line of another
form is reported, and its answer is empty.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flaxformer_lite.cli.answering import Answering, answer_lines
from flaxformer_lite.cli.input_lines import LineChunk, TextColumns, chosen_blocks
from flaxformer_lite.cli.options import add_weights, chosen_weights
from flaxformer_lite.files.text.json_objects import json_object

if TYPE_CHECKING:
    from flaxformer_lite.run import RankedText, Run


LINES_AT_ONCE = 64
"""Lines of a file in a chunk: each may have many candidates."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the run folder")
    parser.add_argument("files", metavar="FILE", nargs="*", default=[], help="files of JSON lines; default: stdin")
    add_weights(parser)


def run(arguments: argparse.Namespace) -> None:
    blocks = chosen_blocks(arguments.files, "rank", TextColumns(whole_lines=True), LINES_AT_ONCE)
    from flaxformer_lite.run import load  # with JAX

    ranking = Ranking(load(arguments.folder, **chosen_weights(arguments)))
    ranking.run.relevance([])  # a run that cannot rank says so before the first line is read
    answer_lines(blocks, ranking)


@dataclass(frozen=True)
class Ranking(Answering["list[RankedText]"]):
    """Orders of candidates."""

    run: "Run"

    def check(self, block: LineChunk, number: int) -> None:
        read_line(block, number)

    def answers(self, block: LineChunk) -> "Iterator[list[RankedText]]":
        asked = [read_line(block, number) for number in range(len(block.lines))]
        with block.reporting("ranking") as report:
            yield from self.run.rankings(asked, **report)

    def written(self, index: int, answer: "list[RankedText]") -> list[str]:
        return [json.dumps([{"index": one.index, "score": round(one.score, 6)} for one in answer])]


def read_line(block: LineChunk, number: int) -> tuple[str, list[str]]:
    """Returns the query and the candidates of a line. Raises: ValueError with the place for anything else."""
    place = block.place(number)
    record = json_object(block.lines[number], place)
    query, candidates = record.get("query"), record.get("candidates")
    texts = [query, *candidates] if isinstance(candidates, list) else [None]
    if not all(isinstance(text, str) for text in texts) or len(record) != 2:
        raise ValueError(f'{place}: write {{"query": "…", "candidates": ["…", …]}}, texts and no other fields')
    return str(query), texts[1:]  # type: ignore[return-value]  # all are texts
