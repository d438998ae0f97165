"""The options that translate and evaluate share, without a model: what they set, and what they refuse."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flaxformer_lite.cli import translation
from flaxformer_lite.core.objectives import Regression
from flaxformer_lite.core.search.answers import ScoredText
from flaxformer_lite.core.search.settings import Sampling
from flaxformer_lite.metrics.translations import MetricConfig
from flaxformer_lite.run import Run
from flaxformer_lite.workdir import RunFolder
from tests.support.commands import evaluate_arguments
from tests.support.experiments import tiny_config

CONFIG = replace(tiny_config(), decode=replace(tiny_config().decode, beam_size=5))
RUN = Run(RunFolder("run"), CONFIG, {}, None, 3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], {}),
        (["--alpha", "1.5", "--beam-size", "3"], {"alpha": 1.5, "beam_size": 3}),
        (["--minimum-risk", "chrf"], {"num_hypotheses": 5}),
        (["--minimum-risk", "chrf", "--beam-size", "9"], {"num_hypotheses": 9, "beam_size": 9}),
        (
            ["--minimum-risk", "bleu", "--samples", "7", "--temperature", "0.5"],
            {"num_hypotheses": 7, "beam_size": 1, "sampling": Sampling(temperature=0.5)},
        ),
    ],
)
def test_options_become_settings_of_decoding(options: list[str], expected: dict[str, Any]):
    assert translation.decode_settings(RUN, evaluate_arguments("run", *options)) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--samples", "7"], "--samples are candidates of --minimum-risk"),
        (["--minimum-risk", "chrf", "--temperature", "0.5"], "--temperature is for samples"),
        (["--minimum-risk", "chrf", "--beam-size", "1"], "there is only 1: raise --beam-size or --samples"),
        (["--best-by", "metric", "--beam-size", "1"], "--best-by compares candidates, but there is only 1"),
        (["--best-by", "metric", "--minimum-risk", "chrf"], "both choose the answer: leave one out"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: list[str], message: str):
    with pytest.raises(ValueError, match=message):
        translation.decode_settings(RUN, evaluate_arguments("run", *options))


@pytest.mark.parametrize(("best", "order"), [("highest", ["long", "abc", "a"]), ("lowest", ["a", "abc", "long"])])
def test_the_answer_that_a_metric_rates_best_comes_first(best: str, order: list[str]):
    """By hand: the metric counts letters of source and translation; of errors the lowest number is the best."""

    def rate(sources: list[str], translations: list[str], **_: Any) -> np.ndarray:
        return np.array([len(source + text) for source, text in zip(sources, translations, strict=True)], np.float32)

    rater: Any = SimpleNamespace(rate=rate, sign=Regression(best=best).rating.sign)
    answers = [[ScoredText(text, 0.0) for text in ("abc", "long", "a")], [ScoredText("b", 0.0)]]
    first, second = translation.chosen(answers, ["xy", "z"], evaluate_arguments("run"), MetricConfig(), rater)
    assert [text for text, _ in first] == order and {score for _, score in first} == {3.0, 5.0, 6.0}
    assert second == [ScoredText("b", 2.0)]


def test_the_answer_with_the_least_risk_comes_first():
    answers = [[ScoredText("a b", -1.0), ScoredText("c d", -2.0), ScoredText("c d", -3.0)]]
    assert translation.chosen(answers, [], evaluate_arguments("run"), MetricConfig(), None) == answers
    bleu_only = MetricConfig(bleu_tokenizer="ja-mecab")  # which chrF needs as little as its package
    best = translation.chosen(answers, [], evaluate_arguments("run", "--minimum-risk", "chrf"), bleu_only, None)
    assert [text for text, _ in best[0]] == ["c d", "a b"]
