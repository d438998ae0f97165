"""Rows and losses of translation, worked by hand."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.data.records import Lengths, TokenPair
from flaxformer_lite.model import DropoutRates, LanguageModelHead, ModelConfig
from flaxformer_lite.objectives import Batch, Seq2Seq
from tests.support.objectives import outputs, record
from tests.support.small_models import NO_DROPOUT

V = 7
MODEL = ModelConfig(
    vocab_size=11, d_model=4, num_heads=2, d_ff=6, num_encoder_layers=1, num_decoder_layers=1, dropout=DropoutRates()
)


def one_row(pair: TokenPair, lengths: Lengths) -> Batch:
    return jax.tree.map(lambda x: jnp.asarray(x)[None], Seq2Seq().example(pair, lengths))


def test_lengths_count_the_special_tokens():
    assert Seq2Seq().make_rows([record([4, 5, 6], [5])], Lengths(9, 9), 0).lengths.tolist() == [[4, 2]]


def test_evaluation_does_not_smooth():
    """Oracle: -log softmax by hand. Logits 0 everywhere but log 2 at the target: p = 2 / (V + 1)."""
    batch = one_row(record([4], [5, 6]), Lengths(2, 4))
    logits = np.zeros((1, 4, V), np.float32)
    for position, target in enumerate(batch.targets[0]):
        logits[0, position, target] = np.log(2)
    for smoothing in (0.0, 0.3):
        term = jax.jit(Seq2Seq(label_smoothing=smoothing).metrics)(outputs(logits), batch)["loss"]
        assert float(term.count) == 3  # two tokens and EOS
        np.testing.assert_allclose(float(term.sum), 3 * np.log((V + 1) / 2), rtol=1e-6)


def test_smoothing_is_part_of_the_training_loss():
    """Oracle: by hand. Smoothing moves e of the weight from the target to the mean over V classes."""
    batch = one_row(record([4], [5]), Lengths(2, 2))
    logits = np.zeros((1, 2, V), np.float32)
    logits[0, [0, 1], np.asarray(batch.targets[0])] = np.log(2)
    term = jax.jit(Seq2Seq(label_smoothing=0.3).loss)(outputs(logits), batch)["cross_entropy"]
    each = np.log(V + 1) - 0.7 * np.log(2) - 0.3 * np.log(2) / V
    np.testing.assert_allclose(float(term.sum), 2 * each, rtol=1e-6)


def test_a_smoothing_outside_0_to_1_is_refused():
    with pytest.raises(ValueError, match=r"objective\.label_smoothing is 1\.0"):
        Seq2Seq(label_smoothing=1.0)


def test_consistency_is_the_mean_divergence_of_a_row_and_its_copy():
    """Oracle: by hand, of two positions that count and one of padding; the cross-entropy is the mean of both copies."""
    objective = Seq2Seq(label_smoothing=0.0, consistency=2.5)
    batch = objective.training_batch(one_row(record([4], [5]), Lengths(2, 3)))
    assert batch.targets.tolist() == [[5, 3, 0]] * 2
    logits = np.random.default_rng(3).normal(size=(2, 3, V)).astype(np.float32)
    p, q = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    divergence = (p * np.log(p / q) + q * np.log(q / p)).sum(-1) / 2
    terms = objective.loss(outputs(logits), batch)
    np.testing.assert_allclose(float(terms["consistency"].mean), divergence[:2].mean(), rtol=1e-5)
    assert terms["consistency"].weight == 2.5
    likelihood = [-np.log(x[at, target]) for x in (p, q) for at, target in ((0, 5), (1, 3))]
    np.testing.assert_allclose(float(terms["cross_entropy"].mean), np.mean(likelihood), rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dropout": NO_DROPOUT}, "all rates of model.dropout are 0"),
        ({"head": LanguageModelHead(loss_chunk=8)}, "model.head.loss_chunk is 8"),
    ],
)
def test_a_consistency_that_has_nothing_to_compare_is_refused(change: dict[str, object], message: str):
    model = replace(MODEL, **change)
    Seq2Seq().check_model(model)
    with pytest.raises(ValueError, match=re.escape(message)):
        Seq2Seq(consistency=1.0).check_model(model)
