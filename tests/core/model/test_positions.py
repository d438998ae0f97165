"""Oracles: hand-worked numbers, float64 and whole-number references, laws of shift and symmetry, rows of a given table."""

import dataclasses
import functools
import math
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.model.positions import (
    ALiBi,
    DynamicScaling,
    Learned,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoPositions,
    OptionalRotaryScaling,
    RelativeBias,
    Rotary,
    Sinusoidal,
    YarnScaling,
    sinusoids,
)
from flaxformer_lite.core.model.transformer import PositionBias, PositionEmbedding
from tests.support import reference
from tests.support.limits import assert_close
from tests.support.small_models import amplitude, rates

B, T, D = 2, 3, 5
POSITIONS = jnp.array([[0, 1, 2], [7, 3, 7]])
LAYOUTS = ["interleaved", "half_split"]
waves_of = jax.jit(sinusoids, static_argnums=(1, 2, 3))


def embedded(scheme, x):
    """What the scheme makes of the embeddings, and the variables that it starts with."""
    return jax.jit(PositionEmbedding(scheme).init_with_output)(jax.random.key(1), x, POSITIONS)


def test_sinusoids_by_hand():
    """Width 4 has the wavelengths 2π and 2π · 100; at position 3 the angles are 3 and 0.03."""
    sin3, cos3, sin003, cos003 = 0.14112001, -0.98999250, 0.02999550, 0.99955003
    waves = {layout: waves_of(jnp.array([[0, 3]]), 4, layout)[0] for layout in LAYOUTS}
    np.testing.assert_allclose(waves["interleaved"][1], [sin3, cos3, sin003, cos003], atol=1e-6)
    np.testing.assert_allclose(waves["half_split"][1], [sin3, sin003, cos3, cos003], atol=1e-6)
    np.testing.assert_array_equal(waves["interleaved"][0], [0, 1, 0, 1])
    np.testing.assert_array_equal(waves["half_split"][0], [0, 0, 1, 1])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("width", "max_wavelength"), [(1, 10_000.0), (5, 10_000.0), (6, 10_000.0), (6, 131.0)])
def test_sinusoids_equal_the_float64_reference(layout, width, max_wavelength):
    with jax.enable_x64(True):
        got = waves_of(POSITIONS, width, layout, max_wavelength)
    want = [[reference.sinusoid(int(p), width, layout, max_wavelength) for p in row] for row in POSITIONS]
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_sinusoids_in_float32_are_close_at_far_positions():
    """An angle p has the rounding error of a float32, p 2^-24 at most, a few times over."""
    position = 1021
    want = reference.sinusoid(position, 6, "interleaved")
    got = waves_of(jnp.array([[position]]), 6, "interleaved")[0, 0]
    np.testing.assert_allclose(got, want, atol=position * 2**-24 * 4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sinusoidal_adds_the_waves_and_has_no_parameters(layout):
    x = jnp.asarray(np.random.default_rng(1).normal(size=(B, T, D)), jnp.float32)
    got, variables = embedded(Sinusoidal(layout=layout), x)
    assert variables == {}
    want = x + np.array([[reference.sinusoid(int(p), D, layout) for p in row] for row in POSITIONS])
    assert_close(got, want)


def test_learned_adds_the_row_of_each_position():
    rng = np.random.default_rng(2)
    x, table = rng.normal(size=(B, T, D)), rng.normal(size=(11, D))
    with jax.enable_x64(True):
        scheme = PositionEmbedding(Learned(max_positions=11))
        got = jax.jit(scheme.apply)({"params": {"embedding": table}}, jnp.asarray(x), POSITIONS)
    for b, row in enumerate([[0, 1, 2], [7, 3, 7]]):
        for t, position in enumerate(row):
            np.testing.assert_array_equal(got[b, t], x[b, t] + table[position])


def test_learned_starts_normal_around_zero():
    """1009 · 5 numbers: mean and mean square within 6 standard deviations, which chance leaves twice in 10^9."""
    scheme = PositionEmbedding(Learned(max_positions=1009, stddev=0.3))
    params = jax.jit(scheme.init)(jax.random.key(3), jnp.zeros((B, T, D)), POSITIONS)["params"]
    table = np.asarray(params.pop("embedding"))
    assert params == {} and table.shape == (1009, D) and table.dtype == np.float32
    assert abs(table.mean() / 0.3) < 6 / math.sqrt(table.size)
    assert abs((table**2).mean() / 0.09 - 1) < 6 * math.sqrt(2 / table.size)


@pytest.mark.parametrize("scheme", [Sinusoidal(), Learned(max_positions=11), NoPositions()], ids=lambda s: s.kind)
def test_positions_keep_the_type_of_the_embeddings(scheme):
    x = jnp.ones((B, T, D), jnp.bfloat16)
    got, variables = embedded(scheme, x)
    assert got.dtype == jnp.bfloat16
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(variables))


