"""Oracles: a state that is a pure function of its step, compared byte by byte; hand-worked lists of what is kept; real
processes that are killed; files damaged on purpose; a float64 mean."""

import dataclasses
import importlib
import itertools
import logging
import os
import random
import resource
import shutil
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest.mock import Mock

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from flaxformer_lite.base.console import Quiet
from flaxformer_lite.workdir import checkpoints as checkpoint_module
from flaxformer_lite.workdir import managers
from flaxformer_lite.workdir.checkpoints import Checkpoints, Retention
from flaxformer_lite.workdir.manifest import read_document, why_damaged
from tests.support import needs
from tests.support.limits import assert_close
from tests.support.paths import ROOT

API = "FLAXFORMER_LITE_TEST_ORBAX"
"""Names the environment variable with Orbax's interface, for the processes that a test starts."""
if API in os.environ:
    managers.make_manager = partial(managers.make_manager, api=os.environ[API])


@pytest.fixture(params=["v0", pytest.param("v1", marks=[pytest.mark.slow, needs.orbax_v1])], autouse=True)
def api(request, monkeypatch) -> str:
    """Orbax's interface that writes: both keep all promises of this file."""
    monkeypatch.setenv(API, request.param)
    monkeypatch.setattr(managers, "make_manager", partial(managers.make_manager, api=request.param))
    return request.param


def at_the_end_of_a_save(monkeypatch, api: str, function) -> None:
    """Calls the function with the folder of the state once its files are complete, and before the checkpoint has its name."""
    module = f"flaxformer_lite.workdir.managers.{api}"
    write_digests = importlib.import_module(module).write_digests
    monkeypatch.setattr(f"{module}.write_digests", lambda folder: (function(folder), write_digests(folder)))


def is_saving(checkpoints: Checkpoints, api: str) -> bool:
    manager = checkpoints._orbax
    return manager._orbax.is_saving_in_progress() if api == "v0" else not manager._saving.done()


def open_checkpoints(
    folder: Path,
    keep_latest: int = 3,
    keep_best: int = 2,
    best_metric: str | None = "loss",
    best_mode: Literal["min", "max"] = "min",
    **options: Any,
) -> Checkpoints:
    return Checkpoints(folder, Retention(keep_latest, keep_best, best_metric, best_mode), **options)


@flax.struct.dataclass
class State:
    step: jax.Array
    params: Any
    opt_state: Any
    ema: Any


def state_at(step: int, rows: int = 2, ema: bool = True) -> State:
    """Every number a function of the step and of where it stands; float32, bfloat16 and int32, scalars and NaN."""
    params = {
        "layers": {"kernel": jnp.zeros((rows, 5)), "norm": {"scale": jnp.zeros((3,), jnp.bfloat16)}},
        "out": {"bias": jnp.zeros((7,))},
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.1))
    state = State(step=jnp.int32(0), params=params, opt_state=optimizer.init(params), ema=params if ema else None)
    leaves, structure = jax.tree.flatten(state)
    filled = []
    for i, leaf in enumerate(leaves):
        values = 1000 * np.random.default_rng((step, i)).standard_normal(leaf.shape)
        filled.append(jnp.asarray(values.astype(leaf.dtype)))
    state = jax.tree.unflatten(structure, filled)
    return state.replace(params={**state.params, "out": {"bias": state.params["out"]["bias"].at[1].set(jnp.nan)}})


def abstract(tree: Any, sharding: Any = None) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding or x.sharding), tree)


def assert_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert isinstance(x, jax.Array)
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def on_disk(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir())


# --- saving and restoring ---


@pytest.mark.parametrize("ema", [True, False])
def test_a_state_comes_back_bit_by_bit_in_its_own_types(tmp_path, ema):
    with open_checkpoints(tmp_path / "run" / "checkpoints") as checkpoints:
        meta = {"patience": 3, "best": 0.1, "text": "größer", "nothing": None, "shape": (2, 3)}
        checkpoints.save(11, state_at(11, ema=ema), meta)
        step, state, meta = checkpoints.restore(abstract(state_at(0, ema=ema)))
    assert step == 11
    assert_same(state, state_at(11, ema=ema))
    assert isinstance(state, State)
    assert isinstance(state.opt_state[1][0], optax.ScaleByAdamState)
    assert meta == {"patience": 3, "best": 0.1, "text": "größer", "nothing": None, "shape": [2, 3]}


