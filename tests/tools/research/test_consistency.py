"""R-Drop, worked by hand, and by the law that two passes differ by their dropout alone."""

import math
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.data.records import Lengths
from flaxformer_lite.core.model import DropoutRates, LanguageModelHead, ModelConfig, Transformer
from flaxformer_lite.core.objectives import Apply, Seq2Seq
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.tools.research.consistency import Consistency, divergence_of_copies
from flaxformer_lite.tools.research.distillation import Distillation
from tests.support.objectives import example, outputs, record
from tests.support.small_models import NO_DROPOUT

V = 7
MODEL = ModelConfig(
    vocab_size=11, d_model=4, num_heads=2, d_ff=6, num_encoder_layers=1, num_decoder_layers=1, dropout=DropoutRates()
)


def test_consistency_is_the_mean_divergence_of_a_row_and_its_copy():
    """Oracle: by hand, of two positions that count and one of padding; the cross-entropy is the mean of both copies."""
    objective = Consistency(label_smoothing=0.0, weight=2.5)
    row = example(objective, record([4], [5]), Lengths(2, 3))
    batch = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * 2), row)
    logits = np.random.default_rng(3).normal(size=(2, 3, V)).astype(np.float32)
    p, q = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    divergence = (p * np.log(p / q) + q * np.log(q / p)).sum(-1) / 2
    terms = objective.loss(outputs(logits), batch)
    np.testing.assert_allclose(float(terms["consistency"].mean), divergence[:2].mean(), rtol=1e-5)
    assert terms["consistency"].weight == 2.5
    likelihood = [-np.log(x[at, target]) for x in (p, q) for at, target in ((0, 5), (1, 3))]
    np.testing.assert_allclose(float(terms["cross_entropy"].mean), np.mean(likelihood), rtol=1e-5)


def test_the_divergence_of_copies_by_hand(float64: None):
    """Oracle: p = (1/4, 3/4) and q = (1/2, 1/2), or p = q; the weights are those of each first row."""
    p, q = np.log([0.25, 0.75]), np.log([0.5, 0.5])
    logits = jnp.array([[p, p + 7], [q, p], [q, q], [p, q]])
    weights = jnp.array([[1.0, 5.0], [9.0, 9.0], [2.0, 0.0], [9.0, 9.0]])
    term = divergence_of_copies(logits, weights, 0.5)
    one = ((0.25 - 0.5) * math.log(0.25 / 0.5) + (0.75 - 0.5) * math.log(0.75 / 0.5)) / 2
    np.testing.assert_allclose((float(term.sum), float(term.count), term.weight), (3 * one, 8, 0.5), rtol=1e-13)


@pytest.mark.slow
def test_each_row_is_read_twice_with_different_dropout():
    """Law: both copies count, and differ by their dropout alone: by none, they are the same."""
    objective = Consistency(label_smoothing=0)
    row = example(objective, record([4, 5], [5, 6]), Lengths(3, 4))
    batch = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x), jnp.zeros_like(x)]), row)
    params = jax.jit(Transformer(MODEL).init)(jax.random.key(0), batch.inputs)["params"]
    for dropout, differs in ((DropoutRates(residual_rate=0.3), True), (NO_DROPOUT, False)):
        apply = Apply(Transformer(replace(MODEL, dropout=dropout)), params, DecodeConfig())
        terms = jax.jit(lambda batch, apply=apply: objective.terms(apply, batch, jax.random.key(1)))(batch)
        assert (float(terms["cross_entropy"].count), float(terms["consistency"].count)) == (6, 3)
        assert (float(terms["consistency"].mean) > 1e-3) == differs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dropout": NO_DROPOUT}, "all rates of model.dropout are 0"),
        ({"head": LanguageModelHead(loss_chunk=8)}, "model.head.loss_chunk is 8, but the objective Consistency reads"),
    ],
)
def test_a_consistency_that_has_nothing_to_compare_is_refused(change: dict[str, object], message: str):
    model = replace(MODEL, **change)
    Seq2Seq().check_model(model)
    Consistency().check_model(MODEL)
    with pytest.raises(ValueError, match=re.escape(message)):
        Consistency().check_model(model)


def test_a_student_reads_all_logits_too():
    with pytest.raises(ValueError, match=r"loss_chunk is 8, but the objective Distillation reads all logits"):
        Distillation(predictions="a.npz").check_model(replace(MODEL, head=LanguageModelHead(loss_chunk=8)))
