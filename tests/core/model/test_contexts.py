"""Oracles: masks, positions and slots of a decode cache by hand; what the layers make of them: `test_cache.py`."""

import chex
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.model import Inputs, ModelConfig, SlidingWindow
from flaxformer_lite.core.model.attention import KeyValue
from flaxformer_lite.core.model.contexts import CachedKeyValue, decoder_context, encoder_context, step_context
from flaxformer_lite.core.model.masks import EVERY_KEY, AttentionMask

TOKENS = jnp.ones((1, 4), jnp.int32)
BOTH = ModelConfig(vocab_size=3)
ALONE = {"vocab_size": 3, "num_encoder_layers": 0, "num_decoder_layers": 2}
WINDOW_2 = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]


def test_an_encoder_sees_the_tokens_of_its_own_text():
    mask = encoder_context(
        BOTH, Inputs(source_mask=jnp.array([[True, True, False]]), source_segments=jnp.array([[1, 2, 0]])), TOKENS
    ).masks.most
    assert mask.allowed.astype(int).tolist() == [[[[1, 0, 0], [0, 1, 0], [0, 0, 0]]]]
    assert mask.structure.keys.tolist() == [[1, 2, 0]] and mask.structure.queries.tolist() == [[1, 2, -1]]
    assert mask.structure.answered.tolist() == [[True, True, False]]
    assert encoder_context(BOTH, Inputs(), TOKENS).masks.most == EVERY_KEY


@pytest.mark.parametrize("layers", [None, (1,)])
def test_a_window_of_some_layers_makes_two_masks(layers):
    config = ModelConfig(**ALONE, sliding_window=SlidingWindow(size=2, layers=layers))
    masks = decoder_context(config, Inputs(target_tokens=TOKENS), TOKENS, None).masks
    local, structure = masks.most if layers is None else masks.local
    assert local[0, 0].astype(int).tolist() == WINDOW_2 and (structure.window, structure.causal) == (2, True)
    if layers is None:
        assert masks.local is None
    else:
        assert (masks.most.allowed[0, 0] == np.tri(4, dtype=bool)).all() and masks.most.structure.window is None


def test_a_window_of_an_encoder_alone_has_two_sides():
    alone = ModelConfig(vocab_size=3, num_decoder_layers=0, sliding_window=SlidingWindow(size=2))
    allowed, structure = encoder_context(alone, Inputs(), TOKENS).masks.most
    assert allowed[0, 0].astype(int).tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    assert (structure.window, structure.causal) == (2, False)
    beside = ModelConfig(vocab_size=3, sliding_window=SlidingWindow(size=2))
    assert encoder_context(beside, Inputs(), TOKENS).masks.most == EVERY_KEY


def test_a_mask_from_the_caller_has_no_known_structure():
    given = jnp.eye(4, dtype=bool)[None, None]
    inputs = Inputs(target_tokens=TOKENS, target_attention=given)
    context = decoder_context(ModelConfig(**ALONE), inputs, TOKENS, None)
    chex.assert_trees_all_equal(context.masks.most, AttentionMask(given))


def test_a_step_in_a_cache_with_room_for_all():
    """Columns 3 and 4 of rows with 0 and 2 columns of padding, room for 6: the last slot is empty."""
    context = step_context(ModelConfig(**ALONE), jnp.int32(3), 2, 6, None, jnp.array([0, 2]), causal=True)
    assert context.positions.tolist() == [[3, 4], [1, 2]]
    assert context.key_positions[:, :5].tolist() == [[0, 1, 2, 3, 4], [-2, -1, 0, 1, 2]]
    assert context.masks.most.allowed[:, 0].astype(int).tolist() == [
        [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]],
        [[0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0]],
    ]
    assert (context.first_slot, context.slots) == (3, None)


def test_a_step_in_a_cache_of_a_window():
    """Room and window of 3: position 4 goes to slot 1; two tokens, 4 and 5, attend to the cache [3, 1, 2] and to themselves."""
    config = ModelConfig(**ALONE, sliding_window=SlidingWindow(size=3))
    context = step_context(config, jnp.int32(4), 1, 3, None, None, causal=True)
    assert context.positions.tolist() == [[4]] and (context.first_slot, context.slots) == (1, None)
    assert context.key_positions.tolist() == [[3, 4, 2]] and context.masks.most.allowed.all()
    context = step_context(config, jnp.int32(4), 2, 3, None, None, causal=True)
    assert context.key_positions.tolist() == [[3, 1, 2, 4, 5]] and context.slots.tolist() == [1, 2]
    assert context.masks.most.allowed[0, 0].astype(int).tolist() == [[1, 0, 1, 1, 0], [1, 0, 0, 1, 1]]


def test_a_full_prompt_sees_all_of_itself():
    context = step_context(ModelConfig(**ALONE), jnp.int32(0), 3, 4, None, None, causal=False)
    assert context.masks.most.allowed[0, 0].astype(int).tolist() == 3 * [[1, 1, 1, 0]]
    config = ModelConfig(**ALONE, sliding_window=SlidingWindow(size=3))
    with pytest.raises(
        ValueError, match=r"^objective\.prompt_attention is 'full', but model\.sliding_window\.size is 3: "
    ):
        step_context(config, jnp.int32(0), 3, 3, None, None, causal=False)


def test_new_keys_go_into_their_slots():
    """By hand: one after slot 1 of a cache with room for all; two into the slots of the oldest of a window of 3."""
    old = CachedKeyValue(*(jnp.arange(3.0)[None, None, :, None] for _ in range(2)))
    new = KeyValue(*(jnp.array([[[[7.0]], [[8.0]]]]) for _ in range(2)))
    config = ModelConfig(**ALONE, sliding_window=SlidingWindow(size=3))
    for number, settings, context, seen, filled in (
        (2, ModelConfig(**ALONE), jnp.int32(1), [0, 7, 8], [0, 7, 8]),
        (2, config, jnp.int32(4), [0, 1, 2, 7, 8], [0, 7, 8]),
    ):
        found, cache = old.read_and_write(new, step_context(settings, context, number, 3, None, None, causal=True))
        assert found.key[0, :, 0, 0].tolist() == seen and cache.value[0, 0, :, 0].tolist() == filled
