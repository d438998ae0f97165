"""The best of several candidates, by hand; the same from Python as from the shell."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flaxformer_lite.core.objectives import Regression
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.core.search.answers import ScoredText
from flaxformer_lite.metrics.translations import MetricConfig
from flaxformer_lite.run.choosing import best_first, candidate_settings


@pytest.mark.parametrize(("best", "order"), [("highest", ["long", "abc", "a"]), ("lowest", ["a", "abc", "long"])])
def test_the_answer_that_a_metric_rates_best_comes_first(best: str, order: list[str]):
    """By hand: the metric counts letters of source and translation; of errors the lowest number is the best."""

    def rate(sources: list[str], translations: list[str], **_: Any) -> np.ndarray:
        return np.array([len(source + text) for source, text in zip(sources, translations, strict=True)], np.float32)

    rater: Any = SimpleNamespace(rate=rate, sign=Regression(best=best).rating.sign)
    answers = [[ScoredText(text, 0.0) for text in ("abc", "long", "a")], [ScoredText("b", 0.0)]]
    first, second = best_first(rater, ["xy", "z"], answers, MetricConfig())
    assert [text for text, _ in first] == order and {score for _, score in first} == {3.0, 5.0, 6.0}
    assert second == [ScoredText("b", 2.0)]


def test_the_answer_with_the_least_risk_comes_first():
    answers = [[ScoredText("a b", -1.0), ScoredText("c d", -2.0), ScoredText("c d", -3.0)]]
    bleu_only = MetricConfig(bleu_tokenizer="ja-mecab")  # which chrF needs as little as its package
    assert [text for text, _ in best_first("chrf", ["x"], answers, bleu_only)[0]] == ["c d", "a b"]


@pytest.mark.parametrize(
    ("best_by", "message"),
    [
        ("ter", r"^best_by is 'ter': give chrf or bleu, or a run that rates translations"),
        (
            SimpleNamespace(path="runs/metric", rates_with=(True,)),
            r"^runs/metric needs references to rate translations",
        ),
    ],
)
def test_what_cannot_choose_is_refused(best_by: Any, message: str):
    with pytest.raises(ValueError, match=message):
        candidate_settings(DecodeConfig(beam_size=4), best_by)
