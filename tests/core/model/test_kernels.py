"""Oracles: the float64 loop reference of attention and its gradient in float64; laws of packed texts; the jaxpr itself.

Every implementation that the machine has is held to the same tests. Splash runs interpreted here, in blocks of 128.
"""

import contextlib
import dataclasses
import functools
import math
import re
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.model import DropoutRates, Inputs, ModelConfig, SlidingWindow, Transformer, kernels
from flaxformer_lite.core.model.attention import (
    DotProduct,
    MultiHeadAttention,
    SharedProjection,
    attention_weights,
    weighted_values,
)
from flaxformer_lite.core.model.kernels import (
    AttentionCall,
    SplashBlocks,
    choose_kernel,
    cudnn,
    splash,
    unsupported_reason,
)
from flaxformer_lite.core.model.masks import ByLayer, MaskStructure, structured_mask
from flaxformer_lite.core.model.positions import ALiBi, Rotary
from flaxformer_lite.core.parallel.sharding import MESH_AXES, within_mesh
from tests.support.limits import assert_close
from tests.support.quick import quick

NEEDS_GPU = pytest.mark.skipif(kernels.compute_capability() == 0, reason="no NVIDIA GPU")
IMPLEMENTATIONS = ["xla", "splash", "cudnn"]


interpreted = functools.partial(mock.patch.object, kernels, "INTERPRETED", True)
"""Context in which Splash runs interpreted."""


def device_of(implementation: str) -> contextlib.AbstractContextManager:
    """Where that implementation runs."""
    interpret = implementation == "splash" and jax.default_backend() != "tpu"
    return interpreted() if interpret else contextlib.nullcontext()


# One attention against float64 ------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """Sizes, and what the mask is made of."""

    lengths: tuple[int, int]
    kv_heads: int = 2
    causal: bool = False
    window: int | None = None
    padded: bool = False
    packed: bool = False
    soft_cap: float | None = None
    d_value: int = 8


B, N, H = 2, 2, 8
KEY = jax.random.key(0)
CASES = {
    "nothing": Case((6, 9)),
    "causal": Case((7, 7), causal=True),
    "window": Case((8, 8), causal=True, window=3),
    "window_soft_cap": Case((7, 7), causal=True, window=3, soft_cap=1.3, kv_heads=1),
    "around": Case((8, 8), window=3),
    "packed_around": Case((8, 8), window=3, padded=True, packed=True, kv_heads=1),
    "padding": Case((6, 10), padded=True, d_value=16),
    "packed_window": Case((8, 8), causal=True, window=3, padded=True, packed=True, kv_heads=1),
    "packed_cross": Case((6, 10), padded=True, packed=True),
    "two_blocks": Case((130, 130), causal=True, window=70, packed=True, kv_heads=1),
    "two_blocks_around": Case((130, 130), window=70, packed=True, kv_heads=1),
}
CUDNN_LACKS = ("window_soft_cap", "padding")


