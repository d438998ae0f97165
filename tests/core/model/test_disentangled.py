"""Disentangled attention. Oracles: float64 NumPy, a score at a time, by the paper's formulas; central differences; rows by hand."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.model import (
    Inputs,
    LoRA,
    ModelConfig,
    NoPositions,
    SlidingWindow,
    Transformer,
    kernels,
)
from flaxformer_lite.core.model.attention import Disentangled, MultiHeadAttention, by_offset
from flaxformer_lite.core.model.layers import DropoutRates
from flaxformer_lite.core.model.masks import own_mask

B, T, N, H = 2, 7, 3, 5
D = N * H
MASK = (np.arange(T) < np.array([[T], [4]]))[:, None, None]
VARIANTS = {
    "shared": Disentangled(num_buckets=4, max_distance=6),
    "content_to_position_alone": Disentangled(position_to_content=False, num_buckets=None, max_distance=3, scale=0.7),
    "position_to_content_alone": Disentangled(content_to_position=False, num_buckets=2, max_distance=5, bias=False),
    "own_projections": Disentangled(share_projections=False, num_buckets=6, max_distance=8, table_norm=None),
}
MODEL = ModelConfig(
    vocab_size=13,
    d_model=6,
    num_heads=2,
    d_ff=7,
    num_encoder_layers=2,
    num_decoder_layers=0,
    attention=Disentangled(num_buckets=4, max_distance=5),
    positions=NoPositions(),
)
TOKENS = np.random.default_rng(1).integers(13, size=(2, 9))


def row_of(variant: Disentangled, offset: int) -> int:
    """The row for a query that stands `offset` tokens behind its key: bucket k beyond the exact ones ends at exact * growth^k."""
    side, distance = variant.num_buckets or variant.max_distance, abs(offset)
    exact = side if variant.num_buckets is None else side // 2
    if distance > exact:
        ends = [exact * ((variant.max_distance - 1) / exact) ** (k / (exact - 1)) for k in range(1, exact)]
        distance = exact + sum(end < distance - 1e-6 for end in ends) + (exact > 1)
    return min(max(side + int(math.copysign(distance, offset)), 0), 2 * side - 1)


def slow(variant: Disentangled, params: dict, x: np.ndarray, table: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The attention of one text, a score at a time."""

    def heads(name: str, vector: np.ndarray) -> np.ndarray:
        return (vector @ params[name]["kernel"] + params[name].get("bias", 0)).reshape(N, H)

    own = "" if variant.share_projections else "relative_"
    parts = 1 + variant.content_to_position + variant.position_to_content
    scale = variant.scale or 1 / math.sqrt(parts * H)
    answers = np.zeros((T, N, H))
    for t in range(T):
        scores = np.full((N, T), -np.inf)
        for s in np.flatnonzero(mask):
            row = table[row_of(variant, t - s)]
            for n in range(N):
                query, key = heads("query", x[t])[n], heads("key", x[s])[n]
                total = query @ key
                if variant.content_to_position:
                    total += query @ heads(f"{own}key", row)[n]
                if variant.position_to_content:
                    total += key @ heads(f"{own}query", row)[n]
                scores[n, s] = scale * total
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        for s in np.flatnonzero(mask):
            answers[t] += weights[:, s, None] * heads("value", x[s])
    return answers.reshape(T, D) @ params["out"]["kernel"] + params["out"].get("bias", 0)


