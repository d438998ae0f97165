"""Optimizers and learning-rate schedules, by optax.

`schedules` gives the rate of a step, `optimizers` its direction; `OptimizerConfig` chains both with clipping and weight decay.
"""

from flaxformer_lite.core.optim.optimizers import SGD, Adafactor, AdamW, Lion, Muon, OptimizerAlgorithm, OptimizerConfig
from flaxformer_lite.core.optim.schedules import (
    Constant,
    Cosine,
    InverseSquareRoot,
    LearningRateSchedule,
    Linear,
    Noam,
    WarmupStableDecay,
)

__all__ = [
    "SGD",
    "Adafactor",
    "AdamW",
    "Constant",
    "Cosine",
    "InverseSquareRoot",
    "LearningRateSchedule",
    "Linear",
    "Lion",
    "Muon",
    "Noam",
    "OptimizerAlgorithm",
    "OptimizerConfig",
    "WarmupStableDecay",
]
