"""Laws of orders: candidates stand by cosines, or by the score of each pair. Oracles: both one by one; by hand."""

import dataclasses
import json
from pathlib import Path

import pytest

from flaxformer_lite.core.objectives import Reranking
from flaxformer_lite.run import load
from flaxformer_lite.tasks.rank.answers import in_order
from tests.support.commands import Command
from tests.support.search_runs import write_search_run

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run that embeds, and one that scores pairs."""
    place = tmp_path_factory.mktemp("ranked")
    embeds, reranks = (write_search_run(place / name, reranks=name == "reranks") for name in ("embeds", "reranks"))
    return embeds, reranks


def test_pairs_are_ranked_by_cosines_or_by_the_model(runs):
    """Oracles: cosines of vectors; the number of `classify` for the pair; equal scores keep their order."""
    embeds, reranks = map(load, runs)
    texts = ["grape", "kite", "grape", "ink ink"]
    ranked = embeds.rank("kite", texts)
    assert ranked[0].index == 1 and ranked[0].score == pytest.approx(1, abs=1e-5)
    places = [one.index for one in ranked]
    assert places.index(0) + 1 == places.index(2)
    scores = [prediction.score for prediction in reranks.classify([("kite", text) for text in texts])]
    found = reranks.rank("kite", texts)
    assert [one.score for one in found] == pytest.approx(sorted(scores, reverse=True))
    assert [scores[one.index] for one in found] == pytest.approx([one.score for one in found])
    assert embeds.rank("kite", []) == reranks.rank("kite", []) == []
    trained = dataclasses.replace(reranks, config=dataclasses.replace(reranks.config, objective=Reranking()))
    assert trained.rank("kite", texts) == found
    with pytest.raises(ValueError, match=r"^objective\.kind is 'reranking', .*: use `rank`"):
        trained.classify(["kite"])


def test_the_command_ranks_each_line(runs, command: Command):
    """Oracle: `Run.rank` for each line."""
    asked = {"query": "kite", "candidates": ["ink", "kite", "grape"]}
    for folder in runs:
        first, last = command(
            "rank", folder, stdin=f'{json.dumps(asked)}\n{{"query": "ink", "candidates": []}}'.encode()
        ).lines
        found = load(folder).rank(**asked)
        assert [one["index"] for one in json.loads(first)] == [one.index for one in found]
        assert [one["score"] for one in json.loads(first)] == pytest.approx([one.score for one in found], abs=1e-5)
        assert json.loads(last) == []


def test_warnings_name_the_line_of_a_query_and_progress_counts_lines(runs, tmp_path: Path, command: Command):
    """Line 2 has the long candidate, as the first of its two; both kinds of runs count lines, and not candidates."""
    path, long, told = tmp_path / "asked.jsonl", "ink " * 30, list[tuple[int, int]]()
    asked = [("kite", ["ink", "grape", "ink"]), ("ink", [long, "kite"]), ("dune", [])]
    path.write_text("".join(f"{json.dumps({'query': a, 'candidates': b})}\n" for a, b in asked))
    for folder in runs:
        warnings = [line for line in command("rank", folder, path).notes if "was cut" in line]
        assert len(warnings) == 1 and f"{path}: line 2: " in warnings[0]
        load(folder).rankings(asked, progress=lambda _, *shown: told.append(shown), warn=lambda line: None)
        assert load(folder).rankings([]) == []
    assert {total for _, total in told} == {3} and max(done for done, _ in told) == 3


def test_the_best_candidate_has_the_lowest_number_where_that_is_the_best():
    assert [one.index for one in in_order([2.0, 1.0, 3.0, 1.0])] == [2, 0, 1, 3]
    assert in_order([2.0, 1.0, 3.0, 1.0], -1) == [(1, 1.0), (3, 1.0), (0, 2.0), (2, 3.0)]
