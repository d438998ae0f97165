"""Attention variants written here, outside the package, are trained and decoded as those inside: no other file knows them.

Oracles: the loss falls in the real train step; decoding with a cache equals the full pass; masks by gradient; formulas by hand.
"""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, Literal

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flaxformer_lite.config.serialize import from_json, to_json
from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.data.records import Lengths, TokenPair
from flaxformer_lite.core.model import Inputs, Rotary, kernels
from flaxformer_lite.core.model.attention import (
    Attention,
    DotProduct,
    MultiHeadAttention,
    attention_scores,
    attention_weights,
    check_attention,
    weighted_values,
)
from flaxformer_lite.core.model.masks import AttentionMask, Penalize, structured_mask
from flaxformer_lite.core.model.norms import rms_norm
from flaxformer_lite.core.model.transformer import Transformer, parameter_shapes
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.core.step import train_step
from flaxformer_lite.core.text.special_ids import BOS
from flaxformer_lite.training import train, train_task
from tests.support.experiments import tiny_config
from tests.support.limits import assert_close
from tests.support.objectives import example
from tests.support.quick import quick


@dataclass(frozen=True, kw_only=True)
class Sigmoid(Attention):
    """Elementwise sigmoid with the bias -log(number of keys). Reference: Ramapuram et al. 2024, arXiv:2409.04431, section 3."""

    kind: Literal["sigmoid"] = "sigmoid"

    def weights(self, query, key, *, mask, bias, param):
        scores = attention_scores(query, key, bias=bias, scale=self.score_scale(query.shape[-1]))
        if mask is None:
            return jax.nn.sigmoid(scores - jnp.log(key.shape[1]))
        count = jnp.maximum(mask.sum(-1, keepdims=True), 1)
        return jnp.where(mask, jax.nn.sigmoid(scores - jnp.log(count)), 0)


@dataclass(frozen=True, kw_only=True)
class CosineAttention(Attention):
    """Cosines times a learned factor for each head. Reference: Liu et al. 2021, arXiv:2111.09883, section 3.3."""

    kind: Literal["cosine"] = "cosine"
    initial: float = 10.0

    def weights(self, query, key, *, mask, bias, param):
        factor = param("log_factor", jax.nn.initializers.constant(np.log(self.initial)), query.shape[2:3], jnp.float32)
        query, key = (x * jax.lax.rsqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), 1e-12)) for x in (query, key))
        scale = jnp.exp(factor)[:, None, None]
        return attention_weights(query, key, mask=mask, bias=bias, scale=scale, masking=self.masking)


@dataclass(frozen=True, kw_only=True)
class Differential(Attention):
    """Difference of two softmaxes, each of half a head, and a norm of the answer. Reference: Ye et al. 2024, arXiv:2410.05258."""

    kind: Literal["differential"] = "differential"
    initial: float = 0.8

    def weights(self, query, key, *, mask, bias, param):
        half = query.shape[-1] // 2
        first, second = (
            attention_weights(query[..., part], key[..., part], mask=mask, bias=bias, scale=half**-0.5)
            for part in (slice(half), slice(half, None))
        )
        vectors = param("lambda", jax.nn.initializers.normal(0.1), (4, half), jnp.float32)
        return first - (jnp.exp(vectors[0] @ vectors[1]) - jnp.exp(vectors[2] @ vectors[3]) + self.initial) * second

    def mix(self, weights, value, param):
        scale = param("norm", jax.nn.initializers.ones, value.shape[-1:], jnp.float32)
        return (1 - self.initial) * rms_norm(weighted_values(weights, value), scale, 1e-5)


