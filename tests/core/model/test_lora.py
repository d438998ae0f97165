"""Laws of adapters: without training they change no bit, merged into their kernels they change no answer. Oracle: NumPy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.model import Inputs, LanguageModelHead, LoRA, ModelConfig, Pooler, Transformer
from flaxformer_lite.core.model.fast import with_layout
from flaxformer_lite.core.model.layers import Dense
from flaxformer_lite.core.model.lora import merged
from flaxformer_lite.core.model.transformer import parameter_shapes, step_copies
from tests.support.limits import assert_close

KEY = jax.random.key(3)
BASE = ModelConfig(
    vocab_size=29,
    d_model=12,
    num_heads=3,
    d_ff=23,
    num_encoder_layers=2,
    num_decoder_layers=3,
    activation="swiglu",
    head=LanguageModelHead(transform="gelu"),
    pooler=Pooler(num_classes=5),
)
ALL = LoRA(rank=4, alpha=7.0, targets=("*",))
ADAPTED = dataclasses.replace(BASE, lora=ALL)
INPUTS = Inputs(
    source_tokens=jax.random.randint(KEY, (2, 7), 0, 29), target_tokens=jax.random.randint(KEY, (2, 5), 0, 29)
)


def drawn(config: ModelConfig) -> dict:
    """Parameters of which none is 0."""
    generator = np.random.default_rng(7)
    return jax.tree.map(lambda x: jnp.float32(0.3 * generator.normal(size=x.shape)), parameter_shapes(config))


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"remat": "full", "scan_unroll": 3}, {"dtype": "bfloat16"}])
def test_a_model_starts_as_without_adapters_bit_for_bit(changes: dict):
    """In training: dropout of the model itself draws the same numbers too."""
    base, adapted = (dataclasses.replace(config, **changes) for config in (BASE, ADAPTED))
    params, more = (jax.jit(Transformer(config).init)(KEY, INPUTS)["params"] for config in (base, adapted))
    for path, x in leaves_by_path(params).items():
        np.testing.assert_array_equal(leaves_by_path(more)[path], x)
    for rngs in ({}, {"dropout": KEY}):
        expected = jax.jit(Transformer(base).apply)({"params": params}, INPUTS, rngs=rngs)
        found = jax.jit(Transformer(adapted).apply)({"params": more}, INPUTS, rngs=rngs)
        assert np.array_equal(found.logits, expected.logits)
        assert np.array_equal(found.class_logits, expected.class_logits)


def test_every_kernel_of_a_projection_can_have_an_adapter():
    shapes = {path: x.shape for path, x in leaves_by_path(parameter_shapes(ADAPTED)).items()}
    kernels = {path for path in shapes if path.endswith("/kernel") and "lora_" not in path}
    assert len(kernels) == 2 * 7 + 4 + 3
    for path in kernels:
        module, (*layers, wide, narrow) = path.removesuffix("/kernel"), shapes[path]
        assert shapes[f"{module}/lora_a/kernel"] == (*layers, wide, 4)
        assert shapes[f"{module}/lora_b/kernel"] == (*layers, 4, narrow)


def test_the_default_targets_are_all_queries_and_values():
    shapes = leaves_by_path(parameter_shapes(dataclasses.replace(BASE, lora=LoRA())))
    adapted = {path.removesuffix("/lora_a/kernel") for path in shapes if "lora_a" in path}
    attentions = ("encoder/layers/attention", "decoder/layers/attention", "decoder/layers/cross_attention")
    assert adapted == {f"{attention}/{name}" for attention in attentions for name in ("query", "value")}


def test_the_first_values_are_those_of_peft():
    """PyTorch's kaiming_uniform_(a=sqrt(5)): uniform in ±1 / sqrt(fan-in). B is 0."""
    params = Dense(31, lora=LoRA(rank=64, targets=("*",))).init(KEY, jnp.zeros((2, 100)))["params"]
    a, b = np.asarray(params["lora_a"]["kernel"]), np.asarray(params["lora_b"]["kernel"])
    assert 0.099 < np.abs(a).max() <= 0.1
    assert abs(a.std() - 0.1 / np.sqrt(3)) < 0.001
    assert not b.any()


def test_a_projection_by_hand():
    """x W + b + alpha / rank · x A B in float64; dropout zeroes elements of x for the adapter alone."""
    rng = np.random.default_rng(0)
    x, w, bias, a, b = (jnp.float32(rng.normal(size=size)) for size in ((5, 7), (7, 11), (11,), (7, 4), (4, 11)))
    params = {"kernel": w, "bias": bias, "lora_a": {"kernel": a}, "lora_b": {"kernel": b}}
    dense = Dense(11, lora=dataclasses.replace(ALL, dropout=0.25))
    x64, w64, bias64, a64, b64 = (np.asarray(y, np.float64) for y in (x, w, bias, a, b))
    expected = x64 @ w64 + bias64 + 7 / 4 * x64 @ a64 @ b64
    assert_close(dense.apply({"params": params}, x), expected)
    dropped = dense.apply({"params": params}, x, rngs={"dropout": KEY})
    assert not np.allclose(dropped, expected, rtol=0.01)
    without = {**params, "lora_b": {"kernel": 0 * b}}
    plain = Dense(11).apply({"params": params}, x)
    np.testing.assert_array_equal(dense.apply({"params": without}, x, rngs={"dropout": KEY}), plain)


@pytest.mark.slow
def test_a_merged_model_answers_as_the_adapted_one():
    params = drawn(ADAPTED)
    found = merged(params, ALL)
    assert leaves_by_path(found).keys() == leaves_by_path(parameter_shapes(BASE)).keys()
    plain = jax.jit(Transformer(BASE).apply)
    expected = jax.jit(Transformer(ADAPTED).apply)({"params": params}, INPUTS)
    answer = plain({"params": found}, INPUTS)
    size = np.abs(expected.logits).max()
    np.testing.assert_allclose(answer.logits / size, expected.logits / size, atol=1e-6)
    without = plain({"params": params}, INPUTS)
    assert np.abs(without.logits - expected.logits).max() > 0.1 * size


@pytest.mark.slow
def test_steps_with_a_cache_have_the_adapters():
    """Oracle: the logits of all tokens at once."""
    model, variables = Transformer(ADAPTED), {"params": drawn(ADAPTED)}
    expected = jax.jit(model.apply)(variables, INPUTS).logits
    memory = jax.jit(functools.partial(model.apply, method="encode"))(variables, INPUTS)
    step = jax.jit(functools.partial(model.apply, method="decode_step"))
    steps, cache = (
        with_layout(variables, step_copies(model, variables)),
        model.apply(variables, memory, 5, method="start_cache"),
    )
    for i in range(5):
        tokens = INPUTS.target_tokens[:, i : i + 1]
        logits, cache = step(steps, tokens, jnp.asarray(i), cache)
        np.testing.assert_allclose(logits[:, 0], expected[:, i], rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_targets_that_match_nothing_are_named():
    lora = LoRA(targets=("*attention/query", "*/q_proj"))
    params = parameter_shapes(dataclasses.replace(BASE, lora=lora))
    with pytest.raises(ValueError, match=r"^model\.lora\.targets has '\*/q_proj', which matches no projection: give"):
        lora.check(params)
    for pattern in ("*attention/value/kernel", "*embedding*"):  # parameters, but no projections
        with pytest.raises(ValueError, match=r"which matches no projection"):
            LoRA(targets=("*attention/query", pattern)).check(params)
    with pytest.raises(ValueError, match=r"^model\.lora\.targets is \(\), so no projection has an adapter"):
        LoRA(targets=())
