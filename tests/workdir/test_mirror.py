"""Laws of the mirror: after every single write it is a whole run; a mirror that fails stops no training and is caught up."""

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from filelock import FileLock

from flaxformer_lite.base.console import Progress
from flaxformer_lite.base.remote_files import cache_folder
from flaxformer_lite.config.serialize import to_json
from flaxformer_lite.workdir import RunFolder, mirror
from flaxformer_lite.workdir.manifest import steps_in, why_damaged
from flaxformer_lite.workdir.mirror import (
    Mirror,
    RemoteRun,
    open_run,
    run_files,
    start_from_mirror,
    step_of,
)
from flaxformer_lite.workdir.state import STATE
from tests.support.experiments import tiny_config, with_train
from tests.support.mirrors import FlakyFileSystem, write_checkpoint, write_run
from tests.support.quick import quick

URL = "flaky://bucket/run"
CONFIG = with_train(tiny_config(), mirror=URL)


class Lines(Progress):
    """Records the lines that stay."""

    def __init__(self) -> None:
        super().__init__(1, silent=True)
        self.said: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)

    def warn(self, line: str) -> None:
        self.said.append(f"warning: {line}")


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    FlakyFileSystem.reset()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(mirror, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(mirror, "MAX_RETRY_SECONDS", 0.1)
    yield
    FlakyFileSystem.reset()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def new_mirror(folder: Path, url: str = URL) -> Mirror:
    return Mirror(url, folder, Lines())


def push(run: Path, steps: list[int], rows: int) -> None:
    """Writes the checkpoints of these steps and so many rows, and copies the run."""
    write_run(run, CONFIG, steps, rows)
    new_mirror(run).push()


def fetched(folder: Path, url: str = URL) -> list[int]:
    """Copies the mirror into a folder that is empty; returns the steps, all of which are whole."""
    shutil.rmtree(folder, ignore_errors=True)
    steps = RemoteRun(url).fetch(folder, Progress(silent=True), verify=True)
    assert all(why_damaged(folder / "checkpoints", step) is None for step in steps)
    return steps


def same_files(folder: Path, other: Path) -> bool:
    return contents(folder) == contents(other)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.relative_to(folder).as_posix().startswith(".")
    }


def remote_contents() -> dict[str, bytes]:
    remote = RemoteRun(URL)
    return {name: remote.read(name) for name in remote.files()}


def is_mirrored(step: int) -> bool:
    return f"/bucket/run/checkpoints/{step}/meta/meta.json" in FlakyFileSystem.store


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Whole at any moment ---------------------------------------------------------------------------------------------------

HISTORY = [
    ([4], 4, ()),
    ([4, 8], 9, ()),
    ([8, 12], 12, (8, 12)),  # an evaluation of step 8 was made up for; 4 is deleted
    ([16], 19, (16,)),
]
"""The checkpoints of a run at four moments, the rows of metrics there are, and the evaluated steps."""


@pytest.mark.parametrize("moment", quick(range(len(HISTORY)), (2).__eq__))
def test_after_every_write_the_mirror_is_a_whole_run(run: Path, tmp_path: Path, moment: int):
    """Law: cut after each write, the mirror has all checkpoints of the older state or of the newer one, with all they need."""
    pushes = new_mirror(run)
    for state in HISTORY[:moment]:
        write_run(run, CONFIG, *state)
        pushes.push()
    before = dict(FlakyFileSystem.store)
    older = set(HISTORY[moment - 1][0]) if moment else set()
    newer = set(HISTORY[moment][0])
    write_run(run, CONFIG, *HISTORY[moment])
    FlakyFileSystem.written.clear()
    new_mirror(run).push()
    writes = len(FlakyFileSystem.written)
    assert writes > 5
    for cut in range(writes):
        FlakyFileSystem.store.clear()
        FlakyFileSystem.store.update(before)
        FlakyFileSystem.writes = cut
        with pytest.raises(OSError, match="not connected"):
            new_mirror(run).push()
        FlakyFileSystem.writes = None
        steps = fetched(copy := tmp_path / "copy")
        assert set(steps) >= older or set(steps) >= newer, f"{steps} after {FlakyFileSystem.written[-1:]}"
        if steps:
            rows = (copy / "metrics.jsonl").read_text().splitlines()
            assert len(rows) >= steps[-1] and (copy / "tokenizer.chars").read_text() == "abc"
            assert RemoteRun(URL).read("config.json").decode() == to_json(CONFIG)
        new_mirror(run).push()
        assert contents(run) == remote_contents()


