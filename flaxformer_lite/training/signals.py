"""Signals: a request to stop, which the loop grants after the step in progress."""

import contextlib
import signal
from collections.abc import Iterator


class Interrupted(Exception):
    """A signal arrived while data was being tokenized or evaluated. A resumed run repeats the evaluation."""


class StopRequest:
    """Records SIGTERM, SIGINT or SIGHUP. The loop stops after the step in progress; a second SIGINT stops at once.

    A SIGHUP that is ignored stays ignored: under nohup the run continues when its terminal is closed.
    """

    def __init__(self) -> None:
        self.signal: str | None = None
        """Why the run is to stop, as messages say it."""
        self.number = 0
        """The signal; 0: nothing asks the run to stop."""

    def ask(self, why: str, number: int = signal.SIGINT) -> None:
        self.signal, self.number = why, number

    def exchange(self, *, now: bool = False) -> None:
        """Exchanges requests with the other processes: after every step, and `now` after every batch of an evaluation.

        A single process has no others.
        """

    @property
    def agreed(self) -> int:
        """The number of the signal at which all processes stop now; 0: they go on."""
        return self.number

    def raise_if_agreed(self) -> None:
        """Raises Interrupted if the run is to stop, while data is tokenized or during an evaluation."""
        if self.agreed:
            raise Interrupted

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handles the signals within this context, and exchanges requests a last time at its end: all processes leave alike."""

        def record(number: int, frame: object) -> None:
            if self.number and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.ask(signal.Signals(number).name, number)

        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        old = {number: signal.signal(number, record) for number in numbers}
        try:
            yield
            self.exchange(now=True)
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
