"""Oracles: each schedule's closed form in float64 numpy, and rates worked by hand."""

import functools
import typing
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flaxformer_lite.core.base.bounds import PositiveInt
from flaxformer_lite.core.optim.optimizers import SGD, OptimizerConfig
from flaxformer_lite.core.optim.schedules import (
    Constant,
    Cosine,
    InverseSquareRoot,
    LearningRateSchedule,
    Linear,
    Noam,
    PeakRate,
    Schedule,
    WarmupStableDecay,
    from_step_one,
    peak_step,
)

D, TOTAL_STEPS = 5, 23
STEP = np.arange(1, TOTAL_STEPS + 1, dtype=np.float64)

# Schedules: (settings, rate of step n by its formula, step of the peak, peak rate, final rate)

SCHEDULES = [
    (
        Noam(factor=0.5, warmup_steps=7),
        lambda n: 0.5 * 5**-0.5 * np.minimum(n**-0.5, n * 7**-1.5),
        7,
        0.5 / 35**0.5,
        0.5 / (5 * 23) ** 0.5,
    ),
    (
        InverseSquareRoot(peak_rate=0.3, warmup_steps=7),
        lambda n: np.where(n < 7, 0.3 * n / 7, 0.3 * np.sqrt(7 / n)),
        7,
        0.3,
        0.3 * (7 / 23) ** 0.5,
    ),
    (
        Cosine(peak_rate=0.3, warmup_steps=7, final_rate_fraction=0.1),
        lambda n: np.where(n < 7, 0.3 * n / 7, 0.03 + 0.27 * (1 + np.cos(np.pi * (n - 7) / 16)) / 2),
        7,
        0.3,
        0.03,
    ),
    (Cosine(peak_rate=0.3), lambda n: 0.3 * (1 + np.cos(np.pi * (n - 1) / 22)) / 2, 1, 0.3, 0.0),
    (
        Linear(peak_rate=0.3, warmup_steps=7, final_rate_fraction=0.1),
        lambda n: np.where(n < 7, 0.3 * n / 7, 0.03 + 0.27 * (23 - n) / 16),
        7,
        0.3,
        0.03,
    ),
    (Linear(peak_rate=0.3), lambda n: 0.3 * (23 - n) / 22, 1, 0.3, 0.0),
    (Constant(peak_rate=0.3, warmup_steps=7), lambda n: 0.3 * np.minimum(1, n / 7), 7, 0.3, 0.3),
    (Constant(peak_rate=0.3), lambda n: 0.3 * np.ones_like(n), 1, 0.3, 0.3),
    (
        WarmupStableDecay(peak_rate=0.3, warmup_steps=7, decay_steps=5, final_rate_fraction=0.1),
        lambda n: np.where(n < 7, 0.3 * n / 7, 0.03 + 0.27 * np.minimum(1, (23 - n) / 5)),
        7,
        0.3,
        0.03,
    ),
]


def test_every_schedule_is_tested():
    assert set(typing.get_args(Schedule)) == {type(case[0]) for case in SCHEDULES}
    inside = {one for one in LearningRateSchedule.__subclasses__() if one.__module__.startswith("flaxformer_lite")}
    assert set(typing.get_args(Schedule)) == inside