def test_a_state_comes_back_on_other_devices(tmp_path):
    """Law: a state over eight devices comes back bit by bit, also onto one device."""
    mesh = Mesh(np.array(jax.devices()), ("all",))
    state = state_at(1, rows=8)
    sharding = jax.tree.map(lambda x: NamedSharding(mesh, PartitionSpec(*["all"] * (x.shape == (8, 5)))), state)
    with open_checkpoints(tmp_path / "run") as checkpoints:
        checkpoints.save(1, jax.device_put(state, sharding), {"n": 1}, {"loss": 2.0})
        checkpoints.wait()
        checkpoints.save(1, jax.device_put(state, sharding), {"n": 2}, {"loss": 3.0})
        step, found, meta = checkpoints.restore(jax.tree.map(abstract, state, sharding))
    assert (step, meta) == (1, {"n": 2}) and found.params["layers"]["kernel"].sharding.spec == PartitionSpec("all")
    assert_same(found, state)
    with open_checkpoints(tmp_path / "run", read_only=True) as checkpoints:
        assert_same(checkpoints.restore(abstract(state))[1], state)
        assert checkpoints.metrics(1) == {"loss": 3.0}


def test_the_newest_is_restored_unless_a_step_is_named(tmp_path):
    with open_checkpoints(tmp_path) as checkpoints:
        for step in (5, 7, 11):
            checkpoints.save(step, state_at(step), {"at": step})
        assert checkpoints.latest() == 11
        assert checkpoints.restore(state_at(0))[0] == 11
        step, state, meta = checkpoints.restore(state_at(0), 7)
        assert (step, meta) == (7, {"at": 7})
        assert_same(state, state_at(7))
        assert checkpoints.meta(5) == {"at": 5}
        for ask in (
            lambda: checkpoints.restore(state_at(0), 6),
            lambda: checkpoints.meta(6),
            lambda: checkpoints.metrics(6),
        ):
            with pytest.raises(ValueError, match=rf"^step 6 is not in {tmp_path}: the steps there are 5, 7, 11$"):
                ask()


@pytest.mark.parametrize("read_only", [True, False])
def test_an_empty_folder_has_nothing(tmp_path, read_only):
    with open_checkpoints(tmp_path / "none", read_only=read_only) as checkpoints:
        assert (checkpoints.steps(), checkpoints.latest(), checkpoints.best()) == ([], None, None)
        with pytest.raises(
            ValueError, match=rf"^no checkpoint to restore in {tmp_path}/none: it has none; train the run first$"
        ):
            checkpoints.restore(state_at(0))
        with pytest.raises(ValueError, match=r"the steps there are none$"):
            checkpoints.restore(state_at(0), 1)
    assert (tmp_path / "none").exists() != read_only


def test_the_caller_may_donate_the_state_and_change_meta_at_once(tmp_path):
    @partial(jax.jit, donate_argnums=0)
    def overwrite(state):
        return jax.tree.map(lambda x: x * 0 + 17, state)

    big = {"kernel": jnp.zeros((1009, 499))}
    with open_checkpoints(tmp_path, keep_latest=9) as checkpoints:
        for step in range(1, 8):
            state, meta = jax.tree.map(lambda x, step=step: x + step, big), {"at": step}
            checkpoints.save(step, state, meta)
            meta["at"] = 17
            for _ in range(3):
                state = overwrite(state)
        for step in range(1, 8):
            _, state, meta = checkpoints.restore(big, step)
            assert meta == {"at": step}
            assert np.all(np.asarray(state["kernel"]) == step)


def test_a_tree_that_does_not_fit_is_an_error_that_names_the_leaf_and_no_damage(tmp_path):
    wider = dataclasses.replace(state_at(0), params={**state_at(0).params, "out": {"bias": jnp.zeros((13,))}})
    other_type = dataclasses.replace(state_at(0), step=jnp.float32(0))
    fewer = dataclasses.replace(state_at(0), ema=None)
    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state_at(1), {})
        for wanted, message in [
            (wider, "params/out/bias is float32[7], wanted float32[13]"),
            (other_type, "step is int32[], wanted float32[]"),
            (fewer, "ema/layers/kernel is float32[2,5], wanted absent"),
        ]:
            with pytest.raises(ValueError) as error:
                checkpoints.restore(wanted)
            assert str(error.value).startswith(f"checkpoint 1 in {tmp_path} has another tree: {message}")
        assert checkpoints.steps() == [1]


