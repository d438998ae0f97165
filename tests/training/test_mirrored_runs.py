"""Laws of runs with a mirror: from an empty folder, on S3 too, a run continues bit for bit as if it had never been stopped."""

import errno
import shutil
import time
from pathlib import Path

import pytest

from flaxformer_lite.run import load
from flaxformer_lite.training import loop
from flaxformer_lite.workdir import parameter_digest
from flaxformer_lite.workdir.mirror import RemoteRun, complete_steps
from tests.support.disturbed_loops import Crash, crash, during_step, share_programs
from tests.support.experiments import saved, tiniest_config, with_train
from tests.support.final_state import assert_same_run
from tests.support.mirrors import FlakyFileSystem

CONFIG = with_train(tiniest_config(), text_metrics=(), log_every=1)
URL = "flaky://bucket/run"
MIRRORED = with_train(CONFIG, mirror=URL)


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch):
    share_programs(monkeypatch, CONFIG.train)
    monkeypatch.setattr("flaxformer_lite.workdir.mirror.POLL_SECONDS", 0.05)
    FlakyFileSystem.reset()
    yield
    FlakyFileSystem.reset()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "uninterrupted"
    with pytest.MonkeyPatch.context() as patch:
        share_programs(patch, CONFIG.train)
        loop.train(CONFIG, folder)
    return folder


def crash_at(monkeypatch: pytest.MonkeyPatch, step: int, wait_for: int | None) -> None:
    """Has training crash in a step, once the mirror has the checkpoint of step `wait_for`."""

    def wait(running: loop.Loop) -> None:
        deadline = time.monotonic() + 30
        while wait_for is not None and wait_for not in complete_steps(RemoteRun(URL).files()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        crash(running)

    during_step(monkeypatch, step, wait)


@pytest.mark.slow
def test_the_mirror_of_a_whole_run(uninterrupted: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """The mirror is the run folder, file by file, and changes no number."""
    run = tmp_path / "run"
    loop.train(MIRRORED, run)
    assert_same_run(run, uninterrupted)
    remote = RemoteRun(URL)
    here = {p.relative_to(run).as_posix() for p in run.rglob("*") if p.is_file()} - {".lock", ".state.json"}
    assert set(remote.files()) == here
    assert all(remote.read(name) == (run / name).read_bytes() for name in here)
    assert "warning" not in capfd.readouterr().err


@pytest.mark.slow
def test_a_crashed_run_continues_from_its_mirror(uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Law: the local folder is lost."""
    with monkeypatch.context() as patch:
        crash_at(patch, 7, wait_for=5)
        with pytest.raises(Crash):
            loop.train(MIRRORED, tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    loop.train(MIRRORED, tmp_path / "run")
    assert "resuming after step 5" in (tmp_path / "run" / "train.log").read_text()
    assert_same_run(tmp_path / "run", uninterrupted)


@pytest.mark.slow
def test_a_failing_mirror_changes_no_number(uninterrupted: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """Training ends as ever, says what is not there, and the same command copies it."""
    run = tmp_path / "run"
    FlakyFileSystem.writes = 30
    loop.train(MIRRORED, run)
    assert_same_run(run, uninterrupted)
    said = capfd.readouterr().err
    assert (
        "is not up to date at the end (Transport endpoint is not connected): the same command copies the rest" in said
    )
    FlakyFileSystem.writes = None
    loop.train(MIRRORED, run)
    assert "nothing to do" in capfd.readouterr().err
    shutil.rmtree(run)
    loop.train(MIRRORED, run)
    assert_same_run(run, uninterrupted)


@pytest.mark.slow
def test_a_finished_run_is_read_by_its_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The local copy is made once, and brought up to date when the run has moved on."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = tmp_path / "run"
    loop.train(with_train(MIRRORED, steps=8), run)
    assert parameter_digest(load(URL).params) == parameter_digest(load(run).params)
    loop.train(MIRRORED, run)
    loaded = load(URL)
    assert loaded.step == 12 and parameter_digest(loaded.params) == parameter_digest(load(run).params)
    copies = [path for path in (tmp_path / "cache" / "flaxformer_lite").iterdir() if path.is_dir()]
    assert [copy.name.rpartition("-")[0] for copy in copies] == ["run"]
    assert saved(copies[0]) == saved(run)
    FlakyFileSystem.failure = OSError(errno.ENOTCONN, "Transport endpoint is not connected")
    with pytest.raises(ValueError, match=r"flaky://bucket/run: cannot be read \(Transport endpoint is not connected\)"):
        load(URL)


@pytest.mark.slow
def test_a_run_starts_from_the_parameters_at_a_url(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    remote = RemoteRun("flaky://bucket/first")
    for path in uninterrupted.rglob("*"):
        if path.is_file():
            remote.put(path, path.relative_to(uninterrupted).as_posix())
    loop.train(with_train(CONFIG, steps=1, init_from="flaky://bucket/first"), tmp_path / "run")
    assert "parameters from step 12" in (tmp_path / "run" / "train.log").read_text()