def applied(variant: Disentangled) -> tuple[Any, dict, np.ndarray, np.ndarray]:
    """The attention as a function of parameters, text and table, and random ones of each."""
    module = MultiHeadAttention(D, N, variant, dtype=jnp.float64)

    def attend(module: MultiHeadAttention, x: Any, table: Any) -> Any:
        x, table = jnp.asarray(x), jnp.asarray(table)
        return module.attend(x, module.key_value(x), mask=own_mask(jnp.asarray(MASK)), table=table)

    rng = np.random.default_rng(4)
    x, table = rng.normal(size=(B, T, D)), rng.normal(size=(variant.num_rows, D))
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), x, table, method=attend))["params"]
    params = jax.tree.map(lambda leaf: rng.normal(scale=0.4, size=leaf.shape), shapes)
    return lambda params, x, table: module.apply({"params": params}, x, table, method=attend), params, x, table


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", VARIANTS)
def test_the_answers_are_those_of_one_score_at_a_time(name):
    variant = VARIANTS[name]
    attend, params, x, table = applied(variant)
    assert ("relative_key" in params) == (not variant.share_projections)
    found = jax.jit(attend)(params, x, table)
    expected = np.array([slow(variant, params, x[b], table, MASK[b, 0, 0]) for b in range(B)])
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["shared", pytest.param("own_projections", marks=pytest.mark.slow)])
def test_the_gradients_are_those_of_one_score_at_a_time(name):
    """Along random directions, by central differences of the slow reference."""
    variant = VARIANTS[name]
    attend, params, x, table = applied(variant)
    rng = np.random.default_rng(5)
    cotangent = rng.normal(size=x[1].shape)

    def total(params: dict, x: Any, table: Any) -> Any:
        return (attend(params, x, table)[1] * cotangent).sum()

    def expected(params: dict, x: np.ndarray, table: np.ndarray) -> float:
        return float((slow(variant, params, x[1], table, MASK[1, 0, 0]) * cotangent).sum())

    point = (params, x, table)
    gradient = jax.jit(jax.grad(total, (0, 1, 2)))(*point)
    for _ in range(3):
        way = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), point)
        ahead, behind = (jax.tree.map(lambda a, b, e=e: a + e * b, point, way) for e in (1e-5, -1e-5))
        slope = (expected(*ahead) - expected(*behind)) / 2e-5
        along = sum(jax.tree.leaves(jax.tree.map(lambda g, w: (g * w).sum(), gradient, way)))
        np.testing.assert_allclose(along, slope, rtol=1e-7)


def test_rows_by_hand():
    """4 buckets to distance 6: 0 to 2 have a row each, 3 to 5 the last one; beyond, one side has a row more."""
    rows = Disentangled(num_buckets=4, max_distance=6).rows(np.arange(-8, 9))
    assert rows.tolist() == [0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 7, 7]
    assert Disentangled(num_buckets=None, max_distance=2).rows(np.arange(-4, 5)).tolist() == [0, 0, 0, 1, 2, 3, 3, 3, 3]


@pytest.mark.parametrize(("buckets", "longest"), [(256, 512), (8, 33), (6, 8), (2, 5), (32, 128)])
def test_rows_are_intervals_of_distances(buckets, longest):
    """(8, 33): 8 and 16 are whole powers of the growth, where a rounded logarithm would move them."""
    variant = Disentangled(num_buckets=buckets, max_distance=longest)
    offsets = np.arange(-2 * longest, 2 * longest)
    assert variant.rows(offsets).tolist() == [row_of(variant, offset) for offset in offsets]


@pytest.mark.parametrize("length", [1, 2, 5])
def test_scores_move_to_the_key_at_their_offset(length):
    x = np.random.default_rng(0).normal(size=(2, 3, length, 2 * length))
    found = by_offset(jnp.asarray(x, jnp.float32))
    expected = [[x[:, :, t, s - t + length - 1] for s in range(length)] for t in range(length)]
    np.testing.assert_array_equal(found, np.array(expected, np.float32).transpose(2, 3, 0, 1))


# In a model -----------------------------------------------------------------------------------------------------------


def logits(model: ModelConfig, params: Any, tokens: Any, **inputs: Any) -> np.ndarray:
    found = jax.jit(lambda params, given: Transformer(model).apply({"params": params}, given).logits)
    return np.asarray(found(params, Inputs(source_tokens=jnp.asarray(tokens), **inputs)))


def test_packed_texts_and_padding_have_the_scores_of_a_text_alone():
    params = first(MODEL)
    tokens = TOKENS[:1]
    segments = jnp.array([[1, 1, 1, 1, 2, 2, 2, 0, 0]])
    packed = logits(MODEL, params, tokens, source_segments=segments, source_mask=segments > 0)
    alone = logits(MODEL, params, tokens[:, 4:7])
    np.testing.assert_allclose(packed[:, 4:7], alone, rtol=1e-4, atol=1e-5)


@functools.cache
def first(model: ModelConfig) -> Any:
    given = Inputs(source_tokens=jnp.zeros((1, 1), jnp.int32))
    return jax.jit(lambda: Transformer(model).init(jax.random.key(2), given)["params"])()


