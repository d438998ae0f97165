"""Steps that go wrong: an update whose numbers are not finite is skipped, a loss spike is reported; a run may return from both.

`judge` looks at each step, `roll_back` returns the run to a checkpoint. Both decide how a run resumes, so they are not hooks.
"""

import dataclasses
from collections.abc import Mapping

from flaxformer_lite.base.console import Failure
from flaxformer_lite.core.runners import Runner
from flaxformer_lite.training.hooks import TrainingRun
from flaxformer_lite.training.loop_state import LoopState


class RollBack(Exception):
    """The steps from `first` to `last` went wrong: the run returns to the checkpoint before them and leaves out their batches."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last


def judge(run: TrainingRun, step: int, measured: Mapping[str, float]) -> None:
    """Adds a step to the loop's numbers, and reports it if it was skipped or its loss is a spike.

    Raises: RollBack if the run returns to a checkpoint; Failure after `train.max_skipped_steps` skipped steps if it cannot.
    """
    state = run.loop_state
    batch = run.loop_state.batch_of(step)
    if state.add_step(step, measured):
        spike = state.spike(measured["loss"])
        if spike:
            run.progress.say(f"step {step:>6}  a loss spike on batch {batch}: {spike}")
            if can_roll_back(run, step):
                raise RollBack(step, step)
        return
    numbers = f"the loss is {measured['loss']} and the gradient's norm {measured['gradient_norm']} at step {step}"
    if state.skipped_in_a_row < run.config.train.max_skipped_steps:
        count = len(state.skipped_steps)
        run.progress.warn(f"{numbers}: its update was skipped (batch {batch}; {count} skipped so far)")
        return
    first = step - state.skipped_in_a_row + 1
    message = f"{numbers}, the last of {state.skipped_in_a_row} steps in a row without an update"
    if can_roll_back(run, first):
        run.progress.warn(message)
        raise RollBack(first, step)
    raise Failure(
        f"{message}: lower optimizer.schedule.peak_rate or lengthen its warm-up; {kept_before(run, first)}. The same command "
        f"with --debug-step {step} finds the first NaN"
    )


def kept_before(run: TrainingRun, step: int) -> str:
    """Returns the end of a message on steps that went wrong from `step` on."""
    return f"the checkpoints before step {step} are untouched" if run.checkpoints.steps() else "none was saved before"


def can_roll_back(run: TrainingRun, first: int) -> bool:
    """Returns whether a rollback is left, and there is a checkpoint from before step `first`."""
    left = len(run.loop_state.rollbacks) < run.config.train.max_rollbacks
    return left and len(run.checkpoints.newest_regular(1, before=first)) > 0


def roll_back(run: TrainingRun, wrong: RollBack, runner: Runner) -> None:
    """Returns the run to the checkpoint before the wrong steps, and writes into it which batches are left out from now on.

    A run that is killed in between repeats the wrong steps, and then this.

    Raises: Failure if another process trains in the folder.
    """
    run.folder.check_lock()
    checkpoints = run.checkpoints
    (start,) = checkpoints.newest_regular(1, before=wrong.first)  # others depend on the time when the run was stopped
    checkpoints.delete_after(start)
    _, run.state, meta = checkpoints.restore(runner.abstract_state, start)
    run.step, run.loop_state = start, LoopState(**meta)
    first, last = run.loop_state.batch_of(start + 1), run.loop_state.batch_of(wrong.last)
    run.loop_state.rollbacks.append([start, wrong.last - start])
    checkpoints.save(start, run.state, dataclasses.asdict(run.loop_state))
    run.folder.truncate_metrics(start, evaluated=checkpoints.metrics(start) is not None)
    run.progress.say(
        f"step {wrong.last:>6}  returned to the checkpoint of step {start}; batches {first} to {last} are left out "
        f"(rollback {len(run.loop_state.rollbacks)} of {run.config.train.max_rollbacks})"
    )
