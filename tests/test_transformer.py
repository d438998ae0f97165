"""Oracles: a float64 numpy Transformer of one unpadded sentence at a time; laws of causality, padding and the cache; a golden
parameter list; Glorot's bounds."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from flaxformer_lite import layers
from flaxformer_lite.attention import DotProduct
from flaxformer_lite.layers import POST_NORM, DropoutRates, LayerNorm, Normal, RMSNorm
from flaxformer_lite.positions import Learned, NoPositions, Sinusoidal
from flaxformer_lite.transformer import Inputs, ModelConfig, Transformer

B, S, T, V, F = 2, 11, 5, 13, 17
SHAPE = {"vocab_size": V, "d_ff": F, "num_encoder_layers": 3, "num_decoder_layers": 2, "dtype": "float64"}
CONFIGS = {
    "pre_norm_all_shared": ModelConfig(d_model=10, num_heads=2, **SHAPE),
    "post_norm_nothing_shared": ModelConfig(
        d_model=7,
        num_heads=3,
        attention=DotProduct(d_key=2, d_value=5),
        target_vocab_size=19,
        share_source_target=False,
        share_target_output=False,
        residual=POST_NORM,
        positions=Learned(max_positions=23),
        activation="tanh",
        scale_embeddings=False,
        **SHAPE,
    ),
    "rms_gated_own_head": ModelConfig(
        d_model=7,
        num_heads=6,
        attention=DotProduct(d_key=5, num_kv_heads=2, bias=False),
        share_target_output=False,
        norm=RMSNorm(),
        positions=Sinusoidal(layout="half_split"),
        activation="swiglu",
        **SHAPE,
    ),
    "two_tables_tied_output": ModelConfig(
        d_model=7,
        num_heads=1,
        target_vocab_size=19,
        share_source_target=False,
        norm=LayerNorm(bias=False),
        positions=NoPositions(),
        activation="geglu_tanh",
        **SHAPE,
    ),
}
WITHOUT_MASKS = "pre_norm_all_shared"
NOTHING_SHARED = "post_norm_nothing_shared"
GROUPED = "rms_gated_own_head"
KEYS = [jax.random.key(seed) for seed in (6, 7)]


@pytest.fixture(autouse=True, scope="module")
def float64():
    """64-bit numbers, and no time spent on optimising what runs once."""
    jax.config.update("jax_disable_most_optimizations", True)
    with jax.enable_x64(True):
        yield
    jax.config.update("jax_disable_most_optimizations", False)


@functools.cache
def shapes(config: ModelConfig) -> dict:
    """The parameters' shapes and types, as they are made without 64-bit numbers."""
    with jax.enable_x64(False):
        dtype = "float32" if config.dtype == "float64" else config.dtype
        return jax.eval_shape(initial(dataclasses.replace(config, dtype=dtype)), KEYS[0])


def initial(config: ModelConfig):
    """The function from a key to first values."""

    def init(key):
        tokens = jnp.zeros((B, T), jnp.int32)
        return Transformer(config).init(key, Inputs(source_tokens=tokens, target_tokens=tokens))["params"]

    return init


def by_path(tree: dict) -> dict:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in jax.tree.leaves_with_path(tree)
    }


@functools.cache
def params_of(config: ModelConfig) -> dict:
    """Random numbers everywhere, also in biases and scales."""
    rng = np.random.default_rng(2)
    return jax.tree.map(lambda leaf: rng.normal(scale=0.6, size=leaf.shape), shapes(config))


@functools.cache
def arrays(config: ModelConfig) -> tuple:
    """Source and target tokens without repetition in a sentence, and the lengths that count; the rest are not PAD but tokens
    too, and must not matter."""
    rng = np.random.default_rng(3)
    source = [rng.permutation(V)[:S] for _ in range(B)]
    target = [rng.permutation(config.target_vocab_size or V)[:T] for _ in range(B)]
    return tuple(np.array(numbers, np.int32) for numbers in (source, target, [S, 3], [T, 2]))


def inputs_of(source, target, source_lengths=None, target_lengths=None) -> Inputs:
    def mask(lengths, room):
        return None if lengths is None else jnp.arange(room) < jnp.asarray(lengths)[:, None]

    return Inputs(
        source_tokens=jnp.asarray(source),
        target_tokens=jnp.asarray(target),
        source_mask=mask(source_lengths, S),
        target_mask=mask(target_lengths, T),
    )


