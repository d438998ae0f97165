"""The train step and the evaluation step; the loop around them is in `trainer.py`.

`train_step` is a pure function of the state and a batch. It names no model and no objective: what it needs of them is a
`Task`. Dropout, like the data, is a function of (seed, step): nothing random is stored, so any step can be done again.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PyTree

from flaxformer_lite.config import Config
from flaxformer_lite.data.pipeline import Dataset
from flaxformer_lite.losses import Rows, Term
from flaxformer_lite.objectives import Batch, Objective
from flaxformer_lite.parallel import abstract, by_rows, replicated
from flaxformer_lite.transformer import Inputs, Transformer


class TrainState(NamedTuple):
    """All that training changes. `ema` is a moving average of the parameters, or None."""

    step: Int[Array, ""]
    params: PyTree
    opt_state: PyTree
    ema: PyTree | None = None


@dataclass(frozen=True)
class Task:
    """What a step needs to know and never changes."""

    model: Transformer
    objective: Objective
    optimizer: optax.GradientTransformation
    seed: int
    micro_batches: int = 1
    ema_decay: float | None = None

    @classmethod
    def of(cls, config: Config) -> "Task":
        return cls(
            model=Transformer(config.model),
            objective=config.objective,
            optimizer=config.optimizer.build(total_steps=config.train.steps, d_model=config.model.d_model),
            seed=config.train.seed,
            micro_batches=config.train.micro_batches,
            ema_decay=config.optimizer.ema_decay,
        )

    def inputs(self, batch: Batch) -> Inputs:
        """What the model reads of a batch."""
        return self.objective.inputs(batch, self.model.config)


def random_key(seed: int, purpose: str, step: Int[Array, ""] | int = 0) -> Array:
    """The random key for a purpose at a step."""
    purposes = ("parameters", "dropout")
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), purposes.index(purpose)), step)


def init_state(task: Task, batch: Batch) -> TrainState:
    """The state before the first step; of `batch` only the shapes matter."""
    params = task.model.init(random_key(task.seed, "parameters"), task.inputs(batch))["params"]
    ema = None if task.ema_decay is None else jax.tree.map(jnp.copy, params)
    return TrainState(jnp.zeros((), jnp.int32), params, task.optimizer.init(params), ema)


def loss_terms(task: Task, params: PyTree, batch: Batch, key: Array) -> dict[str, Term]:
    """The objective's terms on a batch, with dropout."""
    outputs: Any = task.model.apply({"params": params}, task.inputs(batch), rngs={"dropout": key})
    return task.objective.loss(outputs, batch)


def total(terms: dict[str, Term], counts: dict[str, Array]) -> Float[Array, ""]:
    """The objective: every term's sum divided by its global count."""
    return jnp.sum(jnp.stack([t.weight * t.sum / jnp.maximum(counts[name], 1) for name, t in terms.items()]))


def gradient(task: Task, params: PyTree, batch: Batch, key: Array) -> tuple[Float[Array, ""], dict[str, Array], PyTree]:
    """The objective on the whole batch, its terms' counts, and the gradient, from one micro-batch after the other.

    Each micro-batch divides its sums by the counts of the whole batch, so any way of cutting gives the same gradient. With several
    micro-batches the dropout key is folded with the micro-batch's number.
    """
    if task.micro_batches == 1:

        def loss(params: PyTree) -> tuple[Array, dict[str, Array]]:
            terms = loss_terms(task, params, batch, key)
            counts = {name: term.count for name, term in terms.items()}
            return total(terms, counts), counts

        (value, counts), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return value, counts, grads

    # Counts never depend on what the model says: of this pass over the whole batch the compiler keeps the counting alone.
    counts = {name: term.count for name, term in loss_terms(task, params, batch, key).items()}
    parts = jax.tree.map(lambda x: x.reshape(-1, task.micro_batches, *x.shape[1:]).swapaxes(0, 1), batch)

    def add(carry: tuple[Array, PyTree], part: tuple[Int[Array, ""], Batch]) -> tuple[tuple[Array, PyTree], None]:
        number, micro = part
        micro_key = jax.random.fold_in(key, number)
        of_part = jax.value_and_grad(lambda p: total(loss_terms(task, p, micro, micro_key), counts))(params)
        return jax.tree.map(jnp.add, carry, of_part), None

    zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    (value, grads), _ = jax.lax.scan(add, zeros, (jnp.arange(task.micro_batches), parts))
    return value, counts, grads