def test_parameters_or_their_average_alone(tmp_path):
    params = abstract(state_at(0).params)
    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(5, state_at(5), {})
        checkpoints.save(7, state_at(7, ema=False), {})
        assert_same(checkpoints.restore_params(params, 5), state_at(5).params)
        assert_same(checkpoints.restore_params(params, 5, field="ema"), state_at(5).ema)
        with pytest.raises(ValueError, match="ema/layers/kernel is absent"):
            checkpoints.restore_params(params, 7, field="ema")


def test_the_average_is_the_mean_of_the_newest(tmp_path):
    states = {step: state_at(step) for step in (2, 3, 5, 7)}
    with open_checkpoints(tmp_path, keep_latest=4) as checkpoints:
        for step, state in states.items():
            checkpoints.save(step, state, {})
        newest, average = checkpoints.average(abstract(states[2].params), 3)
        assert newest == 7
        message = rf"^cannot average 5 checkpoints of {tmp_path}: the run has 4 whole checkpoints \(steps 2, 3, 5, 7\), without"
        with pytest.raises(ValueError, match=message):
            checkpoints.average(abstract(states[2].params), 5)
    for path, found in jax.tree_util.tree_leaves_with_path(average):
        leaves = [dict(jax.tree_util.tree_leaves_with_path(states[step].params))[path] for step in (3, 5, 7)]
        mean = np.mean([np.asarray(leaf, np.float64) for leaf in leaves], axis=0)
        assert found.dtype == leaves[0].dtype
        if found.dtype == jnp.bfloat16:  # rounded once, at the end
            assert np.array_equal(np.asarray(found), mean.astype(found.dtype))
        else:
            assert_close(found, mean, 1e-6)


# --- what is kept ---


@pytest.mark.parametrize(
    ("mode", "kept", "best"),
    [
        ("min", [[1], [1, 2], [2, 3], [2, 3, 4], [3, 4, 5], [3, 5, 6], [3, 5, 6, 7]], 3),
        ("max", [[1], [1, 2], [2, 3], [2, 3, 4], [2, 4, 5], [2, 5, 6], [2, 5, 6, 7]], 2),
    ],
)
def test_the_newest_two_and_the_best_two_stay(tmp_path, mode, kept, best):
    losses = [None, 5.0, 3.0, None, 4.0, None, None]  # of steps 1 to 7
    open_two = partial(open_checkpoints, tmp_path, keep_latest=2, best_mode=mode)
    checkpoints = open_two()
    for step, (loss, expected) in enumerate(zip(losses, kept, strict=True), start=1):
        checkpoints.save(step, state_at(step), {}, None if loss is None else {"loss": loss, "other": 1.0})
        assert checkpoints.steps() == expected
        if step in (3, 5):  # a new process knows the metrics of the old one
            checkpoints.close()
            assert on_disk(tmp_path) == expected
            checkpoints = open_two()
    assert checkpoints.best() == best
    assert checkpoints.metrics(best) == {"loss": losses[best - 1], "other": 1.0}
    assert checkpoints.metrics(6) is None
    checkpoints.close()
    assert on_disk(tmp_path) == kept[-1]


def test_a_checkpoint_of_a_stop_counts_nowhere_and_stays_until_the_next_is_complete(tmp_path, monkeypatch, api):
    """Oracle: worked by hand for the newest two and the best one; 3, 5 and 6 are of stops."""
    saves = [
        (1, 5.0, [1]), (2, None, [1, 2]), (3, None, [1, 2, 3]), (4, 6.0, [1, 2, 4]),
        (5, None, [1, 2, 4, 5]), (6, None, [1, 2, 4, 6]), (7, None, [1, 4, 7]),
    ]  # fmt: skip
    there_while_saving = []
    at_the_end_of_a_save(monkeypatch, api, lambda _: there_while_saving.append((tmp_path / "3").exists()))
    for step, loss, expected in saves:  # each by a new process
        with open_checkpoints(tmp_path, keep_latest=2, keep_best=1) as checkpoints:
            metrics = None if loss is None else {"loss": loss}
            checkpoints.save(step, state_at(step), {}, metrics, regular=step not in (3, 5, 6))
            assert checkpoints.is_regular(step) == (step not in (3, 5, 6))
            checkpoints.wait()
            assert (on_disk(tmp_path), checkpoints.best()) == (expected, 1)
            assert checkpoints.restore(state_at(0))[0] == step
    assert there_while_saving == [False, False, False, True, False, False, False]


