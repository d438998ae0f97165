"""Norms, activations, feed-forward, dropout, initializers and the residual commands.

The alphabet of every shape in this package:

    B batch        T query or target length    S key or source length    D model width
    N query heads  K key/value heads           G query heads per key/value head (N / K)
    H head width   F feed-forward width        V vocabulary              L layers

The mathematics are plain functions; the Linen modules only hold parameters. A module drops out exactly when it is
applied with a "dropout" random key: `model.apply(params, inputs, rngs={"dropout": key})` trains, without keys it evaluates.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float
from pydantic import Discriminator

Param = Callable[..., Array]
"""The `param` method of the Linen module that a setting acts for: `param(name, init, shape)`."""

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float64": jnp.float64}


def accumulation_dtype(x: Array) -> Any:
    """The type in which softmax, norms and losses add up: at least float32, float64 where the input is."""
    return jnp.promote_types(x.dtype, jnp.float32)


# Norms ---------------------------------------------------------------------------------------------------------------
# The backward pass computes a norm again from its input, in place of keeping two or three arrays of that size in float32.


def centred(x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
    """`x` less its mean over the last axis: exactly 0 where a row is constant, since it starts from the distance to one element.

    The plain mean of D equal numbers can be off by a rounding step, which a small epsilon then blows up.
    """
    y = x.astype(accumulation_dtype(x))
    y = y - jax.lax.stop_gradient(y[..., :1])  # the shift cancels, and so would its gradient
    return y - y.mean(-1, keepdims=True)


@functools.partial(jax.checkpoint, static_argnums=3, prevent_cse=False)
def layer_norm(
    x: Float[Array, "*B D"], scale: Float[Array, "D"], bias: Float[Array, "D"] | None, epsilon: float
) -> Float[Array, "*B D"]:
    """`scale * (x - mean) / sqrt(var + epsilon) + bias` over the last axis, with the biased variance.

    Reference: Ba et al. 2016, arXiv:1607.06450, section 3.
    """
    y = centred(x)
    y = y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + epsilon) * scale
    return (y if bias is None else y + bias).astype(x.dtype)


@functools.partial(jax.checkpoint, static_argnums=2, prevent_cse=False)
def rms_norm(x: Float[Array, "*B D"], scale: Float[Array, "D"], epsilon: float) -> Float[Array, "*B D"]:
    """`scale * x / sqrt(mean(x^2) + epsilon)` over the last axis.

    Reference: Zhang and Sennrich 2019, arXiv:1910.07467, section 3.
    """
    y = x.astype(accumulation_dtype(x))
    return (y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + epsilon) * scale).astype(x.dtype)


@functools.partial(jax.checkpoint, static_argnums=3, prevent_cse=False)
def deviation_norm(
    x: Float[Array, "*B D"], scale: Float[Array, "D"], bias: Float[Array, "D"], epsilon: float
) -> Float[Array, "*B D"]:
    """`scale * (x - mean) / (std + epsilon) + bias` over the last axis, with the unbiased deviation (divisor D - 1).

    Where a row is constant the deviation is 0 and so is, by convention, its derivative.

    Reference: the "annotated" Transformer's LayerNorm (Rush 2018, Proceedings of NLP-OSS, section "Encoder").
    """
    y = centred(x)
    variance = jnp.square(y).sum(-1, keepdims=True) / (x.shape[-1] - 1)
    is_constant = variance == 0
    deviation = jnp.where(is_constant, 0, jnp.sqrt(jnp.where(is_constant, 1, variance)))
    return (scale * y / (deviation + epsilon) + bias).astype(x.dtype)


@dataclass(frozen=True, kw_only=True)
class LayerNorm:
    """Layer normalisation with a learned scale and, usually, a learned bias."""

    kind: Literal["layer_norm"] = "layer_norm"
    epsilon: float = 1e-6
    """Added to the variance."""
    bias: bool = True
    """Learn a bias beside the scale."""

    def __call__(self, x: Float[Array, "*B D"], param: Param) -> Float[Array, "*B D"]:
        scale = param("scale", nn.initializers.ones, x.shape[-1:], jnp.float32)
        bias = param("bias", nn.initializers.zeros, x.shape[-1:], jnp.float32) if self.bias else None
        return layer_norm(x, scale, bias, self.epsilon)


@dataclass(frozen=True, kw_only=True)
class RMSNorm:
    """Root-mean-square normalisation: no mean is taken off and there is no bias."""

    kind: Literal["rms_norm"] = "rms_norm"
    epsilon: float = 1e-6
    """Added to the mean square."""
    offset: float = 0.0
    """Added to the learned scale, whose first values are 1 - offset (Gemma: 1, so that weight decay pulls scales to 1)."""

    def __call__(self, x: Float[Array, "*B D"], param: Param) -> Float[Array, "*B D"]:
        scale = param("scale", nn.initializers.constant(1 - self.offset), x.shape[-1:], jnp.float32)
        return rms_norm(x, scale + self.offset, self.epsilon)


@dataclass(frozen=True, kw_only=True)
class DeviationNorm:
    """Normalisation by the unbiased standard deviation, with epsilon added to the deviation itself."""

    kind: Literal["deviation_norm"] = "deviation_norm"
    epsilon: float = 1e-6
    """Added to the standard deviation."""

    def __call__(self, x: Float[Array, "*B D"], param: Param) -> Float[Array, "*B D"]:
        scale = param("scale", nn.initializers.ones, x.shape[-1:], jnp.float32)
        return deviation_norm(x, scale, param("bias", nn.initializers.zeros, x.shape[-1:], jnp.float32), self.epsilon)


class Normalize(nn.Module):
    """Holds the parameters of one norm: `scale` `[D]` and, where the norm has one, `bias` `[D]`."""

    norm: "Norm"

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        return self.norm(x, self.param)


# Dropout -------------------------------------------------------------------------------------------------------------


DropoutScaling = Literal["training", "evaluation"]


def dropout(x: Float[Array, "*B T D"], rate: float, key: Array, *, rescale: bool = True) -> Float[Array, "*B T D"]:
    """Zeroes elements with probability `rate` and divides the rest by `1 - rate`, unless told not to `rescale`.

    One 32-bit random word serves two elements, 16 bits each, which halves the cost of the random bits (a quarter of a
    training step on a CPU otherwise). The rate is so rounded to a multiple of 2^-16; the division uses the rounded rate,
    hence the expectation is exact. The two are T/2 rows apart, not neighbours: so nothing has to be moved, least of all on a TPU.

    Reference: Srivastava et al. 2014, Journal of Machine Learning Research 15, section 4 (there scaled at test time).
    """
    *batch, length, width = x.shape
    threshold = min(round(rate * 2**16), 2**16 - 1)
    words = jax.random.bits(key, (*batch, (length + 1) // 2, width), jnp.uint32)
    low, high = (words & 0xFFFF) >= threshold, words >= jnp.uint32(threshold << 16)
    keep = jnp.concatenate([low, high], axis=-2)[..., :length, :]
    kept = x.astype(accumulation_dtype(x)) / (1 - threshold / 2**16) if rescale else x
    return jnp.where(keep, kept, 0).astype(x.dtype)


@dataclass(frozen=True, kw_only=True)
class DropoutRates:
    """The probability of dropping an element, for each place separately."""

    embedding_rate: float = 0.1
    """On the sum of token and position embeddings."""
    attention_rate: float = 0.1
    """On the attention weights, after the softmax."""
    feed_forward_rate: float = 0.1
    """On the inner activations of the feed-forward layer."""
    residual_rate: float = 0.1
    """Wherever a residual command says `d`: by convention on a sublayer's output, before it joins the residual."""
    residual_scaling: DropoutScaling = "training"
    """When residual dropout makes up for what it drops: in training (divide by 1 - rate) or in evaluation (multiply by it)."""

    def __post_init__(self) -> None:
        for name in ("embedding_rate", "attention_rate", "feed_forward_rate", "residual_rate"):
            if not 0 <= (rate := getattr(self, name)) < 1:
                raise ValueError(f"model.dropout.{name} is {rate}: give a probability, at least 0 and below 1")