@functools.cache
def forward(name: str):
    """Logits, hidden, memory and the sown intermediates."""
    config = CONFIGS[name]

    @jax.jit
    def run(params, *data):
        outputs, sown = Transformer(config).apply({"params": params}, inputs_of(*data), mutable=["intermediates"])
        return outputs.logits, outputs.hidden, outputs.memory, sown["intermediates"]

    data = arrays(config)
    return run(params_of(config), *(data[:2] if name == WITHOUT_MASKS else data))


def slow(config: ModelConfig) -> reference.Transformer:
    """The same model in the reference's terms."""

    def norm(x, params):
        if isinstance(config.norm, RMSNorm):
            return reference.rms_norm(x, params["scale"])
        return reference.layer_norm(x, params["scale"], params.get("bias", np.zeros(len(x))))

    def position(params, t, width):
        if isinstance(config.positions, Learned):
            return params["embedding"][t]
        return 0.0 if config.positions == NoPositions() else reference.sinusoid(t, width, config.positions.layout)

    return reference.Transformer(
        params_of(config),
        num_heads=config.num_heads,
        num_kv_heads=config.attention.num_kv_heads or config.num_heads,
        activation=config.activation,
        post_norm=config.residual == POST_NORM,
        scale_embeddings=config.scale_embeddings,
        norm=norm,
        position=position,
    )


# The whole forward pass ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_forward_equals_the_float64_reference(name):
    """Logits, memory and the attention weights of every layer, of the tokens that count, as if each sentence stood alone."""
    source, target, source_lengths, target_lengths = arrays(CONFIGS[name])
    logits, _, memory, sown = forward(name)
    assert logits.dtype == jnp.float64
    close = functools.partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-11)
    for b in range(B):
        s, t = (S, T) if name == WITHOUT_MASKS else (source_lengths[b], target_lengths[b])
        model = slow(CONFIGS[name])
        wanted_logits, wanted_memory = model(source[b, :s], target[b, :t])
        close(logits[b, :t], wanted_logits)
        close(memory[b, :s], wanted_memory)
        encoder, decoder = sown["encoder"]["layers"], sown["decoder"]["layers"]
        close(encoder["attention"]["weights"][0][:, b, :, :s, :s], model.weights["encoder"])
        close(decoder["attention"]["weights"][0][:, b, :, :t, :t], model.weights["decoder"])
        close(decoder["cross_attention"]["weights"][0][:, b, :, :t, :s], model.weights["cross"])


@pytest.mark.parametrize("name", CONFIGS)
def test_intermediates_have_every_layer(name):
    """Shapes [L, B, N, T, S] and [L, B, T, D]; weights sum to 1 over keys and are 0 beyond the source and in the future."""
    config, (*_, sown) = CONFIGS[name], forward(name)
    d, n = config.d_model, config.num_heads
    assert jax.tree.map(np.shape, sown) == {
        "encoder": {
            "embedded": ((B, S, d),),
            "layers": {"attention": {"weights": ((3, B, n, S, S),)}, "output": ((3, B, S, d),)},
        },
        "decoder": {
            "embedded": ((B, T, d),),
            "layers": {
                "attention": {"weights": ((2, B, n, T, T),)},
                "cross_attention": {"weights": ((2, B, n, T, S),)},
                "output": ((2, B, T, d),),
            },
        },
    }
    own, cross = (np.asarray(sown["decoder"]["layers"][of]["weights"][0]) for of in ("attention", "cross_attention"))
    over_source = np.asarray(sown["encoder"]["layers"]["attention"]["weights"][0])
    for weights in (own, cross, over_source):
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-12)
    assert (own[..., ~np.tri(T, dtype=bool)] == 0).all() and (own[..., np.tri(2, T, dtype=bool)[1]] >= 0).all()
    if name != WITHOUT_MASKS:
        assert all((weights[:, 1, :, :, 3:] == 0).all() for weights in (cross, over_source))
        assert (own[:, 1, :, :, 2:] == 0).all()