def test_a_process_has_listed_its_files_before_the_first_one_ends_the_save(tmp_path, monkeypatch, api):
    """Oracle: the folder while Orbax finishes it; all its files, and no list, are in the end result. By v1 there are no lists."""
    found: list[Path] = []
    at_the_end_of_a_save(monkeypatch, api, lambda folder: found.extend(folder.glob("digests*")))
    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state_at(1), {})
    assert [path.name for path in found] == (["digests.json.ocdbt.process_0"] if api == "v0" else [])
    state = tmp_path / "1" / "state"
    files = {path.relative_to(state).as_posix() for path in state.rglob("*") if path.is_file()}
    last = {"digests.json"} | ({"commit_success.txt"} if api == "v0" else set())  # Orbax's last word
    assert files == {*read_document(state / "digests.json")} | last
    assert any(name.startswith("ocdbt.process_0/") for name in files)


def test_an_average_leaves_checkpoints_of_stops_out(tmp_path):
    with open_checkpoints(tmp_path) as checkpoints:
        for step in (2, 3, 5):
            checkpoints.save(step, state_at(step), {}, regular=step != 5)
    with open_checkpoints(tmp_path, read_only=True) as checkpoints:
        newest, average = checkpoints.average(state_at(0).params, 2)
        message = (
            r"the run has 2 whole checkpoints \(steps 2, 3\), without one that was saved because it was stopped; "
            r"average at most 2, or use weights last$"
        )
        with pytest.raises(ValueError, match=message):
            checkpoints.average(state_at(0).params, 3)
    kernels = [np.asarray(state_at(step).params["layers"]["kernel"], np.float64) for step in (2, 3)]
    assert_close(average["layers"]["kernel"], np.mean(kernels, axis=0), 1e-6)
    assert newest == 3


def test_a_checkpoint_can_become_regular_and_stays_so(tmp_path):
    for regular, expected in ((False, False), (False, False), (True, True), (False, True)):
        with open_checkpoints(tmp_path) as checkpoints:
            if checkpoints.latest() is not None:
                checkpoints.restore(state_at(0))
            checkpoints.save(1, state_at(1), {}, regular=regular)
            assert checkpoints.is_regular(1) == expected
        with open_checkpoints(tmp_path, read_only=True) as checkpoints:
            assert checkpoints.is_regular(1) == expected


def test_a_checkpoint_without_metrics_is_never_the_best(tmp_path):
    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state_at(1), {})
        assert (checkpoints.latest(), checkpoints.best()) == (1, None)
        checkpoints.save(2, state_at(2), {}, {"loss": float("nan")})
        assert checkpoints.best() is None
        checkpoints.save(3, state_at(3), {}, {"loss": float("inf")})
        assert checkpoints.best() == 3
        checkpoints.save(4, state_at(4), {}, {"loss": 2.0})
        checkpoints.save(5, state_at(5), {}, {"loss": 2.0})
        assert checkpoints.best() == 5, "of equals the latest"
    with open_checkpoints(tmp_path, keep_best=0, best_metric=None) as checkpoints:
        assert checkpoints.best() is None


def test_of_equal_scores_the_lower_loss_is_the_best_then_the_later_step(tmp_path):
    """Few rows of evaluation give ties."""
    with open_checkpoints(tmp_path, keep_latest=1, keep_best=1, best_metric="accuracy", best_mode="max") as checkpoints:
        losses = (0.9, 0.5, 0.7, 0.5, float("nan"), None)
        for (step, loss), best in zip(enumerate(losses, 1), (1, 2, 2, 4, 4, 4), strict=True):
            metrics = {"accuracy": 0.75} | ({} if loss is None else {"loss": loss})
            checkpoints.save(step, state_at(step), {}, metrics)
            assert checkpoints.best() == best
        checkpoints.wait()
        assert on_disk(tmp_path) == [4, 6]
        checkpoints.save(7, state_at(7), {}, {"accuracy": 0.76, "loss": 3.0})
        assert checkpoints.best() == 7


# --- saving a step again ---


