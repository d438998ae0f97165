"""What Orbax writes, by both of its interfaces. Oracle: Orbax's own readers, without anything of this package."""

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

from flaxformer_lite.workdir import managers
from flaxformer_lite.workdir.checkpoints import Checkpoints, Retention
from flaxformer_lite.workdir.manifest import why_damaged
from tests.support import needs
from tests.support.paths import ROOT

RETENTION = Retention(keep_latest=3, keep_best=0, best_metric=None, best_mode="min")
STATE = {"layers": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3)}, "step": np.int32(7)}
APIS = ["v0", pytest.param("v1", marks=needs.orbax_v1)]
make_manager = managers.make_manager


def use(monkeypatch: pytest.MonkeyPatch, api: str) -> None:
    monkeypatch.setattr(managers, "make_manager", partial(make_manager, api=api))


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    use(monkeypatch, request.param)
    return request.param


@pytest.fixture
def folder(tmp_path: Path, api: str) -> Path:
    with Checkpoints(tmp_path / "checkpoints", RETENTION) as checkpoints:
        checkpoints.save(7, STATE, {})
    return tmp_path / "checkpoints"


def assert_is_the_state(found: Any) -> None:
    np.testing.assert_array_equal(found["layers"]["kernel"], STATE["layers"]["kernel"])
    assert found["step"] == 7


def test_orbax_reads_a_checkpoint_alone(folder: Path):
    assert_is_the_state(ocp.PyTreeCheckpointer().restore(folder / "7" / "state"))


@needs.orbax_v1
def test_orbax_reads_a_checkpoint_alone_by_its_interface_v1(folder: Path):
    assert_is_the_state(ocp.v1.load(folder / "7", checkpointable_name="state"))


def test_a_path_with_two_dots_is_read(folder: Path):
    with Checkpoints(folder / ".." / folder.name, RETENTION, read_only=True) as checkpoints:
        step, state, _ = checkpoints.restore(STATE)
    assert step == 7
    np.testing.assert_array_equal(state["layers"]["kernel"], STATE["layers"]["kernel"])


def test_what_a_killed_process_left_is_deleted_by_the_next_writer(folder: Path):
    half = folder / "8.orbax-checkpoint-tmp"
    shutil.copytree(folder / "7", half)
    with Checkpoints(folder, RETENTION, read_only=True) as checkpoints:
        assert checkpoints.steps() == [7]
    assert half.exists(), "a reader deletes nothing"
    with Checkpoints(folder, RETENTION) as checkpoints:
        assert checkpoints.steps() == [7]
    assert [path.name for path in folder.iterdir()] == ["7"]


@needs.orbax_v1
@pytest.mark.parametrize(("first", "second"), [("v0", "v1"), ("v1", "v0")])
def test_one_interface_continues_what_the_other_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str
):
    """Four saves in turns, of which three stay; then each reads all of them."""
    for step, api in zip((1, 2, 3, 4), (first, second, first, second), strict=True):
        use(monkeypatch, api)
        with Checkpoints(tmp_path, RETENTION) as checkpoints:
            checkpoints.save(step, STATE | {"step": np.int32(step)}, {"by": api})
    for api in (first, second):
        use(monkeypatch, api)
        with Checkpoints(tmp_path, RETENTION) as checkpoints:
            assert checkpoints.steps() == [2, 3, 4]
            for step, by in ((2, second), (3, first), (4, second)):
                _, state, meta = checkpoints.restore(STATE, step)
                assert (int(state["step"]), meta, why_damaged(tmp_path, step)) == (step, {"by": by}, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3", "4"]


def test_the_steps_of_an_open_folder_are_those_on_the_disk(tmp_path: Path, api: str):
    """Law: after each save that drops an older step, and after a deletion."""
    with Checkpoints(tmp_path, RETENTION) as checkpoints:
        for step in range(1, 6):
            checkpoints.save(step, STATE, {})
            checkpoints.wait()
            assert checkpoints.steps() == [*range(max(1, step - 2), step + 1)]
        checkpoints.delete_after(4)
        assert checkpoints.steps() == [3, 4] == sorted(int(path.name) for path in tmp_path.iterdir())


def test_the_interface_v0_is_used_where_it_is_there(tmp_path: Path):
    manager = make_manager(tmp_path, None)
    assert type(manager).__name__ == "V0Manager"
    manager.close()


AS_IN_ORBAX_1 = """
import sys
import orbax.checkpoint.experimental.v1 as v1
import orbax
sys.modules["orbax.checkpoint"] = orbax.checkpoint = v1
from pathlib import Path
import numpy as np
from flaxformer_lite.workdir.checkpoints import Checkpoints, Retention
state = {"kernel": np.arange(6, dtype=np.float32)}
with Checkpoints(Path(sys.argv[1]), Retention(1, 0, None, "min")) as checkpoints:
    for step in (1, 2):
        checkpoints.save(step, state, {})
    assert type(checkpoints._orbax).__name__ == "V1Manager"
    np.testing.assert_array_equal(checkpoints.restore(state)[1]["kernel"], state["kernel"])
    assert checkpoints.steps() == [2]
"""


@needs.orbax_v1
@pytest.mark.slow
def test_the_interface_v1_is_used_where_it_is_all_there_is(tmp_path: Path):
    """As in Orbax 1, whose top level is v1."""
    command = [sys.executable, "-c", AS_IN_ORBAX_1, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