def test_hidden_is_what_the_head_reads():
    """Tied: the hidden states times the target table; post-norm: the hidden states are the last layer's output as it is."""
    logits, hidden, *_ = forward("two_tables_tied_output")
    table = params_of(CONFIGS["two_tables_tied_output"])["target_embedding"]["embedding"]
    np.testing.assert_allclose(logits, np.asarray(hidden) @ table.T, rtol=1e-12, atol=1e-12)
    _, hidden, memory, sown = forward(NOTHING_SHARED)
    np.testing.assert_array_equal(hidden, sown["decoder"]["layers"]["output"][0][-1])
    np.testing.assert_array_equal(memory, sown["encoder"]["layers"]["output"][0][-1])


# Laws by gradient ----------------------------------------------------------------------------------------------------


@functools.cache
def pull_back():
    """Logits, and the parameters' gradient of `sum(logits * cotangent)`."""
    config = CONFIGS[NOTHING_SHARED]

    @jax.jit
    def run(params, source, target, cotangent):
        data = inputs_of(source, target, *arrays(config)[2:])

        def value(params):
            logits = Transformer(config).apply({"params": params}, data).logits
            return (logits * cotangent).sum(), logits

        gradient, logits = jax.grad(value, has_aux=True)(params)
        return logits, gradient

    return functools.partial(run, params_of(config))


def test_causality_by_gradient():
    """Position t depends on the target tokens 0 … t, all of them, and on no later one; and on every source token."""
    source, target, *_ = arrays(CONFIGS[NOTHING_SHARED])
    for t in range(T):
        cotangent = np.zeros((B, T, 19))
        cotangent[0, t] = np.random.default_rng(4).normal(size=19)
        _, gradient = pull_back()(source, target, cotangent)
        reaches = (np.asarray(gradient["target_embedding"]["embedding"])[target[0]] != 0).any(-1)
        assert reaches.tolist() == [u <= t for u in range(T)]
        assert (np.asarray(gradient["source_embedding"]["embedding"])[source[0]] != 0).any(-1).all()


def test_padding_does_not_matter():
    """Other tokens in the padding of source and target move neither the real logits nor any gradient."""
    source, target, source_lengths, target_lengths = arrays(CONFIGS[NOTHING_SHARED])
    real_source, real_target = (np.arange(n) < x[:, None] for n, x in ((S, source_lengths), (T, target_lengths)))
    others = np.where(real_source, source, (source + 1) % V), np.where(real_target, target, (target + 1) % 19)
    cotangent = np.random.default_rng(5).normal(size=(B, T, 19)) * real_target[..., None]
    logits, gradient = pull_back()(source, target, cotangent)
    other_logits, other_gradient = pull_back()(*others, cotangent)
    assert np.isfinite(logits).all() and not np.allclose(logits[1, 2:], other_logits[1, 2:])  # the padding did change
    np.testing.assert_allclose(np.asarray(logits)[real_target], np.asarray(other_logits)[real_target], rtol=1e-13)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-13), gradient, other_gradient)


# Decoding ------------------------------------------------------------------------------------------------------------


def decoded(config: ModelConfig, params: dict, source, source_mask, target) -> jax.Array:
    """The logits of `target` one token at a time, in a cache with room to spare and rubbish in it."""
    model = Transformer(config)

    @jax.jit
    def run(params, source, source_mask, target):
        variables = {"params": params}
        memory = model.apply(variables, source, source_mask, method="encode")
        cache = model.apply(variables, memory, T + 2, method="start_cache")
        cache = cache._replace(own=jax.tree.map(lambda x: x + 50, cache.own))

        def step(cache, now):
            index, tokens = now
            logits, cache = model.apply(variables, tokens, index, cache, source_mask, method="decode_step")
            return cache, logits

        return jax.lax.scan(step, cache, (jnp.arange(T), target.T))[1]

    return run(params, jnp.asarray(source), source_mask, jnp.asarray(target)).swapaxes(0, 1)


