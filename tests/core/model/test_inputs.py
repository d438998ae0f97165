"""Oracles: positions and shifts by hand, and the one line that inputs which do not fit are answered with."""

import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.model.config import ModelConfig, SlidingWindow
from flaxformer_lite.core.model.inputs import Inputs, check_inputs, default_positions, read_types, shifted


def test_tokens_that_do_not_count_have_no_position():
    tokens = jnp.array([[5, 7, 1, 8, 1, 1], [1, 5, 6, 1, 7, 8]])
    np.testing.assert_array_equal(default_positions(tokens, 1), [[0, 1, -1, 2, -1, -1], [-1, 0, 1, -1, 2, 3]])
    np.testing.assert_array_equal(default_positions(tokens), [[0, 1, 2, 3, 4, 5]])


def test_shifted_tokens_and_known_types():
    tokens = jnp.array([[5, 7, 1]])
    assert shifted(tokens, 9).tolist() == [[9, 5, 7]]
    assert read_types(ModelConfig(vocab_size=3, num_token_types=2), jnp.array([[0, 1, 4]])).tolist() == [[0, 1, 1]]
    assert read_types(ModelConfig(vocab_size=3), tokens) is None


@pytest.mark.parametrize(("present", "missing"), [("source", "target"), ("target", "source")])
def test_segments_of_one_side_only_are_named(present, missing):
    """Were they taken, every target would see all sources."""
    inputs = Inputs(**dict.fromkeys(("source_tokens", "target_tokens", f"{present}_segments"), jnp.ones((2, 5), int)))
    with pytest.raises(
        ValueError,
        match=rf"^the inputs have {present}_segments, but no {missing}_segments: both are needed to pair packed texts\Z",
    ):
        check_inputs(ModelConfig(vocab_size=13), inputs)


def test_a_window_and_an_attention_of_ones_own_do_not_go_together():
    config = ModelConfig(vocab_size=13, num_encoder_layers=0, sliding_window=SlidingWindow(size=3))
    inputs = Inputs(target_tokens=jnp.zeros((1, 2), int), target_attention=jnp.ones((1, 1, 2, 2), bool))
    with pytest.raises(ValueError, match=r"`target_attention`.* model\.sliding_window is set.*: leave one out\Z"):
        check_inputs(config, inputs)


@pytest.mark.parametrize("name", ["token_types", "predict_positions"])
def test_inputs_that_the_model_does_not_read_are_refused(name: str):
    inputs = Inputs(target_tokens=jnp.zeros((1, 2), jnp.int32), **{name: jnp.zeros((1, 2), jnp.int32)})
    with pytest.raises(ValueError, match=f"the inputs have `{name}`.*: leave them out"):
        check_inputs(ModelConfig(vocab_size=3, num_encoder_layers=0, num_decoder_layers=1), inputs)
