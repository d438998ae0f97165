"""Laws of signals, sent to this process: the first one is a request, a second SIGINT ends at once."""

import os
import signal

import pytest

from flaxformer_lite.training.signals import Interrupted, StopRequest


def test_a_second_interrupt_stops_at_once():
    stop, before = StopRequest(), signal.getsignal(signal.SIGINT)
    with stop.listening():
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal == "SIGINT"
        assert stop.agreed == signal.SIGINT
        with pytest.raises(Interrupted):
            stop.raise_if_agreed()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_hangup_that_is_ignored_stays_ignored():
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with (stop := StopRequest()).listening():
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.signal is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
