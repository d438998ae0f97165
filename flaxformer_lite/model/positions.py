"""Position schemes: values through which the model knows the order of tokens.

A scheme is a frozen dataclass derived from `PositionScheme`. Positions are `[B, T]`, or `[1, T]` where all rows have the same.
"""

import functools
import math
from dataclasses import dataclass
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
from annotated_types import Ge, Gt, Le
from flax import linen as nn
from jaxtyping import Array, Float, Int
from pydantic import Discriminator

from flaxformer_lite.base.bounds import Checked, NonNegativeFloat, NonNegativeInt, PositiveInt
from flaxformer_lite.model.norms import Param
from flaxformer_lite.model.numerics import accumulation_dtype
from flaxformer_lite.model.rotary_scaling import OptionalRotaryScaling


def sinusoids(
    positions: Int[Array, "B T"],
    width: int,
    layout: Literal["interleaved", "half_split"],
    max_wavelength: float = 10_000.0,
) -> Float[Array, "B T D"]:
    """Returns sines and cosines of `position / max_wavelength ** (2j / width)` for j = 0 … width/2 - 1, in at least float32.

    interleaved: sin, cos, sin, cos, …   half_split: all sines, then all cosines.

    Reference: Vaswani et al. 2017, arXiv:1706.03762, section 3.5 (there interleaved).
    """
    rates = jnp.exp(jnp.arange(0, width, 2) * (-jnp.log(max_wavelength) / width))
    angles = positions[..., None] * rates
    waves = [jnp.sin(angles), jnp.cos(angles)]
    if layout == "interleaved":
        return jnp.stack(waves, -1).reshape(*positions.shape, -1)[..., :width]
    return jnp.concatenate(waves, -1)[..., :width]


class PositionScheme(Checked, at="model.positions"):
    """Base of all position schemes: three hooks that do nothing, and the limits of the scheme.

    hook     acts on                                  called
    embed    the embeddings that enter a stack        once a stack
    rotate   the heads of queries and of keys         in each layer
    bias     the scores of self-attention             once a stack, for all its layers

    `param(name, init, shape, dtype)` makes or reads a parameter of the scheme, one for each stack.

    Python code can pass any scheme to `ModelConfig`. For config files, JSON and the command line, add it to the union
    `Positions` at the end of this file.
    """

    max_positions: int | None = None
    """Positions 0 … max_positions - 1 exist, no sequence can be longer; None: any length."""
    offset: int = 0
    """Rows of the scheme's table that come before the row of position 0."""

    def embed(self, x: Float[Array, "B T D"], positions: Int[Array, "#B T"], param: Param) -> Float[Array, "B T D"]:
        """Returns the embeddings with their positions added."""
        return x

    def rotate(self, x: Float[Array, "B T N H"], positions: Int[Array, "#B T"]) -> Float[Array, "B T N H"]:
        """Returns the heads of queries or keys, changed by their positions."""
        return x

    def bias(
        self, queries: Int[Array, "#B T"], keys: Int[Array, "#B S"], num_heads: int, causal: bool, param: Param
    ) -> Float[Array, "#B N T S"] | None:
        """Returns the addend of the scores of queries and keys at these positions; `causal`: no key comes after its query."""
        return None


@dataclass(frozen=True, kw_only=True)
class NoPositions(PositionScheme):
    """No positions: the model does not know the order of tokens (a causal decoder can still count)."""

    kind: Literal["none"] = "none"


