"""Oracles: pytrec_eval (trec_eval) and ranx, by tests/fixtures/ranking.json (tests/makers/make_ranking_reference.py); by hand."""

import json
import math

import pytest

from flaxformer_lite.core.retrieval.ranking import mean_figures, ndcg, ranked, recall, reciprocal_rank
from tests.support.paths import FIXTURES

CASES = json.loads((FIXTURES / "ranking.json").read_text(encoding="utf-8"))["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_figures_are_those_of_trec_eval_and_ranx(case: dict):
    """Graded judgements, also below 0, texts without one, queries without a relevant text, few and many results, and ties."""
    found = mean_figures(case["results"], case["judgements"])
    for name, expected in case["figures"].items():
        assert found[name] == pytest.approx(expected, abs=1e-6), name


def test_figures_by_hand():
    """Gains 0, 2, 1 of judged 2, 1, 1: DCG 2 / log2 3 + 1 / 2, at best 2 + 1 / log2 3 + 1 / 2."""
    gains, judged = [0, 2, 1], [1, 2, 1, 0, -1]
    best = 2 + 1 / math.log2(3) + 0.5
    assert ndcg(gains, judged, 10) == pytest.approx((2 / math.log2(3) + 0.5) / best)
    assert ndcg(gains, judged, 1) == 0 and ndcg(gains, [0, -1], 10) == 0
    assert [reciprocal_rank(gains, k) for k in (1, 2, 3)] == [0, 0.5, 0.5] and reciprocal_rank([0, -1], 5) == 0
    assert [recall(gains, judged, k) for k in (1, 2, 3)] == pytest.approx([0, 1 / 3, 2 / 3]) and recall(
        [0], [0], 5
    ) == 0


def test_equal_scores_are_ordered_by_id_backwards():
    assert ranked({"a": 1.0, "a10": 1.0, "a9": 1.0, "z": 0.5}) == ["a9", "a10", "a", "z"]