def test_a_push_copies_only_what_is_new(run: Path, tmp_path: Path):
    pushes = new_mirror(run)
    write_run(run, CONFIG, [4], 4)
    pushes.push()
    FlakyFileSystem.written.clear()
    os.link(run / "train.log", tmp_path / "log")
    write_checkpoint(run / "checkpoints" / "8", None)
    pushes.push()
    assert {what.rpartition("run/")[2].split("/")[1] for what in FlakyFileSystem.written} == {"8"}
    # Another process knows nothing of what was copied, but finds the states of the checkpoints unchanged.
    FlakyFileSystem.written.clear()
    new_mirror(run).push()
    assert not [what for what in FlakyFileSystem.written if "/state/" in what]


def test_remains_of_a_cut_upload_are_replaced(run: Path):
    """A checkpoint that was written anew has other files."""
    push(run, [4], 4)
    write_checkpoint(run / "checkpoints" / "8", None)
    (run / "checkpoints" / "8" / "junk").write_text("")
    FlakyFileSystem.written.clear()
    FlakyFileSystem.writes = 9
    with pytest.raises(OSError, match="not connected"):
        new_mirror(run).push()
    assert any("junk" in name for name in FlakyFileSystem.store)
    FlakyFileSystem.writes = None
    (run / "checkpoints" / "8" / "junk").unlink()
    new_mirror(run).push()
    assert contents(run) == remote_contents()


def test_a_checkpoint_with_another_state_is_replaced_once_another_one_is_complete(run: Path, tmp_path: Path):
    """Law: there is always a complete checkpoint, also when the only one is to be replaced."""
    push(run, [4], 4)
    shutil.rmtree(run / "checkpoints" / "4")
    write_checkpoint(run / "checkpoints" / "4", None, "written anew")
    pushes = new_mirror(run)
    pushes.push()
    assert fetched(tmp_path / "copy") == [4]
    assert "anew" not in (tmp_path / "copy" / "checkpoints" / "4" / "state" / "d" / "0a").read_text()
    write_checkpoint(run / "checkpoints" / "8", None)
    pushes.push()
    pushes.push()
    assert contents(run) == remote_contents()


def test_a_step_that_the_same_process_saves_anew_is_copied_anew(run: Path):
    """As after a rollback, also where no push saw that the step was deleted."""
    pushes = new_mirror(run)
    write_run(run, CONFIG, [4, 8], 8)
    pushes.push()
    shutil.rmtree(run / "checkpoints" / "8")
    write_checkpoint(run / "checkpoints" / "8", {"eval": 1.0}, "written anew")
    pushes.push()
    assert contents(run) == remote_contents()


def test_a_checkpoint_that_is_being_deleted_is_not_copied(run: Path, tmp_path: Path):
    """Training deletes while a snapshot is made: what has lost a file already counts as deleted."""
    write_run(run, CONFIG, [4, 8], 8)
    (run / "checkpoints" / "4" / "state" / "d" / "0a").unlink()
    new_mirror(run).push()
    assert fetched(tmp_path / "copy") == [8]


def test_training_may_delete_what_is_being_copied(run: Path, monkeypatch: pytest.MonkeyPatch):
    write_run(run, CONFIG, [4], 4)
    whole = contents(run)
    original = FlakyFileSystem.put_file

    def put(self: FlakyFileSystem, lpath: str, rpath: str, **options: object) -> None:
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
        (run / "metrics.jsonl").write_text("")
        original(self, lpath, rpath, **options)

    monkeypatch.setattr(FlakyFileSystem, "put_file", put)
    new_mirror(run).push()
    assert whole == remote_contents()


def test_files_of_others_are_left_alone(run: Path, tmp_path: Path):
    push(run, [4], 4)
    RemoteRun(URL).put(run / "train.log", "notes.txt")
    push(run, [8], 8)
    assert "notes.txt" in remote_contents() and fetched(tmp_path / "copy") == [8]