def test_metrics_can_be_added_to_a_checkpoint_by_the_process_that_restored_it(tmp_path):
    with open_checkpoints(tmp_path, keep_best=1) as checkpoints:
        for step in (1, 2, 3, 4):
            checkpoints.save(step, state_at(step), {"patience": step}, {"loss": 9.0} if step == 1 else None)
        assert checkpoints.steps() == [1, 2, 3, 4]
    with open_checkpoints(tmp_path, keep_best=1) as checkpoints:
        _, state, meta = checkpoints.restore(state_at(0))
        assert meta == {"patience": 4}
        checkpoints.save(4, state, {"patience": 0}, {"loss": 2.0})
        assert checkpoints.best() == 4
        assert on_disk(tmp_path) == checkpoints.steps() == [2, 3, 4], "1 is the best no longer"
        checkpoints.save(4, state, {"patience": 1})
        assert checkpoints.metrics(4) == {"loss": 2.0}, "metrics are not lost by saving without"
        with pytest.raises(ValueError, match=rf"^checkpoint 3 is in {tmp_path} already"):
            checkpoints.save(3, state_at(3), {})
    with open_checkpoints(tmp_path, read_only=True) as checkpoints:
        step, state, meta = checkpoints.restore(state_at(0))
        assert (step, meta, checkpoints.metrics(4)) == (4, {"patience": 1}, {"loss": 2.0})
        assert_same(state, state_at(4))


def test_replacing_metrics_leaves_no_moment_without_a_whole_checkpoint(tmp_path):
    seen, stop = set(), threading.Event()

    def watch():
        while not stop.is_set():
            seen.add(read_document(tmp_path / "1" / "meta" / "meta.json")["meta"]["count"])

    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state_at(1), {"count": 0})
        checkpoints.wait()
        watcher = threading.Thread(target=lambda: (watch(), seen.add("end")))
        watcher.start()
        for count in range(60):
            checkpoints.save(1, state_at(1), {"count": count, "long": "x" * 9999}, {"loss": 1.0})
        stop.set()
        watcher.join()
    assert "end" in seen, "the watcher met a checkpoint that was not whole"
    assert len(seen) > 2


# --- damage ---

HARMS = {
    "removed": lambda path: path.unlink(),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "garbled": lambda path: path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size)),
    "flipped": lambda path: path.write_bytes((data := path.read_bytes())[:-3] + bytes([data[-3] ^ 4]) + data[-2:]),
}
FILES = [
    "state/ocdbt.process_0/d/*",
    "state/d/*",
    "state/manifest.ocdbt",
    "state/_METADATA",
    "state/digests.json",
    "meta/meta.json",
]


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    with open_checkpoints(folder) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, state_at(step), {"at": step}, {"loss": 1 / step})
    return folder


@pytest.fixture
def folder(good, tmp_path):
    return Path(shutil.copytree(good, tmp_path / "checkpoints"))


def largest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_checkpoint_is_passed_over_with_one_line(folder, file, harm, capfd):
    HARMS[harm](path := largest(folder / "3", file))
    said = []
    with open_checkpoints(folder, warn=said.append) as checkpoints:
        step, state, meta = checkpoints.restore(abstract(state_at(0)))
        with pytest.raises(ValueError, match=rf"^checkpoint 3 in {folder} is damaged: .*{path.name}"):
            checkpoints.restore(state_at(0), 3)
    assert (step, meta) == (2, {"at": 2})
    assert_same(state, state_at(2))
    (line,) = said
    assert line.startswith(f"checkpoint 3 in {folder} is damaged (")
    assert path.name in line
    assert line.endswith("); using checkpoint 2 instead")
    assert capfd.readouterr() == ("", "")


def test_files_are_compared_with_their_digests_once_and_damage_is_told_once(folder, monkeypatch):
    """As a run does that first asks whether there is anything to do, and then restores."""
    HARMS["flipped"](largest(folder / "3", FILES[0]))
    looked, said = [], []
    monkeypatch.setattr(checkpoint_module, "why_damaged", lambda *place: looked.append(place[1]) or why_damaged(*place))
    with open_checkpoints(folder, warn=said.append) as checkpoints:
        assert checkpoints.latest_whole() == checkpoints.restore(state_at(0))[0] == 2
    assert looked.count(2) == len(said) == 1


