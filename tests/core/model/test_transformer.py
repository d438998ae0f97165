"""Oracles: a float64 numpy Transformer of one unpadded sentence at a time; laws of causality, padding, packing and the cache;
a slow search over full passes."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.model import DotProduct, Inputs, LoRA, NoPositions, RelativeBias, RMSNorm, Rotary, Transformer
from flaxformer_lite.core.model.config import EmbeddingProjection, LanguageModelHead, ModelConfig, SlidingWindow
from flaxformer_lite.core.model.contexts import map_own
from flaxformer_lite.core.search.beam import BEAM_SEARCH
from flaxformer_lite.core.search.greedy import GREEDY_SEARCH
from flaxformer_lite.core.search.settings import DecodeConfig
from tests.support import reference_search
from tests.support.quick import quick
from tests.support.small_models import (
    CONFIGS,
    GROUPED,
    LIKE_T5,
    NO_DROPOUT,
    NOTHING_SHARED,
    TIED,
    WITHOUT_MASKS,
    B,
    S,
    T,
    V,
    arrays,
    inputs_of,
    params_of,
    slow,
)

pytestmark = pytest.mark.usefixtures("float64")

QUICK = ("rms_gated_own_head",)
"""The configuration whose whole pass the fast suite computes."""


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


@pytest.mark.parametrize("of", ["sum", "tokens"])
def test_projected_embeddings_make_the_same_model_as_projected_vectors(of):
    """Oracle: the model without a vocabulary, which reads the product of the table and the projection in their place."""
    like = {
        "d_model": 8,
        "num_heads": 2,
        "d_ff": 11,
        "num_encoder_layers": 0,
        "num_decoder_layers": 2,
        "dropout": NO_DROPOUT,
    }
    like |= {"positions": NoPositions(), "scale_embeddings": False, "dtype": "float64"}
    config = ModelConfig(
        vocab_size=13,
        **like,
        embedding_projection=EmbeddingProjection(width=5, of=of),
        share_target_output=of == "tokens",
    )
    params = jax.tree.map(jnp.asarray, params_of(config))
    tokens = jnp.asarray(np.random.default_rng(3).integers(0, 13, (2, 6)))
    outputs = jax.jit(Transformer(config).apply)({"params": params}, Inputs(target_tokens=tokens))
    stack = dict(params["decoder"])
    first = stack.pop("embedding_projection")
    vectors = params["embedding"]["embedding"][tokens] @ first["kernel"] + first.get("bias", 0)
    last = stack.pop("output_projection")["kernel"] if of == "tokens" else np.eye(8)
    assert ("bias" in first) == (of == "sum") and vectors.shape == (2, 6, 8) and last.shape == (8, config.output_width)
    inner = Transformer(ModelConfig(vocab_size=0, **like, head=None))
    expected = jax.jit(inner.apply)({"params": {"decoder": stack}}, Inputs(target_tokens=vectors)).hidden @ last
    np.testing.assert_allclose(outputs.hidden, expected, atol=1e-12)
    kernel = params["embedding"]["embedding"].T if of == "tokens" else params["head"]["kernel"]
    np.testing.assert_allclose(outputs.logits, expected @ kernel, atol=1e-12)
    model, variables = Transformer(config), {"params": params}
    cache = model.apply(variables, None, 6, 2, method="start_cache")
    step = jax.jit(functools.partial(model.apply, variables, method="decode_step"))
    for i in range(6):
        logits, cache = step(tokens[:, i : i + 1], jnp.int32(i), cache)
        np.testing.assert_allclose(logits[:, 0], outputs.logits[:, i], atol=1e-12)


ADAPTED = {"remat": "dots", "scan_unroll": 2, "lora": LoRA(rank=2)}


@pytest.mark.parametrize("more", [{}, pytest.param(ADAPTED, marks=pytest.mark.slow)], ids=["plain", "adapted"])
def test_one_layer_for_all_is_a_stack_of_equal_layers(more):
    """Oracle: the model whose layers are copies; the gradient of the one layer is the sum of the copies'."""
    like = {
        "vocab_size": 13,
        "d_model": 8,
        "num_heads": 2,
        "d_ff": 11,
        "num_encoder_layers": 0,
        "num_decoder_layers": 3,
    }
    like |= {"dropout": NO_DROPOUT, "dtype": "float64", **more}
    shared, copied = (Transformer(ModelConfig(**like, share_layers=share)) for share in (True, False))
    params = jax.tree.map(jnp.asarray, params_of(shared.config))
    tokens = jnp.asarray(np.random.default_rng(3).integers(0, 13, (2, 6)))

    def repeated(params):
        layers = jax.tree.map(lambda x: x.repeat(3, 0), params["decoder"]["layers"])
        return {**params, "decoder": {**params["decoder"], "layers": layers}}

    def loss(model, params):
        inputs = Inputs(target_tokens=tokens)
        outputs, sown = model.apply({"params": params}, inputs, mutable=["intermediates"])
        return (outputs.logits**2).sum(), (outputs.logits, sown["intermediates"]["decoder"]["layers"]["output"][0])

    assert {x.shape[0] for x in jax.tree.leaves(params["decoder"]["layers"])} == {1}
    (_, one), found = jax.jit(jax.value_and_grad(lambda x: loss(shared, x), has_aux=True))(params)
    (_, other), expected = jax.jit(jax.value_and_grad(lambda x: loss(copied, repeated(x)), has_aux=True))(params)
    assert one[1].shape == (3, 2, 6, 8)
    chex.assert_trees_all_close((one, found), (other, expected), rtol=1e-9, atol=1e-9)
    steps = []
    for model, variables in ((shared, params), (copied, repeated(params))):
        cache = model.apply({"params": variables}, None, 6, 2, method="start_cache")
        step = jax.jit(functools.partial(model.apply, {"params": variables}, method="decode_step"))
        steps.append(step(tokens[:, :2], jnp.int32(0), cache))
    chex.assert_trees_all_close(*steps, atol=1e-12)


