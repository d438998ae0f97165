"""Pairs of texts compared with all of their batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.data.records import Lengths
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.inputs import Inputs, Outputs
from flaxformer_lite.objectives import Batch, SentenceEmbeddings
from flaxformer_lite.text.characters import CharacterTokenizer
from flaxformer_lite.text.special_ids import BOS, EOS, PAD
from tests.support.objectives import record


def test_embeddings_are_compared_with_all_of_the_batch_but_empty_rows():
    """Oracle: cosines one by one, in float64; a row of weight 0 is no wrong answer, whatever its vector."""
    rng = np.random.default_rng(10)
    vectors = rng.normal(size=(4, 2, 5)) * rng.uniform(0.5, 2, size=(4, 2, 1))
    objective = SentenceEmbeddings(temperature=0.3)
    batch = Batch(Inputs(), jnp.zeros((4, 1), jnp.int32), jnp.array([[1.0], [1.0], [1.0], [0.0]]))
    found = jax.jit(objective.metrics)(Outputs(embedding=jnp.asarray(vectors.reshape(8, 5), jnp.float32)), batch)
    loss, right = 0.0, 0
    for i in range(3):
        a = vectors[i, 0]
        cosines = [a @ vectors[j, 1] / np.linalg.norm(a) / np.linalg.norm(vectors[j, 1]) / 0.3 for j in range(3)]
        loss += np.log(np.exp(cosines).sum()) - cosines[i]
        right += int(np.argmax(cosines) == i)
    assert float(found["loss"].sum) == pytest.approx(loss, rel=1e-5) and float(found["loss"].count) == 3
    assert (float(found["accuracy"].sum), float(found["accuracy"].count)) == (right, 3)


def test_both_texts_of_a_pair_are_rows_of_the_model():
    objective = SentenceEmbeddings()
    (pack,) = rows = objective.make_rows([record([4, 5], [6])], Lengths(9, 0), 0, CharacterTokenizer("abc"))
    assert rows.lengths.tolist() == [[4, 0]]
    batch = jax.tree.map(lambda x: np.stack([x, x]), objective.example(pack, Lengths(5, 0)))
    model = ModelConfig(vocab_size=29, num_decoder_layers=0, num_token_types=1)
    inputs = objective.inputs(batch, model)
    assert inputs.source_tokens.tolist() == [[BOS, 4, 5, EOS, PAD], [BOS, 6, EOS, PAD, PAD]] * 2
    assert inputs.source_mask.tolist() == [[True] * 4 + [False], [True] * 3 + [False] * 2] * 2
    assert not inputs.token_types.any()
    with pytest.raises(
        ValueError, match=r"^objective\.kind is 'sentence_embeddings', .* record 1 of the data has no source"
    ):
        objective.make_rows([record([], [6])], Lengths(9, 0), 0, CharacterTokenizer("abc"))
