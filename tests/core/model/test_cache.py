"""Oracles: a float64 numpy decoder of one document at a time; causality and windows by gradient; packed = alone; cached = full."""

import dataclasses
import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.model import Inputs, ModelConfig, Transformer
from flaxformer_lite.core.model.contexts import map_own
from flaxformer_lite.core.model.positions import Positions
from tests.support.quick import quick
from tests.support.small_models import DECODERS, WINDOW, params_of, slow

T, V = 7, 19
ROOM = T + 4
CLOSE = {"rtol": 1e-11, "atol": 1e-11}
DOCUMENT = np.random.default_rng(5).permutation(V)[:T]
WHOLE = np.ones(T, int), np.arange(T)
# A text of two tokens, one of four, and padding: segments and positions.
PACKED = np.array([1, 1, 2, 2, 2, 2, 0]), np.array([0, 1, 0, 1, 2, 3, 0])
FIRST, SECOND = slice(0, 2), slice(2, 6)
pytestmark = pytest.mark.usefixtures("float64")


QUICK = ("rotary_window_caps",)
"""Each takes two compilations: the other decoders are slow tests."""
each_decoder = pytest.mark.parametrize("name", quick(DECODERS, QUICK.__contains__))


def test_every_position_scheme_has_a_decoder_here():
    assert {type(config.positions) for config in DECODERS.values()} == set(typing.get_args(Positions))


@functools.cache
def compiled(config: ModelConfig):
    """Logits of a document, and for each position the parameters' gradient of a random sum of what the last layer says there."""
    cotangents = np.eye(T)[:, None, :, None] * np.random.default_rng(6).normal(size=config.d_model)

    @jax.jit
    def run(params, tokens, segments, positions):
        def value(params):
            outputs = Transformer(config).apply({"params": params}, Inputs(**target(tokens, segments, positions)))
            return outputs.hidden, outputs.logits

        _, pull, logits = jax.vjp(value, params, has_aux=True)
        return logits[0], jax.vmap(pull)(jnp.asarray(cotangents))[0]

    return run


def target(tokens, segments, positions) -> dict:
    rows = {"target_tokens": tokens, "target_segments": segments, "target_positions": positions}
    return {name: row[None] for name, row in rows.items()}


@functools.cache
def answer(name: str, packed: bool = False):
    config = DECODERS[name]
    return compiled(config)(params_of(config), DOCUMENT, *(PACKED if packed else WHOLE))


def reaches(gradient: dict) -> np.ndarray:
    """`[T, T]`: whether what is said at a position depends on the embedding of the token at another one."""
    return (np.asarray(gradient["embedding"]["embedding"])[:, DOCUMENT] != 0).any(-1)


def distances() -> np.ndarray:
    """How far before the row's position the column's is."""
    return np.arange(T)[:, None] - np.arange(T)


@pytest.mark.slow
@each_decoder
def test_logits_equal_the_float64_reference(name):
    logits, _ = answer(name)
    assert logits.dtype == jnp.float64
    np.testing.assert_allclose(logits, slow(DECODERS[name])(None, DOCUMENT)[0], **CLOSE)


@each_decoder
def test_a_position_depends_on_all_that_its_layers_reach_and_on_nothing_else(name):
    """Nothing in the future; with a window two layers reach twice as far back as one, less itself."""
    window = DECODERS[name].sliding_window
    all_windows = window is not None and window.layers is None
    furthest = 2 * (WINDOW - 1) if all_windows else T
    expected = (distances() >= 0) & (distances() <= furthest)
    np.testing.assert_array_equal(reaches(answer(name)[1]), expected)


def test_one_layer_sees_exactly_the_window():
    config = dataclasses.replace(DECODERS["rotary_window_caps"], num_decoder_layers=1)
    _, gradient = compiled(config)(params_of(config), DOCUMENT, *WHOLE)
    np.testing.assert_array_equal(reaches(gradient), (distances() >= 0) & (distances() < WINDOW))


# Packed documents ------------------------------------------------------------------------------------------------------


@each_decoder
def test_packed_documents_are_each_as_if_alone(name):
    logits, gradient = answer(name, packed=True)
    for part in (FIRST, SECOND):
        alone, _ = slow(DECODERS[name])(None, DOCUMENT[part])
        np.testing.assert_allclose(logits[part], alone, **CLOSE)
    assert np.isfinite(logits).all()
    same = (PACKED[0][:, None] == PACKED[0]) & (distances() >= 0)
    np.testing.assert_array_equal(reaches(gradient), same)


# Decoding --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@each_decoder
def test_cached_decoding_equals_the_full_pass(name):
    """Token by token, and three tokens first; one of the rows begins with two places of padding. The cache starts with rubbish."""
    config = DECODERS[name]
    model, variables = Transformer(config), {"params": params_of(config)}
    step = jax.jit(functools.partial(model.apply, method="decode_step"))
    padded = np.array([0, 2])
    rows = np.array([DOCUMENT, [18, 3, *DOCUMENT[:-2]]])
    empty = model.apply(variables, None, ROOM, 2, method="start_cache")
    empty = map_own(lambda x: x + 50, empty)
    full, _ = answer(name)
    for first in (1, 3):
        cache, said = empty, []
        for start, end in zip([0, *range(first, T)], range(first, T + 1), strict=True):
            logits, cache = step(variables, rows[:, start:end], jnp.int32(start), cache, padded=padded)
            said.append(logits)
        said = np.concatenate(said, 1)
        np.testing.assert_allclose(said[0], full, **CLOSE)
        np.testing.assert_allclose(said[1, 2:], full[:-2], **CLOSE)


# Parameters ------------------------------------------------------------------------------------------------------------
