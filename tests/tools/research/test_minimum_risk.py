"""Minimum-risk training, worked by hand; sacreBLEU is the oracle of sentence-level BLEU."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU

from flaxformer_lite.core.data.records import Lengths
from flaxformer_lite.core.objectives import Batch, Seq2Seq
from flaxformer_lite.core.objectives.losses import LogitStats
from flaxformer_lite.tools.research.minimum_risk import (
    DrawnAnswers,
    MinimumRisk,
    expected_risk,
    sentence_bleu,
    with_answers,
)
from tests.support.objectives import example, outputs, record

V = 7
RISK = MinimumRisk(label_smoothing=0.1, num_samples=2, weight=3.0)


def test_bleu_is_sacrebleus():
    """Oracle: sacreBLEU with 1 added to the counts of n-grams longer than 1. Few words, so that n-grams occur several times."""
    rng = np.random.default_rng(0)
    metric = BLEU(tokenize="none", force=True, smooth_method="add-k", smooth_value=1, effective_order=True)
    texts = [rng.integers(0, 3, rng.integers(0, 12)) for _ in range(24)]
    pairs = [(a, r) for a, r in itertools.product(texts, texts[:8]) if len(r)]
    padded = lambda ids, length: np.pad(ids, (0, length - len(ids)), constant_values=1)  # noqa: E731
    found = jax.jit(sentence_bleu)(
        np.stack([padded(a, 14) for a, _ in pairs]),
        np.array([len(a) for a, _ in pairs]),
        np.stack([padded(r, 12) for _, r in pairs]),
        np.array([len(r) for _, r in pairs]),
    )
    # With effective_order, sacreBLEU leaves out the orders that the answer is too short for; here they have 1 of 1.
    exact = [(len(a) >= 4 or not len(a)) for a, _ in pairs]
    theirs = [metric.sentence_score(" ".join(map(str, a)), [" ".join(map(str, r))]).score / 100 for a, r in pairs]
    np.testing.assert_allclose(np.asarray(found)[exact], np.array(theirs)[exact], atol=1e-6)
    assert len(set(np.round(theirs, 4))) > 50 and sum(exact) > 100


def test_bleu_of_short_answers():
    """Oracle: by hand. `a` for `a b`: precision 1 at all orders, as 1 is added above and below; brevity exp(1 - 2)."""
    found = sentence_bleu(
        jnp.array([[4, 0], [4, 5], [6, 0]]), jnp.array([1, 2, 1]), jnp.array([[4, 5]]), jnp.array([2])
    )
    np.testing.assert_allclose(found, [np.exp(-1), 1, 0], atol=1e-6)


def batch_of_two() -> Batch:
    """One pair, and a row that only fills the batch."""
    row = example(Seq2Seq(), record([4], [5, 6]), Lengths(2, 3))
    return jax.tree.map(lambda x: jnp.stack([x, np.zeros_like(x)]), row)


def two_answers() -> DrawnAnswers:
    """The answers `5 6` and `5`, in 4 positions; the second row has none."""
    targets = jnp.array([[[5, 6, 3, 0], [5, 3, 0, 0]], [[0] * 4] * 2])
    inputs = jnp.array([[[2, 5, 6, 0], [2, 5, 0, 0]], [[0] * 4] * 2])
    return DrawnAnswers(inputs, targets, jnp.array([[[1, 1, 1, 0], [1, 1, 0, 0]], [[0] * 4] * 2], bool))


def test_each_reference_is_followed_by_its_answers():
    batch = with_answers(batch_of_two(), two_answers())
    assert batch.targets.tolist()[:3] == [[5, 6, 3, 0], [5, 6, 3, 0], [5, 3, 0, 0]]
    assert batch.inputs.target_tokens.tolist()[:3] == [[2, 5, 6, 0], [2, 5, 6, 0], [2, 5, 0, 0]]
    assert batch.weights.tolist()[:3] == [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 0, 0]]
    assert batch.inputs.target_mask.tolist() == (np.asarray(batch.weights) > 0).tolist()
    assert not batch.weights[3:].any() and batch.inputs.source_tokens.shape == (2, 2)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_losses_are_those_of_the_reference_and_of_the_answers(order: tuple[int, int]):
    """Oracle: cross-entropy and expectation in NumPy. The risk of the answer that is the reference is 0, first or last."""
    batch = with_answers(batch_of_two(), jax.tree.map(lambda x: x[:, order, :], two_answers()))
    logits = np.random.default_rng(3).normal(size=(6, 4, V)).astype(np.float32)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    rows = [0, *(1 + i for i in order), *range(3, 6)]
    terms = jax.jit(RISK.loss)(outputs(logits[rows]), batch)
    alone = Seq2Seq(label_smoothing=0.1).loss(outputs(logits[:1, :3]), jax.tree.map(lambda x: x[:1], batch_of_two()))
    np.testing.assert_allclose(terms["cross_entropy"].sum, alone["cross_entropy"].sum, rtol=1e-5)
    assert terms["cross_entropy"].count == 3
    means = [logs[1, range(3), [5, 6, 3]].mean(), logs[2, range(2), [5, 3]].mean()]
    metric = BLEU(tokenize="none", force=True, smooth_method="add-k", smooth_value=1)
    bleu = metric.sentence_score("5 3", ["5 6 3"]).score / 100
    expected = np.exp(means[1]) / np.exp(means).sum() * (1 - bleu)
    assert terms["risk"].count == 1 and terms["risk"].weight == 3.0
    np.testing.assert_allclose(terms["risk"].sum, expected, rtol=1e-5)


def test_the_gradient_prefers_answers_below_the_mean_risk():
    """Oracle: by hand. d risk / d log p_i = q_i (risk_i - risk) / length, with equal q of three answers of two tokens."""
    risks = jnp.array([[0.1, 0.3, 0.8]])
    mask = jnp.ones((1, 3, 2), bool)

    def mean_risk(logits: jax.Array) -> jax.Array:
        stats = LogitStats(jnp.zeros_like(logits), logits, logits, logits > 0)
        return expected_risk(stats, mask, risks, jnp.array([True])).sum

    found = jax.grad(mean_risk)(jnp.zeros((1, 3, 2)))
    expected = (np.array([0.1, 0.3, 0.8]) - 0.4) / 3 / 2
    np.testing.assert_allclose(found[0], np.repeat(expected[:, None], 2, 1), atol=1e-7)


def test_an_answer_counts_by_its_mean_log_probability():
    """By hand: one token of probability 1/2 is as probable as three of 1/2 each; two of 1/8 have a quarter of both: 4, 4 and 1."""
    mask = jnp.array([[[True, False, False], [True, True, True], [True, True, False]]])
    logs = jnp.where(mask, jnp.log(jnp.array([0.5, 0.5, 0.125]))[None, :, None], -9.0)
    stats = LogitStats(jnp.zeros_like(logs), logs, logs, logs > 0)
    risk = expected_risk(stats, mask, jnp.array([[0.9, 0.0, 0.0]]), jnp.array([True]))
    np.testing.assert_allclose(risk.sum, 0.9 * 4 / 9, rtol=1e-6)


def test_one_answer_has_nothing_to_be_compared_with():
    with pytest.raises(ValueError, match=r"objective\.num_samples is 1"):
        MinimumRisk(num_samples=1)
