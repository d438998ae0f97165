"""The seconds of compiling and of computing by a table, from which `data.bucket_lengths` "auto" are chosen.

No clock is read: the same config and rows must have the same lengths in each start, on all hosts.
"""

import jax

from flaxformer_lite.config import Config
from flaxformer_lite.core.data.padded_lengths import Cost
from flaxformer_lite.core.model import ModelConfig

COMPILING = {"cpu": 4.0, "gpu": 30.0, "tpu": 30.0}
"""Seconds in which a train step and an evaluation step of one stack of scanned layers are compiled for one more length."""
UNROLLED = 0.2
"""The share that each further layer adds to the length of a program, where layers are unrolled."""
OPERATIONS_PER_SECOND = {"cpu": 7e10, "gpu": 3e13, "tpu": 5e13}
"""Operations per second that a training reaches."""


def cost_of(config: Config) -> Cost:
    """Returns the work of a training, with its seconds on this kind of device."""
    model = config.model
    train = config.train
    platform = jax.default_backend()
    stacks = len(model.num_layers)
    unrolled = min(model.scan_unroll, max(model.num_layers.values())) - 1
    compiling = COMPILING.get(platform, COMPILING["gpu"]) * stacks * (1 + UNROLLED * unrolled)
    computing = 6 * weights_met(model) / OPERATIONS_PER_SECOND.get(platform, OPERATIONS_PER_SECOND["gpu"])
    return Cost(compiling, computing, train.steps, train.epochs, 2 if platform == "cpu" else 8)


def weights_met(model: ModelConfig) -> float:
    """Returns about how many weights a position is multiplied with, in the mean of the stacks."""
    layers = sum(model.num_layers.values()) * (4 * model.d_model**2 + 2 * model.d_model * model.d_ff)
    words = model.embedding_width * model.vocab_size if model.num_decoder_layers and model.head is not None else 0
    return (layers + words) / len(model.num_layers)
