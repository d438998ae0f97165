"""Rows and losses of translation, worked by hand."""

import re
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.data.records import Lengths, SoftTargets, TaughtPair, TokenPair
from flaxformer_lite.model import DropoutRates, LanguageModelHead, ModelConfig
from flaxformer_lite.objectives import Batch, ExpectedRisk, Seq2Seq
from flaxformer_lite.text import Tokenizer
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


def test_special_ids_before_a_source_are_part_of_its_length():
    """Oracle: by hand, for 4 tokens with EOS: the end of a source goes where its special ids leave no room."""
    tokenizer = Mock(Tokenizer, as_source=lambda ids: [9, *ids, 3])
    rows = Seq2Seq().make_rows([record([4] * n, [5]) for n in (1, 2, 3)], Lengths(4, 9), 0, tokenizer)
    assert [row.source.tolist() for row in rows] == [[9, 4], [9, 4, 4], [9, 4, 4]]
    assert rows.lengths.tolist() == [[3, 2], [4, 2], [4, 2]]


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


def test_a_student_learns_from_words_and_from_its_teacher():
    """Oracle: by hand. The teacher read the first of two pairs; the second learns from its words alone."""
    objective = Seq2Seq(label_smoothing=0.0, distillation=0.25)
    ids, probs = np.array([[5, 6], [3, 4]]), np.array([[0.5, 0.5], [1.0, 0.0]], np.float32)
    rows = [
        objective.example(TaughtPair(*pair[:2], soft), Lengths(2, 3))
        for pair, soft in (
            (record([4], [5]), SoftTargets(ids, probs)),
            (record([4], [6, 5]), SoftTargets(ids[:0], probs[:0])),
        )
    ]
    batch = jax.tree.map(lambda *x: jnp.stack(x), *rows)
    logits = np.random.default_rng(3).normal(size=(2, 3, V)).astype(np.float32)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    terms = jax.jit(objective.loss)(outputs(logits), batch)
    words = -0.75 * (logs[0, 0, 5] + logs[0, 1, 3]) - (logs[1, 0, 6] + logs[1, 1, 5] + logs[1, 2, 3])
    soft = -0.5 * (logs[0, 0, 5] + logs[0, 0, 6]) - logs[0, 1, 3]
    np.testing.assert_allclose([float(terms[name].sum) for name in terms], [words, soft], rtol=1e-5)
    assert list(terms) == ["cross_entropy", "distillation"]
    assert [term.weight for term in terms.values()] == [1.0, 0.25]
    assert [float(term.count) for term in terms.values()] == [5.0, 5.0]


def test_a_student_with_a_consistency_reads_each_row_twice():
    """Oracle: the copies have the soft targets of their row, so the term is that of one copy if both predict the same."""
    objective = Seq2Seq(distillation=0.5, consistency=1.0)
    soft = SoftTargets(np.array([[5, 6], [3, 4]]), np.array([[0.5, 0.5], [0.75, 0.0]], np.float32))
    row = objective.example(TaughtPair(*record([4], [5])[:2], soft), Lengths(2, 3))
    once = jax.tree.map(lambda x: jnp.asarray(x)[None], row)
    logits = np.random.default_rng(3).normal(size=(1, 3, V)).astype(np.float32)
    alone = replace(objective, consistency=0.0).loss(outputs(logits), once)["distillation"]
    both = objective.loss(outputs(np.concatenate([logits, logits])), objective.training_batch(once))
    assert set(both) == {"cross_entropy", "distillation", "consistency"}
    np.testing.assert_allclose(float(both["distillation"].mean), float(alone.mean), rtol=1e-6)
    np.testing.assert_allclose(float(both["consistency"].sum), 0, atol=1e-6)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ({"distillation": 0.5, "risk": ExpectedRisk()}, "objective.distillation is 0.5, and objective.risk is set"),
        ({"consistency": 1.0, "risk": ExpectedRisk()}, "objective.consistency is 1.0, and objective.risk is set"),
        (
            {"distillation": 0.5},
            "objective.distillation is 0.5, which compares all logits, but model.head.loss_chunk is 8",
        ),
    ],
)
def test_terms_that_read_the_rows_in_other_ways_are_refused(objective: dict[str, Any], message: str):
    head = LanguageModelHead(loss_chunk=None if "risk" in objective else 8)
    with pytest.raises(ValueError, match=re.escape(message)):
        Seq2Seq(**objective).check_model(replace(MODEL, head=head))


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
