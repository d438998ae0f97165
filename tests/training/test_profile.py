"""Oracle: the calls of a fake profiler, worked by hand; once the files of the real one."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import pytest

from flaxformer_lite.config.train import TrainConfig
from flaxformer_lite.training.hooks import TrainingRun
from flaxformer_lite.training.profile import Profile


def run_in(folder: Path) -> Any:
    return Mock(spec=TrainingRun, folder=Mock(path=folder), progress=Mock(), state=None, step=0)


@pytest.mark.parametrize(
    ("steps", "start", "stop", "expected"),
    [
        ("2:4", 0, 6, "1 2 start 3 4 wait end 5 6"),
        ("2:4", 3, 6, "start 4 wait end 5 6"),  # a run that continues from step 3
        ("2:4", 4, 6, "5 6"),
        ("2:9", 0, 4, "1 2 start 3 4 end"),  # a signal after step 4
    ],
)
def test_exactly_those_steps_are_traced(steps, start, stop, expected: str, tmp_path, monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: said.append("start"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: said.append("end"))
    monkeypatch.setattr(jax, "block_until_ready", lambda state: said.append("wait"))
    profile, run = Profile(steps), run_in(tmp_path)
    for step in range(start + 1, stop + 1):
        profile.before_step(run, step)
        said.append(str(step))
    profile.on_end(run)
    assert " ".join(said) == expected


@pytest.mark.slow
def test_the_trace_is_where_xprof_looks_for_it(tmp_path: Path):
    profile, run = Profile("0:1"), run_in(tmp_path)
    profile.before_step(run, 1)
    run.state = jnp.ones(3) + 1
    profile.before_step(run, 2)
    assert list(tmp_path.glob("profile/plugins/profile/*/*.xplane.pb"))


@pytest.mark.parametrize("steps", ["100", "110:100", "1:1", "a:b", "-1:3"])
def test_what_is_no_range_of_steps_is_refused(steps: str):
    with pytest.raises(ValueError, match=r"train\.profile is .*: it must be two steps START:STOP"):
        TrainConfig(profile=steps)
