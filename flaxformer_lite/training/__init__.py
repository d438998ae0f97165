"""Training: `train` runs the experiment of a config in a run folder, on any number of devices and processes.

The core has one optimizer step as a pure function (`core/step.py`), compiled for the devices (`core/runners.py`). `loop.py` takes
one step after the other, evaluates (`evaluation.py`) and saves. Before the first step, `setup.py` reads the data (`data.py`) in
lengths that pay (`seconds.py`), makes the task (`task.py`) and restores the state, with the loop's own numbers (`loop_state.py`).
`ahead.py` makes batches in a thread. `rollback.py` is for steps that go wrong, `throughput.py` measures, `summary.py` has the first
and the last lines. `signals.py` stops the loop; `multihost/` is for several processes.

Everything beside the steps is a hook (`hooks.py`): `view.py`, `profile.py`, `trackers.py`, and the hooks of users.
"""

from flaxformer_lite.training.evaluation import mean_metrics
from flaxformer_lite.training.hooks import Hook, TrainingRun
from flaxformer_lite.training.loop import train
from flaxformer_lite.training.loop_state import LoopState
from flaxformer_lite.training.task import train_task

__all__ = [
    "Hook",
    "LoopState",
    "TrainingRun",
    "mean_metrics",
    "train",
    "train_task",
]
