"""Checkpoints in a bucket: the promises of those in a folder, and those that only a bucket has."""

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import orbax.checkpoint
import pytest
import tensorstore
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flaxformer_lite.base import stores
from flaxformer_lite.base.console import Failure
from flaxformer_lite.base.stores import Store, StoreError, Unreachable
from flaxformer_lite.workdir.arrays import read_tree
from flaxformer_lite.workdir.bucket import RunBucket
from flaxformer_lite.workdir.checkpoints import Checkpoints, Retention
from flaxformer_lite.workdir.managers import bucket as manager
from flaxformer_lite.workdir.managers.bucket import chunk_shape, writers_of
from tests.support.gcs import Storage, google_storage
from tests.support.paths import ROOT


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}://{tmp_path}/bucket/run"


def open_checkpoints(bucket: RunBucket, warn: Callable[[str], object] = print, **options: Any) -> Checkpoints:
    return Checkpoints(bucket.here / "checkpoints", Retention(2, 1, "loss", "min"), bucket=bucket, warn=warn, **options)


@pytest.fixture
def bucket(url: str, tmp_path: Path) -> Iterator[RunBucket]:
    """A bucket that this process holds."""
    held = RunBucket(url, tmp_path / "here")
    with held.held():
        yield held


def state_at(step: int) -> dict[str, Any]:
    return {"params": {"kernel": np.full((4, 3), step, np.float32)}, "step": np.int32(step)}


def abstract() -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state_at(0))


def reader_of(bucket: RunBucket, tmp_path: Path) -> RunBucket:
    reader = RunBucket(bucket.store.url, tmp_path / "reader")
    reader.pull()
    return reader


def step_in(found: tuple[int, Any, Any]) -> int:
    """Returns the step, which its numbers must be too."""
    step, state, _ = found
    np.testing.assert_array_equal(state["params"]["kernel"], state_at(step)["params"]["kernel"])
    return step


def test_the_newest_and_the_best_stay_and_a_reader_finds_them(bucket: RunBucket, tmp_path: Path):
    with open_checkpoints(bucket) as checkpoints:
        for step in 1, 2, 3, 4, 5:
            checkpoints.save(step, state_at(step), {"at": step}, {"loss": 1.0 if step == 2 else 2.0})
    assert sorted(bucket.ledger.steps) == [2, 4, 5]
    steps = {name.split("/")[1] for name in bucket.store.names("checkpoints/")}
    assert steps == {"2", "4", "5"} == {path.name for path in (bucket.here / "checkpoints").iterdir()}
    with open_checkpoints(reader_of(bucket, tmp_path), read_only=True) as checkpoints:
        assert checkpoints.steps() == [2, 4, 5] and checkpoints.best() == 2 and checkpoints.meta(4) == {"at": 4}
        assert step_in(checkpoints.restore(abstract())) == 5 and step_in(checkpoints.restore(abstract(), 2)) == 2


def test_metrics_of_an_evaluation_come_with_the_next_copy(bucket: RunBucket, tmp_path: Path):
    with open_checkpoints(bucket) as checkpoints:
        checkpoints.save(1, state_at(1), {})
        checkpoints.save(1, state_at(1), {}, {"loss": 0.5})
    bucket.push()
    with open_checkpoints(reader_of(bucket, tmp_path), read_only=True) as checkpoints:
        assert checkpoints.metrics(1) == {"loss": 0.5}


def test_steps_that_were_deleted_are_saved_anew_with_other_numbers(bucket: RunBucket):
    with open_checkpoints(bucket) as checkpoints:
        for step in 1, 2:
            checkpoints.save(step, state_at(9), {})
        checkpoints.delete_after(1)
        assert sorted(bucket.ledger.steps) == [1] and not bucket.store.names("checkpoints/2/")
        checkpoints.save(2, state_at(2), {})
        assert step_in(checkpoints.restore(abstract())) == 2


def test_orbax_opens_a_step(tmp_path: Path):
    """Oracle: Orbax's own readers."""
    with (
        (bucket := RunBucket(f"file://{tmp_path}/bucket", tmp_path / "here")).held(),
        open_checkpoints(bucket) as checkpoints,
    ):
        checkpoints.save(3, many_arrays(3), {})
        checkpoints.wait()
        place = tmp_path / "bucket" / bucket.ledger.steps[3]
    for reader in orbax.checkpoint.StandardCheckpointer(), orbax.checkpoint.PyTreeCheckpointer():
        jax.tree.map(np.testing.assert_array_equal, reader.restore(place), many_arrays(3))