def call_of(case: Case, dtype: str = "float64") -> AttentionCall:
    """Random heads; the first fifth of the keys of row 0 are padding, and row 1 is all tokens. Of the packed texts, row 0 has a
    second in the queries that has no keys, and padding in both."""
    rng = np.random.default_rng(5)
    T, S = case.lengths
    q, k, v = (
        jnp.asarray(rng.normal(size=(B, length, heads, width)), dtype)
        for length, heads, width in ((T, N, H), (S, case.kv_heads, H), (S, case.kv_heads, case.d_value))
    )
    is_token = jnp.arange(S) >= jnp.array([[S // 5], [0]]) if case.padded else None
    queries = keys = None
    if case.packed:
        keys = jnp.where(jnp.arange(S) < S // 2, 1, jnp.array([[3], [2]]))
        queries = keys if T == S else jnp.where(jnp.arange(T) < T // 2, 1, jnp.array([[2], [2]]))
        queries = queries.at[0, -1].set(0)
        keys = queries if T == S else keys.at[0, -1].set(0)
    mask = structured_mask(
        is_token, queries, keys, causal_length=T if case.causal else None, window=case.window, length=T
    )
    return AttentionCall(q, k, v, 0.4, case.soft_cap, *mask)


def by_xla(call: AttentionCall):
    weights = attention_weights(
        call.query, call.key, mask=call.mask, bias=None, scale=call.scale, soft_cap=call.soft_cap
    )
    return weighted_values(weights, call.value)


def by_loops(call: AttentionCall) -> np.ndarray:
    """One query of one head at a time; what may not be seen is left out."""
    q, k, v = (np.asarray(x, np.float64) for x in call[:3])
    groups = q.shape[2] // k.shape[2]
    allowed = np.broadcast_to(True if call.mask is None else call.mask, (B, N, q.shape[1], k.shape[1]))
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    for b, t, n in np.ndindex(*q.shape[:3]):
        seen = [s for s in range(k.shape[1]) if allowed[b, n, t, s]]
        if not seen:
            continue
        scores = np.array([call.scale * (q[b, t, n] @ k[b, s, n // groups]) for s in seen])
        scores = scores if call.soft_cap is None else call.soft_cap * np.tanh(scores / call.soft_cap)
        weights = np.exp(scores - scores.max())
        out[b, t, n] = weights @ v[b, seen, n // groups] / weights.sum()
    return out


def answer_and_gradients(compute, call: AttentionCall, cotangent):
    """The answer, and the gradient of its product with `cotangent` by query, key and value."""

    @jax.jit
    def both(q, k, v):
        out, back = jax.vjp(lambda q, k, v: compute(call._replace(query=q, key=k, value=v)), q, k, v)
        return out, back(cotangent.astype(out.dtype))

    return both(*call[:3])


SLOW = [(name, "splash") for name in CASES if name != "packed_cross"] + [
    (name, "xla") for name in ("two_blocks", "two_blocks_around", "packed_window", "packed_around", "packed_cross")
]
"""The fast suite has one case with all parts by the kernel, and the cheap ones by plain operations."""


@pytest.mark.parametrize(
    ("name", "implementation"),
    [
        pytest.param(name, kind, marks=[pytest.mark.slow] * ((name, kind) in SLOW) + [NEEDS_GPU] * (kind == "cudnn"))
        for name in CASES
        for kind in IMPLEMENTATIONS
    ],
)
def test_answers_and_gradients_equal_the_float64_reference(name, implementation):
    """Also of queries with nothing to attend to: zero, and no gradient from them, whatever is call of them."""
    if implementation == "cudnn" and name in CUDNN_LACKS:
        pytest.skip("cudnn refuses it")
    case = CASES[name]
    with jax.enable_x64(True):
        exact = call_of(case)
        cotangent = jnp.asarray(np.random.default_rng(6).normal(size=(B, case.lengths[0], N, case.d_value)))
        wanted = answer_and_gradients(by_xla, exact, cotangent)
        np.testing.assert_allclose(wanted[0], by_loops(exact), rtol=1e-12, atol=1e-12)
    if implementation == "xla":
        return
    dtype, tolerance = ("bfloat16", 0.05) if implementation == "cudnn" else ("float32", 1e-5)
    call = call_of(case, dtype)
    with device_of(implementation):
        found = answer_and_gradients(choose_kernel(implementation, call).kernel, call, cotangent)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float64), other, rtol=tolerance, atol=tolerance)
    if name in ("packed_window", "packed_around"):
        assert not np.asarray(found[0][0, -1]).any()


@pytest.mark.slow
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("sizes", [(128, 128), (128, 256), (256, 128)])
def test_the_blocks_of_splash_change_no_answer_and_no_gradient(sizes: tuple[int, int], fused: bool):
    call = call_of(CASES["two_blocks"], "float32")
    blocks = SplashBlocks(queries=sizes[0], keys=sizes[1], fused_backward=fused)
    cotangent = np.random.default_rng(1).normal(size=(B, 130, N, H))
    with interpreted():
        found = answer_and_gradients(splash, call._replace(blocks=blocks), cotangent)
    wanted = answer_and_gradients(by_xla, call, cotangent)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize(
    "name", quick([name for name in CASES if name not in CUDNN_LACKS], {"packed_window", "packed_around"}.__contains__)
)
def test_what_is_handed_to_cudnn_means_the_same(name):
    """The arguments of `jax.nn.dot_product_attention`, tried on its own plain implementation."""
    with jax.enable_x64(True):
        call = call_of(CASES[name])
        found = cudnn(call, implementation="xla")
        np.testing.assert_allclose(found, by_loops(call), rtol=1e-6, atol=1e-6)


# A whole model ---------------------------------------------------------------------------------------------------------

ROOM = 24
SEGMENTS = np.array([[1] * 9 + [2] * 11 + [0] * 4])
PLACES = np.concatenate([np.arange(9), np.arange(11), np.zeros(4, int)])[None]


def packing_model(implementation: str) -> Transformer:
    """A decoder with a window in its layer, of which the program learns only as it runs."""
    return Transformer(
        ModelConfig(
            vocab_size=19,
            d_model=16,
            num_heads=2,
            d_ff=11,
            num_encoder_layers=0,
            num_decoder_layers=1,
            attention=DotProduct(num_kv_heads=1, implementation=implementation),
            sliding_window=SlidingWindow(size=5, layers=(0,), positions=Rotary(base=11.0)),
            positions=Rotary(base=101.0),
            dtype="bfloat16" if implementation == "cudnn" else "float32",
        )
    )


@functools.cache
def compiled(implementation: str):
    """The function from the model's vectors of tokens to logits, and to the second text's influence on each vector."""
    model = packing_model(implementation)
    shapes = jax.eval_shape(model.init, KEY, Inputs(target_tokens=jnp.zeros((1, 1), jnp.int32)))["params"]
    rng = np.random.default_rng(8)
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(scale=0.5, size=x.shape), x.dtype), shapes)

    def logits(table, tokens, segments):
        inputs = Inputs(
            target_tokens=tokens,
            target_mask=segments > 0,
            target_positions=jnp.asarray(PLACES),
            target_segments=segments,
        )
        return model.apply({"params": params | {"embedding": {"embedding": table}}}, inputs).logits

    @jax.jit
    def both(tokens, segments):
        table = jnp.tile(jnp.arange(19.0)[:, None] / 19, (1, 16)) ** jnp.arange(1.0, 17)
        out, back = jax.vjp(lambda table: logits(table, tokens, segments), table)
        second = (segments == 2)[..., None] * jnp.cos(jnp.arange(19.0))
        return out, back(second.astype(out.dtype))[0]

    return both


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["xla", "splash", pytest.param("cudnn", marks=NEEDS_GPU)])
def test_another_first_document_moves_nothing_of_the_second(implementation):
    """Law: neither its logits nor its gradient, bit for bit, and the padding after it is finite."""
    rng = np.random.default_rng(7)
    tokens = np.where(SEGMENTS == 1, rng.integers(1, 9, (1, ROOM)), rng.integers(9, 19, (1, ROOM)))
    others = np.where(SEGMENTS == 2, tokens, 1 + tokens % 8)
    with device_of(implementation):
        (logits, gradient), (moved, moved_gradient) = (compiled(implementation)(t, SEGMENTS) for t in (tokens, others))
    assert not np.allclose(logits[SEGMENTS == 1], moved[SEGMENTS == 1])
    np.testing.assert_array_equal(logits[SEGMENTS == 2], moved[SEGMENTS == 2])
    np.testing.assert_array_equal(gradient[9:], moved_gradient[9:])
    assert np.isfinite(logits).all() and np.isfinite(gradient).all()
    if implementation != "xla":
        plain = compiled("xla")(tokens, SEGMENTS)
        tolerance = 0.05 if implementation == "cudnn" else 1e-5
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance), (logits, gradient), plain
        )


def encoder_decoder(**settings) -> ModelConfig:
    return ModelConfig(
        **{
            "vocab_size": 19,
            "d_model": 16,
            "num_heads": 2,
            "d_ff": 11,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
        }
        | settings
    )


def jaxpr_of(config: ModelConfig, train: bool = False, **inputs):
    """The program of a forward pass over two padded sentence pairs."""
    model, tokens = Transformer(config), jnp.zeros((2, 6), jnp.int32)
    both = Inputs(
        source_tokens=tokens, target_tokens=tokens, source_mask=tokens == 0, target_mask=tokens == 0, **inputs
    )
    plain = dataclasses.replace(config, attention=dataclasses.replace(config.attention, implementation="xla"))
    params = jax.eval_shape(Transformer(plain).init, KEY, both)["params"]
    rngs = {"dropout": KEY} if train else {}
    return jax.make_jaxpr(lambda p: model.apply({"params": p}, both, rngs=rngs).logits.sum())(params)


MARKS = {"cudnn": "dot_product_attention_fwd", "splash": "splash_mha_fwd"}
"""Part of the name of each kernel's primitive, or of the kernel that the primitive calls."""


def kernels_in(program: Any) -> list[str]:
    """Returns the names of the kernels that a jaxpr calls, at any depth, one for each call."""
    found = []
    for equation in program.eqns:
        source = (
            getattr(equation.params.get("jaxpr"), "debug_info", "") if equation.primitive.name == "pallas_call" else ""
        )
        words = f"{equation.primitive.name} {equation.params.get('name', '')} {source}"
        inner = [x for x in jax.tree.leaves(list(equation.params.values())) if hasattr(x, "eqns")]
        calls = [name for name, mark in MARKS.items() if mark in words]
        found += calls or [name for part in inner for name in kernels_in(part)]
    return found


@pytest.mark.slow
def test_a_kernel_that_is_named_is_in_the_program_three_times():
    """Of the encoder, of the decoder and of the attention from one to the other; `auto` on a CPU has none."""
    with interpreted():
        program = jaxpr_of(encoder_decoder(attention=DotProduct(implementation="splash")))
        assert kernels_in(program) == 3 * ["splash"]
        assert kernels_in(jaxpr_of(encoder_decoder(attention=DotProduct(implementation="xla")))) == []
    assert kernels_in(jaxpr_of(encoder_decoder())) == []


def test_heads_that_share_a_projection_can_have_a_kernel():
    module, x = MultiHeadAttention(16, 2, SharedProjection(implementation="splash")), jnp.ones((1, 3, 16))
    with interpreted():
        assert kernels_in(jax.make_jaxpr(module.init)(KEY, x)) == ["splash"]


def test_the_program_for_cudnn_calls_it(monkeypatch):
    """Traced and lowered for a GPU without one: what JAX accepts, and the name of the call."""
    from jax._src.cudnn import fused_attention_stablehlo

    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(kernels, "compute_capability", lambda: 8.0)
    monkeypatch.setattr(kernels, "platform", lambda: "gpu")
    config = encoder_decoder(attention=DotProduct(implementation="cudnn", num_kv_heads=1), dtype="bfloat16")
    assert kernels_in(jaxpr_of(config)) == 3 * ["cudnn"]
    call = call_of(CASES["causal"], "bfloat16")
    program = jax.jit(lambda q, k, v: cudnn(call._replace(query=q, key=k, value=v)))
    text = program.trace(*call[:3]).lower(lowering_platforms=("cuda",)).as_text()
    assert "__cudnn$fmhaSoftmax" in text
    assert choose_kernel("auto", call).kernel is cudnn


@pytest.mark.parametrize(
    ("structure", "flag"),
    [
        (MaskStructure(causal=True, keys=jnp.ones((B, 8), jnp.int32)), "CAUSAL"),
        (MaskStructure(causal=True, window=3, keys=jnp.ones((B, 8), jnp.int32)), "CAUSAL"),
        (ByLayer(jnp.array(True), MaskStructure(causal=True, window=3), MaskStructure(causal=True)), "CAUSAL"),
        (MaskStructure(keys=jnp.ones((B, 8), jnp.int32)), "NO_MASK"),
        (None, "NO_MASK"),
    ],
)
@pytest.mark.parametrize("backward", [False, True])
def test_cudnn_is_told_of_a_causal_mask_beside_the_array(monkeypatch, structure, flag: str, backward: bool):
    """By the program for a GPU: cuDNN skips the blocks after their queries by this flag alone."""
    from jax._src.cudnn import fused_attention_stablehlo

    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)
    call = call_of(Case((8, 8)), "bfloat16")._replace(structure=structure, mask=jnp.tri(8, dtype=bool)[None, None])

    def answer(q, k, v):
        return cudnn(call._replace(query=q, key=k, value=v)).astype(jnp.float32).sum()

    program = jax.jit(jax.grad(answer, argnums=(0, 1, 2)) if backward else answer)
    text = program.trace(*call[:3]).lower(lowering_platforms=("cuda",)).as_text()
    assert set(re.findall(r"mask_type\\22: \\22(\w+)", text)) == {flag}
    assert set(re.findall(r"cudnn\$fmha(\w+)", text)) >= {"ScaleBiasSoftmax" + "Backward" * backward}


def test_auto_has_no_fused_kernel_on_a_gpu_before_ampere(monkeypatch):
    """A fake T4, which has compute capability 7.5, and then a fake A100."""
    monkeypatch.setattr(kernels, "platform", lambda: "gpu")
    for capability, name in (("7.5", "xla"), ("8.0", "cudnn")):
        monkeypatch.setattr(jax, "devices", lambda _, has=capability: [SimpleNamespace(compute_capability=has)])
        choice = choose_kernel("auto", BF16)
        assert choice.name == name
        assert ("needs a GPU of compute capability 8.0, and this one has 7.5" in choice.reason) == (name == "xla")


# Refusals --------------------------------------------------------------------------------------------------------------

SMALL = call_of(CASES["causal"], "float32")
BF16 = call_of(CASES["causal"], "bfloat16")
REFUSALS = {
    "cudnn on a cpu": ("cudnn", BF16, "cpu", "cudnn is for NVIDIA GPUs, and the device is a cpu"),
    "splash on a gpu": ("splash", SMALL, "gpu", "splash is for TPUs, and the device is a gpu"),
    "float32": ("cudnn", SMALL, "gpu", "model.dtype is float32"),
    "float16": ("splash", SMALL._replace(query=SMALL.query.astype("float16")), "tpu", "model.dtype is float16"),
    "soft cap": ("cudnn", BF16._replace(soft_cap=2.0), "gpu", "model.attention.soft_cap is 2.0"),
    "wide values": ("cudnn", BF16._replace(value=BF16.value[..., :4]), "gpu", "model.attention.d_value"),
    "odd heads": ("cudnn", BF16._replace(query=BF16.query[..., :4], value=BF16.value[..., :4]), "gpu", "multiple of 8"),
    "odd lengths": ("cudnn", BF16._replace(structure=None), "gpu", "even lengths"),
    "an array": ("splash", SMALL._replace(structure=None), "tpu", "target_attention"),
    "dropout": ("splash", SMALL._replace(has_dropout=True), "tpu", "model.dropout.attention_rate"),
    "bias": ("splash", SMALL._replace(has_bias=True), "tpu", "ALiBi"),
    "masking": ("splash", SMALL._replace(hard_mask=False), "tpu", "model.attention.masking"),
    "weights": ("cudnn", BF16._replace(needs_weights=True), "gpu", "attention weights"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_a_kernel_cannot_do_has_a_name(monkeypatch, name):
    """A kernel that is named then refuses, `auto` passes on to xla and says so; what was refused is all that stood in the way."""
    kernel, call, device, words = REFUSALS[name]
    monkeypatch.setattr(kernels, "compute_capability", lambda: 8.0)
    monkeypatch.setattr(kernels, "platform", lambda: device)
    monkeypatch.setattr(kernels, "SPLASH_SHORTEST", 1)
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    with pytest.raises(ValueError, match=r"(?s)model.attention.implementation is .*: change that") as error:
        choose_kernel(kernel, call)
    assert words in str(error.value)
    if " on a " not in name:
        choice = choose_kernel("auto", call)
        assert choice.kernel is None and choice.name == "xla"
        assert choice.reason.startswith(f"'{kernel}' was not used, since ") and words in choice.reason
    assert unsupported_reason(kernel, BF16, {"cudnn": "gpu", "splash": "tpu"}[kernel]) is None


@pytest.mark.parametrize(
    ("settings", "inputs", "train", "words"),
    [
        ({"positions": ALiBi()}, {}, False, "ALiBi"),
        ({"dropout": DropoutRates(attention_rate=0.1)}, {}, True, "attention_rate"),
        pytest.param(
            {}, {"target_attention": jnp.ones((1, 1, 6, 6), bool)}, False, "target_attention", marks=pytest.mark.slow
        ),
    ],
)
def test_a_model_that_a_named_kernel_cannot_run_is_refused(settings, inputs, train, words):
    config = encoder_decoder(**{"attention": DotProduct(implementation="splash")} | settings)
    with interpreted(), pytest.raises(ValueError, match=words):
        jaxpr_of(config, train, **inputs)


def test_dropout_matters_only_while_training():
    config = encoder_decoder(attention=DotProduct(implementation="splash"), dropout=DropoutRates(attention_rate=0.1))
    with interpreted():
        assert kernels_in(jaxpr_of(config)) == 3 * ["splash"]


def test_auto_uses_the_tpus_kernel_where_it_pays(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    with interpreted():
        assert (
            str(choose_kernel("auto", SMALL))
            == "attention is computed by the fused kernel 'splash': the device is a TPU"
        )
        assert choose_kernel("auto", SMALL).kernel is splash
        assert choose_kernel("auto", SMALL._replace(has_bias=True)).kernel is None
    monkeypatch.setattr(kernels, "platform", lambda: "tpu")
    choice = choose_kernel("auto", SMALL)
    assert choice.kernel is None and "fewer than" in choice.reason
    monkeypatch.setattr(kernels, "SPLASH_SHORTEST", 1)
    monkeypatch.setattr(jax, "device_count", lambda: 4)
    choice = choose_kernel("auto", SMALL)
    assert choice.kernel is None and "no mesh" in choice.reason


def test_choices_are_reported_where_a_model_is_traced_and_each_once():
    """Two calls choose alike; a program that is traced already chooses nothing; each context reports for itself."""
    module, x = MultiHeadAttention(16, 2, DotProduct(implementation="xla")), jnp.ones((1, 3, 16))
    run = jax.jit(lambda params: module.apply(params, x))
    outer, inner, later = [], [], []
    with kernels.report_choices(outer.append):
        params = module.init(KEY, x)
        with kernels.report_choices(inner.append):
            run(params), module.apply(params, x)
        with kernels.report_choices(later.append):
            run(params)
    assert inner == ["attention is computed by plain JAX operations: model.attention.implementation is 'xla'"]
    assert outer == inner and later == []


def test_nothing_is_said_on_a_cpu_where_nothing_was_asked_for():
    reported = []
    with kernels.report_choices(reported.append):
        jax.eval_shape(MultiHeadAttention(16, 2).init, KEY, jnp.ones((1, 3, 16)))
    assert reported == [] and choose_kernel("auto", SMALL).name == "xla"


def test_decoding_is_by_xla_whatever_is_named():
    """With a cache there is one query at a time: nothing to be saved."""
    model = packing_model("splash")
    tokens = jnp.zeros((1, 1), jnp.int32)
    with interpreted():
        params = jax.eval_shape(model.init, KEY, Inputs(target_tokens=tokens))["params"]
        cache = jax.eval_shape(lambda p: model.apply({"params": p}, None, 8, 1, method="start_cache"), params)
        program = jax.make_jaxpr(
            lambda p, c: model.apply({"params": p}, tokens, jnp.int32(0), c, method="decode_step")[0]
        )(params, cache)
    assert kernels_in(program) == []


def test_attention_weights_that_are_call_for_are_by_xla():
    module = MultiHeadAttention(16, 2)
    x = jnp.ones((1, 3, 16))
    with interpreted():
        params = module.init(KEY, x)
        _, seen = module.apply(params, x, mutable="intermediates")
    assert seen["intermediates"]["weights"][0].shape == (1, 2, 3, 3)


# Several devices -------------------------------------------------------------------------------------------------------


def test_each_device_computes_its_own_rows_and_heads():
    """Law: a mesh answers as one device does, without a collective; a mesh whose axes divide nothing answers too."""
    call = call_of(Case((7, 7), causal=True), "float32")

    def answer(*heads):
        with within_mesh(mesh):
            return splash(call._replace(query=heads[0], key=heads[1], value=heads[2]))

    with interpreted():
        alone = jax.jit(lambda *x: splash(call._replace(query=x[0], key=x[1], value=x[2])))(*call[:3])
        for sizes, divided in (((2, 1, 2), True), ((4, 1, 1), False)):
            axes, devices = (jax.sharding.AxisType.Auto,) * 3, jax.devices()[: math.prod(sizes)]
            mesh = jax.make_mesh(sizes, MESH_AXES, axis_types=axes, devices=devices)
            spec = jax.sharding.PartitionSpec("data", None, "tensor") if divided else jax.sharding.PartitionSpec()
            placed = jax.device_put(call[:3], jax.sharding.NamedSharding(mesh, spec))
            program = jax.jit(answer).lower(*placed).compile()
            assert_close(program(*placed), alone)
            if divided:
                assert "all-gather" not in program.as_text() and "all-reduce" not in program.as_text()