def test_cached_decoding_equals_the_full_pass():
    source, target, source_lengths, _ = arrays(CONFIGS[GROUPED])
    config, data = CONFIGS[GROUPED], inputs_of(source, target, source_lengths)
    logits = decoded(config, params_of(config), source, data.source_mask, target)
    full, *_ = forward(GROUPED)
    np.testing.assert_allclose(logits[0], full[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(logits[1, :2], full[1, :2], rtol=1e-12, atol=1e-12)  # what follows is padding there


def test_cached_decoding_in_float32_is_close_to_float64():
    """Without masks; the float32 pass is bound to the float64 one, and so to the full pass, within rounding."""
    config = CONFIGS[WITHOUT_MASKS]
    source, target, *_ = arrays(config)
    params = jax.tree.map(lambda leaf: leaf.astype(np.float32), params_of(config))
    with jax.enable_x64(False):
        logits = decoded(dataclasses.replace(config, dtype="float32"), params, source, None, target)
    assert logits.dtype == jnp.float32
    full, *_ = forward(WITHOUT_MASKS)
    np.testing.assert_allclose(logits, full, atol=1e-5 * float(jnp.abs(full).max()))


# Parameters ----------------------------------------------------------------------------------------------------------

GOLDEN = """
decoder/final_norm/bias                      7
decoder/final_norm/scale                     7
decoder/layers/attention/key/bias            2 6
decoder/layers/attention/key/kernel          2 7 6
decoder/layers/attention/out/bias            2 7
decoder/layers/attention/out/kernel          2 15 7
decoder/layers/attention/query/bias          2 6
decoder/layers/attention/query/kernel        2 7 6
decoder/layers/attention/value/bias          2 15
decoder/layers/attention/value/kernel        2 7 15
decoder/layers/attention_pre_norm/bias       2 7
decoder/layers/attention_pre_norm/scale      2 7
decoder/layers/cross_attention/key/bias      2 6
decoder/layers/cross_attention/key/kernel    2 7 6
decoder/layers/cross_attention/out/bias      2 7
decoder/layers/cross_attention/out/kernel    2 15 7
decoder/layers/cross_attention/query/bias    2 6
decoder/layers/cross_attention/query/kernel  2 7 6
decoder/layers/cross_attention/value/bias    2 15
decoder/layers/cross_attention/value/kernel  2 7 15
decoder/layers/cross_attention_pre_norm/bias   2 7
decoder/layers/cross_attention_pre_norm/scale  2 7
decoder/layers/feed_forward/down/bias        2 7
decoder/layers/feed_forward/down/kernel      2 17 7
decoder/layers/feed_forward/gate/bias        2 17
decoder/layers/feed_forward/gate/kernel      2 7 17
decoder/layers/feed_forward/up/bias          2 17
decoder/layers/feed_forward/up/kernel        2 7 17
decoder/layers/feed_forward_pre_norm/bias    2 7
decoder/layers/feed_forward_pre_norm/scale   2 7
decoder/positions/embedding                  23 7
encoder/final_norm/bias                      7
encoder/final_norm/scale                     7
encoder/layers/attention/key/bias            3 6
encoder/layers/attention/key/kernel          3 7 6
encoder/layers/attention/out/bias            3 7
encoder/layers/attention/out/kernel          3 15 7
encoder/layers/attention/query/bias          3 6
encoder/layers/attention/query/kernel        3 7 6
encoder/layers/attention/value/bias          3 15
encoder/layers/attention/value/kernel        3 7 15
encoder/layers/attention_pre_norm/bias       3 7
encoder/layers/attention_pre_norm/scale      3 7
encoder/layers/feed_forward/down/bias        3 7
encoder/layers/feed_forward/down/kernel      3 17 7
encoder/layers/feed_forward/gate/bias        3 17
encoder/layers/feed_forward/gate/kernel      3 7 17
encoder/layers/feed_forward/up/bias          3 17
encoder/layers/feed_forward/up/kernel        3 7 17
encoder/layers/feed_forward_pre_norm/bias    3 7
encoder/layers/feed_forward_pre_norm/scale   3 7
encoder/positions/embedding                  23 7
head/kernel                                  7 19
source_embedding/embedding                   13 7
target_embedding/embedding                   19 7
"""


def golden() -> dict:
    rows = [line.split() for line in GOLDEN.strip().splitlines()]
    return {path: tuple(map(int, sizes)) for path, *sizes in rows}


def test_the_parameter_tree_is_the_golden_list():
    config = dataclasses.replace(CONFIGS[NOTHING_SHARED], residual=layers.PRE_NORM, activation="swiglu")
    assert {path: leaf.shape for path, leaf in by_path(shapes(config)).items()} == golden()


def test_post_norm_moves_the_norms_and_has_no_final_one():
    """The golden list without the gates, each `pre_norm` called `post_norm`."""
    expected = {
        path.replace("_pre_norm", "_post_norm"): shape
        for path, shape in golden().items()
        if "gate" not in path and "final_norm" not in path
    }
    assert {path: leaf.shape for path, leaf in by_path(shapes(CONFIGS[NOTHING_SHARED])).items()} == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pre_norm_all_shared", {"embedding/embedding": (V, 10)}),
        (
            "post_norm_nothing_shared",
            {"source_embedding/embedding": (V, 7), "target_embedding/embedding": (19, 7), "head/kernel": (7, 19)},
        ),
        ("rms_gated_own_head", {"embedding/embedding": (V, 7), "head/kernel": (7, V)}),
        ("two_tables_tied_output", {"source_embedding/embedding": (V, 7), "target_embedding/embedding": (19, 7)}),
    ],
)
def test_sharing_decides_the_tables(name, expected):
    found = by_path(shapes(CONFIGS[name]))
    tables = {path: leaf.shape for path, leaf in found.items() if path.split("/")[0] not in ("encoder", "decoder")}
    assert tables == expected


