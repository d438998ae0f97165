"""Oracles: the pictures in the masks' own docstrings; masks by hand."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.model.masks import (
    EVERY_KEY,
    EXCLUDE,
    AttentionMask,
    ByLayer,
    LayerMasks,
    MaskStructure,
    Penalize,
    Replace,
    before_mask,
    causal_mask,
    combine_masks,
    own_mask,
    padding_mask,
    segment_mask,
    structured_mask,
    window_mask,
)
from tests.support.limits import assert_close


def picture(function) -> list[list[bool]]:
    """The rows of crosses and dots that the docstring draws."""
    rows = re.findall(r"query \d+ +((?:[x.] ?)+)$", function.__doc__, re.MULTILINE)
    assert len(rows) == 3
    return [[mark == "x" for mark in row.split()] for row in rows]


def test_causal_mask_is_what_its_docstring_draws():
    np.testing.assert_array_equal(causal_mask(3), [[picture(causal_mask)]])


def test_a_window_ends_what_a_query_sees():
    expected = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert causal_mask(4, 2)[0, 0].astype(int).tolist() == expected
    assert before_mask(2 + jnp.arange(2), jnp.arange(4), 2)[0, 0].astype(int).tolist() == expected[2:]
    np.testing.assert_array_equal(causal_mask(4, 4), causal_mask(4))


def test_window_mask_is_what_its_docstring_draws():
    np.testing.assert_array_equal(window_mask(3, 2), [[picture(window_mask)]])
    np.testing.assert_array_equal(window_mask(4, 1)[0, 0], np.eye(4))
    assert window_mask(4, 4).all()


def test_segments_see_themselves_and_padding_nothing():
    mask = segment_mask(jnp.array([[1, 1, 2, 0]]), jnp.array([[1, 2, 2, 0, 1]]))
    assert mask[0, 0].astype(int).tolist() == [[1, 0, 0, 0, 1], [1, 0, 0, 0, 1], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0]]


def test_padding_mask_is_what_its_docstring_draws():
    mask = padding_mask(jnp.array([[True, True, False], [False, True, False]]))
    assert mask.shape == (2, 1, 1, 3)
    np.testing.assert_array_equal(np.broadcast_to(mask, (2, 1, 3, 3))[0, 0], picture(padding_mask))
    assert mask[1, 0, 0].tolist() == [False, True, False]


def test_combined_masks_allow_what_all_allow():
    left, right = jnp.array([[True, True, False, False]]), jnp.array([[True, False, True, False]]).T
    assert combine_masks() is None and combine_masks(None, None) is None
    assert combine_masks(None, left) is left
    expected = [[True, True, False, False], [False] * 4, [True, True, False, False], [False] * 4]
    assert combine_masks(left, None, right).tolist() == expected


def test_the_parts_of_a_mask_by_hand():
    """Padding is segment 0 of the keys and -1 of the queries, so no query that is padding meets a key."""
    allowed, found = structured_mask(causal_length=4, window=3)
    np.testing.assert_array_equal(allowed, causal_mask(4, 3))
    assert found == MaskStructure(causal=True, window=3)
    allowed, found = structured_mask(length=4, window=3)
    np.testing.assert_array_equal(allowed, window_mask(4, 3))
    assert found == MaskStructure(window=3)
    is_token = jnp.array([[True, True, True, False]])
    segments = jnp.array([[1, 2, 2, 0]])
    allowed, found = structured_mask(is_token, segments, segments, causal_length=4)
    assert allowed[0, 0].astype(int).tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    assert found.queries.tolist() == [[1, 2, 2, -1]] and found.keys.tolist() == [[1, 2, 2, 0]]
    assert found.answered.tolist() == [[True, True, True, False]] and found.causal and found.window is None
    alone = structured_mask(is_token).structure
    assert alone.queries is None and alone.keys.tolist() == [[1, 1, 1, 0]] and not alone.causal
    packed = structured_mask(None, segments, segments).structure
    assert packed.keys.tolist() == [[1, 2, 2, 0]]
    assert structured_mask() == EVERY_KEY


def test_the_mask_of_a_layer_whose_kind_is_known_in_the_loop():
    """Without known parts of one of them, only the array is known."""
    local, other = structured_mask(causal_length=3, window=1), structured_mask(causal_length=3)
    for is_local, expected in ((True, np.eye(3)), (False, np.tri(3))):
        found = LayerMasks(other, local).of_layer(jnp.bool_(is_local))
        np.testing.assert_array_equal(found.allowed[0, 0], expected)
        assert found.structure == ByLayer(jnp.bool_(is_local), local.structure, other.structure)
        alone = LayerMasks(AttentionMask(other.allowed), local).of_layer(jnp.bool_(is_local))
        np.testing.assert_array_equal(alone.allowed[0, 0], expected)
        assert alone.structure is None


@pytest.mark.parametrize("masking", [EXCLUDE, Replace(), Penalize()], ids=lambda masking: masking.kind)
def test_a_masked_score_weighs_nothing(masking):
    """By hand: two keys are left, whose scores are log 3 apart."""
    weights = masking.softmax(jnp.log(jnp.array([[[[1.0, 3.0, 7.0]]]])), jnp.array([True, True, False]))
    assert_close(weights[0, 0, 0], [0.25, 0.75, 0.0])


def test_a_query_without_keys_by_hand():
    """Its weights are 0, alike for all keys, or those of the scores."""
    scores, nothing = jnp.log(jnp.array([[[[1.0, 3.0]]]])), jnp.array([False, False])
    found = [masking.softmax(scores, nothing)[0, 0, 0] for masking in (EXCLUDE, Replace(), Penalize())]
    np.testing.assert_allclose(found, [[0, 0], [0.5, 0.5], [0.25, 0.75]], atol=2**-10)


def test_a_mask_of_numbers_is_refused():
    """A mask that is added to the scores has 0 where a key is seen, and was read as its opposite."""
    assert own_mask(None) is EVERY_KEY
    for mask in (jnp.array([0.0, -1e9]), jnp.array([0, 1])):
        with pytest.raises(
            ValueError, match=r"mask is of type (float|int)32: it must be boolean, True where the query may attend"
        ):
            own_mask(mask)