@dataclass(frozen=True, kw_only=True)
class Linear(Attention):
    """Sums over the keys in place of weights, in O(T). Reference: Katharopoulos et al. 2020, arXiv:2006.16236, section 3.2."""

    kind: Literal["linear"] = "linear"

    def answers(self, query, key, value, *, mask, bias, param):
        query, key, parts = jax.nn.elu(query) + 1, jax.nn.elu(key) + 1, mask.structure
        if (
            bias is not None
            or getattr(parts, "queries", None) is not None
            or getattr(parts, "window", None) is not None
        ):
            raise ValueError("model.attention is a Linear: it reads no bias, no packed texts and no window")
        if parts is None:  # a decode cache: few queries
            weights = jnp.einsum("BTNH,BSNH->BNTS", query, key)
            weights = weights if mask.allowed is None else jnp.where(mask.allowed, weights, 0)
            return weighted_values(weights / jnp.maximum(weights.sum(-1, keepdims=True), 1e-6), value)
        key = key if parts.keys is None else jnp.where((parts.keys > 0)[:, :, None, None], key, 0)
        sums = jnp.einsum("BSNH,BSNV->BSNHV", key, value), key
        if parts.causal:
            of_values, of_keys = (jnp.cumsum(x, 1) for x in sums)
        else:
            of_values, of_keys = (x.sum(1, keepdims=True).repeat(query.shape[1], 1) for x in sums)
        total = jnp.maximum(jnp.einsum("BTNH,BTNH->BTN", query, of_keys), 1e-6)
        return jnp.einsum("BTNH,BTNHV->BTNV", query, of_values) / total[..., None]


OWN = {
    Linear(bias=False): (),
    Sigmoid(bias=False): (),
    CosineAttention(bias=False): ("log_factor",),
    Differential(bias=False): ("lambda", "norm"),
}
"""The variants, and the parameters that each has of its own."""
each_variant = pytest.mark.parametrize(
    "variant",
    quick(OWN, lambda variant: isinstance(variant, CosineAttention | Linear)),
    ids=lambda variant: variant.kind,
)
LENGTHS = Lengths(7, 6)


def is_cosine(variant: Attention) -> bool:
    return isinstance(variant, CosineAttention)


def config_of(variant: Attention):
    model = dataclasses.replace(
        tiny_config().model, attention=variant, num_encoder_layers=1, num_decoder_layers=2, positions=Rotary()
    )
    return tiny_config(model=model)


@functools.cache
def trained(variant: Attention):
    """The task, the state after twelve steps on one batch of short and long pairs, the first moments after one, the losses."""
    task = train_task(config_of(variant))
    rng = np.random.default_rng(3)
    sizes = [(6, 4), (2, 2), (5, 3), (6, 4)]
    pairs = [TokenPair(*(rng.integers(4, 149, size).astype(np.int32) for size in pair)) for pair in sizes]
    objective: Any = task.objective
    batch = jax.tree.map(lambda *x: jnp.stack(x), *(example(objective, pair, LENGTHS) for pair in pairs))
    state, step = jax.jit(task.initialize)(), jax.jit(functools.partial(train_step, task))
    moments, losses = [], []
    for _ in range(12):
        state, measured = step(state, batch)
        moments.append(optax.tree_utils.tree_get(state.opt_state, "mu"))
        losses.append(float(measured["loss"]))
    return task, state, moments[0], losses


@functools.cache
def untrained(variant: Attention):
    """The model and parameters by chance, those of the variant too."""
    model, generator = Transformer(config_of(variant).model), np.random.default_rng(4)
    shapes = parameter_shapes(model.config)
    return model, jax.tree.map(lambda x: jnp.asarray(generator.normal(0, 0.3, x.shape), x.dtype), shapes)


@pytest.mark.slow
@each_variant
def test_the_train_step_lowers_the_loss_and_moves_the_variants_own_parameters(variant):
    _, state, first, losses = trained(variant)
    assert np.isfinite(losses).all() and losses[-1] < 0.7 * losses[0]
    chex.assert_tree_all_finite(state.params)
    expected = {
        f"{path}/{name}"
        for path in ("encoder/layers/attention", "decoder/layers/attention", "decoder/layers/cross_attention")
        for name in OWN[variant]
    }
    plain = jax.eval_shape(
        lambda: Transformer(config_of(DotProduct(bias=False)).model).init(jax.random.key(0), inputs(1, 1))
    )
    assert leaves_by_path(state.params).keys() - leaves_by_path(plain["params"]).keys() == expected
    for path in expected:
        moment = np.asarray(leaves_by_path(first)[path])  # a tenth of the first gradient
        assert moment.shape[0] == (1 if path.startswith("encoder") else 2) and np.abs(moment).max() > 0, path


def inputs(source_length: int, target_length: int, seed: int = 5) -> Inputs:
    """Two rows; the second has padding in its source."""
    rng = np.random.default_rng(seed)
    source, target = (rng.integers(4, 149, (2, n)).astype(np.int32) for n in (source_length, target_length))
    target[:, 0] = BOS
    mask = jnp.arange(source_length) < jnp.array([[source_length], [max(source_length - 2, 1)]])
    return Inputs(source_tokens=jnp.asarray(source), target_tokens=jnp.asarray(target), source_mask=mask)