def test_the_newest_whole_of_several_is_used_for_everything(folder):
    HARMS["flipped"](largest(folder / "3", FILES[0]))
    HARMS["truncated"](largest(folder / "2", FILES[-1]))
    params, said = state_at(0).params, []
    with open_checkpoints(folder, warn=said.append) as checkpoints:
        assert checkpoints.best() == 3, "nobody has looked yet"
        assert checkpoints.restore(state_at(0))[0] == 1
        assert [line.split(" is damaged")[0] for line in said] == [f"checkpoint {step} in {folder}" for step in (3, 2)]
        assert (checkpoints.steps(), checkpoints.latest(), checkpoints.best()) == ([1], 1, 1)
        assert_same(checkpoints.average(params, 1)[1], state_at(1).params)
        with pytest.raises(
            ValueError, match=rf"^cannot average 2 checkpoints of {folder}: .* 1 whole checkpoint \(step 1\), .*; use"
        ):
            checkpoints.average(params, 2)
        with pytest.raises(ValueError, match=r"^checkpoint 3 in .* is damaged"):
            checkpoints.restore_params(params, 3)
        with pytest.raises(ValueError, match=r"^checkpoint 2 in .* is damaged: meta\.json is garbled$"):
            checkpoints.meta(2)


def test_an_average_passes_over_a_damaged_checkpoint_with_one_line(folder):
    HARMS["flipped"](largest(folder / "3", FILES[0]))
    said = []
    with open_checkpoints(folder, warn=said.append) as checkpoints:
        newest, average = checkpoints.average(state_at(0).params, 2)
    assert newest == 2
    assert len(said) == 1
    kernels = [np.asarray(state_at(step).params["layers"]["kernel"], np.float64) for step in (1, 2)]
    assert_close(average["layers"]["kernel"], np.mean(kernels, axis=0), 1e-6)


def test_a_rejected_checkpoint_is_not_used_though_its_files_are_whole(folder):
    with open_checkpoints(folder) as checkpoints:
        checkpoints.set_damaged(3, "it has a NaN")
        assert checkpoints.latest_whole() == 2
        with pytest.raises(ValueError, match=r"^checkpoint 3 in .* is damaged: it has a NaN$"):
            checkpoints.restore_params(state_at(0).params, 3)


def test_if_all_are_damaged_the_error_names_the_folder_and_each(folder):
    for step in (1, 2, 3):
        HARMS["flipped"](largest(folder / str(step), FILES[0]))
    with open_checkpoints(folder) as checkpoints, pytest.raises(ValueError) as error:
        checkpoints.restore(state_at(0))
    assert str(error.value).startswith(f"no checkpoint to restore in {folder}: 1 is damaged (")
    assert "; 3 is damaged (" in str(error.value)


def test_training_on_after_a_damaged_checkpoint_gets_rid_of_it(folder):
    HARMS["removed"](largest(folder / "3", FILES[0]))
    with open_checkpoints(folder, keep_latest=2, keep_best=0, warn=lambda line: None) as checkpoints:
        assert checkpoints.restore(state_at(0))[0] == 2
        checkpoints.save(3, state_at(3), {"again": True})
        checkpoints.wait()
        assert on_disk(folder) == [2, 3]
        step, state, meta = checkpoints.restore(state_at(0))
        assert (step, meta) == (3, {"again": True})
        assert_same(state, state_at(3))
    HARMS["removed"](largest(folder / "3", FILES[0]))
    shutil.move(folder / "3", folder / "30")
    with open_checkpoints(folder, keep_latest=2, keep_best=0, warn=lambda line: None) as checkpoints:
        assert checkpoints.restore(state_at(0))[0] == 2
        checkpoints.save(7, state_at(7), {})  # Orbax alone would skip it without a word, being before 30
    assert on_disk(folder) == [2, 7]


def test_a_save_that_fails_is_an_error_of_one_line_and_the_next_one_works(tmp_path):
    with open_checkpoints(tmp_path / "checkpoints", keep_latest=1, keep_best=0) as checkpoints:
        checkpoints.save(1, state_at(1), {})
        checkpoints.wait()
        (tmp_path / "checkpoints").rename(tmp_path / "away")
        (tmp_path / "checkpoints").write_text("a file")
        with pytest.raises(OSError, match="Not a directory"):
            checkpoints.save(2, state_at(2), {})
        (tmp_path / "checkpoints").unlink()
        (tmp_path / "away").rename(tmp_path / "checkpoints")
        checkpoints.save(3, state_at(3), {})
    assert on_disk(tmp_path / "checkpoints") == [3]