@pytest.mark.parametrize(
    ("schedule", "formula", "peak_step", "peak_rate", "final_rate"), SCHEDULES, ids=[case[0].kind for case in SCHEDULES]
)
def test_schedule_follows_its_formula(schedule, formula, peak_step, peak_rate, final_rate):
    rate = schedule.build(total_steps=TOTAL_STEPS, d_model=D)
    rates = np.asarray(jax.jit(jax.vmap(rate))(jnp.arange(TOTAL_STEPS)), np.float64)
    np.testing.assert_allclose(rates, formula(STEP), rtol=1e-6, atol=1e-6 * peak_rate)
    assert int(np.argmax(rates)) + 1 == peak_step
    np.testing.assert_allclose(rates[[peak_step - 1, -1]], [peak_rate, final_rate], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(rates[0], peak_rate / peak_step, rtol=1e-6)
    assert float(rate(4)) == pytest.approx(rates[4], rel=1e-6)


def test_rates_worked_by_hand():
    def rates(schedule, total_steps: int):
        rate = schedule.build(total_steps=total_steps, d_model=16)
        return pytest.approx([float(rate(count)) for count in range(total_steps)], rel=1e-6, abs=1e-9)

    # 16^-0.5 = 1/4 and 4^-1.5 = 1/8: the warm-up goes up by 1/32 a step, then (1/4) / sqrt(n).
    assert rates(Noam(warmup_steps=4), 5) == [0.03125, 0.0625, 0.09375, 0.125, 0.1118034]
    assert rates(InverseSquareRoot(peak_rate=0.5, warmup_steps=1), 4) == [0.5, 0.3535534, 0.2886751, 0.25]
    assert rates(Cosine(peak_rate=2.0, warmup_steps=2), 6) == [1.0, 2.0, 1.7071068, 1.0, 0.2928932, 0.0]
    assert rates(Linear(peak_rate=2.0, warmup_steps=2), 6) == [1.0, 2.0, 1.5, 1.0, 0.5, 0.0]
    assert rates(Constant(peak_rate=2.0, warmup_steps=4), 6) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    stable = WarmupStableDecay(peak_rate=2.0, warmup_steps=2, decay_steps=2)
    assert rates(stable, 6) == [1.0, 2.0, 2.0, 2.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("schedule", "formula"),
    [
        (Noam(factor=0.5), lambda n: 0.5 * 512**-0.5 * np.minimum(n**-0.5, n * 4000**-1.5)),
        (Constant(peak_rate=0.3, warmup_steps=4001), lambda n: 0.3 * np.minimum(1, n / 4001)),
    ],
    ids=["noam", "constant"],
)
def test_rates_of_first_and_late_steps_are_exact(schedule, formula):
    """To float32's precision relative to the rate itself, not to the peak."""
    count = np.array([0, 1, 2, 3998, 3999, 4000, 99_999, 2_999_999])
    rates = np.asarray(schedule.build(total_steps=1, d_model=512)(jnp.asarray(count)), np.float64)
    np.testing.assert_allclose(rates, formula(count + 1.0), rtol=1e-6)


@pytest.mark.parametrize("schedule", [Cosine(peak_rate=0.3), Linear(peak_rate=0.3), Constant(peak_rate=0.3)])
def test_a_run_of_one_step_makes_it_at_the_peak(schedule):
    assert float(schedule.build(total_steps=1, d_model=D)(0)) == pytest.approx(0.3)


@pytest.mark.parametrize(("share", "step"), [(0.1, 7), (0.05, 4), (0.0, 1), (1e-3, 1), (0.5, 35)])
def test_a_warm_up_below_one_is_a_share_of_all_steps(share: float, step: int):
    """Oracle: by hand, of 70 steps: the nearest one, at least the first."""
    for make in (Cosine, Linear, functools.partial(WarmupStableDecay, decay_steps=3)):
        rate = make(peak_rate=1.0, warmup_steps=share).build(total_steps=70, d_model=D)
        same = make(peak_rate=1.0, warmup_steps=step).build(total_steps=70, d_model=D)
        assert [float(rate(n)) for n in range(70)] == [float(same(n)) for n in range(70)]


# Mistakes


@pytest.mark.parametrize(
    ("schedule", "least_steps"),
    [
        (Cosine(peak_rate=1.0, warmup_steps=7), 7),
        (Linear(peak_rate=1.0, warmup_steps=7), 7),
        (WarmupStableDecay(peak_rate=1.0, warmup_steps=7, decay_steps=5), 12),
        (WarmupStableDecay(peak_rate=1.0, warmup_steps=0, decay_steps=5), 6),
    ],
    ids=["cosine", "linear", "warmup_stable_decay", "warmup_stable_decay without warm-up"],
)
def test_a_schedule_must_fit_into_the_run(schedule, least_steps):
    rate = schedule.build(total_steps=least_steps, d_model=D)
    assert float(rate(max(schedule.warmup_steps, 1) - 1)) == pytest.approx(1.0)
    pattern = f"optimizer.schedule.warmup_steps is {schedule.warmup_steps}.* train.steps is {least_steps - 1}: "
    with pytest.raises(ValueError, match=pattern):
        schedule.build(total_steps=least_steps - 1, d_model=D)


# A schedule from outside the package


@dataclass(frozen=True, kw_only=True)
class Triangles(LearningRateSchedule):
    """A cyclical rate: up in a straight line and down again, in `half_cycle` steps each.

    Reference: Smith 2017, arXiv 1506.01186, section 3.1.
    """

    kind: Literal["triangles"] = "triangles"
    peak_rate: PeakRate
    half_cycle: PositiveInt = 4

    def build(self, *, total_steps: int, d_model: int) -> optax.Schedule:
        peak_step(1, total_steps, self.half_cycle)
        half = self.half_cycle
        return from_step_one(lambda n: self.peak_rate * (1 - jnp.abs((n / half) % 2 - 1)))


@dataclass(frozen=True, kw_only=True)
class ExtendedOptimizer(OptimizerConfig):
    """The settings of the optimizer with the new name in the union of schedules."""

    schedule: Schedule | Triangles


def test_a_schedule_from_outside_the_package_trains() -> None:
    """Laws: its rates are those of its formula, its settings are checked as ours are, and weights move by them."""
    optimizer = ExtendedOptimizer(algorithm=SGD(), schedule=Triangles(peak_rate=0.2), clip_norm=None)
    rate = optimizer.rate(total_steps=12, d_model=D)
    assert [float(rate(count)) for count in range(9)] == pytest.approx(
        [0.05, 0.1, 0.15, 0.2, 0.15, 0.1, 0.05, 0.0, 0.05], abs=1e-7
    )
    with pytest.raises(ValueError, match=r"^optimizer\.schedule\.half_cycle is 0: it must be at least 1"):
        Triangles(peak_rate=0.1, half_cycle=0)
    with pytest.raises(ValueError, match=r"decay_steps is 4 and train\.steps is 4"):
        optimizer.build(total_steps=4, d_model=D)
    params, optimizer = {"kernel": jnp.full((D, 3), 0.1)}, optimizer.build(total_steps=12, d_model=D)
    step = jax.jit(lambda params, state: optimizer.update(jax.tree.map(lambda x: 2 * x, params), state, params))
    state = optimizer.init(params)
    for count in range(12):  # the gradient of the sum of squares is 2 x
        shrunk, (updates, state) = params["kernel"] * (1 - 2 * rate(count)), step(params, state)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(params["kernel"], shrunk, rtol=1e-5)
    assert float(params["kernel"].max()) < 0.05
