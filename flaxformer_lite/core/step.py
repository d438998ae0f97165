"""The train step and the evaluation step; the loop around them is in `training/loop.py`.

`train_step` is a pure function of the state and a batch. This file names no objective, and no output or feature of a model: model
and objective are parts of a `TrainTask`, and the objective says what a loss over a whole batch reads of each micro-batch.
Dropout, like the data, is a function of (seed, step). No random state is stored, so any step can be repeated.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree, UInt

from flaxformer_lite.core.model import Inputs, Transformer
from flaxformer_lite.core.model.inputs import Outputs, example_inputs
from flaxformer_lite.core.objectives import Apply, BaseObjective, Batch, Counts, LossTerm
from flaxformer_lite.core.optim.selection import (
    check_rates,
    merge_trees,
    split,
    with_frozen_dtype,
    without_frozen_layers,
)
from flaxformer_lite.core.parallel import CompilerOptions
from flaxformer_lite.core.parallel.sharding import constrain_parameters
from flaxformer_lite.core.search import DecodeConfig

NO_OPTIMIZER = optax.identity()


class TrainState(NamedTuple):
    """Everything that a train step changes. `ema` is a moving average of the parameters, or None."""

    step: Int[Array, ""]
    params: PyTree
    opt_state: PyTree
    ema: PyTree | None = None


@dataclass(frozen=True)
class TrainTask:
    """The constants of every step: model, objective, optimizer, seed, and how a batch is divided."""

    model: Transformer
    objective: BaseObjective
    optimizer: optax.GradientTransformation
    seed: int
    num_micro_batches: int = 1
    ema_decay: float | None = None
    trainable: tuple[str, ...] = ("*",)
    """Patterns of the parameters that train (`core/optim/selection.py`). The optimizer sees no others."""
    rates: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Factors of the learning rate by patterns, which the optimizer has; they are compared with all parameters."""
    frozen_dtype: str = "float32"
    """Type in which the frozen parameters are kept."""
    decode: DecodeConfig = DecodeConfig()
    """Rules for answers that an objective lets the model generate."""
    compiler_options: CompilerOptions = CompilerOptions()
    """Options of XLA, by the kind of device."""
    measures: Sequence[Callable[[PyTree], Mapping[str, Array]]] = ()
    """Functions of the gradient: their numbers are among those of a step, each as `gradient/NAME`. A list, which has no hash, keeps
    them and what they hold out of the memory of `once`."""

    @functools.cached_property
    def without_update(self) -> "TrainTask":
        """The same task for programs without an update, which take the seed as an argument: alike for all optimizers and seeds."""
        return replace(self, optimizer=NO_OPTIMIZER, seed=0, ema_decay=None, rates={}, measures=())

    @property
    def initialize(self) -> Callable[[], "TrainState"]:
        """The function that returns the state before the first step."""
        return lambda: with_optimizer(self, init_params(self, self.seed))

    def inputs(self, batch: Batch) -> Inputs:
        return self.objective.inputs(batch, self.model.config)


def random_key(seed: int | UInt[Any, ""], purpose: str, step: Int[Array, ""] | int = 0) -> Array:
    purposes = ("parameters", "dropout")
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), purposes.index(purpose)), step)


def init_params(task: TrainTask, seed: int | UInt[Any, ""]) -> PyTree:
    """Returns the parameters before the first step, as a run keeps them."""
    params = task.model.init(random_key(seed, "parameters"), example_inputs(task.model.config))["params"]
    if task.model.config.lora is not None:
        task.model.config.lora.check(params)
    return with_frozen_dtype(params, task.trainable, task.frozen_dtype)


def with_optimizer(task: TrainTask, params: PyTree) -> TrainState:
    """Returns the state before the first step, of these parameters."""
    check_rates(task.rates, params, task.trainable)
    trained, _ = split(params, task.trainable)
    ema = None if task.ema_decay is None else jax.tree.map(jnp.copy, params)
    return TrainState(jnp.zeros((), jnp.int32), params, task.optimizer.init(trained), ema)


def loss_terms(task: TrainTask, params: PyTree, batch: Batch, key: Array) -> dict[str, LossTerm]:
    if compares_rows(task):
        return task.objective.loss(joint_outputs(task, params, batch, key), batch)
    return task.objective.terms(Apply(task.model, params, task.decode), batch, key)