def train_step(task: Task, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
    """One optimizer step: the new state, and what it measured (loss, tokens, gradient norm before clipping)."""
    key = random_key(task.seed, "dropout", state.step)
    loss, _, grads = gradient(task, state.params, batch, key)
    updates, opt_state = task.optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    ema = state.ema
    if task.ema_decay is not None:
        # Young averages forget faster, so that the first values do not linger: (1 + n) / (10 + n), at most the decay.
        decay = jnp.minimum(task.ema_decay, (1.0 + state.step) / (10.0 + state.step))
        ema = optax.incremental_update(params, state.ema, 1 - decay)
    measured = {"loss": loss, "tokens": batch.weights.sum(), "gradient_norm": optax.tree.norm(grads)}
    return TrainState(state.step + 1, params, opt_state, ema), measured


def eval_step(task: Task, params: PyTree, batch: Batch) -> dict[str, Term | Rows]:
    """The objective's metrics on a batch, without dropout."""
    outputs: Any = task.model.apply({"params": params}, task.inputs(batch))
    return task.objective.metrics(outputs, batch)


def limit_traces(function: Callable[..., Any], name: str, limit: int) -> Callable[..., Any]:
    """The function, which may be traced for `limit` shapes and no more: a recompilation nobody planned is a bug.

    `chex.assert_max_traces` would do, but counts for all functions of the same source together, whatever their task.
    """
    traces = 0

    @functools.wraps(function, assigned=())
    def traced(*arguments: Any) -> Any:
        nonlocal traces
        traces += 1
        if traces > limit:
            raise AssertionError(f"{name} was traced {traces} times for {limit} shapes: something recompiles it")
        return function(*arguments)

    return traced


@dataclass(frozen=True)
class Compiled:
    """The first state and the steps, compiled for a mesh: at most once for each shape of a batch."""

    mesh: Mesh
    init: Callable[[Batch], TrainState]
    train: Callable[[TrainState, Batch], tuple[TrainState, dict[str, Array]]]
    evaluate: Callable[[PyTree, Batch], dict[str, Term | Rows]]

    @classmethod
    def of(cls, task: Task, mesh: Mesh, *, train_shapes: int, eval_shapes: int) -> "Compiled":
        train = limit_traces(functools.partial(train_step, task), "train_step", train_shapes)
        evaluate = limit_traces(functools.partial(eval_step, task), "eval_step", eval_shapes)
        whole = replicated(mesh)
        return cls(
            mesh=mesh,
            init=jax.jit(functools.partial(init_state, task), out_shardings=whole),
            train=jax.jit(train, donate_argnums=0, out_shardings=whole),
            evaluate=jax.jit(evaluate, out_shardings=whole),
        )

    def put(self, batch: Batch) -> Batch:
        """The batch on the devices, by rows."""
        return jax.device_put(batch, by_rows(self.mesh))

    def abstract_state(self, batch: Batch) -> TrainState:
        """Shapes, types and shardings of the state."""
        return abstract(jax.eval_shape(self.init, batch), self.mesh)


def mean_metrics(
    compiled: Compiled, params: PyTree, dataset: Dataset, tick: Callable[[int, int], None]
) -> dict[str, float]:
    """The objective's metrics over a whole dataset, from float64 sums of what each batch counts."""
    batches = dataset.plan.batches_per_epoch
    counted: dict[str, list[Term | Rows]] = {}
    for i in range(batches):
        for name, found in jax.device_get(compiled.evaluate(params, compiled.put(dataset.batch(i)))).items():
            counted.setdefault(name, []).append(found)
        tick(i + 1, batches)
    return dataset.objective.report({name: altogether(parts) for name, parts in counted.items()})


def altogether(parts: Sequence[Term | Rows]) -> Term | Rows:
    """What was counted in all batches: sums of sums and counts, or all rows that weigh something."""
    if isinstance(parts[0], Term):
        return Term(*(np.sum([np.asarray(part[i], np.float64) for part in parts], 0) for i in (0, 1)))
    values, weights = (np.concatenate([np.asarray(part[i]) for part in parts]) for i in (0, 1))
    return Rows(values[weights > 0], weights[weights > 0])  # type: ignore[arg-type]  # NumPy's, on the host
