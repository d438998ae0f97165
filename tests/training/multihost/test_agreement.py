"""Laws of how processes agree, without others: their answers are made up. Real ones: test_multihost.py."""

import os
import signal
import socket
import subprocess
import sys

import pytest
from jax.experimental import multihost_utils

from flaxformer_lite.training.multihost import agreement
from flaxformer_lite.training.multihost.agreement import Processes, StopConsensus
from flaxformer_lite.training.multihost.meeting import SharedError
from flaxformer_lite.training.signals import Interrupted
from tests.support.paths import ROOT


def with_others(monkeypatch: pytest.MonkeyPatch, *answers: str) -> Processes:
    """The first of several processes, the others of which answer so."""
    monkeypatch.setattr(agreement, "allgather_text", lambda text: [text, *answers])
    processes = Processes()
    processes.count = 1 + len(answers)
    return processes


def fail() -> None:
    raise ValueError("no a")


def test_what_several_found_is_said_once_with_who_found_it(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(SharedError, match=r"^no a$"):
        with_others(monkeypatch, "no a").on_all(fail)
    several = with_others(monkeypatch, "", "no a", "no b")
    with pytest.raises(SharedError, match=r"^processes 0, 2 of 4: no a; process 3 of 4: no b$"):
        several.on_all(fail)
    with pytest.raises(SharedError, match=r"^process 2 of 4: no a; process 3 of 4: no b$"):
        several.on_all(lambda: 7)
    assert with_others(monkeypatch, "").on_all(lambda: 7) == 7


def test_values_that_differ_are_named_with_the_process(monkeypatch: pytest.MonkeyPatch):
    several = with_others(monkeypatch, '{"a": "1", "b": "2"}', '{"a": "3"}')
    found = r"^process 2 of 3: a is 3, but 1 in process 0; b is absent, but 2 in process 0\. Start again$"
    with pytest.raises(SharedError, match=found):
        several.agree(lambda: {"a": "1", "b": "2"}, "Start again")
    with_others(monkeypatch, '{"a": "1"}').agree(lambda: {"a": "1"}, "Start again")


def test_a_single_process_agrees_with_itself():
    """Law: nothing is computed for others; errors stay as they are; it answers every call."""
    alone = Processes()
    assert alone.is_first and alone.count == 1 and not isinstance(alone.stop_request(), StopConsensus)
    with pytest.raises(ValueError, match=r"^no a$") as error:
        alone.on_all(fail)
    assert type(error.value) is ValueError
    alone.agree(lambda: pytest.fail("nobody to compare with"), "")
    assert alone.first_then_others(lambda: 7) == 7
    called: list[int] = []
    assert alone.first_then_others(lambda: called.append(7)) is None
    assert called == [7]
    assert list(alone.rounds([[2, 0], [1]])) == [([2, 0], 2), ([1], 1)]


def test_calls_are_dealt_one_a_round(monkeypatch: pytest.MonkeyPatch):
    """Oracle: by hand, five calls for three processes; all have as many rounds, and then all texts, whatever is in them."""
    calls = [[4, 0], [1], [5, 2], [3], [6]]
    expected = [([4, 0], 5), ([3], 2)], [([1], 5), ([6], 2)], [([5, 2], 5), ([], 2)]
    several = with_others(monkeypatch, '[[1, "\\ud800"]]', "[]")
    for several.index in range(3):
        assert list(several.rounds(calls)) == expected[several.index]
    assert several.merge({4: "\u2028", 0: ""}) == {4: "\u2028", 0: "", 1: "\ud800"}


def test_a_stop_is_agreed_one_exchange_later_or_now():
    """Oracle: by hand. The answer to an exchange is read at the next one, during an evaluation at once."""
    stop = StopConsensus()
    agreed = []
    for number in (0, signal.SIGTERM, signal.SIGTERM):
        stop.ask("a signal", number)
        stop.exchange()
        agreed.append(stop.agreed)
    assert agreed == [0, 0, signal.SIGTERM]
    stop = StopConsensus()
    stop.exchange(now=True)
    stop.raise_if_agreed()
    stop.ask("SIGHUP", signal.SIGHUP)
    stop.exchange(now=True)
    with pytest.raises(Interrupted):
        stop.raise_if_agreed()


def test_a_notice_of_the_preemption_service_stops_like_a_signal(monkeypatch: pytest.MonkeyPatch):
    """The service counts the calls of all processes, and answers all of them at the same one."""
    calls = []
    monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", lambda step: calls.append(step) or step == 2)
    stop = StopConsensus()
    for _ in range(3):
        assert not stop.agreed
        stop.exchange()
    assert stop.agreed == signal.SIGTERM and stop.signal == "a preemption notice" and calls == [1, 2, 3]


NOTICED = """
import os, signal, sys, time
import jax
from flaxformer_lite.training.multihost.agreement import StopConsensus
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))  # after the imports: Gloo waits for the other process for 30 s
stop = StopConsensus()
for step in range(1200):
    stop.exchange()
    if stop.agreed:
        break
    if step == 5 and sys.argv[2] == "1":
        os.kill(os.getpid(), signal.SIGTERM)  # JAX's own notifier hears it: no handler of ours is there
    time.sleep(0.05)
print(step, stop.signal, flush=True)
jax.distributed.shutdown()
"""


def two_processes(program: str) -> list[str]:
    """Returns the last line of each of two processes, which get the address of the first one and their number."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, address, str(i)], env=environment, stdout=subprocess.PIPE, text=True
        )
        for i in range(2)
    ]
    return [process.communicate(timeout=240)[0].splitlines()[-1] for process in started]


@pytest.mark.slow
def test_a_notice_to_one_process_stops_all_after_the_same_step():
    """Oracle: JAX's preemption service itself, between two processes."""
    first, second = two_processes(NOTICED)
    assert first == second and first.endswith(" a preemption notice")


LATE = """
import os, signal, sys
import jax
from flaxformer_lite.training.multihost.agreement import StopConsensus
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))  # after the imports: Gloo waits for the other process for 30 s
stop = StopConsensus()
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored
with stop.listening():
    stop.exchange()
    if sys.argv[2] == "1":
        os.kill(os.getpid(), signal.SIGHUP)
print(stop.agreed, flush=True)  # the shutdown of JAX may abort the process
jax.distributed.shutdown()
"""


@pytest.mark.slow
def test_all_leave_alike_where_one_gets_a_signal_after_the_last_step():
    assert two_processes(LATE) == ["1", "1"]
