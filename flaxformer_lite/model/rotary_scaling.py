"""Scalings of rotary positions for texts longer than those of the original training.

A scaling is a value that changes the rates, in radians per position, at which the pairs of a head rotate.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import jax.numpy as jnp
from annotated_types import Ge
from jaxtyping import Array, Float
from pydantic import Discriminator

from flaxformer_lite.base.bounds import Checked, PositiveFloat, PositiveInt

Factor = Annotated[float, Ge(1)]


class Scaling(Checked, at="model.positions.scaling"):
    """Base of all scalings: rotated elements keep their size."""

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


OptionalRotaryScaling = Annotated[LinearScaling | Llama3Scaling | YarnScaling | None, Discriminator("kind")]
