"""Writes the candidates of each query in their order, best first, each with its score.

A line is a JSON object {"query": "…", "candidates": ["…", …]}. Its answer is a JSON list of {"index": …, "score": …}; an index is
the place of a candidate in the line, from 0. The answer to a line with an `id` is {"id": …, "ranking": […]}; other fields are not
read. The score is the number of a reranker, or the cosine of vectors. A line of another form is reported, and its answer is empty.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flaxformer_lite.files.text.json_objects import field_value, object_in
from flaxformer_lite.tasks.lines import TaskLines

if TYPE_CHECKING:
    from flaxformer_lite.tasks.rank.answers import Query, RankedText
    from flaxformer_lite.tasks.task import TextModel


@dataclass(frozen=True)
class Lines(TaskLines["list[RankedText]"]):
    verb = "rank"
    doing = "ranking"
    of_objects = True
    at_once = 64  # each may have many candidates
    file = None
    texts = 0

    def read(self, texts: Sequence[str]) -> dict[str, Any]:
        """Returns a record with a query and its candidates."""
        record = object_in(texts[0])
        query, candidates = field_value(record, "query"), field_value(record, "candidates")
        both = [query, *candidates] if isinstance(candidates, list) else [None]
        if not all(isinstance(text, str) for text in both):
            raise ValueError('write {"query": "…", "candidates": ["…", …]}, all of them texts')
        return record

    def asked(self, read: dict[str, Any]) -> "Query":
        from flaxformer_lite.tasks.rank.answers import Query

        return Query(read["query"], read["candidates"])

    def written(self, read: dict[str, Any], answer: "list[RankedText]", model: "TextModel") -> list[list[str]]:
        ranking: Any = [{"index": one.index, "score": round(one.score, 6)} for one in answer]
        written = {"id": read["id"], "ranking": ranking} if "id" in read else ranking
        return [[json.dumps(written, ensure_ascii=False)]]
