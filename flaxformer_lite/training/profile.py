"""A trace of a few steps by JAX's profiler, for `train.profile`; docs/training.md says how to look at it."""

from collections.abc import Callable
from pathlib import Path

import jax


class Profiler:
    """Traces the steps after step `start`, up to step `stop`, into a folder; `steps` is "start:stop", or None for no trace."""

    def __init__(self, steps: str | None, folder: Path) -> None:
        self.start, self.stop = map(int, (steps or "0:0").split(":"))
        self.folder, self.active = folder, False

    def before(self, step: int) -> None:
        """Starts the trace if the next step is one of those; `step` steps are done."""
        if not self.active and self.start <= step < self.stop:
            jax.profiler.start_trace(str(self.folder))
            self.active = True

    def after(self, step: int, wait: Callable[[], None]) -> bool:
        """Ends the trace if that was the last step of it, once `wait` has waited for the devices; returns whether it did."""
        if not self.active or step < self.stop:
            return False
        wait()
        self.close()
        return True

    def close(self) -> None:
        """Ends a trace that is under way, and writes it."""
        if self.active:
            self.active = False
            jax.profiler.stop_trace()