@pytest.mark.slow
@each_variant
def test_greedy_decoding_with_a_cache_equals_the_full_pass(variant):
    """The cache has more room than there are tokens; every token decoded is the one that the full pass scores highest."""
    model, params = untrained(variant)
    params, given, length = {"params": params}, inputs(7, 1), 6
    full = jax.jit(lambda tokens: model.apply(params, given._replace(target_tokens=tokens)).logits)
    step = jax.jit(functools.partial(model.apply, method="decode_step"))
    memory = jax.jit(functools.partial(model.apply, method="encode"))(params, given)
    cache = model.apply(params, memory, length + 5, method="start_cache")
    tokens, cached = jnp.full((2, length + 1), BOS), []
    for i in range(length):
        logits, cache = step(params, tokens[:, i : i + 1], jnp.int32(i), cache, given.source_mask)
        cached.append(logits[:, 0])
        tokens = tokens.at[:, i + 1].set(logits[:, 0].argmax(-1))
    uncached = full(tokens[:, :-1])
    np.testing.assert_allclose(np.stack(cached, 1), uncached, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(uncached.argmax(-1), tokens[:, 1:])


@pytest.mark.parametrize("variant", quick(OWN, is_cosine), ids=lambda variant: variant.kind)
def test_masked_keys_do_not_matter(variant):
    """Neither padding of the source nor later targets change a logit, bit for bit, or have a gradient."""
    model, params = untrained(variant)
    apply = jax.jit(lambda given: model.apply({"params": params}, given).logits)
    given, others = inputs(7, 5), inputs(7, 5, seed=6)
    padding = given._replace(source_tokens=jnp.where(given.source_mask, given.source_tokens, others.source_tokens))
    np.testing.assert_array_equal(apply(given), apply(padding))
    later = given._replace(target_tokens=jnp.where(jnp.arange(5) < 3, given.target_tokens, others.target_tokens))
    np.testing.assert_array_equal(apply(given)[:, :3], apply(later)[:, :3])
    assert not np.allclose(apply(given)[:, 3:], apply(later)[:, 3:])


@pytest.mark.parametrize(
    "variant", quick([v for v in OWN if v.has_weights], is_cosine), ids=lambda variant: variant.kind
)
def test_a_query_without_keys_has_a_finite_gradient_and_dropout_works(variant):
    module = MultiHeadAttention(8, 2, variant, dropout_rate=0.5)
    x, mask = jax.random.normal(jax.random.key(1), (2, 3, 8)), jnp.array([[[[True, False, True]]], [[[False] * 3]]])
    params = jax.jit(module.init)(jax.random.key(0), x, mask=mask)

    @jax.jit
    @jax.grad
    def of_input(x, key):
        return module.apply(params, x, mask=mask, rngs={"dropout": key}).sum()

    one, other = (of_input(x, jax.random.key(seed)) for seed in (1, 2))
    chex.assert_tree_all_finite((one, other))
    assert not np.allclose(one, other)


def test_answers_without_weights_by_hand_and_no_weights_to_drop():
    """Oracle: the sum over the keys in NumPy, for causal and padded text. Dropout of weights is refused by its setting."""
    generator = np.random.default_rng(0)
    query, key, value = (generator.normal(size=(2, 5, 2, 3)).astype(np.float32) for _ in range(3))
    is_token = np.arange(5) < np.array([[5], [3]])
    for causal in (False, True):
        mask = structured_mask(jnp.asarray(is_token), causal_length=5 if causal else None)
        found = Linear().answers(*map(jnp.asarray, (query, key, value)), mask=mask, bias=None, param=None)
        alone = Linear().answers(
            *map(jnp.asarray, (query, key, value)), mask=AttentionMask(mask.allowed), bias=None, param=None
        )
        q, k = (np.where(x > 0, x + 1, np.exp(x)) for x in (query, key))
        weights = np.einsum("btnh,bsnh->bnts", q, k) * np.asarray(jnp.broadcast_to(mask.allowed, (2, 1, 5, 5)))
        expected = np.einsum("bnts,bsnv->btnv", weights / weights.sum(-1, keepdims=True), value)
        assert_close(found, expected)
        assert_close(alone, expected)
    module = MultiHeadAttention(8, 2, Linear(), dropout_rate=0.5)
    with pytest.raises(ValueError, match=r"^model\.dropout\.attention_rate is 0\.5, .*Linear, .*set it to 0"):
        module.init(jax.random.key(0), jnp.ones((1, 3, 8)))


def test_a_variant_that_does_not_decode_is_refused_by_its_name():
    model = dataclasses.replace(config_of(NoCache()).model)
    with pytest.raises(ValueError, match=r"^model\.attention is a NoCache, .*`decodes` is False.*let `answers` read"):
        Decoder(Transformer(model), DecodeConfig())


def test_the_weights_by_hand():
    """Queries and keys are the inputs: one head of width 2, keys at 0° and 90°, and no mask."""
    identity = {name: {"kernel": jnp.eye(2)} for name in ("query", "key", "value", "out")}
    x = jnp.array([[[1.0, 0.0], [0.0, 2.0]]])

    def weights(variant, **own):
        module = MultiHeadAttention(2, 1, variant)
        _, sown = module.apply({"params": identity | own}, x, mutable="intermediates")
        return np.asarray(sown["intermediates"]["weights"][0][0, 0])

    scores = np.array([[1.0, 0.0], [0.0, 4.0]])
    assert_close(weights(Sigmoid(bias=False, scale=1.0)), 1 / (1 + np.exp(np.log(2) - scores)))
    found = weights(CosineAttention(bias=False), log_factor=jnp.log(jnp.array([3.0])))
    assert_close(found, np.array([[np.e**3, 1], [1, np.e**3]]) / (np.e**3 + 1))
    found = weights(Differential(bias=False, initial=0.5), **{"lambda": jnp.zeros((4, 1)), "norm": jnp.ones(2)})
    first = np.array([[np.e, 1], [1, 1]]) / [[np.e + 1], [2]]
    second = np.array([[1, 1], [1, np.e**4]]) / [[2], [1 + np.e**4]]
    assert_close(found, first - 0.5 * second)


@each_variant
def test_auto_falls_back_to_plain_operations_and_a_named_kernel_is_refused(variant, monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    monkeypatch.setattr(kernels, "INTERPRETED", True)
    x, reported = jnp.ones((1, 3, 8)), []
    with kernels.report_choices(reported.append):
        jax.eval_shape(MultiHeadAttention(8, 2, variant).init, jax.random.key(0), x)
        named = dataclasses.replace(variant, implementation="splash")
        with pytest.raises(
            ValueError, match=r"is 'splash', but splash computes softmax.* only, .*: change that, or set"
        ):
            jax.eval_shape(MultiHeadAttention(8, 2, named).init, jax.random.key(0), x)
    (line,) = reported
    assert line.startswith(
        "attention is computed by plain JAX operations: 'splash' was not used, since splash computes softmax"
    )


# Variants as they are easily written, each with an answer that depends on keys that are masked


class NoCache(Linear):
    kind = "no_cache"
    decodes = False


class WrongShape(Linear):
    def answers(self, query, key, value, **rest):
        return super().answers(query, key, value, **rest).swapaxes(1, 2)


class LeaksGradient(Sigmoid):
    """The weight of a masked key is 0, but not its gradient."""

    def weights(self, query, key, *, mask, bias, param):
        scores = attention_scores(query, key, bias=bias, scale=self.score_scale(query.shape[-1]))
        weights = jax.nn.sigmoid(scores) / 64
        return weights if mask is None else jnp.where(mask, weights, weights - jax.lax.stop_gradient(weights))


class DividesByZero(Linear):
    def answers(self, query, key, value, *, mask, bias, param):
        weights = jnp.einsum("BTNH,BSNH->BNTS", jnp.exp(query), jnp.exp(key))
        weights = weights if mask.allowed is None else jnp.where(mask.allowed, weights, 0)
        return weighted_values(weights / weights.sum(-1, keepdims=True), value)


class CountsAll(Sigmoid):
    def weights(self, query, key, *, mask, bias, param):
        scores = attention_scores(query, key, bias=bias, scale=self.score_scale(query.shape[-1]))
        weights = jax.nn.sigmoid(scores - jnp.log(key.shape[1]))
        return weights if mask is None else jnp.where(mask, weights, 0)


class ScaledByLength(Attention):
    kind = "scaled"

    def weights(self, query, key, *, mask, bias, param):
        return attention_weights(query, key, mask=mask, bias=bias, scale=jnp.log(key.shape[1]) / 20)


class Gated(Attention):
    """A factor that starts at 0 makes the scores depend on the largest of all."""

    kind = "gated"

    def weights(self, query, key, *, mask, bias, param):
        scores = attention_scores(query, key, bias=bias, scale=self.score_scale(query.shape[-1]))
        gate = param("gate", jax.nn.initializers.zeros, (), jnp.float32)
        scores = scores - gate * jnp.abs(scores).max(-1, keepdims=True) * scores
        return self.masking.softmax(scores, jnp.ones((1, 1, 1, 1), bool) if mask is None else mask)


class Unmasked(Attention):
    kind = "unmasked"

    def weights(self, query, key, *, mask, bias, param):
        return attention_weights(query, key, mask=None, bias=bias, scale=1.0)


class MeanOfValues(Attention):
    kind = "mean_of_values"

    def mix(self, weights, value, param):
        return weighted_values(weights, value) - 0.1 * value.mean(1, keepdims=True).repeat(weights.shape[2], 1)


class CountsTokens(Sigmoid):
    """The number of keys is that of the text, also of a query in the middle of it."""

    def weights(self, query, key, *, mask, bias, param):
        scores = attention_scores(query, key, bias=bias, scale=self.score_scale(query.shape[-1]))
        count = key.shape[1] if mask is None else mask.any(-2, keepdims=True).sum(-1, keepdims=True)
        return jax.nn.sigmoid(scores - jnp.log(count)) * (1 if mask is None else mask)


class MeanOfQueries(Attention):
    kind = "mean_of_queries"

    def weights(self, query, key, *, mask, bias, param):
        return super().weights(query - query.mean(1, keepdims=True), key, mask=mask, bias=bias, param=param)


class ForOneLength(Attention):
    kind = "for_one_length"

    def weights(self, query, key, *, mask, bias, param):
        bias = param("by_key", jax.nn.initializers.zeros, key.shape[1:2], jnp.float32)
        return attention_weights(query, key, mask=mask, bias=bias, scale=1.0)


BROKEN = (CountsAll, ScaledByLength, Gated, Unmasked, MeanOfValues, MeanOfQueries)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BROKEN)
def test_answers_that_change_with_padding_are_refused(kind):
    with pytest.raises(ValueError, match=rf"model\.attention is a {kind.__name__}, .* change with padding.*mask\.sum"):
        check_attention(kind(bias=False), 32, 4, decodes=False)


@pytest.mark.slow
def test_answers_that_change_with_a_decode_cache_are_refused_where_there_is_one():
    with pytest.raises(ValueError, match=r"model\.attention is a CountsTokens, .* change with a decode cache"):
        check_attention(CountsTokens(bias=False), 32, 4, decodes=True)
    check_attention(CountsTokens(bias=False), 32, 4, decodes=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (WrongShape, r"answers have the shape \(1, 4, 128, 8\): .*\(1, 128, 4, 8\)"),
        (LeaksGradient, "passes a gradient to masked keys"),
        (DividesByZero, "gradient is not finite where a query has no key"),
    ],
)
def test_shapes_and_gradients_that_break_the_contract_are_refused(kind, reason):
    with pytest.raises(ValueError, match=rf"model\.attention is a {kind.__name__}, .*{reason}"):
        check_attention(kind(bias=False), 32, 4, decodes=False)


def test_a_parameter_for_one_length_is_refused_by_its_name():
    with pytest.raises(ValueError, match=r"is a ForOneLength, whose parameter by_key has shape \(128,\).*\(256,\)"):
        check_attention(ForOneLength(), 32, 4, decodes=True)


@pytest.mark.slow
@pytest.mark.parametrize("variant", OWN, ids=lambda v: v.kind)
@pytest.mark.parametrize("decodes", [True, False])
def test_the_variants_of_this_file_pass_the_check_of_a_training(variant, decodes):
    check_attention(variant, 64, 2, decodes=decodes)
    check_attention(dataclasses.replace(variant, qk_norm=None, masking=Penalize()), 12, 3, decodes=decodes)


def test_a_training_checks_the_attention_before_it_reads_data(tmp_path):
    config = config_of(CountsAll(bias=False))
    with pytest.raises(ValueError, match=r"model\.attention is a CountsAll"):
        train(config, tmp_path / "run")


def test_config_json_names_the_class_and_reads_it():
    config = config_of(Sigmoid(bias=False, scale=0.3))
    assert from_json(to_json(config)) == config
