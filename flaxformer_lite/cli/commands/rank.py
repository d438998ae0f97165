"""Writes the candidates of each query in their order, best first, each with its score.

A line is a JSON object {"query": "…", "candidates": ["…", …]}. Its answer is a JSON list of {"index": …, "score": …}; an index is
the place of a candidate in the line, from 0. The answer to a line with an `id` is {"id": …, "ranking": […]}; other fields are not
read. The score is the number of a reranker, or the cosine of vectors. A line of another form is reported, and its answer is empty.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flaxformer_lite.cli.answering import Answering, answer_lines
from flaxformer_lite.cli.input_lines import LineChunk, TextColumns, chosen_blocks
from flaxformer_lite.cli.options import add_weights, chosen_weights
from flaxformer_lite.files.text.json_objects import field_value, json_object

if TYPE_CHECKING:
    from flaxformer_lite.run import Run


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
class Ranking(Answering[Any]):
    """Orders of candidates, as values of JSON."""

    run: "Run"

    def read(self, block: LineChunk, number: int) -> dict[str, Any]:
        """Returns a record with a query and its candidates."""
        record = json_object(block.lines[number], block.place(number))
        with block.naming(number):
            query, candidates = field_value(record, "query"), field_value(record, "candidates")
            texts = [query, *candidates] if isinstance(candidates, list) else [None]
            if not all(isinstance(text, str) for text in texts):
                raise ValueError('write {"query": "…", "candidates": ["…", …]}, all of them texts')
        return record

    def answers(self, block: LineChunk) -> Iterator[Any]:
        with block.reporting("ranking") as report:
            rankings = self.run.rankings([(one["query"], one["candidates"]) for one in block.read], **report)
        for record, ranked in zip(block.read, rankings, strict=True):
            ranking = [{"index": one.index, "score": round(one.score, 6)} for one in ranked]
            yield {"id": record["id"], "ranking": ranking} if "id" in record else ranking

    def written(self, index: int, answer: Any) -> list[str]:
        return [json.dumps(answer, ensure_ascii=False)]
