"""Small encoder–decoders and decoders that differ in every part, their random parameters, their inputs, and the slow reference
of each.

Dimensions are distinct primes, or products where heads must divide them.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.core.model import DotProduct, DropoutRates, Inputs, LayerNorm, RMSNorm, Transformer
from flaxformer_lite.core.model.config import (
    POST_NORM,
    DecoderSize,
    LanguageModelHead,
    ModelConfig,
    Residual,
    SlidingWindow,
)
from flaxformer_lite.core.model.positions import (
    ALiBi,
    DynamicScaling,
    FixedTable,
    Learned,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoPositions,
    RelativeBias,
    Rotary,
    Sinusoidal,
    YarnScaling,
)
from tests.support import reference

B, S, T, V, F = 2, 11, 5, 13, 17
NO_DROPOUT = DropoutRates(embedding_rate=0, attention_rate=0, feed_forward_rate=0, residual_rate=0)
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
        residual=Residual(branches="parallel"),
        positions=Sinusoidal(layout="half_split"),
        activation="swiglu",
        **SHAPE,
    ),
    "two_tables_tied_output": ModelConfig(
        d_model=7,
        num_heads=1,
        decoder=DecoderSize(d_ff=11),
        target_vocab_size=19,
        share_source_target=False,
        norm=LayerNorm(bias=False),
        positions=NoPositions(),
        activation="geglu_tanh",
        **SHAPE,
    ),
    "relative_bias_no_biases": ModelConfig(
        d_model=7,
        num_heads=3,
        attention=DotProduct(d_key=5, bias=False, scale=1.0),
        positions=RelativeBias(num_buckets=8, max_distance=7),
        norm=RMSNorm(),
        activation="geglu_tanh",
        feed_forward_bias=False,
        scale_embeddings=False,
        head=LanguageModelHead(scale=7**-0.5),
        **SHAPE,
    ),
}
WITHOUT_MASKS = "pre_norm_all_shared"
NOTHING_SHARED = "post_norm_nothing_shared"
GROUPED = "rms_gated_own_head"
TIED = "two_tables_tied_output"
LIKE_T5 = "relative_bias_no_biases"

ALONE = {"vocab_size": 19, "d_ff": F, "num_encoder_layers": 0, "num_decoder_layers": 2, "dtype": "float64"}
WINDOW = 3
DECODERS = {
    "rotary": ModelConfig(
        d_model=7,
        num_heads=6,
        attention=DotProduct(d_key=11, num_kv_heads=2, bias=False, qk_norm=RMSNorm(), qk_norm_width="all_heads"),
        positions=Rotary(base=101.0, scaling=Llama3Scaling(original_length=23, factor=3.0), layers=(1,)),
        norm=RMSNorm(),
        activation="swiglu",
        feed_forward_bias=False,
        feed_forward_out_bias=True,
        scale_embeddings=False,
        share_target_output=False,
        **ALONE,
    ),
    "rotary_window_caps": ModelConfig(
        d_model=7,
        num_heads=3,
        attention=DotProduct(d_key=7, scale=0.7, soft_cap=1.3, qk_norm=LayerNorm(), qk_norm_width="each_head"),
        sliding_window=SlidingWindow(size=WINDOW),
        residual=Residual(branches="parallel_one_norm"),
        positions=Rotary(layout="interleaved", fraction=0.7, base=37.0, scaling=LinearScaling(factor=1.7)),
        activation="geglu_tanh",
        head=LanguageModelHead(soft_cap=2.3, bias=True),
        **ALONE,
    ),
    "windows_by_layer": ModelConfig(
        d_model=7,
        num_heads=3,
        attention=DotProduct(d_key=4, num_kv_heads=1, bias=False, qk_norm=RMSNorm(offset=1.0)),
        sliding_window=SlidingWindow(size=WINDOW, layers=(0,), positions=Rotary(base=11.0)),
        positions=Rotary(base=101.0, scaling=LinearScaling(factor=1.7)),
        residual=Residual(pre="n", post="nda", final="n"),
        norm=RMSNorm(offset=1.0),
        activation="geglu_tanh",
        **ALONE,
    ),
    "alibi": ModelConfig(
        d_model=7,
        num_heads=3,
        attention=DotProduct(d_key=5),
        positions=ALiBi(),
        residual=Residual(branches="parallel"),
        share_target_output=False,
        **ALONE,
    ),
    "relative_bias": ModelConfig(
        d_model=7,
        num_heads=3,
        attention=DotProduct(d_key=5, scale=1.0, soft_cap=2.3),
        positions=RelativeBias(num_buckets=4, max_distance=5),
        head=LanguageModelHead(scale=7**-0.5),
        **ALONE,
    ),
    "learned": ModelConfig(
        d_model=10, num_heads=2, positions=Learned(max_positions=11), activation="gelu_tanh", **ALONE
    ),
    "fixed_table": ModelConfig(d_model=10, num_heads=2, positions=FixedTable(max_positions=11), **ALONE),
    "sinusoidal": ModelConfig(d_model=10, num_heads=2, residual=POST_NORM, **ALONE),
    "no_positions": ModelConfig(
        d_model=10,
        num_heads=2,
        positions=NoPositions(),
        norm=LayerNorm(bias=False, scale=False),
        residual=Residual(scale=0.3),
        embedding_scale=1.7,
        **ALONE,
    ),
}
"""Decoders alone, at least one for each position scheme."""


def initial(config: ModelConfig):
    """The function from a key to first values."""

    def init(key):
        tokens = jnp.zeros((B, T), jnp.int32)
        source = tokens if config.num_encoder_layers else None
        return Transformer(config).init(key, Inputs(source_tokens=source, target_tokens=tokens))["params"]

    return init


@functools.cache
def shapes(config: ModelConfig) -> dict:
    """The parameters' shapes and types."""
    return jax.eval_shape(initial(config), jax.random.key(6))


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
    """The model's inputs; without lengths, without masks."""

    def mask(lengths, room):
        return None if lengths is None else jnp.arange(room) < jnp.asarray(lengths)[:, None]

    return Inputs(
        source_tokens=jnp.asarray(source),
        target_tokens=jnp.asarray(target),
        source_mask=mask(source_lengths, S),
        target_mask=mask(target_lengths, T),
    )


