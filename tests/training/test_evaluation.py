"""Oracles: counts of batches merged by hand. How the loop evaluates: test_loop.py."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from flaxformer_lite.config import Config, load_config
from flaxformer_lite.inference import Decoder, ScoredText
from flaxformer_lite.model import Transformer
from flaxformer_lite.model.positions import Learned
from flaxformer_lite.objectives import Seq2Seq
from flaxformer_lite.objectives.losses import LossTerm, PerRowMetric
from flaxformer_lite.text import Tokenizer
from flaxformer_lite.text.characters import Bytes
from flaxformer_lite.training import evaluation
from flaxformer_lite.training.evaluation import Evaluator, check_sample_prompts, merge_counts, report
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
