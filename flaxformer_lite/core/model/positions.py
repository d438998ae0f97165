"""Position schemes: values through which the model knows the order of tokens.

A scheme is a frozen dataclass derived from `PositionScheme`. Positions are `[B, T]`, or `[1, T]` where all rows have the same.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
from annotated_types import Ge, Gt
from flax import linen as nn
from jaxtyping import Array, Float, Int

from flaxformer_lite.core.base.bounds import (
    Checked,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PositiveShare,
)
from flaxformer_lite.core.model import fast
from flaxformer_lite.core.model.layers import accumulation_dtype
from flaxformer_lite.core.model.norms import Param

SinusoidLayout = Literal["interleaved", "half_split", "fairseq"]


def sinusoids(
    positions: Int[Array, "B T"], width: int, layout: SinusoidLayout, max_wavelength: float = 10_000.0
) -> Float[Array, "B T D"]:
    """Returns sines and cosines of `position / max_wavelength ** (2j / width)` for j = 0 … width/2 - 1, in at least float32.

    interleaved: sin, cos, sin, cos, …   half_split: all sines, then all cosines.   fairseq: as half_split, with the exponent
    j / (width/2 - 1), so that the last one is 1; an odd width ends in a 0.

    Reference: Vaswani et al. 2017, arXiv:1706.03762, section 3.5 (there interleaved).
    """
    if layout == "fairseq":
        half = width // 2
        angles = positions[..., None] * jnp.exp(jnp.arange(half) * (-math.log(max_wavelength) / max(half - 1, 1)))
        return jnp.concatenate([jnp.sin(angles), jnp.cos(angles), jnp.zeros_like(angles[..., : width % 2])], -1)
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
    bias     the scores of self-attention             once a stack, for all its layers; if `per_layer`, in each

    `param(name, init, shape, dtype)` makes or reads a parameter of the scheme, one for each stack.

    Python code can pass any scheme to `ModelConfig`. For config files, JSON and the command line, add it to the union
    `Positions` at the end of this file.
    """

    @property
    def max_positions(self) -> int | None:
        """Positions 0 … max_positions - 1 exist, no sequence can be longer; None: any length."""
        return None

    offset: int = 0
    """Rows of the scheme's table that come before the row of position 0."""
    per_layer: bool = False
    """Whether each layer calls `bias`, with parameters of its own."""
    layers: tuple[int, ...] | None = None
    """The layers that call `rotate`; None: all."""

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
    layout: SinusoidLayout = "interleaved"
    """interleaved: sin, cos, sin, … as in the paper. half_split: all sines, then all cosines. fairseq: the same, with slightly
    longer waves."""
    offset: NonNegativeInt = 0
    """Number of the first position (M2M-100: 2). A token without a position, see `model.position_padding_id`, then has zeros."""

    def embed(self, x: Float[Array, "B T D"], positions: Int[Array, "#B T"], param: Param) -> Float[Array, "B T D"]:
        if self.offset:
            waves = sinusoids(positions + self.offset, x.shape[-1], self.layout)
            waves = jnp.where(positions[..., None] < 0, 0, waves)
        else:
            waves = sinusoids(positions, x.shape[-1], self.layout)
        return x + waves.astype(x.dtype)


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
    relative: "RelativeBias | None" = None
    """Relative bias of the scores besides, shared by all layers (MPNet); None: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.relative is not None and self.relative.per_layer:
            raise ValueError("model.positions.relative.per_layer is True: it must be False, one bias for all layers")

    def embed(self, x: Float[Array, "B T D"], positions: Int[Array, "#B T"], param: Param) -> Float[Array, "B T D"]:
        check_positions(x.shape[1], self.max_positions)
        shape = (self.offset + self.max_positions, x.shape[-1])
        table = param("embedding", nn.initializers.normal(self.stddev), shape, jnp.float32)
        return x + table[positions + self.offset].astype(x.dtype)

    def bias(
        self, queries: Int[Array, "#B T"], keys: Int[Array, "#B S"], num_heads: int, causal: bool, param: Param
    ) -> Float[Array, "#B N T S"] | None:
        return None if self.relative is None else self.relative.bias(queries, keys, num_heads, causal, param)


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
        check_positions(x.shape[1], self.max_positions)
        return x + jax.lax.stop_gradient(table)[positions].astype(x.dtype)


def check_positions(length: int, max_positions: int) -> None:
    """Raises: ValueError where a sequence is longer than the scheme allows."""
    if length > max_positions:
        raise ValueError(
            f"a sequence has {length} tokens, but model.positions.max_positions is {max_positions}: shorten the sequence"
        )


# Scalings of rotary positions, for texts longer than those of the original training -----------------------------------

Factor = Annotated[float, Ge(1)]


class Scaling(Checked, at="model.positions.scaling"):
    """Base of all scalings, which change the rates at which pairs rotate, in radians per position; elements keep their size."""

    length: int | None = None
    """Length of the longest text, where the rates depend on it; None: they do not, so texts have any length."""

    @property
    def rotated_amplitude(self) -> float:
        """Factor of the rotated elements."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class LinearScaling(Scaling):
    """Position interpolation: all rates are divided by `factor`. Reference: Chen et al. 2023, arXiv:2306.15595."""

    kind: Literal["linear"] = "linear"
    factor: Factor = 1.0
    """Length of the longest text, divided by that of the original training."""

    def __call__(self, rates: Float[Array, "h"], base: float) -> Float[Array, "h"]:
        return rates / self.factor


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling(Scaling):
    """Slow rates are divided by `factor`, fast rates stay, with a ramp between them.

    Reference: Dubey et al. 2024, arXiv:2407.21783, section 3.2.
    """

    kind: Literal["llama3"] = "llama3"
    factor: Factor = 8.0
    """Divisor of the slow rates."""
    low_frequency_factor: PositiveFloat = 1.0
    """Number of turns within `original_length` below which a rate is slow."""
    high_frequency_factor: float = 4.0
    """Number of turns within `original_length` above which a rate is fast."""
    original_length: PositiveInt = 8192
    """Length of the texts of the original training, in tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low_frequency_factor < self.high_frequency_factor:
            raise ValueError(
                f"model.positions.scaling.low_frequency_factor is {self.low_frequency_factor}: it must be less than "
                f"model.positions.scaling.high_frequency_factor, which is {self.high_frequency_factor}"
            )

    def __call__(self, rates: Float[Array, "h"], base: float) -> Float[Array, "h"]:
        turns = self.original_length * rates / (2 * jnp.pi)
        low, high = self.low_frequency_factor, self.high_frequency_factor
        fast = jnp.clip((turns - low) / (high - low), 0, 1)
        return rates * (fast + (1 - fast) / self.factor)


@dataclass(frozen=True, kw_only=True)
class YarnScaling(Scaling):
    """Slow rates are divided by `factor`, fast rates stay, with a ramp over the pairs between them; scores become larger.

    Reference: Peng et al. 2023, arXiv:2309.00071, sections 3.2 and 3.3, with the ramp over pairs as in the authors' code.
    """

    kind: Literal["yarn"] = "yarn"
    factor: Factor = 4.0
    """Divisor of the slow rates."""
    fast_turns: float = 32.0
    """Number of turns within `original_length` of the pair at which the ramp begins."""
    slow_turns: PositiveFloat = 1.0
    """Number of turns within `original_length` of the pair at which the ramp ends."""
    original_length: PositiveInt = 8192
    """Length of the texts of the original training, in tokens."""
    whole_pairs: bool = True
    """Move the ends of the ramp apart to whole pairs."""
    amplitude: PositiveFloat | None = None
    """Factor of the rotated elements of queries and keys; None: `0.1 * log(factor) + 1`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.slow_turns <= self.fast_turns:
            raise ValueError(
                f"model.positions.scaling.slow_turns is {self.slow_turns}: it must be at most "
                f"model.positions.scaling.fast_turns, which is {self.fast_turns}"
            )

    @property
    def rotated_amplitude(self) -> float:
        return 0.1 * math.log(self.factor) + 1 if self.amplitude is None else self.amplitude

    def __call__(self, rates: Float[Array, "h"], base: float) -> Float[Array, "h"]:
        pairs = len(rates)

        def pair(turns: float) -> float:
            """Returns the pair that makes that many turns, in general a fraction between two pairs."""
            return pairs * math.log(self.original_length / (2 * math.pi * turns)) / math.log(base)

        first, last = pair(self.fast_turns), pair(self.slow_turns)
        if self.whole_pairs:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * pairs - 1)
        slow = jnp.clip((jnp.arange(pairs) - first) / ((last - first) or 0.001), 0, 1)
        return rates * (1 - slow + slow / self.factor)


