"""Ways to let rotary positions reach further than the texts that a model was first trained on.

A scaling is a value: it gets how fast each pair of a head turns, and the base that these rates come from.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import jax.numpy as jnp
from annotated_types import Ge
from jaxtyping import Array, Float
from pydantic import Discriminator

from flaxformer_lite.bounds import PositiveFloat, PositiveInt, check_bounds


class Scaling:
    """What all scalings have, unless they say otherwise."""

    @property
    def turned_amplitude(self) -> float:
        """What turned elements are multiplied by."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class LinearScaling(Scaling):
    """Positions are divided by `factor`, so that a model reads texts that many times longer. Chen et al. 2023, arXiv:2306.15595."""

    kind: Literal["linear"] = "linear"
    factor: Annotated[float, Ge(1)] = 1.0
    """How many times longer."""

    def __post_init__(self) -> None:
        check_bounds(self, "model.positions.scaling")

    def __call__(self, rates: Float[Array, "h"], base: float) -> Float[Array, "h"]:
        return rates / self.factor


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling(Scaling):
    """Slow waves are divided by `factor`, fast ones are not, with a ramp between them. Dubey et al. 2024, arXiv:2407.21783."""

    kind: Literal["llama3"] = "llama3"
    factor: Annotated[float, Ge(1)] = 8.0
    """How much slower the slow waves become."""
    low_frequency_factor: PositiveFloat = 1.0
    """Waves with fewer turns than this within `original_length` count as slow."""
    high_frequency_factor: float = 4.0
    """Waves with more turns than this count as fast."""
    original_length: PositiveInt = 8192
    """Tokens of the texts that the model was first trained on."""

    def __post_init__(self) -> None:
        check_bounds(self, "model.positions.scaling")
        if self.low_frequency_factor >= self.high_frequency_factor:
            raise ValueError(
                f"model.positions.scaling.low_frequency_factor is {self.low_frequency_factor}: it must be below "
                f"model.positions.scaling.high_frequency_factor, which is {self.high_frequency_factor}"
            )

    def __call__(self, rates: Float[Array, "h"], base: float) -> Float[Array, "h"]:
        turns = self.original_length * rates / (2 * jnp.pi)
        low, high = self.low_frequency_factor, self.high_frequency_factor
        fast = jnp.clip((turns - low) / (high - low), 0, 1)
        return rates * (fast + (1 - fast) / self.factor)


@dataclass(frozen=True, kw_only=True)
class YarnScaling(Scaling):
    """Slow waves are divided by `factor`, fast ones are not, with a ramp over the pairs between them; scores become larger.

    Reference: Peng et al. 2023, arXiv:2309.00071, sections 3.2 and 3.3, with the ramp over pairs as in the authors' code.
    """

    kind: Literal["yarn"] = "yarn"
    factor: Annotated[float, Ge(1)] = 4.0
    """How much slower the slow waves become."""
    fast_turns: float = 32.0
    """The ramp begins at the pair that turns that often within `original_length`."""
    slow_turns: PositiveFloat = 1.0
    """It ends at the pair that turns that often."""
    original_length: PositiveInt = 8192
    """Tokens of the texts that the model was first trained on."""
    whole_pairs: bool = True
    """The ends of the ramp are moved apart to whole pairs."""
    amplitude: PositiveFloat | None = None
    """Multiplies the turned elements of queries and keys; None: `0.1 * log(factor) + 1`."""

    def __post_init__(self) -> None:
        check_bounds(self, "model.positions.scaling")
        if self.slow_turns > self.fast_turns:
            raise ValueError(
                f"model.positions.scaling.slow_turns is {self.slow_turns}: it must be at most "
                f"model.positions.scaling.fast_turns, which is {self.fast_turns}"
            )

    @property
    def turned_amplitude(self) -> float:
        return 0.1 * math.log(self.factor) + 1 if self.amplitude is None else self.amplitude

    def __call__(self, rates: Float[Array, "h"], base: float) -> Float[Array, "h"]:
        pairs = len(rates)

        def pair(turns: float) -> float:
            """The pair, in general between two, that turns that often."""
            return pairs * math.log(self.original_length / (2 * math.pi * turns)) / math.log(base)

        first, last = pair(self.fast_turns), pair(self.slow_turns)
        if self.whole_pairs:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * pairs - 1)
        slow = jnp.clip((jnp.arange(pairs) - first) / ((last - first) or 0.001), 0, 1)
        return rates * (1 - slow + slow / self.factor)


OptionalRotaryScaling = Annotated[LinearScaling | Llama3Scaling | YarnScaling | None, Discriminator("kind")]
