"""Learning-rate schedules: frozen dataclasses that build the schedules of optax."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import jax.numpy as jnp
import optax
from annotated_types import Ge, Gt, Lt
from jax import Array
from jax.typing import ArrayLike

from flaxformer_lite.core.base.bounds import Checked, NonNegativeInt, PositiveFloat, PositiveInt, Share

PeakRate = Annotated[float, Gt(0), Lt(math.inf), "1e-3 is a usual peak for AdamW"]
WARMUP_UNIT = "the warm-up is counted in optimizer steps"
WarmUp = NonNegativeInt | Annotated[float, Ge(0), Lt(1)]
"""Steps, or a share of all steps."""

# In all formulas n = 1, 2, … is the step being made, p the step that has the peak rate, `warmup_steps` but at least 1, and
# T = `train.steps` the last one. Up to p the rate is peak_rate · n / p, so no step is ever lost to a rate of 0 at the
# start, and no warm-up starts at the peak. optax counts from 0: step n has the count n - 1.


@dataclass(frozen=True, kw_only=True)
class LearningRateSchedule(Checked, ABC, at="optimizer.schedule"):
    """The learning rate of every step.

    A new schedule is a frozen dataclass with a field `kind` (a `Literal` with its name), its settings, and the method `build`.
    Bounds of settings stand in their annotations. A schedule keeps no state: a continued run computes the same rates. To set
    it in a config file or on the command line, list it in `Schedule` at the bottom.
    """

    kind: str

    @abstractmethod
    def build(self, *, total_steps: int, d_model: int) -> optax.Schedule:
        """Returns a traceable function from the step's count, 0 for the first step, to its rate; `warm_up` makes most of them.

        `total_steps` is `train.steps`, `d_model` the width of the model.

        Raises: ValueError if the schedule does not fit into `total_steps`.
        """


def peak_step(warmup_steps: float, total_steps: int, decay_steps: int = 0) -> int:
    """Returns the last step of the warm-up, at least 1; of a share of all steps the nearest one.

    Raises: ValueError if warm-up and decay are longer than the run.
    """
    step = max(round(warmup_steps * total_steps) if isinstance(warmup_steps, float) else warmup_steps, 1)
    if step + decay_steps > total_steps:
        decay = f", optimizer.schedule.decay_steps is {decay_steps}" if decay_steps else ""
        most = total_steps - decay_steps
        remedy = f"set warmup_steps to at most {most}" if most > 0 else "lower decay_steps"
        raise ValueError(
            f"optimizer.schedule.warmup_steps is {warmup_steps}{decay} and train.steps is {total_steps}: the schedule must fit "
            f"into the run; {remedy}, or make the run longer"
        )
    return step


def from_step_one(rate: Callable[[Array], ArrayLike]) -> optax.Schedule:
    """Turns a rate as a function of the step n = 1, 2, … into a schedule of optax, whose count is n - 1."""
    return lambda count: rate(jnp.asarray(count) + 1)


# The straight lines are not optax.linear_schedule: in float32 its difference of nearly equal numbers puts the first
# steps of a warm-up off by 1e-4, and compiled it can end on a rate below 0.


def warm_up(peak_rate: float, peak_step: int, after: Callable[[Array], ArrayLike]) -> optax.Schedule:
    """Returns the schedule peak_rate · n / peak_step up to the peak, then `after(n - peak_step)`."""
    return from_step_one(optax.join_schedules([lambda n: peak_rate * n / peak_step, after], [peak_step]))


def linear_decay(peak_rate: float, final_rate: float, steps: int, end: int) -> Callable[[Array], Array]:
    """Returns the rate k steps after the peak: `peak_rate`, then a straight line of `steps` steps to `final_rate` at `end`."""
    return lambda k: final_rate + (peak_rate - final_rate) * jnp.clip((end - k) / steps, 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Noam(LearningRateSchedule):
    """The Transformer's own schedule: linear warm-up, then the inverse square root of the step.

    rate(n) = factor · d_model^-0.5 · min(n^-0.5, n · warmup_steps^-1.5), with its peak at n = warmup_steps.

    Reference: Vaswani et al. 2017, arXiv 1706.03762, section 5.3, equation 3.
    """

    kind: Literal["noam"] = "noam"
    factor: PositiveFloat = 1.0
    """Multiplies every rate; the paper's is 1."""
    warmup_steps: PositiveInt = 4000
    """The step with the highest rate, in optimizer steps; the paper's is 4,000."""

    def build(self, *, total_steps: int, d_model: int) -> optax.Schedule:
        scale = self.factor * d_model**-0.5
        slope = self.warmup_steps**-1.5
        return from_step_one(lambda n: scale * jnp.minimum(n**-0.5, n * slope))


