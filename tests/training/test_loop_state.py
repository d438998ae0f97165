"""Oracles: sums and early stopping by hand; trees with one number that is not finite, in any place."""

import dataclasses
import math

import jax.numpy as jnp
import pytest

from flaxformer_lite.config import TrainConfig
from flaxformer_lite.training import loop_state
from flaxformer_lite.training.loop_state import SPIKE_WINDOW, LoopState, all_finite


def test_the_mean_loss_is_over_tokens_and_starts_anew():
    state = LoopState("data")
    state.add_step(1, {"loss": 2.0, "tokens": 3.0, "gradient_norm": 1.0})
    state.add_step(2, {"loss": 4.0, "tokens": 1.0, "gradient_norm": 1.0})
    assert state.mean_loss() == (2 * 3 + 4 * 1) / 4
    assert dataclasses.asdict(state) == dataclasses.asdict(LoopState("data"))
    assert not (state.stopped_early or state.evaluations_since_best or state.skipped_in_a_row)


@pytest.mark.parametrize("name", ["loss", "gradient_norm"])
def test_a_number_that_is_not_finite_is_counted_and_kept_out_of_the_mean(name: str):
    usual = {"loss": 1.0, "tokens": 1.0, "gradient_norm": 1.0}
    state = LoopState("data")
    assert state.mean_loss() is None
    found = [
        state.add_step(step, usual | {name: value}) for step, value in ((7, 1.0), (8, float("nan")), (9, float("inf")))
    ]
    assert found == [True, False, False]
    assert (state.skipped_steps, state.skipped_in_a_row, state.mean_loss()) == ([8, 9], 2, 1.0)
    assert state.add_step(10, usual) and (state.skipped_steps, state.skipped_in_a_row) == ([8, 9], 0)


@pytest.mark.parametrize(("metric", "values"), [("loss", [3.0, 2.0, 2.0, 2.5]), ("accuracy", [1.0, 2.0, 2.0, 1.5])])
def test_patience_counts_evaluations_without_a_new_best(metric: str, values: list[float]):
    """An equal value is no new best."""
    state, train = LoopState("data"), TrainConfig(best_metric=metric, patience=2)
    assert [state.update_best({metric: value}, train) for value in values[:3]] == [True, True, False]
    assert (state.best, state.evaluations_since_best, state.stopped_early) == (2.0, 1, False)
    assert not state.update_best({metric: values[3]}, train)
    assert state.stopped_early


def test_an_equal_value_with_a_lower_loss_is_a_new_best():
    """A run goes on while its loss falls, though few rows of evaluation give the same accuracy again."""
    state, train = LoopState("data"), TrainConfig(best_metric="accuracy", patience=2)
    found = [state.update_best({"accuracy": 0.75, "loss": loss}, train) for loss in (0.9, 0.5, 0.5, 0.4, 0.6)]
    assert found == [True, True, False, True, False]
    assert (state.best, state.best_loss, state.evaluations_since_best, state.stopped_early) == (0.75, 0.4, 1, False)
    assert state.update_best({"accuracy": 0.76, "loss": 2.0}, train)


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_an_evaluation_of_nan_is_never_the_best(metric):
    state, train = LoopState("data"), TrainConfig(best_metric=metric, patience=3)
    assert [state.update_best({metric: value}, train) for value in (math.nan, 5.0, math.nan)] == [False, True, False]
    assert (state.best, state.evaluations_since_best, state.stopped_early) == (5.0, 1, False)


def test_a_step_reads_the_next_batch_that_is_not_left_out():
    """After step 4 two batches are left out, 4 and 5; after step 6 one, 8."""
    state = LoopState("data", rollbacks=[[4, 2], [6, 1]])
    assert [state.batch_of(step) for step in range(1, 9)] == [0, 1, 2, 3, 6, 7, 9, 10]


# Loss spikes, of 2 and 4 in turn: of mean 3 and deviation 1 -------------------------------------------------------------


def test_a_spike_is_six_deviations_above_the_steps_before():
    state = LoopState("data")
    usual = [1000.0, *[2.0, 4.0] * (SPIKE_WINDOW // 2)]
    assert [state.spike(loss) for loss in usual] == [None] * (SPIKE_WINDOW + 1)
    assert state.recent_losses == usual[1:]
    assert state.spike(9.1) == "9.1000, where the 100 steps before had 3.0000 ± 1.0000"
    assert state.spike(9.0) is None  # the last spike has made the deviation larger
    assert LoopState("data").spike(9.1) is None


def test_losses_that_are_nearly_equal_have_no_spike_below_a_hundredth():
    """Their deviation is 0, so six of them are nothing."""
    assert LoopState("data", recent_losses=[2.0] * SPIKE_WINDOW).spike(2.019) is None
    assert LoopState("data", recent_losses=[2.0] * SPIKE_WINDOW).spike(2.021) is not None


@pytest.mark.parametrize("number", [jnp.nan, jnp.inf, -jnp.inf])
def test_one_number_suffices(number: float, monkeypatch: pytest.MonkeyPatch):
    """As arrays of this host, and by the programs for arrays on other devices."""
    tree = {"whole": jnp.arange(3), "none": None, "half": jnp.ones((2, 5), jnp.bfloat16), "empty": jnp.zeros((0, 3))}
    assert all_finite(tree) and all_finite({"whole": jnp.arange(3)})
    broken = tree | {"half": tree["half"].at[1, 4].set(number)}
    assert not all_finite(broken)
    monkeypatch.setattr(loop_state, "on_own_cpus", lambda x: False)
    assert all_finite(tree) and not all_finite(broken)