# Rotary --------------------------------------------------------------------------------------------------------------

LLAMA3 = Llama3Scaling(factor=3.0, low_frequency_factor=1.3, high_frequency_factor=3.1, original_length=31)
YARN = YarnScaling(factor=3.0, fast_turns=3.1, slow_turns=0.4, original_length=31)
STEP = YarnScaling(fast_turns=1.0, original_length=7, whole_pairs=False, amplitude=0.8)
LONG = LongRopeScaling(
    short_factors=(1.0, 1.1, 1.3), long_factors=(2.0, 3.0, 7.0), original_length=5, length=5, amplitude=1.2
)
DYNAMIC = DynamicScaling(factor=2.5, original_length=5, length=8)
# name: (scheme, width of a head, how many of its pairs turn)
ROTARY = {
    "half_split": (Rotary(), 10, 5),
    "interleaved": (Rotary(layout="interleaved"), 10, 5),
    "odd_width": (Rotary(base=37.0), 7, 3),
    "odd_width_interleaved": (Rotary(layout="interleaved", base=37.0), 7, 3),
    "a_part": (Rotary(fraction=0.6), 11, 3),
    "a_part_interleaved": (Rotary(fraction=0.6, layout="interleaved"), 11, 3),
    "a_part_cut_down": (
        Rotary(fraction=0.7),
        11,
        3,
    ),  # of 7.7 elements 7, as `int` in the reference library, and 3 pairs
    "linear": (Rotary(scaling=LinearScaling(factor=2.3)), 10, 5),
    "llama3": (Rotary(base=101.0, scaling=LLAMA3), 22, 11),
    "yarn": (Rotary(base=101.0, scaling=YARN), 22, 11),
    "yarn_between_pairs": (Rotary(base=101.0, scaling=dataclasses.replace(YARN, whole_pairs=False)), 22, 11),
    "yarn_a_step": (Rotary(base=101.0, scaling=STEP), 22, 11),
    "longrope_short": (Rotary(fraction=0.6, scaling=LONG), 11, 3),
    "longrope_long": (Rotary(fraction=0.6, scaling=dataclasses.replace(LONG, length=6)), 11, 3),
    "dynamic": (Rotary(base=37.0, scaling=DYNAMIC), 10, 5),
    "dynamic_unstretched": (Rotary(base=37.0, scaling=dataclasses.replace(DYNAMIC, length=4)), 10, 5),
}
some = np.random.default_rng(4).normal(size=(B, T, 2, 23))


@functools.cache
def rotated(name: str):
    scheme, width, _ = ROTARY[name]
    with jax.enable_x64(True):
        return np.asarray(jax.jit(scheme.rotate)(some[..., :width], POSITIONS))


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("half_split", [-1.41335253, 1.87911806, -2.82885749, 4.05819112]),
        ("interleaved", [-1.27223252, -1.83886499, 2.87866809, 4.08818662]),
    ],
)
def test_rotary_by_hand(layout, expected):
    """The head 1 2 3 4 at position 3, where pairs turn by 3 and 0.03: (1, 3) and (2, 4), or (1, 2) and (3, 4)."""
    turned = jax.jit(Rotary(layout=layout).rotate)(jnp.array([[[[1.0, 2, 3, 4]]] * 2]), jnp.array([[0, 3]]))
    np.testing.assert_array_equal(turned[0, 0, 0], [1, 2, 3, 4])
    assert_close(turned[0, 1, 0], expected)


