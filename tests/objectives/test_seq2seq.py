"""Rows and losses of translation, worked by hand."""

from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.data.records import Lengths, TokenPair
from flaxformer_lite.objectives import Batch, Seq2Seq
from flaxformer_lite.text import Tokenizer
from tests.support.objectives import outputs, record

V = 7


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