def damage(store: Store, step: int) -> None:
    """Flips a bit of each object with arrays of a step."""
    for name in store.names(f"checkpoints/{step}/state"):
        content = bytearray(store.read(name).content or b"")
        content[len(content) // 2] ^= 1
        store.write(name, bytes(content))


def test_a_damaged_newest_step_is_passed_over_with_one_line(bucket: RunBucket, tmp_path: Path):
    said: list[str] = []
    with open_checkpoints(bucket) as checkpoints:
        for step in 1, 2:
            checkpoints.save(step, state_at(step), {})
    damage(bucket.store, 2)
    reader = reader_of(bucket, tmp_path)
    with open_checkpoints(reader, said.append, read_only=True) as checkpoints:
        assert step_in(checkpoints.restore(abstract())) == 1
        assert checkpoints.usable(lambda: checkpoints.latest_whole()) == 1
        with pytest.raises(ValueError, match=rf"checkpoint 2 in {bucket.store.url}/checkpoints is damaged: "):
            checkpoints.restore_params(abstract()["params"], 2)
    assert len(said) == 1 and said[0].endswith("using checkpoint 1 instead") and "\n" not in said[0]
    assert reader.why_damaged(1) is None and "DATA_LOSS" in str(reader.why_damaged(2))
    with open_checkpoints(bucket, said.append) as checkpoints:
        checkpoints.restore(abstract())
        checkpoints.save(2, state_at(2), {})  # the run goes on from step 1
        assert step_in(checkpoints.restore(abstract())) == 2


def test_an_average_passes_over_a_damaged_step(bucket: RunBucket, tmp_path: Path):
    with open_checkpoints(bucket) as checkpoints:
        for step, loss in (1, 0.0), (2, 1.0), (3, 1.0):
            checkpoints.save(step, state_at(step), {}, {"loss": loss})
    damage(bucket.store, 2)
    with open_checkpoints(reader_of(bucket, tmp_path), read_only=True) as checkpoints:
        step, mean = checkpoints.average(abstract()["params"], 2)
    assert step == 3 and np.unique(mean["kernel"]) == [2.0]


def test_a_reader_whose_step_is_deleted_meanwhile_reads_the_newest(bucket: RunBucket, tmp_path: Path):
    with open_checkpoints(bucket) as checkpoints:
        checkpoints.save(1, state_at(1), {})
        checkpoints.wait()
        with open_checkpoints(reader_of(bucket, tmp_path), read_only=True) as reader:
            for step in 2, 3, 4:
                checkpoints.save(step, state_at(step), {})
            checkpoints.wait()
            assert step_in(reader.restore(abstract())) == 4
            with pytest.raises(ValueError, match="step 1 is not in"):
                reader.restore(abstract(), 1)


def test_another_process_of_the_run_reads_a_step_that_was_saved_since_it_started(bucket: RunBucket, tmp_path: Path):
    other = reader_of(bucket, tmp_path)
    with open_checkpoints(bucket) as checkpoints:
        save_and_wait(checkpoints, 1)
    assert step_in((1, read_tree(other.arrays(1), abstract()), {})) == 1


def save_and_wait(checkpoints: Checkpoints, step: int) -> None:
    checkpoints.save(step, state_at(step), {})
    checkpoints._orbax.wait()


@pytest.mark.parametrize("place", ["write_shards", "add_step", "push", "after"])
def test_a_kill_inside_a_save_leaves_the_step_before(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
):
    """The process ends at that place: nothing that follows is done. The next start continues, and sweeps."""
    killed = RunBucket(url, tmp_path / "killed")
    killed._take()
    checkpoints = open_checkpoints(killed)
    checkpoints.save(1, state_at(1), {})
    checkpoints.wait()

    def end(*_: object, **__: object) -> Any:
        raise SystemExit

    with monkeypatch.context() as patch:
        if place == "write_shards":
            patch.setattr(manager, "write_shards", end)
        elif place == "after":
            patch.setattr(checkpoints._orbax, "_remove", end)
        else:
            patch.setattr(killed, place, end)
        with pytest.raises(SystemExit):
            save_and_wait(checkpoints, 2)
    newest = 2 if place == "after" else 1
    killed.change(holder=None)  # else the next one watches for a minute
    following = RunBucket(url, tmp_path / "following")
    with following.held(), open_checkpoints(following) as checkpoints:
        assert step_in(checkpoints.restore(abstract())) == newest
        listed = {name.split("/")[1] for name in following.store.names("checkpoints/")}
        assert listed == {str(step) for step in following.ledger.steps} and newest in following.ledger.steps
        checkpoints.save(newest + 1, state_at(newest + 1), {})
        assert step_in(checkpoints.restore(abstract())) == newest + 1


SAVES = """
import sys
from pathlib import Path
from flaxformer_lite.workdir.bucket import RunBucket
from tests.workdir.managers.test_bucket import abstract, open_checkpoints, state_at, step_in
bucket = RunBucket(sys.argv[1], Path(sys.argv[2]))
with bucket.held(), open_checkpoints(bucket) as checkpoints:
    step = 0 if checkpoints.latest() is None else step_in(checkpoints.restore(abstract()))
    while True:
        step += 1
        checkpoints.save(step, state_at(step), {"at": step})
"""


@pytest.mark.slow
@pytest.mark.rare
def test_a_kill_at_any_moment_leaves_whole_steps(tmp_path: Path):
    """Law: a process that saves without a pause is killed at ten drawn moments; what is listed is whole, and the next goes on."""
    bucket, random, newest = RunBucket(f"file://{tmp_path}/run", tmp_path / "here"), np.random.default_rng(70), 0
    for i in range(10):
        words = [sys.executable, "-c", SAVES, bucket.store.url, str(tmp_path / f"disk{i}")]
        process = subprocess.Popen(words, env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=ROOT)
        while max(bucket.reload().steps, default=0) < newest + 3:
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.1))
        process.kill()
        process.wait()
        reader = RunBucket(bucket.store.url, tmp_path / f"reader{i}")
        reader.pull()
        with open_checkpoints(reader, read_only=True) as checkpoints:
            for step in checkpoints.steps():
                assert step_in(checkpoints.restore(abstract(), step)) == step and checkpoints.meta(step) == {"at": step}
                assert reader.why_damaged(step) is None
            newest = checkpoints.steps()[-1]
    with bucket.held():
        listed = {name.split("/")[1] for name in bucket.store.names("checkpoints/")}
        assert listed == {str(step) for step in bucket.ledger.steps}


