"""What Orbax writes. Oracle: Orbax's own reader, without anything of this package."""

import shutil
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

from flaxformer_lite.workdir.checkpoints import Checkpoints, Retention

RETENTION = Retention(keep_latest=3, keep_best=0, best_metric=None, best_mode="min")
STATE = {"layers": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3)}, "step": np.int32(7)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Checkpoints(tmp_path / "checkpoints", RETENTION) as checkpoints:
        checkpoints.save(7, STATE, {})
    return tmp_path / "checkpoints"


def test_orbax_reads_a_checkpoint_alone(folder: Path):
    found = ocp.PyTreeCheckpointer().restore(folder / "7" / "state")
    np.testing.assert_array_equal(found["layers"]["kernel"], STATE["layers"]["kernel"])
    assert found["step"] == 7


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
