"""A run mirrored to a real S3 server on this machine: killed while it uploads, cut off from the server, without its disk."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flaxformer_lite.base.console import Progress
from flaxformer_lite.config.train import TrainConfig
from flaxformer_lite.run import load
from flaxformer_lite.training import loop
from flaxformer_lite.workdir import RunFolder, parameter_digest
from flaxformer_lite.workdir.mirror import Mirror, RemoteRun, complete_steps, step_of
from tests.support.experiments import tiny_config, use_one_device, with_train, write_config_file
from tests.support.mirrors import write_run
from tests.support.paths import ROOT
from tests.support.s3 import BUCKET, Gate, s3_gate, train_environment

TINY = tiny_config()
CONFIG = dataclasses.replace(
    TINY,
    model=dataclasses.replace(TINY.model, num_encoder_layers=1, num_decoder_layers=1),
    data=dataclasses.replace(TINY.data, bucket_lengths=(40,), eval=None),
    train=TrainConfig(steps=60, log_every=1, checkpoint_every=4),
)


@pytest.fixture(scope="module")
def gate() -> Iterator[Gate]:
    with s3_gate() as gate:
        yield gate


def wait_for(condition: Callable[[], bool], process: "Training | None" = None, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline and (process is None or process.process.poll() is None), (
            process and process.said()
        )
        time.sleep(0.03)  # each look asks the server, which takes more of a core than the training


def incomplete(files: dict[str, int]) -> bool:
    """Whether a checkpoint is being uploaded."""
    steps = {step_of(name) for name in files} - {None}
    return bool(steps - set(complete_steps(files))) and bool(complete_steps(files))


class Training:
    """`train.py` with a mirror, in a process of its own."""

    def __init__(self, folder: Path, run: Path, url: str) -> None:
        self.log = folder / f"{time.monotonic_ns()}.err"
        config = write_config_file(folder / "tiny.json", CONFIG)
        command = [sys.executable, str(ROOT / "train.py"), str(config), "--workdir", str(run), "--train.mirror", url]
        with open(self.log, "w") as stderr:
            self.process = subprocess.Popen(command, cwd=ROOT, env=train_environment(), stderr=stderr)

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def said(self) -> str:
        return self.log.read_text()


def losses(run: Path) -> list[float]:
    rows = RunFolder(run).rows()
    assert [row["step"] for row in rows] == list(range(1, CONFIG.train.steps + 1))
    return [row["loss"] for row in rows]


@pytest.mark.slow
def test_a_server_that_goes_away_and_comes_back(gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The real client's errors: one warning, and all is there afterwards."""
    monkeypatch.setattr("flaxformer_lite.workdir.mirror.POLL_SECONDS", 0.05)
    monkeypatch.setattr("flaxformer_lite.workdir.mirror.MAX_RETRY_SECONDS", 0.5)
    said: list[str] = []
    monkeypatch.setattr(Progress, "_say", lambda _, line, level: said.append(line))
    url, run = f"s3://{BUCKET}/vanishing", tmp_path / "run"
    write_run(run, CONFIG, [4], 4)
    with Mirror(url, run, Progress(1, silent=True)) as mirror:
        wait_for(lambda: "checkpoints/4/meta/meta.json" in mirror.pushed)
        gate.shut()
        write_run(run, CONFIG, [4, 8], 8)
        wait_for(lambda: mirror.failure is not None)
        gate.open()
        wait_for(lambda: "checkpoints/8/meta/meta.json" in mirror.pushed)
    assert len(said) == 2 and "Could not connect to the endpoint" in said[0] and "works again" in said[1]
    remote = RemoteRun(url)
    here = {path.relative_to(run).as_posix(): path for path in run.rglob("*") if path.is_file()}
    assert set(remote.files()) == set(here) and all(remote.read(name) == here[name].read_bytes() for name in here)


@pytest.mark.slow
def test_a_bucket_that_does_not_exist_is_found_at_once(gate: Gate, tmp_path: Path):
    with pytest.raises(
        ValueError, match=r"train.mirror s3://nowhere/run cannot be used \(The specified bucket does not exist"
    ):
        loop.train(with_train(CONFIG, mirror="s3://nowhere/run"), tmp_path / "run")


@pytest.mark.slow
def test_killed_while_it_uploads_and_without_its_disk(gate: Gate, tmp_path: Path):
    """Law, dropout on: SIGKILL in three uploads, each time with the loss of the run folder; losses and parameters are the same."""
    url, run = f"s3://{BUCKET}/killed", tmp_path / "run"
    remote = RemoteRun(url)
    reached = [0]
    for _ in range(3):
        with Training(tmp_path, run, url) as training:
            wait_for(lambda: incomplete(files := remote.files()) and complete_steps(files)[-1] > max(reached), training)
            os.kill(training.process.pid, signal.SIGKILL)
            training.process.wait()
        reached.append(complete_steps(remote.files())[-1])
        shutil.rmtree(run)
    assert len(set(reached)) == 4 and max(reached) < CONFIG.train.steps
    with Training(tmp_path, run, url) as training:
        assert training.process.wait(300) == 0, training.said()
        assert f"resuming after step {reached[-1]}" in training.said()
    with Training(tmp_path, tmp_path / "whole", f"s3://{BUCKET}/whole") as whole:
        assert whole.process.wait(300) == 0, whole.said()
    assert losses(run) == losses(tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        digests = {
            parameter_digest(load(place, weights="average:3").params) for place in (run, tmp_path / "whole", url)
        }
    assert len(digests) == 1
    assert complete_steps(remote.files()) == sorted(int(p.name) for p in (run / "checkpoints").iterdir())


@pytest.mark.slow
def test_a_server_that_is_away_while_a_run_trains(gate: Gate, tmp_path: Path):
    """Training ends with one warning, and says what is not there; a second run of the same command copies it."""
    url, run = f"s3://{BUCKET}/away", tmp_path / "run"
    remote = RemoteRun(url)
    with Training(tmp_path, run, url) as training:
        wait_for(lambda: bool(complete_steps(remote.files())), training)
        gate.shut()
        try:
            assert training.process.wait(300) == 0, training.said()
        finally:
            gate.open()
        said = training.said()
    assert (
        said.count("cannot be written (Could not connect to the endpoint URL") <= 1
    )  # the run may be quicker than the client
    assert said.count("is not up to date at the end") == 1 and "Traceback" not in said
    with Training(tmp_path, run, url) as training:
        assert training.process.wait(300) == 0 and "nothing to do" in training.said()
    assert complete_steps(remote.files())[-1] == 60
