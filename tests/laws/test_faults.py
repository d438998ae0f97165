"""Law: where a disk, a folder, a clock or a limit of the system fails a run, it ends in a few lines, and continues bit for bit.

Real processes on a disk of their own (a tmpfs, so these tests need the rights to mount one).
"""

import importlib.util
import itertools
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.disks import mount, small_disk
from tests.support.disturbed_runs import NEVER_SAID, Scene
from tests.support.experiments import use_one_device

MOST_LINES = 25
"""Lines on stderr of a run that fails: those of its start, its rows, and a few on the failure."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        yield Scene(tmp_path_factory.mktemp("faults") / "scene", 1)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    yield from small_disk(tmp_path / "disk", "64m")


def start_training(scene: Scene, run: Path) -> subprocess.Popen:
    """Starts a run, and returns its process once it has written 8 rows, or has ended."""
    (process,) = scene.start(run)
    metrics = run / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and len(metrics.read_text().splitlines()) >= 8):
        time.sleep(0.002)
    return process


def assert_failed_well(scene: Scene, run: Path, process: subprocess.Popen, *reasons: str) -> None:
    assert process.wait(120) in (1, 2), scene.said(run)
    said = scene.said(run)
    assert not any(word in said for word in NEVER_SAID) and len(said.splitlines()) <= MOST_LINES, said
    assert any(reason in said for reason in reasons), said
    assert sum(line.startswith(("error:", "ERROR:")) for line in said.splitlines()) == 1, said


def finish(scene: Scene, run: Path) -> None:
    (process,) = scene.start(run)
    assert process.wait(300) == 0, scene.said(run)
    scene.assert_undisturbed(run)


@pytest.mark.slow
def test_a_full_disk(scene: Scene, disk: Path):
    """Full while it trains: all that is left of the disk is taken after the first rows; then it is given back."""
    run = disk / "run"
    process = start_training(scene, run)
    with open(disk / "another", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    assert_failed_well(scene, run, process, "No space left", "RESOURCE_EXHAUSTED")
    (process,) = scene.start(run)  # and while it is still full
    assert_failed_well(scene, run, process, "No space left")
    (disk / "another").unlink()
    finish(scene, run)


@pytest.mark.slow
@pytest.mark.rare  # the refusal of a full disk and the return of a folder that vanished are the same steps
def test_a_disk_that_may_only_be_read(scene: Scene, disk: Path):
    run = disk / "run"
    process = start_training(scene, run)
    process.kill()
    process.wait()
    mount("-o", "remount,ro", disk)
    (process,) = scene.start(run)
    assert_failed_well(scene, run, process, "Read-only file system")
    mount("-o", "remount,rw", disk)
    finish(scene, run)


@pytest.mark.slow
def test_a_folder_that_vanishes_and_comes_back(scene: Scene, tmp_path: Path):
    run = tmp_path / "run"
    process = start_training(scene, run)
    run.rename(tmp_path / "elsewhere")
    assert_failed_well(scene, run, process, "No such file or directory")
    shutil.rmtree(run, ignore_errors=True)  # parts that were written meanwhile
    (tmp_path / "elsewhere").rename(run)
    finish(scene, run)


@pytest.mark.slow
@pytest.mark.rare
@pytest.mark.parametrize(
    ("limit", "most", "reason"),
    [(resource.RLIMIT_FSIZE, 50_000, "File too large"), (resource.RLIMIT_NOFILE, 16, "Too many open files")],
    ids=["ulimit -f", "ulimit -n"],
)
def test_a_limit_of_the_shell(limit: int, most: int, reason: str, scene: Scene, tmp_path: Path):
    run = tmp_path / "run"
    (process,) = scene.start(run, lambda: resource.setrlimit(limit, (most, most)))
    assert_failed_well(scene, run, process, reason)
    finish(scene, run)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libfaketime") is None, reason="libfaketime is not installed")
def test_a_clock_that_jumps(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By 40 days ahead and 40 days back, in turn, all the while: nothing is said, and nothing changes."""
    library = next(Path(importlib.util.find_spec("libfaketime").origin).parent.rglob("libfaketime.so.1"))
    clock, run = tmp_path / "clock", tmp_path / "run"
    clock.write_text("+0")
    settings = {"FAKETIME_TIMESTAMP_FILE": clock, "FAKETIME_NO_CACHE": 1, "FAKETIME_DONT_FAKE_MONOTONIC": 1}
    for name, value in {"LD_PRELOAD": library, **settings}.items():
        monkeypatch.setenv(name, str(value))
    (process,) = scene.start(run)
    for days in itertools.cycle([40, -40]):
        if process.poll() is not None:
            break
        (tmp_path / "next").write_text(f"{days:+}d")
        (tmp_path / "next").rename(clock)
        time.sleep(0.3)
    assert process.returncode == 0, scene.said(run)
    assert not any(word in scene.said(run) for word in (*NEVER_SAID, "warning"))
    monkeypatch.delenv("LD_PRELOAD")
    scene.assert_undisturbed(run)