def test_who_has_lost_the_run_saves_nothing_and_stops(bucket: RunBucket, url: str, tmp_path: Path):
    with open_checkpoints(bucket) as checkpoints:
        checkpoints.save(1, state_at(1), {})
        checkpoints.wait()
        other = RunBucket(url, tmp_path / "other")
        other.reload()
        stored = other.store.read(".run.json")
        other.store.write(".run.json", (stored.content or b"").replace(b'"start": 1', b'"start": 2'))
        checkpoints.save(2, state_at(2), {})
        with pytest.raises(Failure, match=r"another process has started to train in .*: this one stops"):
            checkpoints.wait()
        assert list(other.reload().steps) == [1] and other.ledger.start == 2


def test_a_store_that_is_away_costs_a_checkpoint_and_a_line(bucket: RunBucket, monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    with open_checkpoints(bucket, said.append) as checkpoints:
        checkpoints.save(1, state_at(1), {})
        checkpoints.wait()
        with monkeypatch.context() as patch:
            patch.setattr(bucket, "push", lambda: (_ for _ in ()).throw(Unreachable("the bucket is away")))
            checkpoints.save(2, state_at(2), {})
            with pytest.raises(TimeoutError):
                checkpoints._orbax.wait()
            checkpoints._orbax.reload()
            checkpoints.save(2, state_at(2), {})
            checkpoints._orbax._saving.exception()
        checkpoints.save(3, state_at(3), {})
        checkpoints.wait()
        assert checkpoints.steps() == [1, 3] == sorted(bucket.ledger.steps)
    assert len(said) == 1 and said[0].endswith("the bucket is away: saving step 3 instead")


def test_a_store_that_refuses_ends_the_training(bucket: RunBucket, monkeypatch: pytest.MonkeyPatch):
    with open_checkpoints(bucket) as checkpoints:
        with monkeypatch.context() as patch:
            patch.setattr(bucket, "push", lambda: (_ for _ in ()).throw(StoreError("PERMISSION_DENIED")))
            checkpoints.save(1, state_at(1), {})
            checkpoints._orbax._saving.exception()
        with pytest.raises(OSError, match="PERMISSION_DENIED") as raised:
            checkpoints.wait()
        assert not isinstance(raised.value, TimeoutError)


# --- what it costs ---


class Counting:
    """TensorStore's values of a store, with the number of its requests; those of arrays are not among them."""

    def __init__(self, values: Any, number: Counter[str]) -> None:
        self._values, self._number = values, number

    def __getattr__(self, name: str) -> Any:
        self._number[name] += 1
        return getattr(self._values, name)


def test_a_save_asks_for_few_small_files(bucket: RunBucket):
    """Law: manifest, ledger, Orbax's description, and the files that have changed; a deleted step is a listing and its objects."""
    number = Counter[str]()
    bucket.store._values = Counting(bucket.store._values, number)  # type: ignore[assignment]
    with open_checkpoints(bucket) as checkpoints:
        checkpoints.save(1, state_at(1), {})
        checkpoints.wait()
        assert number == {"read": 1, "write": 3}
        number.clear()
        checkpoints.save(2, state_at(2), {})
        checkpoints.save(3, state_at(3), {})
        checkpoints.wait()
        objects = number["write"] - 6
        assert number == {"read": 2, "write": 6 + objects, "list": 1} and objects <= 10


def test_a_step_is_a_few_objects(bucket: RunBucket):
    """Law: not one for each array."""
    state = {f"kernel_{i}": np.full((300,), i, np.float32) for i in range(50)}
    with open_checkpoints(bucket) as checkpoints:
        checkpoints.save(1, state, {})
        checkpoints.wait()
        assert len(bucket.store.names("checkpoints/1/")) <= 10


@pytest.mark.parametrize(
    ("shard", "expected"),
    [
        ((), []),
        ((0, 3), [1, 3]),
        ((4096, 4096), [4096, 4096]),
        ((8192, 4096), [4096, 4096]),
        ((32003, 4096), [32003, 512]),
    ],
)
def test_chunks_have_at_most_64_mb_and_divide_a_shard(shard: tuple[int, ...], expected: list[int]):
    """By hand, for float32; 32,003 is a prime number."""
    assert chunk_shape(shard, 4) == expected


def test_chunks_of_drawn_shards():
    """Law."""
    random = np.random.default_rng(0)
    for _ in range(200):
        shard = tuple(map(int, random.integers(1, 5000, random.integers(1, 4))))
        chunk = chunk_shape(shard, 4)
        assert np.prod(chunk) * 4 <= manager.MAX_CHUNK_BYTES and all(
            n % c == 0 for n, c in zip(shard, chunk, strict=True)
        )


class Device:
    def __init__(self, process: int) -> None:
        self.process_index = process


def writers(shape: tuple[int, ...], places: dict[int, list[str]], load: Counter[int]) -> dict[str, int]:
    """The writers of an array of float32; `places`: the shards that each process has, one on each of its devices."""
    devices = {Device(process): index for process, indices in places.items() for index in indices}
    sharding = SimpleNamespace(
        devices_indices_map=lambda _: devices, shard_shape=lambda shape: shape, is_fully_addressable=False
    )
    return writers_of(sharding, shape, 4, load)


def test_each_shard_is_written_once_and_copies_are_shared_out():
    load = Counter[int]()
    assert writers((8, 4), {0: ["a", "b"], 1: ["c", "d"]}, load) == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert writers((8, 4), {0: ["a", "b"], 1: ["a", "b"]}, load) == {"a": 0, "b": 1}
    assert load[0] == load[1] == 3 * 8 * 4 * 4
    assert writers((8, 8), {0: ["a"], 1: ["a"]}, load) == {"a": 0}
    assert writers((8, 4), {0: ["a"], 1: ["a"]}, load) == {"a": 1}


def test_what_each_process_has_for_itself_the_first_one_writes():
    array = jax.device_put(np.zeros(3), jax.devices()[0])
    assert set(writers_of(array.sharding, array.shape, 8, Counter()).values()) == {0}


def test_the_other_processes_write_their_shards_and_say_so(bucket: RunBucket, monkeypatch: pytest.MonkeyPatch):
    """The first process waits for `done.1`; a reason in it fails the step at once."""
    with monkeypatch.context() as patch:
        patch.setattr(jax, "process_count", lambda: 2)
        patch.setattr(manager, "allgather_text", lambda text: [text, ""])
        patch.setattr(manager, "SHARDS_SECONDS", 10.0)
        checkpoints = open_checkpoints(bucket)
        checkpoints._orbax.save(1, state_at(1), {"a": 1})
        place = f"checkpoints/1/state.{bucket.ledger.start}-0"
        manager.write_shards(bucket.store, f"{place}/p1", [])
        threading.Timer(0.3, lambda: bucket.store.write(f"{place}/done.1", b"")).start()
        manager_of = checkpoints._orbax
        try:
            manager_of.wait()
        finally:
            names = bucket.store.names(f"{place}/")
        assert bucket.ledger.steps == {1: place}, names
        manager_of.save(2, state_at(2), {"a": 2})
        bucket.store.write(f"checkpoints/2/state.{bucket.ledger.start}-1/done.1", b"its disk is full")
        with pytest.raises(TimeoutError, match="a process could not write its shards of step 2: its disk is full"):
            manager_of.wait()
        manager_of.close()
    assert json.loads(bucket.store.read("checkpoints/1/meta/meta.json").content or b"") == {"a": 1}


# --- on a server ---


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """Google's storage on this machine; a request is repeated soon."""
    retries = {"max_retries": 6, "initial_delay": "20ms", "max_delay": "100ms"}
    context = tensorstore.Context({"gcs_request_retries": retries})
    monkeypatch.setattr(stores, "shared_context", lambda: context)
    with google_storage() as server:
        yield server


def many_arrays(step: int) -> dict[str, Any]:
    """Forty arrays in eight shards each."""
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("all",)), PartitionSpec("all"))
    return {
        "params": {f"kernel_{i}": jax.device_put(np.full((8, 40), step + i, np.float32), sharding) for i in range(40)}
    }