@dataclass(frozen=True, kw_only=True)
class LongRopeScaling(Scaling):
    """Each rate has a divisor of its own; there are other divisors for texts longer than those of the original training.

    `length` decides which divisors a model uses, so that the numbers of a text depend on no other text and no padding.

    Reference: Ding et al. 2024, arXiv:2402.13753.
    """

    kind: Literal["longrope"] = "longrope"
    short_factors: tuple[PositiveFloat, ...] = (1.0,)
    """Divisors of the rates if `length` is at most `original_length`, one for each pair."""
    long_factors: tuple[PositiveFloat, ...] = (1.0,)
    """Divisors of the rates if `length` is larger."""
    original_length: PositiveInt = 4096
    """Length of the texts of the original training, in tokens."""
    amplitude: PositiveFloat = 1.0
    """Factor of the rotated elements of queries and keys."""
    length: PositiveInt = 4096
    """Length of the longest text, in tokens; longer texts are refused."""

    @property
    def rotated_amplitude(self) -> float:
        return self.amplitude

    def __call__(self, rates: Float[Array, "h"], base: float) -> Float[Array, "h"]:
        name = "long_factors" if self.length > self.original_length else "short_factors"
        factors = getattr(self, name)
        if len(factors) != len(rates):
            raise ValueError(
                f"model.positions.scaling.{name} has {len(factors)} numbers, but {len(rates)} pairs of a head rotate: list "
                "one number for each pair"
            )
        return rates / jnp.asarray(factors)


