"""How a run is asked to stop: signals become a wish that the loop grants."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


class Interrupted(Exception):
    """Somebody asked the run to stop while it was evaluating."""


class StopRequest:
    """Turns SIGTERM, SIGINT and SIGHUP into a wish that the loop grants at the next step. A second SIGINT stops at once.

    A SIGHUP that is ignored, as under nohup, stays so: the terminal is to be closed and the run to go on.
    """

    def __init__(self) -> None:
        self.signal: str | None = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        def ask(number: int, frame: Any) -> None:
            if self.signal is not None and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.signal = signal.Signals(number).name

        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        old = {number: signal.signal(number, ask) for number in numbers}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
