"""Oracles: float64 numpy one head at a time, the masks' own pictures, hand-worked rows, zero gradients."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.model import LayerNorm, RMSNorm, kernels
from flaxformer_lite.core.model.attention import (
    DotProduct,
    MultiHeadAttention,
    SharedProjection,
    attention_weights,
    weighted_values,
)
from flaxformer_lite.core.model.masks import EXCLUDE, MaskStructure, Replace
from tests.support import reference
from tests.support.limits import assert_close

B, T, S, D = 2, 3, 5, 14
KEY = jax.random.key(23)
pytestmark = pytest.mark.usefixtures("float64")


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


some = np.random.default_rng(3).random
MASKS = {
    "no_mask": None,
    "padding": np.array([[True] * 5, [True, True, False, True, False]])[:, None, None],
    "every_head_its_own": some((B, 6, T, S)) < 0.6,
}
BIASES = {"no_bias": None, "of_the_heads": normal(4, 1, 6, 1, S), "full": 3 * normal(5, B, 6, T, S)}
# name: (d_model, num_heads, variant, widths of the key and value inputs, or none for self-attention)
SHAPES = {
    "self": (12, 6, DotProduct(), None),
    "self_without_biases": (12, 6, DotProduct(bias=False), None),
    "free_widths": (7, 6, DotProduct(d_key=5, d_value=3), None),
    "value_as_wide_as_key": (7, 6, DotProduct(d_key=5), None),
    "cross_other_widths": (7, 6, DotProduct(d_key=2, d_value=3), (11, 13)),
    "two_groups_of_three": (7, 6, DotProduct(d_key=5, d_value=3, num_kv_heads=2), (11, 11)),
    "multi_query_self": (7, 6, DotProduct(d_key=5, num_kv_heads=1, bias=False), None),
    "scaled_and_capped": (7, 6, DotProduct(d_key=5, scale=0.9, soft_cap=2.3), (11, 13)),
    "head_norms": (7, 6, DotProduct(d_key=5, d_value=3, num_kv_heads=2, qk_norm=RMSNorm()), (11, 13)),
    "head_layer_norms_and_cap": (7, 3, DotProduct(d_key=5, soft_cap=0.7, qk_norm=LayerNorm()), None),
}
HEAD_NORMS = {
    "head_norms": lambda head, params, *_: reference.rms_norm(head, params["scale"]),
    "head_layer_norms_and_cap": lambda head, params, *_: reference.layer_norm(head, params["scale"], params["bias"]),
}
CASES = [
    *((shape, "no_mask", "no_bias") for shape in SHAPES),
    ("cross_other_widths", "padding", "no_bias"),
    ("cross_other_widths", "no_mask", "of_the_heads"),
    ("two_groups_of_three", "every_head_its_own", "full"),
    ("scaled_and_capped", "every_head_its_own", "full"),
]


def make(shape: str):
    """A module, random parameters, and its inputs query, key and value."""
    d_model, num_heads, variant, widths = SHAPES[shape]
    module = MultiHeadAttention(d_model, num_heads, variant, dtype=jnp.float64)
    query = normal(6, B, T, d_model)
    inputs = [query] if widths is None else [query, *(normal(i, B, S, width) for i, width in enumerate(widths, 7))]
    shapes = jax.eval_shape(module.init, KEY, *inputs)["params"]
    rng = np.random.default_rng(10)
    return module, jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), shapes), inputs


def expected(shape: str, params: dict, inputs: list, mask, bias) -> tuple[np.ndarray, np.ndarray]:
    _, num_heads, variant, _ = SHAPES[shape]
    query, key, value = inputs if len(inputs) == 3 else 3 * inputs
    full = (B, num_heads, query.shape[1], key.shape[1])
    allowed = np.broadcast_to(True if mask is None else mask, full)
    bias = np.broadcast_to(0.0 if bias is None else bias, full)
    kv_heads = variant.num_kv_heads or num_heads
    rows = [
        reference.attention(
            params,
            query[b],
            key[b],
            value[b],
            num_heads,
            kv_heads,
            allowed[b],
            bias[b],
            scale=variant.scale,
            soft_cap=variant.soft_cap,
            qk_norm=HEAD_NORMS.get(shape, reference.as_it_is),
        )
        for b in range(B)
    ]
    return np.array([row[0] for row in rows]), np.array([row[1] for row in rows])


@pytest.mark.parametrize(("shape", "mask", "bias"), CASES, ids=["-".join(case) for case in CASES])
def test_attention_equals_the_float64_reference(shape, mask, bias):
    module, params, inputs = make(shape)
    mask, bias = MASKS[mask], BIASES[bias]

    @jax.jit
    def run(params, inputs, mask, bias):
        return module.apply({"params": params}, *inputs, mask=mask, bias=bias, mutable=["intermediates"])

    got, sown = run(params, inputs, mask, bias)
    output, weights = expected(shape, params, inputs, mask, bias)
    assert got.dtype == jnp.float64
    np.testing.assert_allclose(got, output, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(sown["intermediates"]["weights"][0], weights, rtol=1e-12, atol=1e-14)


def test_a_shared_projection_is_a_dot_product_with_one_block_for_all_heads():
    """Its kernel [H, H] repeated along the diagonal of a matrix [N·H, N·H]; caps, scale and head norms included."""
    settings = {"scale": 0.9, "soft_cap": 1.3, "qk_norm": RMSNorm(), "bias": True}
    shared, plain = (
        MultiHeadAttention(6, 2, variant(**settings), dtype=jnp.float64) for variant in (SharedProjection, DotProduct)
    )
    x = normal(24, B, T, 6)
    shapes = jax.eval_shape(shared.init, KEY, x)["params"]
    assert shapes["query"]["kernel"].shape == (3, 3) and shapes["query_norm"]["scale"].shape == (3,)
    rng = np.random.default_rng(25)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), shapes)
    blocks = {
        name: {"kernel": np.kron(np.eye(2), params[name]["kernel"]), "bias": np.tile(params[name]["bias"], 2)}
        for name in ("query", "key", "value")
    }
    one, other = (jax.jit(module.apply)({"params": p}, x) for module, p in ((shared, params), (plain, params | blocks)))
    np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


# Rows with nothing to attend to --------------------------------------------------------------------------------------


def test_a_row_without_keys_is_zero_and_has_zero_gradient():
    """Query 1 of sentence 0 sees nothing, and sentence 1 has no key at all; scores are large on purpose."""
    query, key, value = 50 * normal(11, B, T, 2, 7), 50 * normal(12, B, S, 2, 7), normal(13, B, S, 2, 3)
    mask = np.ones((B, 1, T, S), bool)
    mask[0, :, 1], mask[1] = False, False
    away = ~mask.any(-1)[:, 0]

    @jax.jit
    def output(query, key, value):
        weights = attention_weights(query, key, mask=jnp.asarray(mask), bias=None, scale=1.0)
        return weighted_values(weights, value)

    out, pull = jax.vjp(output, query, key, value)
    pull = jax.jit(pull)
    assert (np.asarray(out)[away] == 0).all() and (np.asarray(out)[~away] != 0).all()
    cotangent = normal(14, *out.shape)
    to_query, to_key, to_value = map(np.asarray, pull(jnp.asarray(cotangent)))
    assert all(np.isfinite(gradient).all() for gradient in (to_query, to_key, to_value))
    assert (to_query[away] == 0).all() and (to_key[1] == 0).all() and (to_value[1] == 0).all()
    assert (to_value[0] != 0).any()
    # what flows into the masked rows reaches nothing at all
    for gradient in pull(jnp.where(away[:, :, None, None], cotangent, 0)):
        assert (np.asarray(gradient) == 0).all()


def test_a_masked_key_weighs_exactly_nothing_and_gets_no_gradient():
    """Also where its score is by far the highest."""
    query, key = np.ones((1, 1, 1, 3)), np.ones((1, S, 1, 3))
    key[0, 2] = 1e6
    mask = jnp.arange(S)[None, None, None] != 2
    weights, pull = jax.vjp(
        jax.jit(lambda query, key: attention_weights(query, key, mask=mask, bias=None, scale=1.0)), query, key
    )
    np.testing.assert_allclose(weights[0, 0, 0], [0.25, 0.25, 0, 0.25, 0.25], rtol=1e-15)
    assert weights[0, 0, 0, 2] == 0
    assert (np.asarray(pull(jnp.asarray(normal(15, 1, 1, 1, S)))[1])[0, 2] == 0).all()


# Precision, dropout, cache -------------------------------------------------------------------------------------------


def test_bfloat16_scores_accumulate_in_float32():
    """The scores are 257 and 256; bfloat16, with eight bits, knows only 256 and would make both keys weigh a half."""
    query, key = np.ones((1, 1, 1, 257)), np.ones((1, 2, 1, 257))
    key[0, 1, 0, 256] = 0
    weights = jax.jit(lambda query, key: attention_weights(query, key, mask=None, bias=None, scale=1.0))(
        jnp.asarray(query, jnp.bfloat16), jnp.asarray(key, jnp.bfloat16)
    )
    assert weights.dtype == jnp.float32
    assert_close(weights[0, 0, 0], [1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))])


def test_weights_are_sown_before_dropout():
    plain, params, inputs = make("self")
    drops = MultiHeadAttention(plain.d_model, plain.num_heads, plain.variant, 0.5, jnp.float64)

    def run(module, **rngs):
        return jax.jit(lambda p, x: module.apply({"params": p}, x, mutable=["intermediates"], rngs=rngs))(
            params, *inputs
        )

    (out, sown), (dropped, sown_too), (without_key, _) = run(plain), run(drops, dropout=KEY), run(drops)
    np.testing.assert_array_equal(sown["intermediates"]["weights"], sown_too["intermediates"]["weights"])
    np.testing.assert_array_equal(without_key, out)
    assert not np.allclose(dropped, out)


def test_dropout_falls_on_the_weights():
    """One key, hence weights of 1; with identity kernels each head's answer is its half of the input, doubled or dropped."""
    identity = {"kernel": np.eye(D)}
    params = {"params": dict.fromkeys(("query", "key", "value", "out"), identity)}
    module = MultiHeadAttention(D, 2, DotProduct(bias=False), 0.5, jnp.float64)
    x = normal(17, 53, 1, D)
    out = jax.jit(lambda x: module.apply(params, x, rngs={"dropout": KEY}))(x)
    ratio = np.asarray(out / x).reshape(53, 2, 7)
    np.testing.assert_allclose(ratio, ratio[..., :1] * np.ones(7), atol=1e-12)  # a head lives or falls as a whole
    assert set(ratio.round(9).flatten()) == {0, 2}
    assert (ratio[:, 0, 0] != ratio[:, 1, 0]).any()  # but not with its neighbour


