"""Oracle: the calls of a fake profiler, worked by hand; once the files of the real one."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from flaxformer_lite.config.train import TrainConfig
from flaxformer_lite.training.profile import Profiler


def run(profiler: Profiler, start: int, stop: int, said: list[str]) -> None:
    """A loop of empty steps."""
    for step in range(start, stop):
        profiler.before(step)
        said.append(str(step + 1))
        profiler.after(step + 1, lambda: said.append("wait"))
    profiler.close()


@pytest.mark.parametrize(
    ("steps", "start", "stop", "expected"),
    [
        ("2:4", 0, 6, "1 2 start 3 4 wait end 5 6"),
        ("2:4", 3, 6, "start 4 wait end 5 6"),  # a run that continues from step 3
        ("2:4", 4, 6, "5 6"),
        ("2:9", 0, 4, "1 2 start 3 4 end"),  # a signal after step 4
        (None, 0, 2, "1 2"),
    ],
)
def test_exactly_those_steps_are_traced(steps, start, stop, expected: str, tmp_path, monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: said.append("start"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: said.append("end"))
    run(Profiler(steps, tmp_path), start, stop, said)
    assert " ".join(said) == expected


@pytest.mark.slow
def test_the_trace_is_where_xprof_looks_for_it(tmp_path: Path):
    profiler = Profiler("0:1", tmp_path)
    profiler.before(0)
    jax.block_until_ready(jnp.ones(3) + 1)
    assert profiler.after(1, lambda: None)
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))


@pytest.mark.parametrize("steps", ["100", "110:100", "1:1", "a:b", "-1:3"])
def test_what_is_no_range_of_steps_is_refused(steps: str):
    with pytest.raises(ValueError, match=r"train\.profile is .*: it must be two steps START:STOP"):
        TrainConfig(profile=steps)