def apply_dropout(
    module: nn.Module, x: Float[Array, "*B T D"], rate: float, scaling: DropoutScaling = "training"
) -> Float[Array, "*B T D"]:
    """`dropout` with the module's next "dropout" key. Without one the module evaluates: `x`, times `1 - rate` if scaled then."""
    if rate == 0:
        return x
    if module.has_rng("dropout"):
        return dropout(x, rate, module.make_rng("dropout"), rescale=scaling == "training")
    return x if scaling == "training" else x * jnp.asarray(1 - rate, x.dtype)


# Residual commands ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Residual:
    """What surrounds a sublayer `f`: `post(f(pre(x)), x)`, each a string of letters applied left to right.

    `n` normalises, `d` drops out, `a` adds the residual (nothing where there is none).
    """

    pre: str = "n"
    """Before each sublayer; there is no residual to add here."""
    post: str = "da"
    """After each sublayer; the residual is the sublayer's input."""
    final: str = "n"
    """Once after the last layer of a stack."""

    def __post_init__(self) -> None:
        for name in ("pre", "post", "final"):
            commands = getattr(self, name)
            if set(commands) - set("nda") or commands.count("n") > 1:
                raise ValueError(
                    f"model.residual.{name} is {commands!r}: use the letters n (norm, at most once), d (dropout) and "
                    "a (add the residual), for example 'n', 'da' or 'dan'"
                )


