"""Loss spikes: steps whose loss is far above that of the steps before."""

import math
from collections import deque

WINDOW = 100
"""Number of steps that a loss is compared with."""

DEVIATIONS = 6.0
"""Smallest spike, in standard deviations of these steps' losses above their mean. Chance alone gives one in 10^9 steps."""


class SpikeWatch:
    """Compares each step's loss with the losses of the `WINDOW` steps before it, once there are that many."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=WINDOW)

    def describe(self, loss: float) -> str | None:
        """Adds a finite loss; returns how far it is above the usual ones if it is a spike, in words, otherwise None."""
        before = list(self._losses)
        self._losses.append(loss)
        if len(before) < WINDOW:
            return None
        mean = math.fsum(before) / WINDOW
        deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in before) / WINDOW)
        if loss <= mean + DEVIATIONS * deviation:
            return None
        return f"{loss:.4f}, where the {WINDOW} steps before had {mean:.4f} ± {deviation:.4f}"
