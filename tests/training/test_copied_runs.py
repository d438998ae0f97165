"""Laws of copied runs: a run in a bucket there and back; and that of docs/colab.md, whose two cells, run again after each
disconnect, end with the bits of a run that nothing disturbed.

The drive fails and vanishes while the run is copied to it; a disconnect kills all processes and loses the local disk.
"""

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flaxformer_lite.config.train import TrainConfig
from flaxformer_lite.run import load
from flaxformer_lite.training.loop import train
from flaxformer_lite.workdir import RunFolder, parameter_digest
from flaxformer_lite.workdir.copies import sync
from flaxformer_lite.workdir.remote_run import RemoteRun, complete_steps
from tests.support.disturbed_loops import share_programs
from tests.support.experiments import tiniest_config, tiny_config, with_train, write_config_file
from tests.support.final_state import assert_same_run
from tests.support.paths import ROOT
from tests.support.s3 import BUCKET, s3_gate, train_environment

TINY = tiny_config()
CONFIG = dataclasses.replace(
    TINY,
    model=dataclasses.replace(TINY.model, num_encoder_layers=1, num_decoder_layers=1),
    data=dataclasses.replace(TINY.data, bucket_lengths=(40,), eval=None),
    train=TrainConfig(steps=400, log_every=10, checkpoint_every=20),
)
RUN = with_train(tiniest_config(), text_metrics=())
CELL = """
flaxformer-lite sync {copy} {run}
flaxformer-lite sync {run} {copy} --every 1 & flaxformer-lite train {config} --workdir {run}; wait
"""
"""The second cell of the page; the first one mounts the drive."""


@pytest.mark.slow
def test_a_run_in_a_bucket_is_copied_there_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Law: the copy of a copy has the same numbers, is read by its path or its URL, and continues by its URL alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    share_programs(monkeypatch, RUN.train)
    first, copy, again = f"file://{tmp_path}/first", tmp_path / "copy", f"file://{tmp_path}/again"
    train(with_train(RUN, steps=6), first)
    sync(first, str(copy))
    sync(str(copy), again)
    assert len({parameter_digest(load(place).params) for place in (first, copy, again)}) == 1
    with pytest.raises(ValueError, match=r"copy is a copy of a run in a bucket: continue it by --workdir file://"):
        train(with_train(RUN, steps=8), copy)
    train(with_train(RUN, steps=8), again)
    with pytest.raises(ValueError, match=r"again has step 8 already, and .*copy has step 6: nothing was copied"):
        sync(str(copy), again)
    sync(again, str(copy))
    assert load(copy).step == 8 and len(load(first).folder.rows()) < len(load(copy).folder.rows())


@contextlib.contextmanager
def session(folder: Path, run: Path, copy: str) -> Iterator[subprocess.Popen]:
    """Runs the cell as a job of its own, all of whose processes are killed at the end."""
    config = write_config_file(folder / "tiny.json", CONFIG)
    cell = CELL.format(copy=copy, run=run, config=config).replace(
        "flaxformer-lite", f"{sys.executable} -m flaxformer_lite"
    )
    environment = train_environment() | {"PYTHONPATH": str(ROOT)}
    with open(folder / "said", "w") as said:
        process = subprocess.Popen(
            ["bash", "-c", cell], cwd=ROOT, env=environment, stdout=said, stderr=said, start_new_session=True
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def newest(copy: str) -> int:
    return max(complete_steps(RemoteRun(copy).files()), default=0)


def wait_for_step(copy: str, step: int, process: subprocess.Popen, folder: Path) -> None:
    end = time.monotonic() + 240
    while newest(copy) < step:
        assert time.monotonic() < end and process.poll() is None, (folder / "said").read_text()
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["drive", pytest.param("bucket", marks=pytest.mark.rare)])
def test_two_cells_continue_at_the_last_copied_checkpoint(tmp_path: Path, place: str):
    run, drive, away = tmp_path / "run", tmp_path / "drive", tmp_path / "away"
    drive.mkdir()
    with s3_gate() if place == "bucket" else contextlib.nullcontext() as gate:
        copy = str(drive / "run") if gate is None else f"s3://{BUCKET}/run"
        with session(tmp_path, run, copy) as process:
            wait_for_step(copy, 1, process, tmp_path)
            drive.rename(away) if gate is None else gate.shut()  # type: ignore[func-returns-value]
            time.sleep(1)
            away.rename(drive) if gate is None else gate.open()  # type: ignore[func-returns-value]
            wait_for_step(copy, newest(copy) + 1, process, tmp_path)
        reached = newest(copy)
        assert reached < CONFIG.train.steps
        shutil.rmtree(run)
        with session(tmp_path, run, copy) as process:
            assert process.wait(300) == 0
        said = (tmp_path / "said").read_text()
        assert f"resuming after step {reached}" in said, said
        assert "is up to date" in said.splitlines()[-1] and "Traceback" not in said
        command = [sys.executable, "-m", "flaxformer_lite", "train", str(tmp_path / "tiny.json"), "--workdir"]
        whole = tmp_path / "whole"
        subprocess.run([*command, str(whole)], cwd=ROOT, env=train_environment(), check=True, capture_output=True)
        assert_same_run(run, whole)
        if gate is None:
            assert_same_run(Path(copy), whole)
        assert [row["step"] for row in RunFolder(run).rows()] == list(range(10, CONFIG.train.steps + 1, 10))