PRE_NORM = Residual(pre="n", post="da", final="n")
"""Norm before every sublayer and one after the last layer: trains without much warm-up.

Reference: Xiong et al. 2020, arXiv:2002.04745."""

POST_NORM = Residual(pre="", post="dan", final="")
"""Norm after every residual sum, as the first Transformer had it. Reference: Vaswani et al. 2017, arXiv:1706.03762, section 5.4."""


def apply_commands(
    commands: str,
    x: Float[Array, "*B D"],
    residual: Float[Array, "*B D"] | None,
    *,
    norm: Callable[[Array], Array],
    dropout: Callable[[Array], Array],
) -> Float[Array, "*B D"]:
    """The residual commands (see `Residual`) applied to `x`, left to right."""
    for command in commands:
        if command == "n":
            x = norm(x)
        elif command == "d":
            x = dropout(x)
        elif command == "a" and residual is not None:
            x = x + residual
    return x


# Initializers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class XavierUniform:
    """Kernels uniform in ±sqrt(6 / (fan-in + fan-out)), embeddings normal with standard deviation `d_model ** -0.5`.

    Reference: Glorot and Bengio 2010, Proceedings of AISTATS, equation 16.
    """

    kind: Literal["xavier_uniform"] = "xavier_uniform"

    def kernel(self) -> nn.initializers.Initializer:
        return nn.initializers.xavier_uniform()

    def embedding(self, d_model: int) -> nn.initializers.Initializer:
        return nn.initializers.normal(d_model**-0.5)


@dataclass(frozen=True, kw_only=True)
class Normal:
    """Kernels and embeddings normal around 0, cut off at two standard deviations, as BERT draws them."""

    kind: Literal["normal"] = "normal"
    stddev: float = 0.02
    """Standard deviation before the cut."""

    def kernel(self) -> nn.initializers.Initializer:
        return nn.initializers.truncated_normal(self.stddev)

    def embedding(self, d_model: int) -> nn.initializers.Initializer:
        return nn.initializers.truncated_normal(self.stddev)


# Feed-forward --------------------------------------------------------------------------------------------------------

ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], bool]] = {
    "relu": (nn.relu, False),
    "gelu": (lambda x: nn.gelu(x, approximate=False), False),
    "gelu_tanh": (lambda x: nn.gelu(x, approximate=True), False),
    "silu": (nn.silu, False),
    "tanh": (jnp.tanh, False),
    "linear": (lambda x: x, False),
    "reglu": (nn.relu, True),
    "geglu": (lambda x: nn.gelu(x, approximate=False), True),
    "geglu_tanh": (lambda x: nn.gelu(x, approximate=True), True),
    "swiglu": (nn.silu, True),
}
"""Name: the function, and whether it gates a second projection. `gelu` is x·Φ(x) by erf; `gelu_tanh` its tanh approximation.

Reference: Shazeer 2020, arXiv:2002.05202 (gated forms); Hendrycks and Gimpel 2016, arXiv:1606.08415 (gelu)."""

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh", "linear", "reglu", "geglu", "geglu_tanh", "swiglu"]


class FeedForward(nn.Module):
    """`down(act(up(x)))`, or gated `down(act(gate(x)) * up(x))`; kernels are matrices `[D, F]` and `[F, D]`."""

    d_model: int
    d_ff: int
    activation: Activation = "relu"
    bias: bool = True
    dropout_rate: float = 0.0
    dtype: Any = jnp.float32
    kernel_init: nn.initializers.Initializer = nn.initializers.xavier_uniform()

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        def dense(width: int, name: str) -> nn.Dense:
            return nn.Dense(width, use_bias=self.bias, dtype=self.dtype, kernel_init=self.kernel_init, name=name)

        activation, gated = ACTIVATIONS[self.activation]
        h = dense(self.d_ff, "up")(x)
        h = activation(dense(self.d_ff, "gate")(x)) * h if gated else activation(h)
        return dense(self.d_model, "down")(apply_dropout(self, h, self.dropout_rate))


Norm = Annotated[LayerNorm | RMSNorm | DeviationNorm, Discriminator("kind")]
OptionalNorm = Annotated[LayerNorm | RMSNorm | DeviationNorm | None, Discriminator("kind")]
Initializer = Annotated[XavierUniform | Normal, Discriminator("kind")]
