"""Oracles: sacreBLEU's sentence scores added up by hand; law: a majority of samples wins."""

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from flaxformer_lite.metrics.minimum_bayes_risk import minimum_bayes_risk
from flaxformer_lite.metrics.translations import MetricConfig

CANDIDATES = ["a dog runs .", "the dog is running .", "a dog runs .", "two cats sleep"]


@pytest.mark.parametrize(("utility", "metric"), [("chrf", CHRF()), ("bleu", BLEU(effective_order=True))])
def test_the_score_is_the_mean_over_all_candidates(utility: str, metric: CHRF | BLEU):
    found = minimum_bayes_risk(CANDIDATES, utility)  # type: ignore[arg-type]
    assert [text for text, _ in found] == ["a dog runs .", "the dog is running .", "two cats sleep"]
    for text, score in found:
        by_hand = [metric.sentence_score(text, [other]).score for other in CANDIDATES]
        assert score == pytest.approx(sum(by_hand) / 4)


def test_of_equals_the_first_is_taken_and_an_empty_text_is_one_like_any_other():
    assert [text for text, _ in minimum_bayes_risk(["x", "y"], "bleu")] == ["x", "y"]
    assert minimum_bayes_risk(["", ""], "chrf")[0].text == ""


def test_the_utility_is_that_of_the_settings():
    """Oracle: sacreBLEU; with 13a the sentences without spaces have nothing in common, and the first would win."""
    candidates = ["他正在读一本书。", "今天天气很好。", "今天天气很好呢。", "今天的天气很好。"]
    found, metric = minimum_bayes_risk(candidates, "bleu"), BLEU(tokenize="zh", effective_order=True)
    means = {a: sum(metric.sentence_score(a, [b]).score for b in candidates) / 4 for a in candidates}
    assert dict(found) == pytest.approx(means) and found[0].text != candidates[0]
    plus = minimum_bayes_risk(candidates, "chrf", MetricConfig(chrf_word_order=2))[0]
    assert plus.score != minimum_bayes_risk(candidates, "chrf")[0].score
