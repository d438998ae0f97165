"""Laws of copies: after every single write a copy is a whole run of one identity; a place that fails is caught up."""

import errno
import fcntl
import json
import random
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flaxformer_lite.base.console import Failure, Progress
from flaxformer_lite.base.stores import LEDGER, Store
from flaxformer_lite.cli.main import main
from flaxformer_lite.workdir import copies
from flaxformer_lite.workdir.bucket import Ledger
from flaxformer_lite.workdir.copies import RUN_ID, Copying, sync
from flaxformer_lite.workdir.manifest import steps_in, why_damaged
from flaxformer_lite.workdir.remote_run import RemoteRun, complete_steps
from tests.support.experiments import tiny_config
from tests.support.quick import quick
from tests.support.remote_runs import FlakyFileSystem, write_checkpoint, write_run

URL = "flaky://bucket/run"
CONFIG = tiny_config()
GONE = OSError(errno.ENOTCONN, "Transport endpoint is not connected")


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    FlakyFileSystem.reset()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    FlakyFileSystem.reset()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def copying(run: Path | str, copy: Path | str = URL) -> Copying:
    return Copying(str(run), str(copy), Progress(silent=True))


def copied(run: Path, steps: list[int], rows: int) -> None:
    """Writes the checkpoints of these steps and so many rows, and copies the run."""
    write_run(run, CONFIG, steps, rows)
    copying(run).once()


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in (".lock", ".state.json"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def remote_contents() -> dict[str, bytes]:
    remote = RemoteRun(URL)
    return {name: remote.read(name) for name in remote.files()}


def fetched(folder: Path) -> list[int]:
    """Copies the copy back into a new folder; returns the steps there, all of which are whole."""
    shutil.rmtree(folder, ignore_errors=True)
    copying(URL, folder).once()
    steps = steps_in(folder / "checkpoints")
    assert all(why_damaged(folder / "checkpoints", step) is None for step in steps)
    return steps


HISTORY = [
    ([4], 4, ()),
    ([4, 8], 9, ()),
    ([8, 12], 12, (8, 12)),  # an evaluation of step 8 was made up for; 4 is deleted
    ([16], 19, (16,)),
]
"""The checkpoints of a run at four moments, the rows of metrics there are, and the evaluated steps."""


@pytest.mark.parametrize("moment", quick(range(len(HISTORY)), (2).__eq__))
def test_after_every_write_a_copy_is_a_whole_run(run: Path, tmp_path: Path, moment: int):
    """Law: cut after each write, the copy has all checkpoints of the older state or of the newer one, with all they need."""
    copies = copying(run)
    for state in HISTORY[:moment]:
        write_run(run, CONFIG, *state)
        copies.once()
    before = dict(FlakyFileSystem.store)
    older, newer = set(HISTORY[moment - 1][0]) if moment else set(), set(HISTORY[moment][0])
    write_run(run, CONFIG, *HISTORY[moment])
    FlakyFileSystem.written.clear()
    copying(run).once()
    writes = len(FlakyFileSystem.written)
    assert writes > 5
    for cut in range(writes):
        FlakyFileSystem.store.clear()
        FlakyFileSystem.store.update(before)
        FlakyFileSystem.writes = cut
        with pytest.raises(OSError, match="not connected"):
            copying(run).once()
        FlakyFileSystem.writes = None
        if steps := complete_steps(remote_contents()):
            copy = tmp_path / "copy"
            assert steps == fetched(copy)
            assert set(steps) >= older or set(steps) >= newer, f"{steps} after {FlakyFileSystem.written[-1:]}"
            rows = (copy / "metrics.jsonl").read_text().splitlines()
            assert len(rows) >= steps[-1] and (copy / "tokenizer.chars").read_text() == "abc"
        copying(run).once()
        assert contents(run) == remote_contents()


def test_only_what_is_new_is_copied(run: Path):
    """Another process knows nothing of what was copied, but finds the states of the checkpoints unchanged."""
    copies = copying(run)
    write_run(run, CONFIG, [4], 4)
    copies.once()
    FlakyFileSystem.written.clear()
    write_checkpoint(run / "checkpoints" / "8", None)
    copies.once()
    assert {what.rpartition("run/")[2].split("/")[1] for what in FlakyFileSystem.written} == {"8"}
    FlakyFileSystem.written.clear()
    copying(run).once()
    assert not [what for what in FlakyFileSystem.written if "/state/" in what]


def test_a_step_that_was_saved_anew_is_replaced_once_another_one_is_complete(run: Path, tmp_path: Path):
    """Law: there is always a complete checkpoint, also when a rollback has saved the only one anew."""
    copied(run, [4], 4)
    shutil.rmtree(run / "checkpoints" / "4")
    write_checkpoint(run / "checkpoints" / "4", None, "written anew")
    copies = copying(run)
    copies.once()
    assert fetched(tmp_path / "copy") == [4]
    assert "anew" not in (tmp_path / "copy" / "checkpoints" / "4" / "state" / "d" / "0a").read_text()
    write_checkpoint(run / "checkpoints" / "8", None)
    copies.once()
    copies.once()
    assert contents(run) == remote_contents()


def test_a_checkpoint_that_is_being_deleted_is_not_copied(run: Path):
    """Law: what has lost a file was never copied as complete."""
    write_run(run, CONFIG, [4, 8], 8)
    (run / "checkpoints" / "4" / "state" / "d" / "0a").unlink()
    with pytest.raises(FileNotFoundError, match="is being deleted"):
        copying(run).once()
    assert complete_steps(remote_contents()) == []
    shutil.rmtree(run / "checkpoints" / "4")
    copying(run).once()
    assert contents(run) == remote_contents()


def test_files_of_others_are_left_alone(run: Path, tmp_path: Path):
    """Hidden files, exports and unfinished checkpoints stay in the run; old samples go as in the run."""
    copied(run, [4], 4)
    RemoteRun(URL).put(run / "train.log", "notes.txt")
    write_run(run, CONFIG, [8], 8)
    for name in ("engine/float32-1/model.bin", "checkpoints/12.tmp/state/x", ".mirror/x"):
        RemoteRun(str(run)).write(name, b"here")
    (run / "samples" / "step_4.txt").unlink()
    copying(run).once()
    names = set(remote_contents())
    assert "notes.txt" in names and fetched(tmp_path / "copy") == [8]
    assert not any(name.startswith(("engine", "checkpoints/12", ".mirror", "checkpoints/4")) for name in names)
    assert {name for name in names if name.startswith("samples")} == {"samples/step_8.txt"}


def test_a_run_in_a_bucket_is_copied_with_its_ledger_last(run: Path, tmp_path: Path):
    """Law: cut after each write, the ledger of the copy lists only checkpoints that are there; nobody trains in the copy."""
    ledger = {"holder": {"mark": "a"}, "start": 2, "beat": 5, "steps": {"4": "checkpoints/4/state"}}
    write_run(run, CONFIG, [4], 4)
    (run / LEDGER).write_text(json.dumps(ledger))
    copying(run).once()
    write_run(run, CONFIG, [4, 8], 8)
    (run / LEDGER).write_text(json.dumps(ledger | {"steps": {"8": "checkpoints/8/state"}}))
    before = dict(FlakyFileSystem.store)
    for cut in range(60):
        FlakyFileSystem.store.clear()
        FlakyFileSystem.store.update(before)
        FlakyFileSystem.writes = cut
        try:
            copying(run).once()
            break
        except OSError:
            copy = remote_contents()
            listed = json.loads(copy[LEDGER])
            assert {f"{place}/manifest.ocdbt" for place in listed["steps"].values()} <= copy.keys()
            assert {*map(int, listed["steps"])} <= {*complete_steps(copy)} and listed["holder"] is None
    assert json.loads(remote_contents()[LEDGER])["steps"] == {"8": "checkpoints/8/state"} and cut > 10
    assert complete_steps(remote_contents()) == [8]


def test_a_folder_never_has_half_a_file(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On a mounted drive a file is written under another name first."""
    write_run(run, CONFIG, [4], 4)

    def half(source: Path, target: Path, **_: object) -> None:
        Path(target).write_bytes(Path(source).read_bytes()[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", half)
        with pytest.raises(OSError, match="No space"):
            copying(run, tmp_path / "there").once()
    assert contents(tmp_path / "there") == {}
    copying(run, tmp_path / "there").once()
    assert contents(run) == contents(tmp_path / "there")


# One run, one copy -----------------------------------------------------------------------------------------------------


def test_a_copy_of_another_run_is_neither_written_nor_taken(run: Path, tmp_path: Path):
    """Law: also if both runs have the same config; the run and its copy of a copy are one run, wherever they are moved."""
    copied(run, [4], 4)
    other = tmp_path / "other"
    write_run(other, CONFIG, [4, 8], 8)
    copying(other, tmp_path / "place").once()
    before = remote_contents()
    for source, target in ((other, URL), (URL, other), (tmp_path / "place", run)):
        with pytest.raises(ValueError, match=r"is a copy of another run than .*: choose another place"):
            copying(source, target).once()
    assert remote_contents() == before and steps_in(other / "checkpoints") == [4, 8]
    copying(URL, tmp_path / "home").once()
    run.rename(tmp_path / "moved")
    write_run(tmp_path / "home", CONFIG, [4, 8], 8)
    copying(tmp_path / "home").once()
    copying(URL, tmp_path / "moved").once()
    assert steps_in(tmp_path / "moved" / "checkpoints") == [4, 8]


def test_a_copy_that_is_ahead_is_not_overwritten(run: Path, tmp_path: Path):
    copied(run, [4], 4)
    copying(URL, tmp_path / "older").once()
    copied(run, [4, 8], 8)
    with pytest.raises(ValueError, match=r"flaky://bucket/run has step 8 already, and .*older has step 4: nothing was"):
        copying(tmp_path / "older").once()
    assert fetched(tmp_path / "copy") == [4, 8]


def test_places_that_hold_no_copy(run: Path, tmp_path: Path):
    with pytest.raises(ValueError, match=r"holds no run \(there is no config.json"):
        copying(run).once()
    write_run(run, CONFIG, [4], 4)
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere: create it, or mount its drive"):
        copying(run, tmp_path / "nowhere" / "run").once()
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "notes").touch()
    with pytest.raises(ValueError, match=r"holds files, but no copy that `sync` made: choose a new or an empty place"):
        copying(run, tmp_path / "files").once()
    copying(run, tmp_path / "copy").once()
    with open(tmp_path / "copy" / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match=r"a process is training in .*copy: choose another place for the copy"):
            copying(run, tmp_path / "copy").once()
    copying(run, tmp_path / "copy").once()


# A process of its own --------------------------------------------------------------------------------------------------


def start_training(run: Path) -> threading.Thread:
    """Starts a thread that holds the lock of a run folder and saves steps, a little later."""

    def train() -> None:
        time.sleep(0.05)
        write_run(run, CONFIG, [4], 4)
        with open(run / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for step in range(8, 40, 4):
                write_run(run, CONFIG, [step - 4, step], step)
                time.sleep(0.05)

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("copy", ["folder", "url"])
def test_a_copy_that_repeats_starts_before_the_training_and_ends_with_it(run: Path, tmp_path: Path, copy: str):
    place = URL if copy == "url" else str(tmp_path / "copy")
    training = start_training(run)
    sync(str(run), place, every=0.02)
    training.join()
    assert contents(run) == (remote_contents() if copy == "url" else contents(tmp_path / "copy"))


def test_a_place_that_fails_and_vanishes_is_told_once_and_caught_up(run: Path, capsys: pytest.CaptureFixture[str]):
    """Law: whatever fails in between, the copy ends as the run; the copy of a finished training waits for the place."""
    training, chance = start_training(run), random.Random(70)

    def fail() -> None:
        while training.is_alive():
            FlakyFileSystem.failure = chance.choice([None, GONE, TimeoutError("timed out"), RuntimeError("no\nmore")])
            FlakyFileSystem.writes = chance.choice([None, 0, 3])
            time.sleep(0.03)
        time.sleep(0.1)
        FlakyFileSystem.failure = FlakyFileSystem.writes = None

    failing = threading.Thread(target=fail, daemon=True)
    failing.start()
    sync(str(run), URL, every=0.01)
    failing.join()
    assert contents(run) == remote_contents()
    said = capsys.readouterr().err
    assert 0 < said.count(" failed (") < 30 and "Traceback" not in said


@pytest.mark.parametrize("beats", [0, 5], ids=["before", "later"])
def test_the_copy_of_a_training_that_was_killed_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beats: int):
    """The run in a bucket gives some signs of life, and then none; its process is of another machine."""
    for name, value in ("BEAT_SECONDS", 0.1), ("WAIT_SECONDS", 0.5):
        monkeypatch.setattr(copies, name, value)
    store = Store(f"file://{tmp_path}/run")
    store.write("config.json", b"{}")

    def live() -> None:
        for beat in range(beats + 1):
            store.write(LEDGER, Ledger({"mark": "x", "process": "other-boot pid:[1] 1"}, 1, beat).as_json())
            time.sleep(0.1)

    living = threading.Thread(target=live, daemon=True)
    living.start()
    time.sleep(0.05)
    sync(store.url, URL, every=0.02)
    assert not living.is_alive() and json.loads(remote_contents()[LEDGER])["beat"] == beats


def test_a_drive_that_was_unmounted_is_not_written_anew(run: Path, tmp_path: Path):
    """Where its mount point is an empty folder, copies would fill the local disk."""
    write_run(run, CONFIG, [4], 4)
    copies = copying(run, tmp_path / "drive" / "copy")
    (tmp_path / "drive").mkdir()
    copies.once()
    (tmp_path / "drive").rename(tmp_path / "away")
    with pytest.raises(OSError, match=r"there is no folder .*drive"):
        copies.once()
    (tmp_path / "drive").mkdir()
    with pytest.raises(OSError, match="what was copied is gone"):
        copies.once()
    assert not [*(tmp_path / "drive").iterdir()]
    (tmp_path / "drive").rmdir()
    (tmp_path / "away").rename(tmp_path / "drive")
    write_run(run, CONFIG, [4, 8], 8)
    copies.once()
    assert contents(run) == contents(tmp_path / "drive" / "copy")


def test_a_drive_that_vanishes_during_a_copy_is_not_written_anew(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    copies, write = copying(run, tmp_path / "drive" / "copy"), RemoteRun.write
    (tmp_path / "drive").mkdir()
    write_run(run, CONFIG, [4], 4)
    copies.once()
    write_run(run, CONFIG, [4, 8], 8)

    def write_and_unmount(self: RemoteRun, name: str, content: bytes) -> None:
        write(self, name, content)
        (tmp_path / "drive").rename(tmp_path / "away")

    monkeypatch.setattr(RemoteRun, "write", write_and_unmount)
    with pytest.raises(OSError, match="what was copied is gone"):
        copies.once()
    assert not (tmp_path / "drive").exists()


def test_a_copy_that_repeats_says_what_it_waits_for(run: Path, monkeypatch: pytest.MonkeyPatch):
    """Without a training it ends after WAIT_SECONDS, which it says; in a training it waits for the next copy."""
    said = list[str]()
    monkeypatch.setattr(copies, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(Progress, "update", lambda self, activity: said.append(activity))
    write_run(run, CONFIG, [4], 4)
    sync(str(run), URL, every=0.1)
    assert said[0].startswith("copying") and said[-1] == f"waiting for a training in {run} to start, at most 0 s"
    training = start_training(run)
    sync(str(run), URL, every=0.02)
    training.join()
    assert said[-1] == "waiting for the next copy"


def test_a_damaged_copy_is_copied_anew_once_its_folder_is_deleted(run: Path, tmp_path: Path):
    """The remedy in docs/training.md; of a copy that has all names, no content is read."""
    write_run(run, CONFIG, [4, 8], 8)
    copying(run, copy := tmp_path / "copy").once()
    (copy / "checkpoints" / "8" / "state" / "d" / "0a").write_text("damaged")
    copying(run, copy).once()
    assert why_damaged(copy / "checkpoints", 8) is not None
    shutil.rmtree(copy / "checkpoints" / "8")
    copying(run, copy).once()
    assert contents(run) == contents(copy)


def test_the_last_copy_that_fails_is_a_failure(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(copies, "WAIT_SECONDS", 0.2)
    write_run(run, CONFIG, [4], 4)
    FlakyFileSystem.failure = GONE
    with pytest.raises(
        Failure, match=r"^flaky://bucket/run is not up to date \(Transport endpoint is not connected\): the"
    ):
        sync(str(run), URL, every=0.05)
    assert capsys.readouterr().err.count(" failed (") == 1
    for words, status in ((["sync", str(run), URL], 1), (["sync", str(run), URL, "--every", "0.5"], 2)):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == status
    FlakyFileSystem.failure = None
    main(["sync", str(run), URL])
    assert contents(run) == remote_contents() and RUN_ID in remote_contents()