@dataclass(frozen=True, kw_only=True)
class DynamicScaling(Scaling):
    """The base grows with the length of the longest text beyond that of the original training, so that slow rates fall most.

    Reference: Peng et al. 2023, arXiv:2309.00071, section 3.3 ("dynamic scaling" of "NTK-aware" interpolation).
    """

    kind: Literal["dynamic"] = "dynamic"
    factor: Factor = 1.0
    """Growth of the stretch with the length: at twice `original_length` the stretch is `factor + 1`."""
    original_length: PositiveInt = 2048
    """Length of the texts of the original training, in tokens."""
    length: PositiveInt = 2048
    """Length of the longest text, in tokens; longer texts are refused."""

    def __call__(self, rates: Float[Array, "h"], base: float) -> Float[Array, "h"]:
        stretch = 1 + self.factor * max(self.length / self.original_length - 1, 0)
        return rates * stretch ** (-jnp.arange(len(rates)) / max(len(rates) - 1, 1))


OptionalRotaryScaling = LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling | DynamicScaling | None


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
    fraction: PositiveShare = 1.0
    """Fraction of each head that is rotated, from its first element on."""
    scaling: OptionalRotaryScaling = None
    """Change of the angles for texts longer than those of the original training; None: no change."""
    layers: tuple[int, ...] | None = None
    """Layers that rotate, counted from 0; the others know no positions (SmolLM3, EXAONE 4). None: all layers."""

    @property
    def max_positions(self) -> int | None:
        return None if self.scaling is None else self.scaling.length

    def rotate(self, x: Float[Array, "B T N H"], positions: Int[Array, "#B T"]) -> Float[Array, "B T N H"]:
        if self.max_positions is not None:
            check_positions(x.shape[1], self.max_positions)
        pairs = int(x.shape[-1] * self.fraction) // 2
        rates = jnp.exp(jnp.arange(pairs) * (-jnp.log(self.base) / pairs))
        amplitude = 1.0
        if self.scaling is not None:
            rates = self.scaling(rates, self.base)
            amplitude = self.scaling.rotated_amplitude
        angles = positions[..., None, None] * rates
        sin, cos = amplitude * jnp.sin(angles), amplitude * jnp.cos(angles)
        rotated = x[..., : 2 * pairs].astype(accumulation_dtype(x))
        rest = x[..., 2 * pairs :]
        rotated = rotate_pairs(rotated, sin, cos, self.layout)
        return jnp.concatenate([rotated.astype(x.dtype), rest], -1)


@fast.rotated_back
def rotate_pairs(
    x: Float[Array, "B T N H"],
    sin: Float[Array, "#B T 1 H/2"],
    cos: Float[Array, "#B T 1 H/2"],
    layout: Literal["half_split", "interleaved"],
) -> Float[Array, "B T N H"]:
    """Returns the pairs of elements of each head, rotated by angles with these sines and cosines."""
    if layout == "half_split":
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    a, b = x[..., 0::2], x[..., 1::2]
    return jnp.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)


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
    """Relative position bias: a learned addend of the scores for each head and bucket of distances.

    Half of the buckets hold one distance each, the others grow logarithmically up to `max_distance`. If keys may come after
    their query, half of all buckets are for those keys.

    Reference: Raffel et al. 2019, arXiv:1910.10683, section 2.1.
    """

    kind: Literal["relative_bias"] = "relative_bias"
    num_buckets: Annotated[int, Ge(4)] = 32
    """Number of buckets; even."""
    max_distance: int = 128
    """Distance in tokens from which on all distances share the last bucket."""
    per_layer: bool = False
    """Whether each layer has addends of its own (umT5), and not all layers of a stack the same."""

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


Positions = Sinusoidal | Learned | FixedTable | Rotary | ALiBi | RelativeBias | NoPositions
"""The schemes that config.json can hold."""