# The slow reference ----------------------------------------------------------------------------------------------------


def slow(config: ModelConfig) -> reference.Transformer:
    """The same model in the reference's terms, with the same parameters."""

    def norm(x, params):
        if isinstance(config.norm, RMSNorm):
            return reference.rms_norm(x, config.norm.offset + params["scale"])
        return reference.layer_norm(x, params.get("scale", np.ones(len(x))), params.get("bias", np.zeros(len(x))))

    attention: Any = config.attention
    head, window = config.head, config.sliding_window
    return reference.Transformer(
        params_of(config),
        num_heads=config.num_heads,
        num_kv_heads=attention.num_kv_heads or config.num_heads,
        activation=config.activation,
        post_norm=config.residual == POST_NORM,
        scale_embeddings=config.scale_embeddings,
        norm=norm,
        scores={"scale": attention.scale, "soft_cap": attention.soft_cap} | qk_norm(attention),
        branches=config.residual.branches,
        double_norm=config.residual.post == "nda",
        window=window and window.size,
        window_layers=window and window.layers,
        window_turn=turn(window.positions) if window and window.positions else None,
        turn_layers=config.positions.layers,
        embedding_scale=config.embedding_scale,
        residual_scale=config.residual.scale,
        logit_scale=head.scale,
        logit_cap=head.soft_cap,
        **slow_positions(config),
    )


def qk_norm(attention) -> dict:
    """The argument of the reference's attention."""
    norm = attention.qk_norm
    if norm is None:
        return {}
    place = "row_norm" if attention.qk_norm_width == "all_heads" else "qk_norm"
    if isinstance(norm, RMSNorm):
        return {place: lambda head, params, *_: reference.rms_norm(head, norm.offset + params["scale"])}
    each = attention.qk_norm_width == "each_head"

    def layer_norm(head, params, n) -> np.ndarray:
        return reference.layer_norm(head, *(params[name][n] if each else params[name] for name in ("scale", "bias")))

    return {place: layer_norm}


def slow_positions(config: ModelConfig) -> dict:
    """The hook of the reference that the position scheme works by."""
    scheme = config.positions
    match scheme:
        case Sinusoidal():
            return {"position": lambda params, t, width: reference.sinusoid(t, width, scheme.layout)}
        case Learned():
            return {"position": lambda params, t, width: params["embedding"][t]}
        case FixedTable():
            return {"position": lambda params, t, width: params["table"][t]}
        case Rotary():
            return {"turn": turn(scheme)}
        case ALiBi():
            slopes = reference.alibi_slopes(config.num_heads)
            return {"bias": lambda params, n, offset, causal: -slopes[n] * abs(offset)}
        case RelativeBias():
            sizes = scheme.num_buckets, scheme.max_distance
            return {
                "bias": lambda params, n, offset, causal: params["embedding"][
                    reference.relative_bucket(offset, *sizes, causal), n
                ]
            }
    return {}


def turn(scheme: Rotary):
    """The reference's `turn` for a scheme."""
    return lambda head, t: reference.rotary(head, t, rates(scheme, len(head)), scheme.layout, amplitude(scheme))


def rates(scheme: Rotary, width: int) -> list[float]:
    """How fast each pair of a head of that width turns."""
    plain = reference.rotary_rates(int(scheme.fraction * width) // 2, scheme.base)
    match s := scheme.scaling:
        case LinearScaling():
            return [rate / s.factor for rate in plain]
        case Llama3Scaling():
            low, high = s.low_frequency_factor, s.high_frequency_factor
            return [reference.llama3_rate(rate, s.factor, low, high, s.original_length) for rate in plain]
        case YarnScaling():
            return reference.yarn_rates(plain, s.factor, s.fast_turns, s.slow_turns, s.original_length, s.whole_pairs)
        case LongRopeScaling():
            divisors = s.long_factors if s.length > s.original_length else s.short_factors
            return [rate / divisor for rate, divisor in zip(plain, divisors, strict=True)]
        case DynamicScaling():
            longer = s.length / s.original_length if s.length > s.original_length else 1.0
            width = 2 * len(plain)
            base = scheme.base * (s.factor * longer - (s.factor - 1)) ** (width / (width - 2))
            return reference.rotary_rates(len(plain), base)
    return plain


def amplitude(scheme: Rotary) -> float:
    """What turned pairs are multiplied by."""
    if isinstance(scheme.scaling, LongRopeScaling):
        return scheme.scaling.amplitude
    if not isinstance(scheme.scaling, YarnScaling):
        return 1.0
    return scheme.scaling.amplitude or 1 + math.log(scheme.scaling.factor) / 10
