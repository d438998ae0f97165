"""Training: `train` runs the experiment of a config in a run folder, on any number of devices and processes.

`step.py` is one optimizer step as a pure function; `runners.py` compiles it for the devices; `loop.py` takes one step after the
other, evaluates (`evaluation.py`) and saves. Before the first step, `setup.py` reads the data (`data.py`) and restores the state,
with the loop's own numbers (`loop_state.py`). `rollback.py` is for steps that go wrong, `throughput.py` measures, `summary.py` has
the first and the last lines. `signals.py` stops the loop; `multihost/` is for several processes.

What else happens beside the steps are hooks (`hooks.py`): `view.py`, `profile.py`, `trackers.py`, and those of users.
"""

from flaxformer_lite.training.evaluation import mean_metrics
from flaxformer_lite.training.hooks import Hook, TrainingRun
from flaxformer_lite.training.loop import train
from flaxformer_lite.training.loop_state import LoopState
from flaxformer_lite.training.runners import MeshRunner, PmapRunner, Runner, abstract_state, make_runner
from flaxformer_lite.training.step import TrainState, TrainTask, eval_step, train_step
from flaxformer_lite.training.task import train_task

__all__ = [
    "Hook",
    "LoopState",
    "MeshRunner",
    "PmapRunner",
    "Runner",
    "TrainState",
    "TrainTask",
    "TrainingRun",
    "abstract_state",
    "eval_step",
    "make_runner",
    "mean_metrics",
    "train",
    "train_step",
    "train_task",
]
