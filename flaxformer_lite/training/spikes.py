"""Loss spikes: steps whose loss is far above that of the steps before."""

import math

WINDOW = 100
"""Number of steps that a loss is compared with."""

DEVIATIONS = 6.0
"""Smallest spike, in standard deviations of these steps' losses above their mean. Chance alone gives one in 10^9 steps."""

SMALLEST = 0.01
"""Smallest spike as a part of these losses' mean: losses that are nearly equal have hardly a deviation."""


def describe_spike(losses: list[float], loss: float) -> str | None:
    """Adds a finite loss to those of the steps before; returns in words how far it is above them, None if it is no spike.

    `losses` keeps the newest `WINDOW` ones. With fewer than that there is no spike.
    """
    before = losses[-WINDOW:]
    losses[:] = [*before, loss][-WINDOW:]
    if len(before) < WINDOW:
        return None
    mean = math.fsum(before) / WINDOW
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in before) / WINDOW)
    if loss <= mean + max(DEVIATIONS * deviation, SMALLEST * abs(mean)):
        return None
    return f"{loss:.4f}, where the {WINDOW} steps before had {mean:.4f} ± {deviation:.4f}"
