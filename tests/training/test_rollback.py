"""Oracle: steps judged by hand, without a model; test_loop.py trains with them."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from flaxformer_lite.base.console import Failure
from flaxformer_lite.training.loop_state import LoopState
from flaxformer_lite.training.rollback import RollBack, judge
from tests.support.experiments import tiny_config, with_train


def run_of(**train: Any) -> Any:
    checkpoints = Mock(steps=lambda: [4], newest_regular=lambda n, before: [4] if before > 4 else [])
    return SimpleNamespace(
        loop_state=LoopState(data=""),
        config=with_train(tiny_config(), **train),
        checkpoints=checkpoints,
        progress=Mock(),
    )


def measured(loss: float) -> dict[str, float]:
    return {"loss": loss, "gradient_norm": 1.0, "tokens": 9.0}


@pytest.mark.parametrize(("rollbacks", "end"), [(0, Failure), (1, RollBack)])
def test_skipped_steps_in_a_row_end_the_run_or_return_it(rollbacks: int, end: type[Exception]):
    """Two in a row are allowed; the third ends the run, or returns it to before the first of them."""
    run = run_of(max_skipped_steps=3, max_rollbacks=rollbacks)
    judge(run, 5, measured(1.0))
    for step in (6, 7):
        judge(run, step, measured(float("nan")))
    assert run.progress.warn.call_count == 2 and run.loop_state.skipped_steps == [6, 7]
    with pytest.raises(end) as caught:
        judge(run, 8, measured(float("nan")))
    if isinstance(caught.value, RollBack):
        assert (caught.value.first, caught.value.last) == (6, 8)
    else:
        assert "3 steps in a row" in str(caught.value) and "before step 6 are untouched" in str(caught.value)
