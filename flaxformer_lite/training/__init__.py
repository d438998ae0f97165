"""Training: `train` runs the experiment of a config in a run folder, on any number of devices and processes.

`step.py` is one optimizer step as a pure function; `runners.py` compiles it for the devices; `loop.py` takes one step after the
other, evaluates (`evaluation.py`) and saves. Before the first step, `setup.py` reads the data (`data.py`) and restores the state,
with the loop's own numbers (`loop_state.py`). `throughput.py` measures speed and memory, with operations by
formula (`flops.py`). `signals.py` stops the loop; `multihost/` is for several processes.
"""

from flaxformer_lite.training.evaluation import mean_metrics
from flaxformer_lite.training.loop import train
from flaxformer_lite.training.loop_state import LoopState
from flaxformer_lite.training.runners import MeshRunner, PmapRunner, Runner, abstract_state, make_runner
from flaxformer_lite.training.step import TrainState, TrainTask, eval_step, train_step

__all__ = [
    "LoopState",
    "MeshRunner",
    "PmapRunner",
    "Runner",
    "TrainState",
    "TrainTask",
    "abstract_state",
    "eval_step",
    "make_runner",
    "mean_metrics",
    "train",
    "train_step",
]
