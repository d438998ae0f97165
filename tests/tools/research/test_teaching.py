"""Laws of teaching: the predictions of each pair are those of the teacher alone with it; of several, the mean probabilities."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flaxformer_lite.core.data.records import TokenPair
from flaxformer_lite.core.objectives import CausalLM
from flaxformer_lite.core.text.characters import Characters
from flaxformer_lite.core.text.tokenizer import Tokenizers
from flaxformer_lite.run import Run
from flaxformer_lite.tools.research.predictions import pair_key
from flaxformer_lite.tools.research.teaching import predict_targets
from flaxformer_lite.workdir.folder import RunFolder
from tests.support.experiments import normal_params, tiniest_config

CONFIG = tiniest_config()
PAIRS = CONFIG.data.train.open("data.train")
TOKENIZER = Characters().train([text for pair in PAIRS for text in pair[:2]], CONFIG.model.vocab_size)


def untrained(seed: int) -> Run:
    return Run(RunFolder(f"run{seed}"), CONFIG, normal_params(CONFIG, seed), Tokenizers(TOKENIZER, TOKENIZER), 0)


def probabilities(run: Run, pair: TokenPair) -> np.ndarray:
    """The softmax of one pair alone, in float64, from `run.forward` without any padding."""
    logits = run.forward(
        input_ids=[[*pair.source, TOKENIZER.eos_id]], decoder_input_ids=[[CONFIG.decode.bos_id, *pair.target]]
    ).logits
    exponentials = np.exp(np.float64(logits[0]))
    return exponentials / exponentials.sum(-1, keepdims=True)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)], ids=["alone", "three"])
def test_predictions_are_the_mean_of_the_teachers(seeds: tuple[int, ...]):
    """Oracle: each pair alone, through `run.forward`."""
    runs = [untrained(seed) for seed in seeds]
    calls: list[tuple[str, int, int]] = []
    predictions = predict_targets(
        replace(runs[0], others=tuple(runs[1:])), CONFIG, top=5, progress=lambda *done: calls.append(done)
    )
    assert predictions.top == 5 and predictions.vocab_size == CONFIG.model.vocab_size
    assert len(predictions) == len({pair[:2] for pair in PAIRS}) and calls[-1][1] == calls[-1][2] == len(calls)
    for text in PAIRS[:3]:
        pair = TokenPair(*(np.asarray(TOKENIZER.encode(side), np.int32) for side in text[:2]))
        mean = np.mean([probabilities(run, pair) for run in runs], 0)
        found = predictions.taught(pair).soft_targets
        assert found.ids.shape == (len(pair.target) + 1, 5) and pair_key(pair) in predictions.keys
        np.testing.assert_allclose(found.probs, -np.sort(-mean, -1)[:, :5], rtol=2e-3, atol=1e-6)
        np.testing.assert_allclose(np.take_along_axis(mean, found.ids, -1), found.probs, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "top", "message"),
    [
        ({}, 0, "top is 0: it must be between 1 and the 149 tokens of the vocabulary"),
        ({"model": replace(CONFIG.model, vocab_size=151)}, 5, "predicts 151 tokens, but the run run0 149"),
        (
            {
                "objective": CausalLM(),
                "model": replace(CONFIG.model, num_encoder_layers=0),
                "train": replace(CONFIG.train, text_metrics=()),
            },
            5,
            "objective.kind is 'causal_lm'",
        ),
    ],
    ids=["top", "vocabulary", "objective"],
)
def test_mistakes(change: dict[str, Any], top: int, message: str):
    with pytest.raises(ValueError, match=message):
        predict_targets(untrained(0), replace(CONFIG, **change), top)