@pytest.mark.parametrize(("days", "steps"), [(10, [1, 2]), (100_000, [2])])
def test_a_clock_that_jumps_ends_no_run(tmp_path, monkeypatch, api, days: int, steps: list[int]):
    """As after a sleep of the machine, at each look at the clock: days cost nothing, centuries one checkpoint, with a line."""
    warned: list[str] = []
    clock, looks = time.time, itertools.count()
    with open_checkpoints(tmp_path, warn=warned.append) as checkpoints:
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: clock() + days * 86_400 * next(looks))
            checkpoints.save(1, state_at(1), {})
            while is_saving(checkpoints, api):
                time.sleep(0.01)
        checkpoints.save(2, state_at(2), {})
        checkpoints.wait()
        assert checkpoints.steps() == steps
    assert [line.endswith("saving step 2 instead") for line in warned] == [True] * (2 - len(steps))


def test_a_folder_that_vanished_is_one_reason_whatever_part_of_the_save_met_it(tmp_path, monkeypatch):
    """Also where the save has made a part of the folder anew. TensorStore's words stay where the folder is there."""
    folder, state = tmp_path / "checkpoints", {"kernel": np.zeros(3, np.float32)}
    with open_checkpoints(folder) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, state, {})
        checkpoints.wait()
        with monkeypatch.context() as patch:
            fail = Mock(side_effect=ValueError("NOT_FOUND: Error reading"))
            patch.setattr(checkpoints._orbax, "wait", fail)
            with pytest.raises(OSError, match=r"failed: NOT_FOUND: Error reading$"):
                checkpoints.wait()
            folder.rename(tmp_path / "elsewhere")
            (folder / "3.orbax-checkpoint-tmp").mkdir(parents=True)
            with pytest.raises(OSError, match="failed: No such file or directory: the folder was moved"):
                checkpoints.wait()
        shutil.rmtree(folder)
        (tmp_path / "elsewhere").rename(folder)


def test_a_full_disk_is_an_error_of_the_next_call_and_the_next_save_works(tmp_path, caplog):
    # One array: of several, those still being written when the first fails make Python complain from other threads.
    state = {"kernel": state_at(1, rows=997).params["layers"]["kernel"]}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_checkpoints(tmp_path, keep_latest=1, keep_best=0) as checkpoints:
        checkpoints.save(1, state, {})
        checkpoints.wait()
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))  # no file may grow larger: almost a full disk
            checkpoints.save(2, state, {})
            with pytest.raises(OSError, match=rf"^saving a checkpoint in {tmp_path} failed: .*File too large"):
                checkpoints.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert checkpoints.steps() == [1]
        assert_same(checkpoints.restore(state)[1], state)
        checkpoints.save(2, state, {})
    assert on_disk(tmp_path) == [2]
    assert [record.getMessage() for record in caplog.records if record.name in ("absl", "asyncio")] == []


# --- other processes ---


def child(code: str, *arguments: Any, devices: int = 1) -> subprocess.Popen[str]:
    """A new interpreter that runs `code` with everything of this file at hand."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    command = [sys.executable, "-c", f"from tests.workdir.test_checkpoints import *\n{code}", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def sharded_over_two(tree: Any) -> Any:
    """The shardings of a tree over both devices: what has two rows is split, the rest replicated."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    return jax.tree.map(lambda x: NamedSharding(mesh, PartitionSpec(*(["data"] if x.shape[:1] == (2,) else []))), tree)


ON_TWO_DEVICES = """
import warnings
logging.basicConfig(level=logging.INFO, force=True)
logging.getLogger("jax").setLevel(logging.WARNING)
warnings.simplefilter("error")
folder, shardings = Path(sys.argv[1]), sharded_over_two(state_at(0))
assert len(jax.devices()) == 2
with open_checkpoints(folder) as checkpoints:
    target = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state_at(0), shardings)
    step, state, meta = checkpoints.restore(target)
    assert step == 5
    assert_same(state, state_at(5))
    assert jax.tree.map(lambda x: x.sharding, state) == shardings
    assert len({shard.data.shape for shard in state.params["layers"]["kernel"].addressable_shards}) == 1
    assert state.params["layers"]["kernel"].addressable_shards[0].data.shape == (1, 5)
    checkpoints.save(6, jax.device_put(state_at(6), shardings), {})
    assert_same(checkpoints.average(target.params, 1)[1], state_at(6).params)
"""


@pytest.mark.slow
def test_any_number_of_devices_reads_what_any_other_has_written_and_orbax_is_silent(tmp_path):
    one = SingleDeviceSharding(jax.devices()[0])
    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(5, jax.device_put(state_at(5), one), {})
    process = child(ON_TWO_DEVICES, tmp_path, devices=2)
    output = process.communicate(timeout=300)
    assert (process.returncode, *output) == (0, "", "")
    with open_checkpoints(tmp_path) as checkpoints:
        step, state, _ = checkpoints.restore(abstract(state_at(0), one))
        assert step == 6
        assert_same(state, state_at(6))
        assert all(leaf.sharding == one for leaf in jax.tree.leaves(state))


