"""The task of a training, by its config and the processor of this machine."""

import dataclasses

import jax

from flaxformer_lite.base.hardware import multiplies_bfloat16
from flaxformer_lite.config import Config
from flaxformer_lite.core.model import ModelConfig, Transformer
from flaxformer_lite.core.step import TrainTask


def train_task(config: Config) -> TrainTask:
    """Returns the constants of every step of a config."""
    return TrainTask(
        model=Transformer(with_products_of_this_processor(config.model)),
        objective=config.objective,
        optimizer=config.optimizer.build(
            total_steps=config.train.steps, d_model=config.model.d_model, num_layers=config.model.num_layers
        ),
        rates=config.optimizer.rates,
        seed=config.train.seed,
        num_micro_batches=config.train.num_micro_batches,
        ema_decay=config.optimizer.ema_decay,
        trainable=config.trainable,
        frozen_dtype=config.train.frozen_dtype,
        decode=config.decode,
        compiler_options=config.train.compiler_options,
    )


def with_products_of_this_processor(model: ModelConfig) -> ModelConfig:
    """Returns a model's settings with products that this processor computes fast; JAX before 0.10 has none in bfloat16."""
    if model.matmul_dtype == "bfloat16" and not (multiplies_bfloat16() and jax.__version_info__ >= (0, 10)):
        return dataclasses.replace(model, matmul_dtype="bfloat16_values")
    return model
