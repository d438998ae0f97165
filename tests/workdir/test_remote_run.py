"""Runs at URLs: what is read of them is whole, also while another process writes there."""

import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from filelock import FileLock

from flaxformer_lite.base.remote_files import cache_folder
from flaxformer_lite.workdir import RunFolder, open_run
from flaxformer_lite.workdir.manifest import step_of
from flaxformer_lite.workdir.remote_run import RemoteRun
from tests.support.experiments import tiny_config
from tests.support.remote_runs import FlakyFileSystem, write_checkpoint, write_run

URL = "flaky://bucket/run"
GONE = OSError(errno.ENOTCONN, "Transport endpoint is not connected")


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    FlakyFileSystem.reset()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    FlakyFileSystem.reset()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def upload(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            RemoteRun(URL).put(path, path.relative_to(folder).as_posix())


@pytest.mark.parametrize("place", ["flaky://bucket/run", "there", "file://{}/there"])
def test_files_are_put_read_and_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str):
    """A URL, a relative path, and a path as a URL."""
    monkeypatch.chdir(tmp_path)
    remote = RemoteRun(place.format(tmp_path))
    assert remote.files() == set()
    (tmp_path / "a").write_text("hello")
    for name in ("config.json", "checkpoints/4/state/x", "checkpoints/4/meta/meta.json"):
        remote.put(tmp_path / "a", name)
    assert remote.files() == {"config.json", "checkpoints/4/state/x", "checkpoints/4/meta/meta.json"}
    assert remote.read("checkpoints/4/state/x") == b"hello"
    remote.get("config.json", tmp_path / "new" / "b")
    assert (tmp_path / "new" / "b").read_text() == "hello"
    remote.delete(["checkpoints/4/meta/meta.json", "checkpoints/4/state/x"])
    assert remote.files() == {"config.json"}
    assert not remote.is_local or not (tmp_path / "there" / "checkpoints").exists()


def test_a_drive_that_is_gone_does_not_look_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """fsspec's own listing would be empty."""
    (tmp_path / "there").mkdir()
    remote = RemoteRun(str(tmp_path / "there"))
    monkeypatch.setattr(os, "scandir", Mock(side_effect=GONE))
    with pytest.raises(OSError, match="not connected"):
        remote.files()


def test_files_that_go_while_they_are_listed_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A trainer renames its finished files and deletes old checkpoints while another process reads it."""
    (tmp_path / "old").mkdir()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "old" / "gone.unfinished").write_text("x")
    original = os.walk

    def walk(*arguments: Any, **options: Any) -> list[Any]:
        found = list(original(*arguments, **options))
        shutil.rmtree(tmp_path / "old")
        options["onerror"](FileNotFoundError(errno.ENOENT, "a folder that went before it was read"))
        return found

    monkeypatch.setattr(os, "walk", walk)
    assert RemoteRun(str(tmp_path)).files() == {"config.json"}


def test_one_process_copies_at_a_time(tmp_path: Path):
    write_run(tmp_path / "run", tiny_config(), [4, 8], 8)
    upload(tmp_path / "run")
    copy = cache_folder(URL)
    copy.parent.mkdir(parents=True)
    with FileLock(f"{copy}.lock"):
        other = threading.Thread(target=open_run, args=[URL], daemon=True)
        other.start()
        other.join(0.3)
        assert other.is_alive() and not copy.exists()
    other.join(60)
    assert not other.is_alive() and (copy / "config.json").is_file()


def test_a_checkpoint_that_is_deleted_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The writer of the run has gone on: the copy starts again."""
    write_run(tmp_path / "run", tiny_config(), [4, 8], 8)
    upload(tmp_path / "run")
    original = FlakyFileSystem.get_file

    def get_file(self: FlakyFileSystem, rpath: str, lpath: str, **options: object) -> None:
        if "/4/state" in rpath:
            RemoteRun(URL).delete([name for name in RemoteRun(URL).files() if step_of(name) == 4])
        original(self, rpath, lpath, **options)

    monkeypatch.setattr(FlakyFileSystem, "get_file", get_file)
    folder = open_run(URL)
    assert [step.name for step in folder.checkpoints.iterdir()] == ["8"]


def test_a_copy_follows_its_run(run: Path, tmp_path: Path):
    """States are copied once, markers again; what the run deleted is deleted; a checkpoint written anew is copied anew."""
    write_run(run, tiny_config(), [4, 8], 8)
    upload(run)
    folder = open_run(URL)
    assert folder.path == cache_folder(URL) and folder.config() == tiny_config()
    assert (folder.name, folder.title) == (URL, "run"), "messages name the URL"
    kept = (folder.checkpoints / "8" / "state" / "d" / "0a").stat().st_ino
    write_run(run, tiny_config(), [8, 12], 12, evaluated=(8,))
    FlakyFileSystem.reset()
    upload(run)
    folder = open_run(URL)
    assert sorted(step.name for step in folder.checkpoints.iterdir()) == ["12", "8"]
    assert (folder.checkpoints / "8" / "state" / "d" / "0a").stat().st_ino == kept
    assert "eval" in (folder.checkpoints / "8" / "meta" / "meta.json").read_text()
    assert len(folder.rows()) == 12
    FlakyFileSystem.reset()
    write_checkpoint(tmp_path / "anew" / "8", None, "anew")
    (run / "checkpoints" / "8").rename(tmp_path / "old")
    (tmp_path / "anew" / "8").rename(run / "checkpoints" / "8")
    upload(run)
    assert (open_run(URL).checkpoints / "8" / "state" / "d" / "0a").read_text().endswith("anew")


def test_results_of_commands_that_read_a_url_stay_and_those_of_the_run_are_read_anew(run: Path):
    write_run(run, tiny_config(), [4], 4)
    (run / "hypotheses").mkdir(exist_ok=True)
    for text in "old", "new":
        (run / "hypotheses" / "test.txt").write_text(text)
        FlakyFileSystem.reset()
        upload(run)
        here = open_run(URL).path
        assert (here / "hypotheses" / "test.txt").read_text() == text
        for name in "evaluations/files.json", "hypotheses/files.txt":
            (here / name).parent.mkdir(exist_ok=True)
            (here / name).write_text("mine")
    open_run(URL)
    assert (
        (here / "evaluations" / "files.json").read_text() == (here / "hypotheses" / "files.txt").read_text() == "mine"
    )


def test_the_only_checkpoint_is_copied_anew_if_another_run_is_there(run: Path, tmp_path: Path):
    """As of a model that was imported again: its samples and files go too."""
    write_run(run, tiny_config(), [0], 0)
    upload(run)
    assert [*(open_run(URL).path / "samples").iterdir()]
    FlakyFileSystem.reset()
    write_checkpoint(tmp_path / "other" / "checkpoints" / "0", None, "anew")
    (tmp_path / "other" / "config.json").write_text((run / "config.json").read_text())
    upload(tmp_path / "other")
    folder = open_run(URL)
    assert (folder.checkpoints / "0" / "state" / "d" / "0a").read_text().endswith("anew")
    assert {path.name for path in folder.path.iterdir()} == {"config.json", "checkpoints"}


def test_mistakes(tmp_path: Path):
    with pytest.raises(ValueError, match=r"flaky://bucket/run holds no run \(there is no config.json in it\): give"):
        open_run(URL)
    FlakyFileSystem.failure = TimeoutError("timed out")
    with pytest.raises(ValueError, match=r"flaky://bucket/run: cannot be read \(timed out\)"):
        open_run(URL)
    with pytest.raises(ValueError, match=r"flaky://bucket/run is a URL, and this is written to the local disk only"):
        RunFolder(URL)