@dataclass(frozen=True, kw_only=True)
class InverseSquareRoot(LearningRateSchedule):
    """Linear warm-up, then rate(n) = peak_rate · sqrt(warmup_steps / n): Noam's shape with a peak of one's choice.

    Reference: Vaswani et al. 2017, arXiv 1706.03762, section 5.3.
    """

    kind: Literal["inverse_square_root"] = "inverse_square_root"
    peak_rate: PeakRate
    """The highest rate, reached at step `warmup_steps`."""
    warmup_steps: Annotated[int, Ge(1), WARMUP_UNIT]
    """Steps of linear warm-up. A longer warm-up also makes the decay slower."""

    def build(self, *, total_steps: int, d_model: int) -> optax.Schedule:
        peak, p = self.peak_rate, self.warmup_steps
        return warm_up(peak, p, lambda k: peak * jnp.sqrt(p / (k + p)))


@dataclass(frozen=True, kw_only=True)
class Cosine(LearningRateSchedule):
    """Linear warm-up, then half a cosine wave down to the last step.

    rate(n) = final + (peak_rate - final) · (1 + cos(pi (n - p) / (T - p))) / 2, final = peak_rate · final_rate_fraction

    Raises: ValueError from `build` if the warm-up is longer than the run.
    Reference: Loshchilov & Hutter 2017, arXiv 1608.03983, equation 5, without restarts.
    """

    kind: Literal["cosine"] = "cosine"
    peak_rate: PeakRate
    """The highest rate, at the end of the warm-up."""
    warmup_steps: WarmUp = 0
    """Steps of linear warm-up; below 1 a share of all steps, such as 0.1."""
    final_rate_fraction: Share = 0.0
    """The rate of the last step as a fraction of the peak rate. At 0 the last step changes nothing."""

    def build(self, *, total_steps: int, d_model: int) -> optax.Schedule:
        peak = self.peak_rate
        p = peak_step(self.warmup_steps, total_steps)
        return warm_up(peak, p, optax.cosine_decay_schedule(peak, max(total_steps - p, 1), self.final_rate_fraction))


@dataclass(frozen=True, kw_only=True)
class Linear(LearningRateSchedule):
    """Linear warm-up, then linear down to the last step (BERT's schedule).

    rate(n) = final + (peak_rate - final) · (T - n) / (T - p), final = peak_rate · final_rate_fraction

    Raises: ValueError from `build` if the warm-up is longer than the run.
    Reference: Devlin et al. 2019, arXiv 1810.04805, appendix A.2.
    """

    kind: Literal["linear"] = "linear"
    peak_rate: PeakRate
    """The highest rate, at the end of the warm-up."""
    warmup_steps: WarmUp = 0
    """Steps of linear warm-up; below 1 a share of all steps, such as 0.1."""
    final_rate_fraction: Share = 0.0
    """The rate of the last step as a fraction of the peak rate. At 0 the last step changes nothing."""

    def build(self, *, total_steps: int, d_model: int) -> optax.Schedule:
        peak = self.peak_rate
        p = peak_step(self.warmup_steps, total_steps)
        steps = max(total_steps - p, 1)
        return warm_up(peak, p, linear_decay(peak, peak * self.final_rate_fraction, steps, end=steps))


@dataclass(frozen=True, kw_only=True)
class Constant(LearningRateSchedule):
    """Linear warm-up, then rate(n) = peak_rate until the end."""

    kind: Literal["constant"] = "constant"
    peak_rate: PeakRate
    """The rate after the warm-up."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up."""

    def build(self, *, total_steps: int, d_model: int) -> optax.Schedule:
        return warm_up(self.peak_rate, max(self.warmup_steps, 1), optax.constant_schedule(self.peak_rate))


@dataclass(frozen=True, kw_only=True)
class WarmupStableDecay(LearningRateSchedule):
    """Linear warm-up, the peak rate for most of the run, and a linear decay in its last `decay_steps` steps.

    rate(n) = final + (peak_rate - final) · min(1, (T - n) / decay_steps), final = peak_rate · final_rate_fraction

    A run can be made longer before its decay starts, with the same rates so far. The paper's decay is exponential; the linear
    one reaches a chosen final rate.

    Raises: ValueError from `build` if warm-up and decay together are longer than the run.
    Reference: Hu et al. 2024, arXiv 2404.06395, section 4.
    """

    kind: Literal["warmup_stable_decay"] = "warmup_stable_decay"
    peak_rate: PeakRate
    """The rate between warm-up and decay."""
    warmup_steps: Annotated[WarmUp, WARMUP_UNIT]
    """Steps of linear warm-up; below 1 a share of all steps, such as 0.1."""
    decay_steps: Annotated[int, Ge(1), "the schedule without decay is constant"]
    """Steps of linear decay, the last ones of the run."""
    final_rate_fraction: Share = 0.0
    """The rate of the last step as a fraction of the peak rate. At 0 the last step changes nothing."""

    def build(self, *, total_steps: int, d_model: int) -> optax.Schedule:
        peak = self.peak_rate
        p = peak_step(self.warmup_steps, total_steps, self.decay_steps)
        decay = linear_decay(peak, peak * self.final_rate_fraction, self.decay_steps, end=total_steps - p)
        return warm_up(peak, p, decay)


Schedule = Noam | InverseSquareRoot | Cosine | Linear | Constant | WarmupStableDecay