def test_parameters_of_a_bfloat16_model_stay_float32():
    config = dataclasses.replace(CONFIGS[NOTHING_SHARED], dtype="bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes(config))} == {jnp.dtype("float32")}


def test_parameters_of_a_float64_model_stay_float32():
    values = jax.eval_shape(initial(CONFIGS[NOTHING_SHARED]), KEYS[0])
    assert {leaf.dtype for leaf in jax.tree.leaves(values)} == {jnp.dtype("float32")}


def test_inputs_and_outputs_may_hold_shapes():
    """As `jax.eval_shape` returns them and `jax.jit(…).lower` takes them."""
    config = CONFIGS[NOTHING_SHARED]
    inputs = jax.eval_shape(lambda: inputs_of(*arrays(config)))
    outputs = jax.eval_shape(Transformer(config).apply, {"params": shapes(config)}, inputs)
    assert outputs.logits.shape == (B, T, 19)


def test_bfloat16_computes_in_bfloat16_and_weighs_in_float32():
    config = dataclasses.replace(CONFIGS[GROUPED], dtype="bfloat16")

    def run(params):
        data = inputs_of(*arrays(config))
        outputs, sown = Transformer(config).apply({"params": params}, data, mutable=["intermediates"])
        return outputs.logits, outputs.hidden, outputs.memory, sown["intermediates"]

    with jax.enable_x64(False):
        *outputs, sown = jax.eval_shape(run, shapes(config))
    assert {leaf.dtype for leaf in outputs} == {jnp.dtype("bfloat16")}
    for path, leaf in by_path(sown).items():
        assert leaf.dtype == (jnp.float32 if "weights" in path else jnp.bfloat16)


# First values, unrolling, dropout ------------------------------------------------------------------------------------

RATES = DropoutRates(embedding_rate=0.11, attention_rate=0.13, feed_forward_rate=0.17, residual_rate=0.19)
DROPS = ModelConfig(
    vocab_size=101,
    d_model=12,
    num_heads=2,
    d_ff=F,
    num_encoder_layers=2,
    num_decoder_layers=1,
    share_target_output=False,
    dropout=RATES,
)


@functools.cache
def started(scan_unroll: int) -> dict:
    with jax.enable_x64(False):
        return jax.jit(initial(dataclasses.replace(DROPS, scan_unroll=scan_unroll)))(KEYS[0])


@functools.cache
def logits_from(scan_unroll: int):
    """The function from random keys to logits."""
    model = Transformer(dataclasses.replace(DROPS, scan_unroll=scan_unroll))
    data = arrays(CONFIGS[NOTHING_SHARED])
    run = jax.jit(lambda params, keys: model.apply({"params": params}, inputs_of(*data), rngs=keys).logits)

    def call(**keys):
        with jax.enable_x64(False):
            return run(started(1), keys)

    return call


def test_unrolled_scan_has_the_same_tree_and_first_values_bit_for_bit():
    rolled, unrolled = started(1), started(2)
    assert jax.tree.structure(rolled) == jax.tree.structure(unrolled)
    jax.tree.map(np.testing.assert_array_equal, rolled, unrolled)


def test_unrolled_scan_gives_the_same_logits():
    np.testing.assert_allclose(logits_from(1)(), logits_from(2)(), atol=1e-6, rtol=1e-6)


def test_dropout_is_a_function_of_the_key():
    one, other, one_again = (logits_from(1)(dropout=key) for key in (*KEYS, KEYS[0]))
    np.testing.assert_array_equal(one, one_again)
    assert not np.allclose(one, other) and not np.allclose(one, logits_from(1)())


def test_first_values_are_glorots():
    """Every layer's kernels fill ±sqrt(6 / (fan-in + fan-out)): a largest value under 4/5 of it has chance 0.8^144 at most."""
    kernels = {path: np.asarray(x) for path, x in by_path(started(1)).items() if path.endswith("kernel")}
    for kernel in kernels.values():
        for layer in kernel.reshape(-1, *kernel.shape[-2:]):
            bound = math.sqrt(6 / sum(layer.shape))
            assert 0.8 * bound < np.abs(layer).max() <= bound
    by_value = {layer.tobytes() for x in kernels.values() for layer in x.reshape(-1, *x.shape[-2:])}
    assert len(by_value) == 2 * (4 + 2) + 1 * (8 + 2) + 1  # no two layers, and no two kernels, start alike


def test_other_first_values_are_zeros_ones_and_a_normal_table():
    """The table has standard deviation d_model^-0.5, within 6 standard errors of 1,212 numbers (twice in 10^9 by chance)."""
    values = {path: np.asarray(x) for path, x in by_path(started(1)).items() if not path.endswith("kernel")}
    table = values.pop("embedding/embedding")
    assert abs((table**2).mean() * 12 - 1) < 6 * math.sqrt(2 / table.size)
    assert abs(table.mean()) * math.sqrt(12) < 6 / math.sqrt(table.size)
    for path, value in values.items():
        assert (value == (1 if path.endswith("scale") else 0)).all()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constants(Normal):
    """Kernels of 2, tables of the width."""

    def kernel(self):
        return jax.nn.initializers.constant(2)

    def embedding(self, d_model: int):
        return jax.nn.initializers.constant(d_model)


def test_an_initializer_reaches_every_kernel_and_table():
    values = jax.jit(initial(dataclasses.replace(DROPS, initializer=Constants())))(KEYS[0])
    for path, value in by_path(values).items():
        assert (value == {"kernel": 2, "embedding": 12, "scale": 1, "bias": 0}[path.split("/")[-1]]).all(), path


def test_every_place_drops_out_at_its_own_rate(monkeypatch):
    """The shapes and rates that reach `dropout` while the model is traced."""
    n, d, calls = DROPS.num_heads, DROPS.d_model, []
    monkeypatch.setattr(layers, "dropout", lambda x, rate, key: calls.append((rate, x.shape)) or x)

    def run(params, keys):
        data = inputs_of(*arrays(CONFIGS[NOTHING_SHARED]))
        return Transformer(DROPS).apply({"params": params}, data, rngs=keys).logits

    jax.eval_shape(run, shapes(DROPS), {})
    assert calls == []  # no key, no dropout
    jax.eval_shape(run, shapes(DROPS), {"dropout": KEYS[0]})
    assert set(calls) == {
        *((0.11, (B, length, d)) for length in (S, T)),
        *((0.13, (B, n, *lengths)) for lengths in ((S, S), (T, T), (T, S))),
        *((0.17, (B, length, F)) for length in (S, T)),
        *((0.19, (B, length, d)) for length in (S, T)),
    }


# Settings ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(
            ({name: value}, rf"^model\.{name} is {value}: give at least 1\Z")
            for name in ("vocab_size", "d_model", "num_heads", "d_ff", "num_encoder_layers", "num_decoder_layers")
            for value in (0, -2)
        ),
        (
            {"target_vocab_size": 0, "share_source_target": False},
            r"^model\.target_vocab_size is 0: give at least 1, or leave it out\Z",
        ),
        ({"scan_unroll": 0}, r"^model\.scan_unroll is 0: give at least 1\Z"),
        ({"d_model": 7}, r"^model\.d_model 7 is not divisible by model\.num_heads 2: change one, or set .*d_key\Z"),
        (
            {"attention": DotProduct(num_kv_heads=3)},
            r"^model\.num_heads 2 is not divisible by model\.attention\.num_kv_heads 3",
        ),
        (
            {"target_vocab_size": 19},
            r"^model\.target_vocab_size is 19, but .*: leave it out, or set model\.share_source_target to False\Z",
        ),
    ],
)
def test_impossible_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message) as error:
        ModelConfig(**{"vocab_size": V, "d_model": 10, "num_heads": 2} | settings)
    assert "\n" not in str(error.value)