def test_a_save_and_a_load_are_few_requests(storage: Storage, tmp_path: Path):
    """Law: a save has a fixed number; a load has at most one for each array, not for each shard."""
    bucket = RunBucket("gs://bucket/run", tmp_path / "here")
    with bucket.held(), open_checkpoints(bucket) as checkpoints:
        for step in 1, 2:
            storage.counts.clear()
            checkpoints.save(step, many_arrays(step), {})
            checkpoints.wait()
            saved = storage.counts.copy()
            assert saved["PUT"] <= 7 and saved["GET"] <= 14 and not saved["LIST"] + saved["DELETE"], saved
    storage.counts.clear()
    reader = RunBucket("gs://bucket/run", tmp_path / "reader")
    reader.pull()
    with open_checkpoints(reader, read_only=True) as checkpoints:
        step, state, _ = checkpoints.restore(
            jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), many_arrays(0))
        )
    np.testing.assert_array_equal(state["params"]["kernel_39"], np.full((8, 40), step + 39, np.float32))
    loaded = storage.counts
    assert step == 2 and loaded["GET"] <= 14 + 40 and loaded["LIST"] == 1 and not loaded["PUT"], loaded


FAULTS: dict[str, Callable[[Storage], None]] = {
    "busy": lambda storage: setattr(storage, "busy", 3),
    "away": lambda storage: setattr(storage, "away_until", time.monotonic() + 0.2),
    "lost answers": lambda storage: setattr(storage, "lost_answers", 3),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_save_outlives_a_fault(storage: Storage, tmp_path: Path, fault: str):
    bucket = RunBucket("gs://bucket/run", tmp_path / "here")
    with bucket.held(), open_checkpoints(bucket) as checkpoints:
        for step in 1, 2:
            FAULTS[fault](storage)
            checkpoints.save(step, state_at(step), {})
            checkpoints.wait()
    assert (storage.counts["FAULT"] > 0 or fault == "lost answers") and storage.busy == storage.lost_answers == 0
    with open_checkpoints(reader_of(bucket, tmp_path), read_only=True) as checkpoints:
        assert checkpoints.steps() == [1, 2] and step_in(checkpoints.restore(abstract())) == 2


def test_a_storage_that_is_away_for_good_costs_checkpoints_not_the_run(storage: Storage, tmp_path: Path):
    said: list[str] = []
    bucket = RunBucket("gs://bucket/run", tmp_path / "here")
    with bucket.held(), open_checkpoints(bucket, said.append) as checkpoints:
        checkpoints.save(1, state_at(1), {})
        checkpoints.wait()
        storage.away_until = math.inf
        checkpoints.save(2, state_at(2), {})
        checkpoints._orbax._saving.exception()
        storage.away_until = 0
        checkpoints.save(3, state_at(3), {})
        assert step_in(checkpoints.restore(abstract())) == 3 and checkpoints.steps() == [1, 3]
    assert len(said) == 1 and said[0].endswith("saving step 3 instead") and len(said[0]) < 400
