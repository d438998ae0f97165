"""Law: killed or interrupted at any moment, again and again, a run ends bit for bit like one that never was.

Real processes get signals at random moments, from the start of Python to the end of the run, and are started again until the run
is finished. Runs follow each other until there were FLAXFORMER_LITE_KILLS signals of a kind (4 if it is unset), half as many with
two processes, which wait for each other; another
FLAXFORMER_LITE_SEED tries other moments. Each run makes its tokenizer and token store, evaluates and saves. At
times the compiled programs are thrown away first.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.disturbed_runs import NEVER_SAID, Scene
from tests.support.experiments import use_one_device

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("FLAXFORMER_LITE_KILLS", "4"))
SEED = os.environ.get("FLAXFORMER_LITE_SEED", "0")
STATUSES = {
    signal.SIGKILL: (0, -signal.SIGKILL),
    signal.SIGTERM: (0, -signal.SIGTERM),
    signal.SIGHUP: (0, -signal.SIGHUP),
    signal.SIGINT: (0, -signal.SIGINT, 130),
}
"""Exit statuses of a single process by the signal that it got: 0 once it listens, or if it was finished."""
SECONDS_TO_END = 180 + 120
"""JAX's longest wait, and the run's own end on a busy machine.

A process whose partner is gone, and with which it has no connection to break, misses its heartbeat after 100 s. A SIGTERM while
processes start is a preemption notice for JAX: if the run has nothing to do and one has ended already, the other one waits for it
180 s (`kPreemptionBarrierTimeout` in XLA).
"""


@pytest.fixture(scope="module", params=[1, 2], ids=["one_process", "two_processes"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        yield Scene(tmp_path_factory.mktemp("kills") / "scene", request.param)


def wait_for_a_moment(chance: random.Random, scene: Scene, started: list[subprocess.Popen], run: Path) -> None:
    """Waits for any moment of the run, or for one soon after its next row of metrics."""
    metrics = run / "metrics.jsonl"
    rows_before = metrics.stat().st_size if metrics.exists() else 0
    after_a_row, delay = chance.random() < 0.6, chance.random()
    deadline = time.monotonic() + delay * scene.seconds
    while time.monotonic() < deadline and all(process.poll() is None for process in started):
        time.sleep(0.002)
        if after_a_row and metrics.exists() and metrics.stat().st_size != rows_before:
            after_a_row, deadline = False, time.monotonic() + delay


def kill(chance: random.Random, victim: subprocess.Popen) -> signal.Signals:
    victim.kill()
    return signal.SIGKILL


def interrupt(chance: random.Random, victim: subprocess.Popen) -> signal.Signals:
    """Sends any other signal. Ctrl-C and a closed terminal reach the whole group."""
    kind = chance.choice(["SIGTERM", "SIGHUP", "SIGINT", "SIGINT twice", "SIGSTOP and SIGTERM"])
    if kind.startswith("SIGSTOP"):
        victim.send_signal(signal.SIGSTOP)
        time.sleep(chance.random())
        victim.send_signal(signal.SIGCONT)
        time.sleep(chance.random() / 10)
    number = signal.Signals[kind.split()[0].replace("STOP", "TERM")]
    send = victim.send_signal if number == signal.SIGTERM else lambda number: os.killpg(victim.pid, number)
    send(number)
    if kind == "SIGINT twice":
        time.sleep(chance.random() ** 4)
        if victim.poll() is None:
            send(number)
    return number


@pytest.mark.parametrize("disturb", [kill, interrupt])
def test_a_run_that_is_disturbed_at_any_moment_ends_as_if_nothing_was(
    scene: Scene, disturb: Callable[[random.Random, subprocess.Popen], signal.Signals]
):
    chance = random.Random(f"{disturb.__name__} {scene.processes} {SEED}")
    disturbed, runs, most = 0, 0, KILLS // scene.processes
    while disturbed < most:
        run, finished = scene.folder / f"{disturb.__name__}{SEED}-{runs}", False
        while not finished:
            if chance.random() < 0.1:
                shutil.rmtree(scene.folder / "cache", ignore_errors=True)  # may be gone already
            started = scene.start(run)
            wait_for_a_moment(chance, scene, started, run)
            victim = chance.choice(started)
            if disturbed < most and all(process.poll() is None for process in started):
                number = disturb(chance, victim)
                disturbed += 1
                statuses = [process.wait(SECONDS_TO_END) for process in started]
                assert victim.returncode in STATUSES[number] or scene.processes > 1, (number, scene.said(run))
                finished = not any(statuses) and "nothing to do" in scene.said(run)
            else:
                statuses = [process.wait(300) for process in started]
                assert not any(statuses), scene.said(run)
                finished = True
            said = scene.said(run)
            assert not any(word in said for word in NEVER_SAID), said
            for process in started:
                with pytest.raises(ProcessLookupError):
                    os.killpg(process.pid, 0)
        scene.assert_undisturbed(run)
        runs += 1
    print(f"{scene.processes} processes: {disturbed} times {disturb.__name__} in {runs} runs")