def test_all_layers_share_one_table_which_has_a_norm_and_the_dropout_of_embeddings():
    params = first(MODEL)
    table = params["encoder"]["relative_positions"]
    assert table["embedding"].shape == (8, 6) and set(table["norm"]) == {"scale", "bias"}
    no_dropout = dict.fromkeys(("attention_rate", "feed_forward_rate", "residual_rate"), 0.0)
    model = dataclasses.replace(MODEL, dropout=DropoutRates(embedding_rate=0.5, **no_dropout), vocab_size=0, head=None)
    x = jnp.zeros((1, 4, 6)).at[0, 0].set(1.0)  # zeros stay zeros: here embeddings hardly drop, and the table does

    @jax.jit
    def run(key: Any) -> Any:
        rngs = {"dropout": jax.random.key(key)}
        variables = {"params": {"encoder": params["encoder"]}}
        _, sown = Transformer(model).apply(variables, Inputs(source_tokens=x), rngs=rngs, mutable="intermediates")
        return sown["intermediates"]["encoder"]["layers"]["attention"]["weights"][0]

    one, other = run(1), run(2)
    assert one.shape == (2, 1, 2, 4, 4)
    assert (np.abs(one - other)[:, 0, :, 1:] > 0).any((1, 2, 3)).all()  # of zeros as queries, in both layers


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"scan_unroll": 2}, {"remat": "full"}, {"remat": "dots"}], ids=str)
def test_unrolled_and_recomputed_layers_are_the_same(settings):
    def gradient(model: ModelConfig) -> Any:
        def total(params: Any) -> Any:
            return jnp.sin(
                Transformer(model).apply({"params": params}, Inputs(source_tokens=jnp.asarray(TOKENS))).logits
            ).sum()

        return jax.jit(jax.grad(total))(first(MODEL))

    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3),
        gradient(dataclasses.replace(MODEL, **settings)),
        gradient(MODEL),
    )


@pytest.mark.slow
def test_an_adapter_of_a_shared_projection_projects_the_table_too():
    """The model with an adapter is the one whose kernel has the adapter's product added."""
    model = dataclasses.replace(MODEL, lora=LoRA(rank=2, targets=("*attention/key",)))
    params = jax.tree.map(lambda x: x, first(model))
    key = params["encoder"]["layers"]["attention"]["key"]
    key["lora_b"]["kernel"] = jax.random.normal(jax.random.key(7), key["lora_b"]["kernel"].shape)
    found = logits(model, params, TOKENS)
    product = model.lora.scale * jnp.einsum("ldr,lrf->ldf", key["lora_a"]["kernel"], key["lora_b"]["kernel"])
    attention = params["encoder"]["layers"]["attention"] | {
        "key": {"kernel": key["kernel"] + product, "bias": key["bias"]}
    }
    merged = params | {
        "encoder": params["encoder"] | {"layers": params["encoder"]["layers"] | {"attention": attention}}
    }
    np.testing.assert_allclose(found, logits(MODEL, merged, TOKENS), rtol=1e-4, atol=1e-5)


# Refused --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"content_to_position": False, "position_to_content": False}, "are both False: set one of them to True"),
        ({"num_buckets": 256, "max_distance": 129}, "num_buckets is 256 .*max_distance is 129: .*half of it plus 2"),
        ({"num_buckets": 1}, "num_buckets is 1 .*at least 2"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=rf"^model\.attention\..*{message}"):
        Disentangled(**settings)


@pytest.mark.parametrize("settings", [{"num_decoder_layers": 1}, {"sliding_window": SlidingWindow(size=3)}])
def test_decoders_and_windows_are_refused(settings):
    with pytest.raises(ValueError, match=r"^model\.attention is disentangled, .*num_decoder_layers.*sliding_window"):
        dataclasses.replace(MODEL, **settings)


def test_a_layer_alone_and_a_named_kernel_are_refused(monkeypatch):
    x = jnp.ones((1, 3, D))
    with pytest.raises(ValueError, match=r"^model\.attention is disentangled, .*a single layer and a memory"):
        jax.eval_shape(MultiHeadAttention(D, N, Disentangled()).init, jax.random.key(0), x)
    monkeypatch.setattr(kernels, "INTERPRETED", True)
    named = dataclasses.replace(MODEL, attention=dataclasses.replace(MODEL.attention, implementation="splash"))
    with pytest.raises(
        ValueError, match=r"is 'splash', but splash adds no bias to the scores, as .*relative positions"
    ):
        first(named)
