"""A run in a bucket: who may train, what is complete, and which files are where; on stores that need no server."""

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flaxformer_lite.base.stores import LEDGER, ConflictError, Store, StoreError
from flaxformer_lite.workdir import bucket as module
from flaxformer_lite.workdir.bucket import RunBucket, bucket_to_train, is_dead, place_of_process, read_ledger


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}://{tmp_path}/bucket/run"


@pytest.fixture
def at(url: str, tmp_path: Path) -> Callable[[str], RunBucket]:
    """Returns the bucket with a working copy of a name."""
    return lambda name: RunBucket(url, tmp_path / name)


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.1)


def write(bucket: RunBucket, name: str, text: str) -> None:
    path = bucket.here / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def files(bucket: RunBucket) -> dict[str, str]:
    return {
        name: content.decode()
        for name, content in bucket.store.read_all(bucket.store.names()).items()
        if name != LEDGER
    }


def silent(bucket: RunBucket) -> RunBucket:
    """The bucket of a process that gives no sign of life."""
    bucket._beat = lambda: None  # type: ignore[method-assign]
    return bucket


def of_a_dead_process(bucket: RunBucket) -> None:
    """The ledger as a process of this machine left it that was killed."""
    process = subprocess.Popen(["true"])
    process.wait()
    place = place_of_process().rpartition(" ")[0]
    ledger = {"holder": {"mark": "x", "process": f"{place} {process.pid}"}, "start": 3, "beat": 7, "steps": {}}
    bucket.store.write(LEDGER, json.dumps(ledger).encode())


def test_small_files_are_in_both_places_and_others_in_one(at: Callable[[str], RunBucket]):
    here, there = at("here"), at("there")
    both = {"config.json": "{}", "samples/8.txt": "a", "huggingface/tokenizer.json": "{}"}
    with here.held():
        for name in [
            *both,
            ".tokens/x",
            "samples/.8.txt.unfinished",
            "engine/x/model.bin",
            "checkpoints/8/meta/meta.json",
        ]:
            write(here, name, both.get(name, "only here"))
    assert files(there) == both
    write(there, "samples/4.txt", "an older run's")
    there.pull()
    assert {name: (there.here / name).read_text() for name in both} == both
    assert not (there.here / "samples" / "4.txt").exists()
    (here.here / "samples" / "8.txt").unlink()
    write(here, "config.json", "[]")
    here.push()
    there.pull()
    assert (
        files(there) == {"config.json": "[]", "huggingface/tokenizer.json": "{}"}
        and not (there.here / "samples/8.txt").exists()
    )


def test_a_file_that_has_not_changed_is_not_written_again(
    at: Callable[[str], RunBucket], monkeypatch: pytest.MonkeyPatch
):
    here, written = at("here"), []
    with here.held():
        write(here, "config.json", "{}")
        here.push()
        monkeypatch.setattr(here.store, "write", lambda name, *rest: written.append(name) or b"")
        here.push()
        assert written == []