@dataclass(frozen=True, kw_only=True)
class Sinusoidal(PositionScheme):
    """Fixed sines and cosines, added to the embeddings; any length."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    layout: Literal["interleaved", "half_split"] = "interleaved"
    """interleaved: sin, cos, sin, … as in the paper. half_split: all sines, then all cosines."""

    def embed(self, x: Float[Array, "B T D"], positions: Int[Array, "#B T"], param: Param) -> Float[Array, "B T D"]:
        return x + sinusoids(positions, x.shape[-1], self.layout).astype(x.dtype)


@dataclass(frozen=True, kw_only=True)
class Learned(PositionScheme):
    """A learned vector for each position, added to the embeddings.

    Reference: Gehring et al. 2017, arXiv:1705.03122, section 3.1.
    """

    kind: Literal["learned"] = "learned"
    max_positions: PositiveInt = 512
    """Number of positions; `data.max_source_length` and `data.max_target_length` may not be larger."""
    stddev: NonNegativeFloat = 0.02
    """Standard deviation of the initial values."""
    offset: NonNegativeInt = 0
    """Number of further rows at the start of the table: position p has row p + offset (BART: 2)."""

    def embed(self, x: Float[Array, "B T D"], positions: Int[Array, "#B T"], param: Param) -> Float[Array, "B T D"]:
        check_length(x.shape[1], self.max_positions)
        shape = (self.offset + self.max_positions, x.shape[-1])
        table = param("embedding", nn.initializers.normal(self.stddev), shape, jnp.float32)
        return x + table[positions + self.offset].astype(x.dtype)


@dataclass(frozen=True, kw_only=True)
class FixedTable(PositionScheme):
    """A vector for each position that is part of the weights but never trained, as in some older systems.

    The initial table is sinusoidal, interleaved.
    """

    kind: Literal["fixed_table"] = "fixed_table"
    max_positions: PositiveInt = 512
    """Number of positions: no sequence can be longer."""

    def embed(self, x: Float[Array, "B T D"], positions: Int[Array, "#B T"], param: Param) -> Float[Array, "B T D"]:
        def sinusoidal(key: Array, shape: tuple[int, int]) -> Float[Array, "P D"]:
            return sinusoids(jnp.arange(shape[0])[None], shape[1], "interleaved")[0].astype(jnp.float32)

        table = param("table", sinusoidal, (self.max_positions, x.shape[-1]))
        check_length(x.shape[1], self.max_positions)
        return x + jax.lax.stop_gradient(table)[positions].astype(x.dtype)


def check_length(length: int, max_positions: int) -> None:
    """Raises: ValueError where a sequence is longer than the scheme allows."""
    if length > max_positions:
        raise ValueError(
            f"a sequence has {length} tokens, but model.positions.max_positions is {max_positions}: shorten the sequence"
        )


# Relative schemes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Rotary(PositionScheme):
    """Rotary positions: each pair of elements of a query or key head is rotated by an angle that grows with the position.

    Pair j of h rotates by `position * base ** (-j / h)`; so a score depends on the distance of query and key only.

    Reference: Su et al. 2021, arXiv:2104.09864, section 3.2.
    """

    kind: Literal["rotary"] = "rotary"
    base: Annotated[float, Gt(1)] = 10_000.0
    """The longest wave is about 2π · base tokens long; 10000 is usual."""
    layout: Literal["half_split", "interleaved"] = "half_split"
    """half_split: element j is paired with j + h, as in Llama. interleaved: 2j with 2j + 1, as in the paper."""
    fraction: Annotated[float, Gt(0), Le(1)] = 1.0
    """Fraction of each head that is rotated, from its first element on."""
    scaling: OptionalRotaryScaling = None
    """Change of the angles for texts longer than those of the original training; None: no change."""

    def rotate(self, x: Float[Array, "B T N H"], positions: Int[Array, "#B T"]) -> Float[Array, "B T N H"]:
        pairs = int(x.shape[-1] * self.fraction) // 2
        rates = jnp.exp(jnp.arange(pairs) * (-jnp.log(self.base) / pairs))
        amplitude = 1.0
        if self.scaling is not None:
            rates, amplitude = self.scaling(rates, self.base), self.scaling.rotated_amplitude
        angles = positions[..., None, None] * rates
        sin, cos = amplitude * jnp.sin(angles), amplitude * jnp.cos(angles)
        rotated, rest = x[..., : 2 * pairs].astype(accumulation_dtype(x)), x[..., 2 * pairs :]
        rotated = rotate_pairs(rotated, sin, cos, self.layout)
        return jnp.concatenate([rotated.astype(x.dtype), rest], -1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def rotate_pairs(
    x: Float[Array, "B T N H"],
    sin: Float[Array, "#B T 1 H/2"],
    cos: Float[Array, "#B T 1 H/2"],
    layout: Literal["half_split", "interleaved"],
) -> Float[Array, "B T N H"]:
    """Returns the pairs of elements of each head, rotated by angles with these sines and cosines; these have no gradient.

    The gradient is rotated back by the same angles. JAX's own would fill halves of zeros and add them.
    """
    if layout == "half_split":
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    a, b = x[..., 0::2], x[..., 1::2]
    return jnp.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)


rotate_pairs.defvjp(
    lambda x, sin, cos, layout: (rotate_pairs(x, sin, cos, layout), (sin, cos)),
    lambda layout, angles, gradient: (rotate_pairs(gradient, -angles[0], angles[1], layout), None, None),
)


@dataclass(frozen=True, kw_only=True)
class ALiBi(PositionScheme):
    """Attention with linear biases: scores fall linearly with the distance of query and key, at a fixed rate for each head.

    Head n of N = 2^k falls by `2 ** (-8 (n + 1) / N)` a token; other N take the rates of the next smaller power of two, then
    every other one of the next larger.

    Reference: Press et al. 2021, arXiv:2108.12409, section 3.
    """

    kind: Literal["alibi"] = "alibi"

    def bias(
        self, queries: Int[Array, "#B T"], keys: Int[Array, "#B S"], num_heads: int, causal: bool, param: Param
    ) -> Float[Array, "#B N T S"]:
        def slopes(n: int) -> list[float]:
            return [2 ** (-8 * (i + 1) / n) for i in range(n)]

        power = 1 << (num_heads.bit_length() - 1)
        rates = slopes(power) + slopes(2 * power)[0::2][: num_heads - power]
        distance = jnp.abs(queries[:, None, :, None] - keys[:, None, None, :])
        return -jnp.asarray(rates)[:, None, None] * distance


@dataclass(frozen=True, kw_only=True)
class RelativeBias(PositionScheme):
    """Relative position bias: a learned addend of the scores for each head and bucket of distances, shared by a stack's layers.

    Half of the buckets hold one distance each, the others grow logarithmically up to `max_distance`. Where keys may come after
    their query, half of all buckets are for those keys.

    Reference: Raffel et al. 2019, arXiv:1910.10683, section 2.1.
    """

    kind: Literal["relative_bias"] = "relative_bias"
    num_buckets: Annotated[int, Ge(4)] = 32
    """Number of buckets; even."""
    max_distance: int = 128
    """Distance in tokens from which on all distances share the last bucket."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_buckets % 2:
            raise ValueError(f"model.positions.num_buckets is {self.num_buckets}: it must be even")
        if self.max_distance <= self.num_buckets // 2:
            raise ValueError(
                f"model.positions.max_distance is {self.max_distance} and model.positions.num_buckets is {self.num_buckets}: "
                f"max_distance must be more than half of num_buckets"
            )

    def bias(
        self, queries: Int[Array, "#B T"], keys: Int[Array, "#B S"], num_heads: int, causal: bool, param: Param
    ) -> Float[Array, "#B N T S"]:
        table = param("embedding", nn.initializers.normal(1.0), (self.num_buckets, num_heads), jnp.float32)
        buckets = self.bucket(keys[:, None, :] - queries[:, :, None], causal)
        return table[buckets].transpose(0, 3, 1, 2)

    def bucket(self, offset: Int[Array, "#B T S"], causal: bool) -> Int[Array, "#B T S"]:
        """Returns the bucket of a key that stands `offset` tokens after its query."""
        count = self.num_buckets if causal else self.num_buckets // 2
        exact = count // 2
        # The distances at which a new bucket begins are computed here, in Python: on a device a logarithm may be rounded to either
        # side of a whole number, depending on device and type. The 1e-6 prevents the same here.
        growth = self.max_distance / exact
        wide = [math.ceil(exact * growth ** (k / (count - exact)) - 1e-6) for k in range(1, count - exact)]
        starts = jnp.asarray([*range(1, exact + 1), *wide])
        distance = jnp.maximum(-offset, 0) if causal else jnp.abs(offset)
        after = jnp.zeros_like(offset) if causal else (offset > 0) * count
        return after + (distance[..., None] >= starts).sum(-1)


Positions = Annotated[
    Sinusoidal | Learned | FixedTable | Rotary | ALiBi | RelativeBias | NoPositions, Discriminator("kind")
]
"""The schemes that config.json can hold."""
