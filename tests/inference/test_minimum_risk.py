"""Oracles: sacreBLEU's sentence scores added up by hand; law: a majority of samples wins."""

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from flaxformer_lite.inference.minimum_risk import minimum_risk

CANDIDATES = ["a dog runs .", "the dog is running .", "a dog runs .", "two cats sleep"]


@pytest.mark.parametrize(("utility", "metric"), [("chrf", CHRF()), ("bleu", BLEU(effective_order=True))])
def test_the_score_is_the_mean_over_all_candidates(utility: str, metric: CHRF | BLEU):
    found = minimum_risk(CANDIDATES, utility)  # type: ignore[arg-type]
    assert [text for text, _ in found] == ["a dog runs .", "the dog is running .", "two cats sleep"]
    for text, score in found:
        by_hand = [metric.sentence_score(text, [other]).score for other in CANDIDATES]
        assert score == pytest.approx(sum(by_hand) / 4)


def test_of_equals_the_first_is_taken_and_an_empty_text_is_one_like_any_other():
    assert [text for text, _ in minimum_risk(["x", "y"], "bleu")] == ["x", "y"]
    assert minimum_risk(["", ""], "chrf")[0].text == ""