@pytest.mark.parametrize("masking", [EXCLUDE, Replace()], ids=["exclude", "replace"])
def test_kernels_are_told_how_a_mask_is_made(monkeypatch, masking):
    """Without a mask its structure is known: there is none. Only where masked keys are excluded is the mask a hard one."""
    calls = []
    monkeypatch.setattr(
        kernels, "choose_kernel", lambda _, call: calls.append(call) or kernels.KernelChoice(None, "xla", "")
    )
    module = MultiHeadAttention(D, 2, DotProduct(masking=masking), dtype=jnp.float64)
    x = jax.ShapeDtypeStruct((B, T, D), jnp.float64)
    for mask in (None, jax.ShapeDtypeStruct((1, 1, T, T), bool)):
        jax.eval_shape(lambda x, mask: module.init(KEY, x, mask=mask), x, mask)
    assert [call.structure for call in calls] == [MaskStructure(), None]
    assert [call.hard_mask for call in calls] == [masking == EXCLUDE] * 2


# Settings ------------------------------------------------------------------------------------------------------------


def test_heads_must_divide():
    DotProduct().check(12, 6)
    DotProduct(d_key=5, num_kv_heads=2).check(7, 6)
    with pytest.raises(ValueError, match=r"^model\.d_model 7 .*model\.num_heads 6: .*model\.attention\.d_key\Z"):
        DotProduct().check(7, 6)
    with pytest.raises(ValueError, match=r"^model\.num_heads 6 .*model\.attention\.num_kv_heads 4"):
        DotProduct(num_kv_heads=4).check(12, 6)