def test_a_folder_never_has_half_a_file(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On a mounted drive a file is written under another name first."""
    there = tmp_path / "there"
    write_run(run, CONFIG, [4], 4)

    def half(source: Path, target: Path, **_: object) -> None:
        Path(target).write_bytes(source.read_bytes()[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", half)
        with pytest.raises(OSError, match="No space"):
            new_mirror(run, str(there)).push()
    assert contents(there) == {}
    new_mirror(run, str(there)).push()
    assert same_files(run, there)
    write_run(run, CONFIG, [8], 8)
    new_mirror(run, str(there)).push()
    assert sorted(p.name for p in (there / "checkpoints").iterdir()) == ["8"]


# A mirror that fails ---------------------------------------------------------------------------------------------------

FAILURES = [
    OSError(errno.ENOTCONN, "Transport endpoint is not connected"),
    OSError(errno.ENOSPC, "No space left on device"),
    TimeoutError("timed out"),
    RuntimeError("Could not connect to the endpoint URL\nand more"),  # packages have errors of their own
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda error: str(error)[:20])
def test_a_mirror_that_vanishes_is_reported_once_and_caught_up(run: Path, failure: Exception):
    write_run(run, CONFIG, [4], 4)
    with new_mirror(run) as pushes:
        wait_for(lambda: is_mirrored(4))
        FlakyFileSystem.failure = failure
        write_run(run, CONFIG, [4, 8], 8)
        wait_for(lambda: pushes.failure is not None)
        time.sleep(0.3)  # several attempts
        write_run(run, CONFIG, [8, 12], 12)
        FlakyFileSystem.failure = None
        wait_for(lambda: is_mirrored(12))
    first, second = pushes.progress.said  # type: ignore[attr-defined]
    assert first.startswith(f"warning: train.mirror {URL} cannot be written (") and "\n" not in first
    assert second.startswith(f"train.mirror {URL} works again")
    assert contents(run) == remote_contents()


def test_a_folder_that_cannot_be_listed_for_a_while_is_caught_up(run: Path, monkeypatch: pytest.MonkeyPatch):
    """As under a limit of open files: the thread that pushes goes on."""
    listed = Mirror._state

    def fail(_: Mirror) -> None:
        raise OSError(24, "Too many open files")

    write_run(run, CONFIG, [4], 4)
    monkeypatch.setattr(Mirror, "_state", fail)
    with new_mirror(run) as pushes:
        wait_for(lambda: pushes.failure is not None)
        monkeypatch.setattr(Mirror, "_state", listed)
        wait_for(lambda: is_mirrored(4))


def test_at_the_end_one_more_attempt_and_a_word(run: Path):
    write_run(run, CONFIG, [4], 4)
    with new_mirror(run) as pushes:
        wait_for(lambda: is_mirrored(4))
        FlakyFileSystem.failure = FAILURES[0]
        write_run(run, CONFIG, [4, 8], 8)
        wait_for(lambda: pushes.failure is not None)
    assert "not up to date at the end (Transport" in pushes.progress.said[-1]  # type: ignore[attr-defined]
    assert not (run / ".mirror").exists()
    FlakyFileSystem.failure = None
    with new_mirror(run):
        pass
    assert contents(run) == remote_contents()


def test_the_end_does_not_wait_for_a_mirror_that_is_stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mirror, "STUCK_SECONDS", 0.3)
    write_run(tmp_path / "run", CONFIG, [4], 4)
    with new_mirror(tmp_path / "run") as pushes:
        pushes.remote.put = lambda *_: time.sleep(5)  # type: ignore[method-assign,assignment]
        started = time.monotonic()
    assert time.monotonic() - started < 3
    assert "no file was copied for" in pushes.progress.said[-1]  # type: ignore[attr-defined]


def test_a_drive_that_was_unmounted_is_not_written_anew(run: Path, tmp_path: Path):
    """Where its mount point is an empty folder, copies would fill the local disk."""
    there = tmp_path / "there"
    write_run(run, CONFIG, [4], 4)
    pushes = new_mirror(run, str(there))
    pushes.push()
    shutil.rmtree(there)
    with pytest.raises(OSError, match="what was copied is gone"):
        pushes.push()
    assert not there.exists()


# Starting from it ------------------------------------------------------------------------------------------------------


def started(folder: Path, **changes: object) -> Path:
    """Starts a run in the folder as training does."""
    config = with_train(CONFIG, **changes)
    run = RunFolder(folder)
    with run.lock(config):
        start_from_mirror(run, config)
    return folder


def test_a_start_that_was_cut_goes_on(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Law: the newest checkpoint comes last, so a folder with it has everything."""
    push(run, [4, 8], 9)
    original, count = RemoteRun.get, 0

    def get(self: RemoteRun, name: str, path: Path) -> None:
        nonlocal count
        count += 1
        if count == 14:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        original(self, name, path)

    monkeypatch.setattr(RemoteRun, "get", get)
    with pytest.raises(ValueError, match="has no checkpoint: make the mirror reachable"):
        started(tmp_path / "copy")
    assert [p.name for p in (tmp_path / "copy" / "checkpoints").iterdir()] == ["4"]
    copy = started(tmp_path / "copy")
    (copy / ".lock").unlink()
    assert same_files(run, copy)


def test_a_damaged_checkpoint_is_taken_from_the_mirror(run: Path):
    push(run, [4, 8], 8)
    good = contents(run)
    (run / "checkpoints" / "8" / "state" / "d" / "0b").write_text("flipped")
    started(run)
    (run / ".lock").unlink()
    assert contents(run) == good


def test_a_mirror_behind_the_folder_is_not_read(run: Path):
    push(run, [4], 4)
    write_run(run, CONFIG, [8], 8)
    started(run)
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["8"]


def test_a_mirror_ahead_of_the_run_is_not_overwritten(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Where it could not be reached at the start: nothing is copied until the run has passed it."""
    push(run, [4, 8], 8)
    write_run(older := tmp_path / "older", CONFIG, [4], 4)
    FlakyFileSystem.failure = FAILURES[0]
    started(older)
    assert "cannot be used (Transport endpoint is not connected): training continues" in capsys.readouterr().err
    FlakyFileSystem.failure = None
    with pytest.raises(OSError, match="has step 8 already, and this run is at step 4"):
        new_mirror(older).push()
    assert fetched(tmp_path / "copy") == [4, 8]
    write_run(older, CONFIG, [4, 12], 12)
    new_mirror(older).push()
    assert fetched(tmp_path / "copy") == [4, 12]


def test_a_new_run_does_not_start_beside_a_mirror_it_cannot_read(tmp_path: Path):
    FlakyFileSystem.failure = FAILURES[2]
    with pytest.raises(
        ValueError, match=r"train.mirror flaky://bucket/run cannot be used \(timed out\), and .* has no"
    ):
        started(tmp_path / "run")


def test_a_new_run_writes_its_config_at_once(tmp_path: Path):
    """A mirror that cannot be written is found before the first step."""
    started(tmp_path / "run")
    assert list(remote_contents()) == ["config.json"]


def test_a_mirror_is_continued_with_other_settings_if_that_is_asked_for(run: Path, tmp_path: Path):
    """Law: on a new machine the checkpoints come from the mirror; without asking, the refusal names the option."""
    push(run, [4], 4)
    patient, here = with_train(CONFIG, patience=5), tmp_path / "here"
    with pytest.raises(
        ValueError, match=r"is now 5\. .*, or --continue-with-changes for settings that a run may change$"
    ):
        start_from_mirror(RunFolder(here), patient)
    start_from_mirror(RunFolder(here, with_changes=True), patient)
    assert steps_in(here / "checkpoints") == [4]


def test_a_copy_of_a_run_does_not_write_into_its_mirror(tmp_path: Path):
    """Law: a mirror has one run folder, which may have any name, until it is moved, deleted or mirrored elsewhere."""
    run, copy, config = tmp_path / os.fsdecode(b"r\xfcn"), tmp_path / "copy", CONFIG
    write_run(run, config, [4], 4)
    started(run)
    shutil.copytree(run, copy)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"is a copy: give the copy another train.mirror, or delete"):
            started(copy)
    started(run)
    started(copy, mirror="flaky://bucket/copy")
    shutil.rmtree(copy)


@pytest.mark.parametrize(
    "how", ["moved", "deleted", "damaged", "mirrored elsewhere", "linked", "by an earlier version"]
)
def test_a_run_folder_in_another_place_goes_on_with_its_mirror(run: Path, tmp_path: Path, how: str):
    place = tmp_path / "place"
    write_run(run, CONFIG, [4], 4)
    started(run)
    if how == "moved":
        run.rename(place)
    elif how == "linked":
        place.symlink_to(run)
    else:
        shutil.copytree(run, place)
    if how == "deleted":
        shutil.rmtree(run)
    if how == "damaged":
        (run / "config.json").write_text("[")
    if how == "mirrored elsewhere":
        (run / "config.json").write_text(to_json(with_train(CONFIG, mirror="flaky://bucket/other")))
    if how == "by an earlier version":
        (place / STATE).unlink()
    started(place)


def test_a_mirror_of_another_run_is_refused(run: Path, tmp_path: Path):
    push(run, [4], 4)
    with pytest.raises(ValueError, match=r"holds a run of another config: train.seed was 0 and is now 7\. Use another"):
        started(tmp_path / "other", seed=7)
    started(tmp_path / "longer", steps=99)


def test_places_that_are_no_mirror(tmp_path: Path):
    with pytest.raises(ValueError, match="is the run folder: choose another place"):
        started(tmp_path / "run", mirror=str(tmp_path / "run"))
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere: create it, or mount the drive"):
        started(tmp_path / "other", mirror=str(tmp_path / "nowhere" / "run"))
    with pytest.raises(ValueError, match=r"train.mirror is ''"):
        with_train(CONFIG, mirror="")


# At a URL -----------------------------------------------------------------------------------------------------------------


def upload(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            RemoteRun(URL).put(path, path.relative_to(folder).as_posix())


@pytest.mark.parametrize("place", ["flaky://bucket/run", "there", "file://{}/there"])
def test_files_are_put_read_and_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str):
    """A URL, a relative path, and a path as a URL."""
    monkeypatch.chdir(tmp_path)
    remote = RemoteRun(place.format(tmp_path))
    assert remote.files() == {}
    (tmp_path / "a").write_text("hello")
    for name in ("config.json", "checkpoints/4/state/x", "checkpoints/4/meta/meta.json"):
        remote.put(tmp_path / "a", name)
    assert remote.files() == dict.fromkeys(("config.json", "checkpoints/4/state/x", "checkpoints/4/meta/meta.json"), 5)
    assert remote.read("checkpoints/4/state/x") == b"hello"
    remote.get("config.json", tmp_path / "new" / "b")
    assert (tmp_path / "new" / "b").read_text() == "hello"
    remote.delete(["checkpoints/4/meta/meta.json", "checkpoints/4/state/x"])
    assert list(remote.files()) == ["config.json"]
    assert not remote.is_local or not (tmp_path / "there" / "checkpoints").exists()


def test_a_drive_that_is_gone_does_not_look_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """fsspec's own listing would be empty."""
    (tmp_path / "there").mkdir()
    remote = RemoteRun(str(tmp_path / "there"))
    monkeypatch.setattr(os, "scandir", Mock(side_effect=FAILURES[0]))
    with pytest.raises(OSError, match="not connected"):
        remote.files()


def test_files_that_go_while_they_are_listed_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A trainer renames its finished files and deletes old checkpoints while another process reads its mirror."""
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
    assert RemoteRun(str(tmp_path)).files() == {"config.json": 2}


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


def test_mistakes(tmp_path: Path):
    with pytest.raises(ValueError, match=r"flaky://bucket/run holds no run \(there is no config.json in it\): give"):
        open_run(URL)
    FlakyFileSystem.failure = TimeoutError("timed out")
    with pytest.raises(ValueError, match=r"flaky://bucket/run: cannot be read \(timed out\)"):
        open_run(URL)
    with pytest.raises(ValueError, match=r"flaky://bucket/run is a URL, and this is written to the local disk only"):
        RunFolder(URL)


def test_exports_for_an_engine_are_in_no_mirror(tmp_path: Path):
    """Each reader makes its own: they are several times as large as what they are made of."""
    for name in ("engine/float32-1/model.bin", "samples/engine/one.txt", "config.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert [name for name, _ in run_files(tmp_path)] == ["config.json", "samples/engine/one.txt"]