def compares_rows(task: TrainTask) -> bool:
    """Returns whether a micro-batch has only its vectors to itself, because the loss compares all rows of the batch."""
    return task.num_micro_batches > 1 and not task.objective.rows_independent


def joint_outputs(task: TrainTask, params: PyTree, batch: Batch, key: Array | None = None) -> Outputs:
    """Returns the outputs that the loss compares, of the whole batch: one micro-batch at a time. key: None for no dropout.

    The backward pass computes each micro-batch again. So memory holds the activations of one, and the gradient is that of the whole
    batch.

    Reference: Gao et al. 2021, arXiv:2101.06983, section 3.
    """

    @functools.partial(jax.checkpoint, prevent_cse=False)  # the loop keeps the two computations apart
    def compared(group: tuple[Int[Array, ""], Batch]) -> PyTree:
        number, rows = group
        rngs = None if key is None else {"dropout": jax.random.fold_in(key, number)}
        outputs: Any = task.model.apply({"params": params}, task.inputs(rows), rngs=rngs)
        return task.objective.compared(outputs, rows)

    groups = (jnp.arange(task.num_micro_batches), micro_batches(task, batch))
    return task.objective.joined(jax.lax.map(compared, groups))


def total(terms: dict[str, LossTerm], counts: dict[str, Array]) -> Float[Array, ""]:
    """Returns the loss: the weighted sum of every term's sum divided by its global count."""
    weighted = [term.weight * term.sum / jnp.maximum(counts[name], 1) for name, term in terms.items()]
    return jnp.sum(jnp.stack(weighted))


def across(tree: PyTree, axis_name: str | None) -> PyTree:
    """Returns the sum over the devices of a `pmap`, or the tree itself where the compiler sums: on one device or a mesh."""
    return tree if axis_name is None else jax.lax.psum(tree, axis_name)


def micro_batches(task: TrainTask, batch: Batch) -> Batch:
    """Returns the rows of each micro-batch along a new first axis: row r belongs to micro-batch r mod their number."""
    return jax.tree.map(lambda x: x.reshape(-1, task.num_micro_batches, *x.shape[1:]).swapaxes(0, 1), batch)


def gradient(
    task: TrainTask, params: PyTree, batch: Batch, key: Array, axis_name: str | None = None
) -> tuple[Float[Array, ""], dict[str, Array], PyTree]:
    """Returns the loss on the whole batch, the counts of its terms, and the gradient of the trained parameters.

    Computes one micro-batch at a time.

    Each micro-batch, on each device of a `pmap`, divides its sums by the counts of the whole batch. So every division of the
    batch has the same gradient. With more than one such group of rows, the dropout key is folded with the group's number.
    """
    trained, frozen = split(params, task.trainable)
    devices = 1 if axis_name is None else jax.lax.axis_size(axis_name)
    first = 0 if axis_name is None else jax.lax.axis_index(axis_name) * task.num_micro_batches

    def group_key(micro_batch: Int[Array, ""] | int) -> Array:
        return key if devices * task.num_micro_batches == 1 else jax.random.fold_in(key, first + micro_batch)

    if task.num_micro_batches == 1 or compares_rows(task):

        def loss(trained: PyTree) -> tuple[Array, dict[str, Array]]:
            terms = loss_terms(task, merge_trees(trained, frozen), batch, group_key(0))
            counts = across({name: term.count for name, term in terms.items()}, axis_name)
            return total(terms, counts), counts

        (value, counts), grads = jax.value_and_grad(loss, has_aux=True)(trained)
        value, grads = across((value, grads), axis_name)
        return value, counts, constrain_parameters(grads)

    # Counts do not depend on the model's outputs: the compiler removes all of this pass except the counting.
    counts = {name: term.count for name, term in loss_terms(task, params, batch, key).items()}
    counts = across(counts, axis_name)

    def add(carry: tuple[Array, PyTree], group: tuple[Int[Array, ""], Batch]) -> tuple[tuple[Array, PyTree], None]:
        number, micro = group

        def loss(trained: PyTree) -> Array:
            return total(loss_terms(task, merge_trees(trained, frozen), micro, group_key(number)), counts)

        of_group = jax.value_and_grad(loss)(trained)
        value, grads = jax.tree.map(jnp.add, carry, of_group)
        return (value, constrain_parameters(grads)), None

    zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, trained))
    (value, grads), _ = jax.lax.scan(add, zeros, (jnp.arange(task.num_micro_batches), micro_batches(task, batch)))
    value, grads = across((value, grads), axis_name)
    return value, counts, grads


