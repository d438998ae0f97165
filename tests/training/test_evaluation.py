"""Oracles: counts of batches merged by hand. How the loop evaluates: test_loop.py."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU

from flaxformer_lite.config import Config, load_config
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.model import Transformer
from flaxformer_lite.core.model.positions import Learned
from flaxformer_lite.core.objectives import Seq2Seq
from flaxformer_lite.core.objectives.losses import LossTerm, PerRowMetric
from flaxformer_lite.core.runners import MeshRunner as Runner
from flaxformer_lite.core.search.decoder import Decoder, ScoredText
from flaxformer_lite.core.text import Tokenizer, Tokenizers
from flaxformer_lite.core.text.characters import Bytes
from flaxformer_lite.files import metrics
from flaxformer_lite.files.data import ParallelText
from flaxformer_lite.files.data.reading import EvalData
from flaxformer_lite.files.metrics import MetricConfig
from flaxformer_lite.training import evaluation
from flaxformer_lite.training.evaluation import Evaluator, check_sample_prompts, merge_counts, report
from flaxformer_lite.training.multihost.agreement import Processes
from flaxformer_lite.workdir import RunFolder
from tests.support.experiments import tiny_config, with_train


def test_sums_and_counts_are_added_in_float64():
    parts = [LossTerm(np.float32(2**24), np.float32(1)), LossTerm(np.float32(1), np.float32(2))]
    merged = merge_counts(parts)
    assert (merged.sum, merged.count) == (2**24 + 1, 3)


def test_rows_of_no_weight_are_left_out():
    parts = [PerRowMetric(np.array([1.0, 9.0]), np.array([1.0, 0.0])), PerRowMetric(np.array([2.0]), np.array([0.5]))]
    merged = merge_counts(parts)
    assert merged.values.tolist() == [1.0, 2.0] and merged.weights.tolist() == [1.0, 0.5]


def test_sources_together_are_the_mean_over_all_their_tokens():
    """Oracle: by hand; losses 6/2 and 3/4 of two sources, whose batches are one list together."""
    terms = {name: [LossTerm(np.float32(6), np.float32(2))] for name in ("loss", "accuracy")}
    others = {name: [LossTerm(np.float32(3), np.float32(4))] for name in ("loss", "accuracy")}
    found = [report(Seq2Seq(), *counted)["loss"] for counted in ((terms,), (others,), (terms, others))]
    assert found == [3.0, 0.75, 1.5]


def test_prompts_of_a_language_model_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Oracle: the file by hand; a line break would end a sample for its readers."""
    config = with_train(load_config("char_lm"), sample_prompts=("def ", "for\nx"))
    answers = [[ScoredText("f():\n  pass", -1.0)], [ScoredText(" in", -2.0)]]
    monkeypatch.setattr(evaluation, "generate_texts", lambda *_, progress, **__: answers)
    evaluator = object.__new__(Evaluator)
    evaluator.config, evaluator.folder = config, RunFolder(tmp_path)
    evaluator.tokenizers = SimpleNamespace(target=Mock(Tokenizer))
    decoder = Decoder(Transformer(config.model.for_use), config.decode)
    assert evaluator._continue(decoder, {}, "eval-step-00000007", lambda *_: None) == {}
    assert (tmp_path / "samples" / "eval-step-00000007.txt").read_text() == (
        "source:     def \nreference:  \nhypothesis: f():⏎  pass\n\nsource:     for⏎x\nreference:  \nhypothesis:  in\n"
    )


@pytest.mark.parametrize(
    ("ending", "held_out", "tokenizer"), [("zh", False, "zh"), ("th", False, "char"), ("th", True, "char")]
)
def test_bleu_in_training_is_that_of_the_target_language(
    ending: str, held_out: bool, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Oracle: sacreBLEU, for the whole and for a part of a mixture."""
    hypotheses, targets = ["今天天气很好。", "他正在看GPU的书。"], ["今天的天气很好。", "他正在读一本GPT的书。"]
    config = with_train(tiny_config(), text_metrics=("bleu",), best_metric="bleu")
    source = ParallelText(source="a.en", target=f"b.{ending}")
    splits: dict[str, Any] = {"train": source, "eval": None, "held_out": 0.1} if held_out else {"eval": source}
    config = replace(config, data=replace(config.data, **splits))
    records = [Mock(source=np.array([5])) for _ in targets]
    pairs = [Pair("x", target) for target in targets]
    data = Mock(EvalData, pairs=pairs, records=records, parts={"b": slice(1, 2)})
    evaluator = Evaluator(
        config, data, Mock(Tokenizers, target=Mock(Tokenizer)), Mock(Runner), RunFolder(tmp_path), Mock(Processes)
    )
    monkeypatch.setattr(evaluation, "translate", lambda *_, **__: [[ScoredText(text, 0.0)] for text in hypotheses])
    found = evaluator._translate(evaluator.decoder, {}, "eval-step-00000007", lambda *_: None)
    metric = BLEU(tokenize=tokenizer)
    assert found == {
        "bleu": pytest.approx(metric.corpus_score(hypotheses, [targets]).score),
        "b/bleu": pytest.approx(metric.corpus_score(hypotheses[1:], [targets[1:]]).score),
    }


def test_a_tokenizer_that_is_not_installed_is_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(name: str) -> None:
        raise ValueError(name)

    monkeypatch.setattr(metrics, "check_installed", refuse)
    config = with_train(tiny_config(), text_metrics=("bleu",), best_metric="bleu")
    config = replace(config, metrics=MetricConfig(bleu_tokenizer="ja-mecab"))
    data = Mock(EvalData, pairs=[Pair("x", "y")])
    with pytest.raises(ValueError, match="ja-mecab"):
        Evaluator(
            config, data, Mock(Tokenizers, target=Mock(Tokenizer)), Mock(Runner), RunFolder(tmp_path), Mock(Processes)
        )


CHAR_LM = load_config("char_lm")


def test_a_prompt_that_is_too_long_is_found_before_training():
    model = replace(CHAR_LM.model, positions=Learned(max_positions=4))
    decoder, tokenizer = Decoder(Transformer(model), CHAR_LM.decode), Bytes().train([], 260)
    check_sample_prompts(decoder, tokenizer, ["abc"])
    with pytest.raises(
        ValueError, match=r"^train\.sample_prompts: prompt 1 has \d tokens, but model\.positions\.max_positions is 4"
    ):
        check_sample_prompts(decoder, tokenizer, ["abc", "abcdef"])


@pytest.mark.parametrize("config", [tiny_config(), replace(CHAR_LM, data=replace(CHAR_LM.data, eval=None))])
def test_prompts_are_for_evaluations_of_a_language_model(config: Config):
    with pytest.raises(
        ValueError, match=r"train\.sample_prompts is \('a',\), but it is for evaluations of a language model"
    ):
        with_train(config, sample_prompts=("a",))