SAVE_FOREVER = """
import itertools
import logging
with open_checkpoints(Path(sys.argv[1]), keep_latest=2, keep_best=1) as checkpoints:
    for step in itertools.count((checkpoints.latest() or 0) + 1):
        checkpoints.save(step, state_at(step, rows=20011), {"at": step}, {"loss": -step} if step % 3 else None)
        checkpoints.wait()
        print(step, flush=True)
"""


def kill_at_random_times(folder: Path, times: int) -> None:
    generator = random.Random(0)
    for _ in range(times):
        process = child(SAVE_FOREVER, folder)
        assert process.stdout is not None
        first = process.stdout.readline()
        threading.Event().wait(generator.uniform(0, 0.5))
        process.kill()
        output, errors = process.communicate()
        assert errors == ""
        saved = [int(line) for line in (first + output).split()]
        with open_checkpoints(folder, read_only=True, warn=pytest.fail) as checkpoints:
            step, state, meta = checkpoints.restore(state_at(0, rows=20011))
            assert step in (saved[-1], saved[-1] + 1), "lost what was saved"
            assert_same(state, state_at(step, rows=20011))
            assert meta == {"at": step}
            assert checkpoints.best() is not None


@pytest.mark.slow
def test_killed_while_saving_the_newest_is_whole(tmp_path):
    kill_at_random_times(tmp_path, 1)


@pytest.mark.slow
def test_killed_while_saving_many_times_the_newest_is_whole(tmp_path):
    kill_at_random_times(tmp_path, 15)


def test_steps_that_were_deleted_are_saved_anew(tmp_path):
    """A run that returns to step 1 saves step 2 again, with other numbers."""
    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state_at(1), {"n": 1})
        checkpoints.save(2, state_at(2), {"n": 2})
        checkpoints.delete_after(1)
        assert checkpoints.steps() == [1]
        checkpoints.save(2, state_at(7), {"n": 3})
        step, state, meta = checkpoints.restore(state_at(0))
        assert (step, meta) == (2, {"n": 3})
        assert_same(state, state_at(7))


def test_a_damaged_step_that_was_deleted_is_whole_once_it_is_saved_anew(tmp_path):
    """A run that returns to a step passes over damaged ones and those of stops."""
    with open_checkpoints(tmp_path, warn=[].append) as checkpoints:
        for step in (1, 2, 3, 4):
            checkpoints.save(step, state_at(step), {}, regular=step != 4)
        checkpoints.wait()
        next((tmp_path / "3").rglob("meta.json")).write_text("{")
        assert [checkpoints.newest_regular(1, before) for before in (5, 4, 3, 2, 1)] == [[2], [2], [2], [1], []]
        checkpoints.delete_after(2)
        checkpoints.save(3, state_at(3), {})
        assert checkpoints.steps() == [1, 2, 3] and checkpoints.newest_regular(1) == [3]


@pytest.mark.parametrize(
    ("path", "level", "raised_in", "passes"),
    [
        ("/packages/orbax/checkpoint/a.py", logging.WARNING, None, False),
        ("/packages/orbax/checkpoint/a.py", logging.ERROR, None, True),
        ("/packages/orbax/checkpoint/a.py", logging.ERROR, "/packages/a.py", False),
        ("/python/asyncio/base_events.py", logging.ERROR, "/packages/orbax/checkpoint/a.py", False),
        ("/python/asyncio/base_events.py", logging.ERROR, "/packages/a.py", True),
        ("/packages/jax/a.py", logging.INFO, None, True),
    ],
)
def test_only_errors_of_orbax_pass_that_nobody_raises(path: str, level: int, raised_in: str | None, passes: bool):
    failure = None
    if raised_in is not None:
        try:
            exec(compile("1 / 0", raised_in, "exec"))
        except ZeroDivisionError as error:
            failure = (ZeroDivisionError, error, error.__traceback__)
    record = logging.LogRecord("absl", level, path, 1, "failed: %s", ("x" * 5000,), failure)
    assert Quiet("orbax").filter(record) == passes
    assert len(record.getMessage()) == (300 if "orbax" in f"{path}{raised_in}" else 5008)