def test_a_head_may_not_share_a_narrower_table_than_it_reads():
    with pytest.raises(
        ValueError, match=r"model\.embedding_projection\.of is 'sum', but model\.head\.transform is None"
    ):
        ModelConfig(vocab_size=13, embedding_projection=EmbeddingProjection(width=5))


# The whole forward pass ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", quick(CONFIGS, QUICK.__contains__))
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


@pytest.mark.parametrize("name", quick(CONFIGS, QUICK.__contains__))
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


@pytest.mark.slow
def test_hidden_is_what_the_head_reads():
    """Tied: the hidden states times the target table; post-norm: the hidden states are the last layer's output as it is."""
    logits, hidden, *_ = forward(TIED)
    table = params_of(CONFIGS[TIED])["target_embedding"]["embedding"]
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_padding_embedding_does_not_train_where_it_is_read():
    """Law: an embedding's gradient is 0 in that row of a table that only reads, and otherwise as without `padding_id`."""
    free = dataclasses.replace(CONFIGS[NOTHING_SHARED], padding_id=None)
    data, params = arrays(free), params_of(free)
    read = int(data[1][0, 0])

    @functools.partial(jax.jit, static_argnums=0)
    def gradient(config: ModelConfig):
        def loss(params):
            return (Transformer(config).apply({"params": params}, inputs_of(*data)).logits ** 2).sum()

        return jax.grad(loss)(params)

    before, after = gradient(free), gradient(dataclasses.replace(free, padding_id=read))
    row = before["target_embedding"]["embedding"][read]
    assert (row != 0).any()
    expected = jax.tree.map(lambda x: x, before)
    for side in ("source_embedding", "target_embedding"):
        table = expected[side]["embedding"]
        expected[side]["embedding"] = table.at[read].set(0)
    chex.assert_trees_all_close(after, expected, rtol=1e-12)


def test_the_gradient_of_a_frequent_token_is_summed_in_the_type_of_its_embedding():
    """By hand: 5,000 gradients of 1 are 5,000; a sum of single additions in bfloat16 stays at 256."""
    config = dataclasses.replace(CONFIGS[TIED], dtype="bfloat16", scale_embeddings=False, padding_id=None)
    model, params = Transformer(config), jax.tree.map(lambda x: x.astype(np.float32), params_of(CONFIGS[TIED]))
    tokens = jnp.full((1, 5000), 7)

    def embedded(params):
        return model.apply({"params": params}, tokens, method=lambda model, ids: model.embed(ids, model.source_table))

    grads = jax.grad(lambda params: embedded(params).astype(jnp.float32).sum())(params)
    rows = grads["source_embedding"]["embedding"]
    assert (np.asarray(rows[7]) == 5000).all()
    assert not np.asarray(rows[:7]).any()


@pytest.mark.slow
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


# Packed pairs ----------------------------------------------------------------------------------------------------------

FIRST, SECOND = (slice(0, 4), slice(0, 2)), (slice(4, 9), slice(2, 6))  # each of the source and of the target
SOURCE = np.array([3, 0, 5, 1, 7, 12, 6, 9, 11, 6, 9])
TARGET = np.array([4, 2, 8, 10, 7, 12, 8])