def test_every_rotary_scaling_is_tested():
    assert {type(scheme.scaling) for scheme, *_ in ROTARY.values()} == set(typing.get_args(OptionalRotaryScaling))


@pytest.mark.parametrize("name", ROTARY)
def test_rotary_equals_turning_complex_numbers(name):
    scheme, width, pairs = ROTARY[name]
    turns = rates(scheme, width)
    assert len(turns) == pairs
    for b, t, n in np.ndindex(B, T, 2):
        expected = reference.rotary(
            some[b, t, n, :width], int(POSITIONS[b, t]), turns, scheme.layout, amplitude(scheme)
        )
        np.testing.assert_allclose(rotated(name)[b, t, n], expected, rtol=1e-12, atol=1e-12)


def test_a_scaling_that_depends_on_the_length_refuses_longer_texts() -> None:
    scheme, x = Rotary(scaling=dataclasses.replace(DYNAMIC, length=2)), jnp.zeros((1, 3, 1, 4))
    assert scheme.max_positions == 2 and Rotary(scaling=YARN).max_positions is None
    with pytest.raises(ValueError, match=r"a sequence has 3 tokens, but model\.positions\.max_positions is 2: shorten"):
        scheme.rotate(x, jnp.arange(3)[None])


def test_longrope_has_a_number_for_each_pair() -> None:
    with pytest.raises(ValueError, match=r"scaling\.short_factors has 3 numbers, but 2 pairs of a head rotate"):
        Rotary(scaling=LONG).rotate(jnp.zeros((1, 3, 1, 4)), jnp.arange(3)[None])


def test_rotary_keeps_the_type_and_turns_in_float32():
    """There is no 1021 in bfloat16, so the angles are not in it; only what comes out is rounded, by 2^-9 of it at most."""
    x = jnp.asarray(some[:1, :1, :, :10], jnp.bfloat16)
    turned = jax.jit(Rotary().rotate)(x, jnp.array([[1021]]))
    assert turned.dtype == jnp.bfloat16
    expected = [
        reference.rotary(np.float64(head), 1021, reference.rotary_rates(5, 1e4), "half_split") for head in x[0, 0]
    ]
    np.testing.assert_allclose(np.float64(turned[0, 0]), expected, rtol=2**-8, atol=1e-3)


# Biases on the scores ------------------------------------------------------------------------------------------------

KEYS = jnp.array([[0, 1, 2, 3, 8], [7, 3, 7, 0, -2]])


def biased(scheme, num_heads: int, causal: bool, queries=POSITIONS, keys=KEYS):
    module = PositionBias(scheme, num_heads, causal)
    return jax.jit(module.init_with_output)(jax.random.key(5), queries, keys)