@pytest.mark.usefixtures("beats")
def test_one_of_four_that_start_together_trains(at: Callable[[str], RunBucket]):
    """Each holds the run for three signs of life."""
    held, refused, start = [], [], threading.Barrier(4)

    def train(name: str) -> None:
        start.wait()
        try:
            with at(name).held():
                held.append(name)
                time.sleep(0.5)
        except ValueError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=train, args=(str(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (
        len(held) == 1 and len(refused) == 3 and all("another process is training in" in reason for reason in refused)
    )


@pytest.mark.usefixtures("beats")
def test_a_start_beside_a_training_is_refused_after_a_sign_of_life(at: Callable[[str], RunBucket], capfd):
    refusal = r"another process is training in .*/run: wait until"
    with at("first").held(), pytest.raises(ValueError, match=refusal), at("second").held():
        pass
    assert "watching for 0 s" in capfd.readouterr().err
    with at("second").held():
        pass  # the first has let go: nobody watches
    assert "watching" not in capfd.readouterr().err


def test_a_process_of_this_machine_that_was_killed_is_followed_at_once(at: Callable[[str], RunBucket], capfd):
    bucket = at("here")
    of_a_dead_process(bucket)
    with bucket.held():
        assert bucket.ledger.start == 4
    assert "watching" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "holder", [{}, {"process": ""}, {"process": "other-boot pid:[1] 1"}, {"process": place_of_process()}]
)
def test_whether_a_process_ended_is_not_known_elsewhere(holder: dict[str, str]):
    assert not is_dead(holder)


@pytest.mark.usefixtures("beats")
def test_a_sleeper_changes_nothing_after_another_has_taken_the_run(at: Callable[[str], RunBucket]):
    sleeper, other = silent(at("sleeper")), at("other")
    with contextlib.ExitStack() as stack:
        stack.enter_context(sleeper.held())
        write(sleeper, "metrics.jsonl", "row 1\n")
        sleeper.push()
        with other.held():
            write(other, "metrics.jsonl", "row 1\nrow 2\n")
            other.push()
            before = files(other)
            write(sleeper, "metrics.jsonl", "row 1\nrow of the sleeper\n")
            with pytest.raises(ConflictError, match="another process has started to train in"):
                sleeper.push()
            with pytest.raises(ConflictError):
                sleeper.change(steps={8: "checkpoints/8/state.1-0"})
            assert files(other) == before and sleeper.lost is not None and other.lost is None
        ended = other.store.read(LEDGER)
    assert other.store.read(LEDGER) == ended, "the end of the sleeper leaves the ledger as it is"


@pytest.mark.usefixtures("beats")
def test_the_last_write_of_a_sleeper_is_written_over(at: Callable[[str], RunBucket]):
    """It wakes in the middle of a copy, before the other has written the same file."""
    sleeper, other = silent(at("sleeper")), silent(at("other"))
    with contextlib.ExitStack() as stack:
        stack.enter_context(sleeper.held())
        write(sleeper, "metrics.jsonl", "row 1\n")
        sleeper.push()
        version = sleeper._known["metrics.jsonl"][1]
        with other.held():
            sleeper.store.write("metrics.jsonl", b"row of the sleeper\n", version)
            write(other, "metrics.jsonl", "row 1\nrow 2\n")
            other.push()
            assert files(other)["metrics.jsonl"] == "row 1\nrow 2\n" and other.lost is None
        with contextlib.suppress(ConflictError):
            sleeper.change()


@pytest.mark.usefixtures("beats")
def test_files_are_copied_with_each_sign_of_life_and_at_the_end(at: Callable[[str], RunBucket]):
    here, there = at("here"), at("there")
    with here.held():
        write(here, "train.log", "a line\n")
        end = time.monotonic() + 10
        while "train.log" not in files(there) and time.monotonic() < end:
            time.sleep(0.02)
        assert files(there) == {"train.log": "a line\n"}
        write(here, "train.log", "a line\nthe last\n")
    assert files(there) == {"train.log": "a line\nthe last\n"}


@pytest.mark.usefixtures("beats")
def test_a_store_that_is_away_ends_no_training(at: Callable[[str], RunBucket], monkeypatch: pytest.MonkeyPatch):
    here = at("here")
    with here.held():
        write_there = here.store.write

        def fail(*arguments: object) -> bytes:
            raise StoreError("away")

        here.store.write = fail  # type: ignore[method-assign]
        time.sleep(0.3)
        here.store.write = write_there  # type: ignore[method-assign]
        write(here, "train.log", "a line\n")
    assert files(here) == {"train.log": "a line\n"} and here.lost is None


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside", "a//outside", ".hidden"])
def test_no_name_leads_out_of_the_working_copy(name: str, tmp_path: Path):
    assert not RunBucket("memory://x", tmp_path)._is_copied(name)


def test_a_sleeper_writes_no_manifest_of_a_checkpoint_that_another_has(at: Callable[[str], RunBucket]):
    sleeper, other = silent(at("sleeper")), silent(at("other"))
    sleeper._take()
    other.reload()
    other._version = other.store.read(LEDGER).version
    other.change(start=2)
    other.add_step(8, "checkpoints/8/state.2-0", "of the other", [])
    with pytest.raises(ConflictError):
        sleeper.add_step(8, "checkpoints/8/state.1-0", "of the sleeper", [])
    assert files(other)["checkpoints/8/meta/meta.json"] == "of the other" and list(other.reload().steps.values()) == [
        "checkpoints/8/state.2-0"
    ]


def test_a_mistake_before_the_first_file_leaves_nothing(at: Callable[[str], RunBucket]):
    bucket = at("here")
    with pytest.raises(ValueError, match="a mistake"), bucket.held():
        raise ValueError("a mistake")
    assert bucket.store.names() == []


def test_a_place_with_other_files_is_refused(at: Callable[[str], RunBucket]):
    bucket = at("here")
    bucket.store.write("data.txt", b"")
    with pytest.raises(ValueError, match=r"holds files, such as data.txt, but no .run.json"), bucket.held():
        pass
    assert bucket.store.names() == ["data.txt"]


def test_what_a_killed_save_left_is_deleted_by_the_next_start(at: Callable[[str], RunBucket]):
    bucket = at("here")
    of_a_dead_process(bucket)
    ledger = json.loads(bucket.store.read(LEDGER).content or b"")
    bucket.store.write(LEDGER, json.dumps(ledger | {"steps": {"4": "checkpoints/4/state.2-0"}}).encode())
    kept = ["checkpoints/4/meta/meta.json", "checkpoints/4/state.2-0/manifest.ocdbt", "checkpoints/4/state.2-0/p1/d/x"]
    torn = ["checkpoints/4/state.1-0/d/x", "checkpoints/8/meta/meta.json", "checkpoints/8/state.3-1/done.1"]
    for name in [*kept, *torn]:
        bucket.store.write(name, b"{}")
    with bucket.held():
        assert bucket.store.names("checkpoints/") == kept
        assert [path.name for path in (bucket.here / "checkpoints").iterdir()] == ["4"]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'{"holder": null, "newer": 1}', b'{"steps": {"x": ""}}', b'{"steps": 3}']
)
def test_a_garbled_ledger_is_refused(content: bytes):
    with pytest.raises(ValueError, match=r"gs://b/run/.run.json is garbled, or of a newer version"):
        read_ledger(content, "gs://b/run")


def test_where_runs_can_be_written(tmp_path: Path):
    assert bucket_to_train(tmp_path) is None and bucket_to_train("runs/x") is None
    with pytest.raises(ValueError, match=r"hf://owner/run cannot be written: choose a folder"):
        bucket_to_train("hf://owner/run")
    first, second = (bucket_to_train(f"file://{tmp_path}/run", process) for process in (0, 1))
    assert first is not None and second is not None and first.here != second.here


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "bucket"]


def test_a_store_is_the_place_of_a_bucket(url: str, tmp_path: Path):
    assert isinstance(RunBucket(url, tmp_path).store, Store) and RunBucket(url, tmp_path).reload().start == 0
