"""The task of a training, by its config and the processor of this machine."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from flaxformer_lite.base.hardware import multiplies_bfloat16
from flaxformer_lite.config import Config
from flaxformer_lite.core.base.once import once
from flaxformer_lite.core.model import ModelConfig, Transformer
from flaxformer_lite.core.objectives import Apply, Batch, LossTerm, PerRowMetric
from flaxformer_lite.core.optim import OptimizerConfig
from flaxformer_lite.core.step import TrainTask, random_key


def train_task(config: Config) -> TrainTask:
    """Returns the constants of every step of a config."""
    return TrainTask(
        model=Transformer(with_products_of_this_processor(config.model)),
        objective=config.objective,
        optimizer=built(
            config.optimizer, config.train.most_steps, config.model.d_model, tuple(config.model.num_layers.items())
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


@once
def built(
    optimizer: OptimizerConfig, total_steps: int, d_model: int, num_layers: tuple[tuple[str, int], ...]
) -> optax.GradientTransformation:
    """Returns the optimizer of these settings: one value for equal settings, so that their tasks are equal too."""
    return optimizer.build(total_steps=total_steps, d_model=d_model, num_layers=dict(num_layers))


def with_products_of_this_processor(model: ModelConfig) -> ModelConfig:
    """Returns a model's settings with products that this processor computes fast; JAX before 0.10 has none in bfloat16."""
    if model.matmul_dtype == "bfloat16" and not (multiplies_bfloat16() and jax.__version_info__ >= (0, 10)):
        return dataclasses.replace(model, matmul_dtype="bfloat16_values")
    return model


def check_objective(task: TrainTask, batch: Batch) -> None:
    """Checks what `loss` and `metrics` of an objective return, by their shapes only.

    Raises: ValueError that names the objective, the method and what is wrong.
    """

    def check(method: str, found: object, *types: type) -> None:
        owner = f"objective is a {type(task.objective).__name__}, whose {method}"
        if not isinstance(found, dict) or not found or not all(isinstance(term, types) for term in found.values()):
            values = [type(term).__name__ for term in found.values()] if isinstance(found, dict) else ""
            names = " or ".join(each.__name__ for each in types)
            raise ValueError(
                f"{owner} returns a {type(found).__name__}{values}: it must return a dict with a {names} for each name, such as "
                '{"loss": LossTerm(sum, count)}'
            )
        if method == "metrics" and "loss" not in found:
            raise ValueError(f"{owner} returns {', '.join(found)}: it must return loss too")
        for name, term in found.items():
            numbers = ["count"] if isinstance(term, LossTerm) else []
            if method == "loss":
                numbers = ["sum", "count"]
            for number in numbers:
                shape = jnp.shape(getattr(term, number))
                if shape:
                    raise ValueError(f"{owner} returns {name} with a {number} of shape {shape}: it must be one number")

    def both(params: PyTree, batch: Batch) -> None:
        apply, key = Apply(task.model, params, task.decode), random_key(task.seed, "dropout")
        check("loss", task.objective.terms(apply, batch, key), LossTerm)
        check("metrics", task.objective.metrics(apply(task.inputs(batch), key), batch), LossTerm, PerRowMetric)

    jax.eval_shape(both, jax.eval_shape(task.initialize).params, batch)