@pytest.mark.parametrize(
    ("num_heads", "exponents"),
    [
        (1, [8]),
        (2, [4, 8]),
        (3, [4, 8, 2]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_alibi_slopes_by_hand(num_heads, exponents):
    """Head n falls by 2^-e a token; there are no parameters."""
    bias, variables = biased(ALiBi(), num_heads, True)
    assert variables == {}
    slopes = np.array([2.0**-e for e in exponents])
    expected = -slopes[:, None, None] * np.abs(POSITIONS[:, None, :, None] - KEYS[:, None, None])
    np.testing.assert_allclose(bias, expected, rtol=1e-6)
    np.testing.assert_allclose(reference.alibi_slopes(num_heads), slopes, rtol=1e-12)


# Where a logarithm decides, 64 of 128, 32 of 64 and 128 of 256 are rounded to either side.
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 64), (32, 256), (4, 3), (12, 384), (6, 20)])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both_ways"])
def test_buckets_equal_a_reference_in_whole_numbers(num_buckets, max_distance, causal):
    offsets = np.arange(-1009, 1010)
    expected = [reference.relative_bucket(int(o), num_buckets, max_distance, causal) for o in offsets]
    assert set(expected) == set(range(num_buckets)) - ({num_buckets // 2} if not causal else set())
    bucket = RelativeBias(num_buckets=num_buckets, max_distance=max_distance).bucket
    for x64 in (False, True):
        with jax.enable_x64(x64):
            got = bucket(jnp.asarray(offsets)[None, None], causal)
        np.testing.assert_array_equal(got[0, 0], expected)


def test_buckets_by_hand():
    """Causal: single distances to 15, bucket 21 has 31 to 34, the last 128 and more. Both ways: a bucket each sqrt(2) from 8 on."""
    scheme = RelativeBias()
    behind = jnp.array([[[0, -1, -15, -16, -31, -32, -127, -128, -1009, 5]]])
    assert scheme.bucket(behind, True)[0, 0].tolist() == [0, 1, 15, 16, 21, 21, 31, 31, 31, 0]
    around = jnp.array([[[0, -7, -8, -16, -32, -64, -128, 7, 8, 16, 32, 64, 128]]])
    assert scheme.bucket(around, False)[0, 0].tolist() == [0, 7, 8, 10, 12, 14, 15, 23, 24, 26, 28, 30, 31]


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both_ways"])
def test_relative_bias_is_the_row_of_the_bucket(causal):
    scheme = RelativeBias(num_buckets=8, max_distance=7)
    bias, variables = biased(scheme, 3, causal)
    table = variables["params"].pop("embedding")
    assert variables == {"params": {}} and table.shape == (8, 3) and table.dtype == jnp.float32
    assert bias.shape == (B, 3, T, 5)
    for b, t, s in np.ndindex(B, T, 5):
        row = reference.relative_bucket(int(KEYS[b, s] - POSITIONS[b, t]), 8, 7, causal)
        np.testing.assert_array_equal(bias[b, :, t, s], table[row])


def test_learned_rows_and_a_relative_bias_are_those_of_either_scheme():
    relative = RelativeBias(num_buckets=8, max_distance=7)
    scheme = Learned(max_positions=11, relative=relative)
    one, other = (biased(each, 3, False) for each in (scheme, relative))
    jax.tree.map(np.testing.assert_array_equal, one, other)
    x = jnp.ones((B, T, D))
    jax.tree.map(np.testing.assert_array_equal, embedded(scheme, x), embedded(Learned(max_positions=11), x))
    with pytest.raises(ValueError, match=r"model\.positions\.relative\.per_layer is True: it must be False"):
        Learned(relative=RelativeBias(per_layer=True))


def test_an_offset_moves_the_rows_of_a_position_table():
    table = np.random.default_rng(4).normal(size=(6, 3))
    scheme = Learned(max_positions=4, offset=2)
    shapes = []

    def param(name, init, shape, dtype):
        shapes.append(shape)
        return jnp.asarray(table)

    x = scheme.embed(jnp.zeros((1, 3, 3)), jnp.array([[0, -1, 3]]), param)
    assert shapes == [(6, 3)]
    np.testing.assert_allclose(x[0], table[[2, 1, 5]], rtol=1e-6)


# Scalings of rotary positions ------------------------------------------------------------------------------------------


def test_llama3_slows_down_long_waves_only():
    """The waves are 2π · 101^(j / 11) long: two are shorter than 31 / 3.1, two more than 31 / 1.3, the other seven are longer."""
    scheme, width, pairs = Rotary(base=101.0, scaling=LLAMA3), 22, 11
    plain = np.array(reference.rotary_rates(pairs, scheme.base))
    with jax.enable_x64(True):
        slower = np.asarray(LLAMA3(jnp.asarray(plain), scheme.base)) / plain
    np.testing.assert_allclose(slower, np.array(rates(scheme, width)) / plain, rtol=1e-12)
    groups = [np.isclose(slower, 1), (slower > 1 / 3 + 1e-9) & (slower < 1 - 1e-9), np.isclose(slower, 1 / 3)]
    assert [int(group.sum()) for group in groups] == [2, 2, 7]
    assert (np.diff(slower) <= 1e-12).all()
