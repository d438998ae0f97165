"""Laws of predictions for many texts: each is that of the text alone, in order, for few compiled shapes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.model import Learned, ModelConfig, SentenceEmbedding, Transformer
from flaxformer_lite.core.model.inputs import Inputs, example_inputs
from flaxformer_lite.core.predictions.encoder import BatchPredictor, predict_embeddings, predict_top_tokens
from flaxformer_lite.core.text.characters import CharacterTokenizer
from tests.support.experiments import num_programs

MODEL = Transformer(
    ModelConfig(
        vocab_size=11, d_model=6, num_heads=2, d_ff=7, num_encoder_layers=1, num_decoder_layers=0, num_token_types=2,
        positions=Learned(max_positions=13, stddev=1.0), sentence_embedding=SentenceEmbedding(),
    )
)  # fmt: skip
TOKENIZER = CharacterTokenizer("abcdefg")
TEXTS = [TOKENIZER.truncated(texts, 13) for texts in ([[4, 5]], [list(range(4, 11))], [[6], [7, 8]], [[9]])]


@pytest.fixture(scope="module")
def variables():
    generator = np.random.default_rng(3)
    shapes = jax.eval_shape(MODEL.init, jax.random.key(0), example_inputs(MODEL.config))
    return jax.tree.map(lambda x: jnp.float32(generator.normal(size=x.shape)), shapes)


def outputs(variables, text):
    """Returns the model's outputs for one text without padding."""
    inputs = Inputs(source_tokens=jnp.array([text.tokens]), token_types=jnp.array([text.types]))
    return jax.jit(MODEL.apply)(variables, inputs)


@pytest.mark.slow
def test_predictions_are_those_of_each_text_alone(variables):
    """Oracle: the model itself without padding; one shape for texts of up to 8 tokens, one for the longer text."""
    predictor, reported = BatchPredictor(MODEL, predict_embeddings, 64, TOKENIZER.pad_id), []
    found = predictor.predict(variables, TEXTS, progress=lambda *told: reported.append(told))
    for text, vector in zip(TEXTS, found, strict=True):
        np.testing.assert_allclose(vector, outputs(variables, text).embedding[0], rtol=2e-5, atol=2e-6)
    assert reported[-1] == ("predicting", 4, 4) and num_programs(predictor.function) <= 2
    assert predictor.predict(variables, []) == []


def test_a_text_with_many_positions_costs_its_own_batch_alone():
    """Oracle: worked by hand: positions are padded to 1, 8, … in each batch, and to no more than its texts have tokens."""
    shapes = []

    def function(model, variables, inputs, positions):
        shapes.append((inputs.source_tokens.shape, positions.shape))
        return positions

    predictor = BatchPredictor(MODEL, function, 32, TOKENIZER.pad_id)
    texts = [TOKENIZER.truncated([[4] * n], 13) for n in (11, 10, 1, 2, 3, 4)]
    positions = [range(12), [1], [1], [2], [1, 2], [3]]
    found = predictor.predict({}, texts, positions)
    assert shapes == [((2, 13), (2, 13)), ((4, 8), (4, 8))]
    assert all(row[: len(asked)].tolist() == list(asked) for row, asked in zip(found, positions, strict=True))
    predictor.predict({}, texts[2:], [[1]] * 4)
    predictor.predict({}, texts[2:], [[1, 2, 3, 4]] * 4)
    assert shapes[2:] == [((4, 8), (4, 1))]  # 2 and 4 positions share a program


@pytest.mark.slow
def test_tokens_are_predicted_at_the_positions_of_each_text(variables):
    """Oracle: softmax of the logits at these positions, sorted; three positions of one text pad all texts of the batch to eight."""
    predictor = BatchPredictor(MODEL, functools.partial(predict_top_tokens, 3), 64, TOKENIZER.pad_id)
    positions = [[1], [7, 2, 3], [4], [2]]
    for text, rows, (probabilities, ids) in zip(
        TEXTS, positions, predictor.predict(variables, TEXTS, positions), strict=True
    ):
        expected = jax.nn.softmax(outputs(variables, text).logits[0, jnp.array(rows)])
        assert ids.shape == probabilities.shape == (8, 3)
        np.testing.assert_array_equal(ids[: len(rows)], jnp.argsort(-expected)[:, :3])
        np.testing.assert_allclose(probabilities[: len(rows)], -jnp.sort(-expected)[:, :3], rtol=1e-4)


def test_a_text_longer_than_the_positions_is_named(variables):
    predictor = BatchPredictor(MODEL, predict_embeddings, 64, TOKENIZER.pad_id)
    long = TOKENIZER.truncated([[4] * 20], 14)
    with pytest.raises(ValueError, match=r"text 1 has 14 tokens, but model.positions.max_positions is 13: shorten it"):
        predictor.predict(variables, [TEXTS[0], long])