@pytest.mark.slow
def test_packed_pairs_are_each_as_if_alone():
    config = CONFIGS[LIKE_T5]
    numbers, places = ([np.zeros(len(tokens), int) for tokens in (SOURCE, TARGET)] for _ in range(2))
    for n, pair in enumerate((FIRST, SECOND), 1):
        for side, part in enumerate(pair):
            numbers[side][part], places[side][part] = n, np.arange(part.stop - part.start)
    rows = {"source_segments": numbers[0], "target_segments": numbers[1]}
    rows |= {"source_positions": places[0], "target_positions": places[1]}
    inputs = Inputs(SOURCE[None], TARGET[None], **{name: jnp.asarray(row)[None] for name, row in rows.items()})
    logits = jax.jit(Transformer(config).apply)({"params": params_of(config)}, inputs).logits[0]
    assert np.isfinite(logits).all()
    for source, target in (FIRST, SECOND):
        alone, _ = slow(config)(SOURCE[source], TARGET[target])
        np.testing.assert_allclose(logits[target], alone, rtol=1e-11, atol=1e-11)


# Decoding ------------------------------------------------------------------------------------------------------------


def decoded(config: ModelConfig, params: dict, source, source_mask, target) -> jax.Array:
    """The logits of `target` one token at a time, in a cache with room to spare and rubbish in it."""
    model = Transformer(config)

    @jax.jit
    def run(params, source, source_mask, target):
        variables = {"params": params}
        memory = model.apply(variables, Inputs(source, source_mask=source_mask), method="encode")
        cache = model.apply(variables, memory, T + 2, method="start_cache")
        cache = map_own(lambda x: x + 50, cache)

        def step(cache, now):
            index, tokens = now
            logits, cache = model.apply(variables, tokens[:, None], index, cache, source_mask, method="decode_step")
            return cache, logits[:, 0]

        return jax.lax.scan(step, cache, (jnp.arange(T), target.T))[1]

    return run(params, jnp.asarray(source), source_mask, jnp.asarray(target)).swapaxes(0, 1)


def test_cached_decoding_equals_the_full_pass():
    source, target, source_lengths, _ = arrays(CONFIGS[GROUPED])
    config, data = CONFIGS[GROUPED], inputs_of(source, target, source_lengths)
    logits = decoded(config, params_of(config), source, data.source_mask, target)
    full, *_ = forward(GROUPED)
    np.testing.assert_allclose(logits[0], full[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(logits[1, :2], full[1, :2], rtol=1e-12, atol=1e-12)  # what follows is padding there


SMALL = ModelConfig(
    vocab_size=11,
    d_model=13,
    num_heads=6,
    d_ff=17,
    num_encoder_layers=1,
    num_decoder_layers=2,
    attention=DotProduct(d_key=5, bias=False, scale=1.0),
    positions=RelativeBias(num_buckets=8, max_distance=7),
    norm=RMSNorm(),
    activation="geglu_tanh",
    feed_forward_bias=False,
    scale_embeddings=False,
    head=LanguageModelHead(scale=0.6),
    dtype="float64",
)
LIKE_T5_WINDOW = dataclasses.replace(SMALL, sliding_window=SlidingWindow(size=5))
GROUPED_ROTARY = dataclasses.replace(
    SMALL, attention=DotProduct(d_key=5, num_kv_heads=2, soft_cap=7.0), positions=Rotary(base=37.0)
)
BEAM = DecodeConfig(beam_size=3, num_hypotheses=3, early_stopping=False)
SEARCHES = {
    "greedy_like_t5_window": (GREEDY_SEARCH, reference_search.reference_greedy, DecodeConfig(), LIKE_T5_WINDOW),
    "beam_like_t5_window": (BEAM_SEARCH, reference_search.reference_beam, BEAM, LIKE_T5_WINDOW),
    "beam_rotary": (BEAM_SEARCH, reference_search.reference_beam, BEAM, GROUPED_ROTARY),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
def test_searches_with_relative_positions_equal_uncached_reference(name):
    """Oracle: the algorithm in plain Python over full passes, to 1e-10; some answers reach far beyond the window."""
    search, uncached, settings, config = SEARCHES[name]
    model, params = reference_search.model_of(config, seed=0)
    sources = [source for source in reference_search.SOURCES if len(source) == 4]
    found = reference_search.decode(search, model, params, sources, settings, 11)
    expected = [uncached(model, params, source, 11, settings) for source in sources]
    reference_search.assert_same(reference_search.answers(found), expected, tolerance=1e-10)
    assert found.lengths.max() == 11