def train_step(
    task: TrainTask, state: TrainState, batch: Batch, axis_name: str | None = None
) -> tuple[TrainState, dict[str, Array]]:
    """Makes one optimizer step. Returns the new state, and the loss, the tokens, the norms of gradient (unclipped) and update,
    and what `task.measures` return.

    If the loss or the gradient is not finite, only the step's number changes: the update is skipped.
    """
    given = step_gradient(task, state.params, state.step, task.seed, batch, axis_name)
    return update(task, state, given, with_norm=True)


class StepGradient(NamedTuple):
    """All that a step's update takes from its batch."""

    loss: Float[Array, ""]
    tokens: Float[Array, ""]
    grads: PyTree
    """The gradient of the trained parameters."""


def step_gradient(
    task: TrainTask,
    params: PyTree,
    step: Int[Array, ""],
    seed: int | UInt[Any, ""],
    batch: Batch,
    axis_name: str | None = None,
) -> StepGradient:
    """Returns the part of a step that depends on the shape of its batch."""
    key = random_key(seed, "dropout", step)
    loss, _, grads = gradient(task, params, batch, key, axis_name)
    return StepGradient(loss, across(batch.weights.sum(), axis_name), grads)


def update(
    task: TrainTask, state: TrainState, given: StepGradient, *, with_norm: bool = False
) -> tuple[TrainState, dict[str, Array]]:
    """Returns what `train_step` returns, by the gradient of its batch.

    with_norm: measures the norm of the update too. On a CPU that keeps a copy of the whole update.
    """
    loss, tokens, grads = given
    trained, frozen = split(state.params, task.trainable)
    grads = without_frozen_layers(grads, task.trainable)
    measured = {"loss": loss, "tokens": tokens, "gradient_norm": optax.tree.norm(grads)}

    def updated(state: TrainState) -> tuple[TrainState, dict[str, Array]]:
        updates, opt_state = task.optimizer.update(grads, state.opt_state, trained)
        updates = without_frozen_layers(updates, task.trainable)
        params = merge_trees(optax.apply_updates(trained, updates), frozen)
        ema = state.ema
        if task.ema_decay is not None:
            # The decay grows with the step n, (1 + n) / (10 + n), up to `ema_decay`: otherwise the first values weigh too long.
            decay = jnp.minimum(task.ema_decay, (1.0 + state.step) / (10.0 + state.step))
            # Not decay · average + (1 - decay) · parameter: rounding would move the average of a frozen parameter.
            ema = jax.tree.map(lambda old, x: (old + (1 - decay) * (x - old)).astype(old.dtype), state.ema, params)
        norm = {"update_norm": optax.tree.norm(updates)} if with_norm else {}
        return TrainState(state.step, params, opt_state, ema), norm

    def skipped(state: TrainState) -> tuple[TrainState, dict[str, Array]]:
        return state, {"update_norm": jnp.zeros_like(measured["gradient_norm"])} if with_norm else {}

    # Not a choice between the old and the new arrays: that would need both in memory.
    finite = jnp.isfinite(loss) & jnp.isfinite(measured["gradient_norm"])
    state, norm = jax.lax.cond(finite, updated, skipped, state)
    measured |= norm
    for measure in task.measures:
        for name, value in measure(grads).items():
            if f"gradient/{name}" in measured or jnp.ndim(value):
                raise ValueError(
                    f"a hook measures {name}, shape {jnp.shape(value)}: it must be a scalar with a name of its own"
                )
            measured[f"gradient/{name}"] = value
    return state._replace(step=state.step + 1), measured


def eval_step(task: TrainTask, params: PyTree, batch: Batch, axis_name: str | None = None) -> Counts:
    """Returns the objective's metrics on a batch, without dropout, one micro-batch at a time: it needs less memory than a step."""

    def of_rows(rows: Batch) -> Counts:
        outputs: Any = task.model.apply({"params": params}, task.inputs(rows))
        return task.objective.metrics(outputs, rows)

    if compares_rows(task):
        metrics = task.objective.metrics(joint_outputs(task, params, batch), batch)
    elif task.num_micro_batches == 1:
        metrics = of_rows(batch)
    else:
        stacked = jax.lax.map(of_rows, micro_batches(task, batch))
        metrics = {name: metric.merged() for name, metric in stacked.items()}
    return metrics if axis_name is None else {name: metric.across(axis_name) for name, metric in metrics.items()}
