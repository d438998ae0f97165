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
from jax.sharding import AbstractMesh, AxisType, Mesh
from jaxtyping import Array, Float, Int, PyTree

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.data.dataset import Dataset
from flaxformer_lite.model.config import check_heads
from flaxformer_lite.model.inputs import Inputs, example_inputs
from flaxformer_lite.model.transformer import Transformer
from flaxformer_lite.objectives import Batch, Objective
from flaxformer_lite.objectives.losses import Rows, Term
from flaxformer_lite.parallel.mesh import interleaved_rows, local_rows
from flaxformer_lite.parallel.sharding import (
    batch_sharding,
    place_parameters,
    replicated,
    state_sharding,
    with_shardings,
    within_mesh,
)


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
    return first_state(task, task.inputs(batch))


def first_state(task: Task, inputs: Inputs) -> TrainState:
    """The same for what the model reads."""
    params = task.model.init(random_key(task.seed, "parameters"), inputs)["params"]
    ema = None if task.ema_decay is None else jax.tree.map(jnp.copy, params)
    return TrainState(jnp.zeros((), jnp.int32), params, task.optimizer.init(params), ema)


def loss_terms(task: Task, params: PyTree, batch: Batch, key: Array) -> dict[str, Term]:
    """The objective's terms on a batch, with dropout."""
    outputs: Any = task.model.apply({"params": params}, task.inputs(batch), rngs={"dropout": key})
    return task.objective.loss(outputs, batch)


def total(terms: dict[str, Term], counts: dict[str, Array]) -> Float[Array, ""]:
    """The objective: every term's sum divided by its global count."""
    return jnp.sum(jnp.stack([t.weight * t.sum / jnp.maximum(counts[name], 1) for name, t in terms.items()]))


def across(tree: PyTree, axis_name: str | None) -> PyTree:
    """The sum over the devices of a `pmap`; the tree itself where the compiler sums (one device, or a mesh)."""
    return tree if axis_name is None else jax.lax.psum(tree, axis_name)


def gradient(
    task: Task, params: PyTree, batch: Batch, key: Array, axis_name: str | None = None
) -> tuple[Float[Array, ""], dict[str, Array], PyTree]:
    """The objective on the whole batch, its terms' counts, and the gradient, from one micro-batch after the other.

    Each micro-batch, on each device of a `pmap`, divides its sums by the counts of the whole batch, so any way of cutting gives
    the same gradient. With more than one such group of rows the dropout key is folded with the group's number.
    """
    devices = 1 if axis_name is None else jax.lax.axis_size(axis_name)
    first = 0 if axis_name is None else jax.lax.axis_index(axis_name) * task.micro_batches

    def group_key(micro_batch: Int[Array, ""] | int) -> Array:
        return key if devices * task.micro_batches == 1 else jax.random.fold_in(key, first + micro_batch)

    if task.micro_batches == 1:

        def loss(params: PyTree) -> tuple[Array, dict[str, Array]]:
            terms = loss_terms(task, params, batch, group_key(0))
            counts = across({name: term.count for name, term in terms.items()}, axis_name)
            return total(terms, counts), counts

        (value, counts), grads = jax.value_and_grad(loss, has_aux=True)(params)
        value, grads = across((value, grads), axis_name)
        return value, counts, place_parameters(grads)

    # Counts never depend on what the model says: of this pass over the whole batch the compiler keeps the counting alone.
    counts = {name: term.count for name, term in loss_terms(task, params, batch, key).items()}
    counts = across(counts, axis_name)
    parts = jax.tree.map(lambda x: x.reshape(-1, task.micro_batches, *x.shape[1:]).swapaxes(0, 1), batch)

    def add(carry: tuple[Array, PyTree], part: tuple[Int[Array, ""], Batch]) -> tuple[tuple[Array, PyTree], None]:
        number, micro = part
        of_part = jax.value_and_grad(lambda p: total(loss_terms(task, p, micro, group_key(number)), counts))(params)
        value, grads = jax.tree.map(jnp.add, carry, of_part)
        return (value, place_parameters(grads)), None

    zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    (value, grads), _ = jax.lax.scan(add, zeros, (jnp.arange(task.micro_batches), parts))
    value, grads = across((value, grads), axis_name)
    return value, counts, grads


def train_step(
    task: Task, state: TrainState, batch: Batch, axis_name: str | None = None
) -> tuple[TrainState, dict[str, Array]]:
    """One optimizer step: the new state, and what it measured (loss, tokens, gradient norm before clipping)."""
    key = random_key(task.seed, "dropout", state.step)
    loss, _, grads = gradient(task, state.params, batch, key, axis_name)
    updates, opt_state = task.optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    ema = state.ema
    if task.ema_decay is not None:
        # Young averages forget faster, so that the first values do not linger: (1 + n) / (10 + n), at most the decay.
        decay = jnp.minimum(task.ema_decay, (1.0 + state.step) / (10.0 + state.step))
        ema = optax.incremental_update(params, state.ema, 1 - decay)
    tokens = across(batch.weights.sum(), axis_name)
    measured = {"loss": loss, "tokens": tokens, "gradient_norm": optax.tree.norm(grads)}
    return TrainState(state.step + 1, params, opt_state, ema), measured


def eval_step(task: Task, params: PyTree, batch: Batch, axis_name: str | None = None) -> dict[str, Term | Rows]:
    """The objective's metrics on a batch, without dropout."""
    outputs: Any = task.model.apply({"params": params}, task.inputs(batch))
    found = task.objective.metrics(outputs, batch)
    return found if axis_name is None else {name: counted.across(axis_name) for name, counted in found.items()}


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


def abstract_state(task: Task, mesh: Mesh | AbstractMesh) -> TrainState:
    """Shapes and types of the state, with the shardings that it has on the mesh.

    Raises: ValueError naming the parameter, or the heads, that an axis of the mesh does not divide.
    """
    check_heads(task.model.config, mesh)
    state = jax.eval_shape(lambda: first_state(task, example_inputs(task.model.config)))
    return with_shardings(state, state_sharding(state, mesh))


AXIS = "data"
"""The axis of a `pmap`."""


@dataclass(frozen=True)
class Compiled:
    """The first state and the steps, compiled for some devices: at most once for each shape of a batch."""

    mesh: Mesh
    abstract_state: TrainState
    """Shapes, types and shardings of the state."""
    init: Callable[[Batch], TrainState]
    train: Callable[[TrainState, Batch], tuple[TrainState, dict[str, Array]]]
    evaluate: Callable[[PyTree, Batch], dict[str, Term | Rows]]
    rows: Callable[[int], Int[np.ndarray, "R"]]
    """Of a batch of that many rows the numbers of those that this process has to read, in the order that `put` takes them."""
    put: Callable[[Batch], Batch]
    """Such rows on the devices."""

    @classmethod
    def of(cls, task: Task, mesh: Mesh, *, train_shapes: int, eval_shapes: int) -> "Compiled":
        """By `jax.jit` over a mesh: the compiler cuts the one program as the shardings say."""

        def on_mesh(function: Callable[..., Any]) -> Callable[..., Any]:
            def placed(*arguments: Any) -> Any:
                with within_mesh(mesh):
                    return function(*arguments)

            return placed

        train = limit_traces(on_mesh(functools.partial(train_step, task)), "train_step", train_shapes)
        evaluate = limit_traces(on_mesh(functools.partial(eval_step, task)), "eval_step", eval_shapes)
        state, whole, by_rows = abstract_state(task, mesh), replicated(mesh), batch_sharding(mesh)
        shardings = jax.tree.map(lambda x: x.sharding, state)
        return cls(
            mesh=mesh,
            abstract_state=state,
            init=jax.jit(on_mesh(functools.partial(init_state, task)), out_shardings=shardings),
            # What the model does not read of a batch is taken all the same, so that the program takes what its shards sum up to.
            train=jax.jit(train, donate_argnums=0, out_shardings=(shardings, whole), keep_unused=True),
            evaluate=jax.jit(evaluate, out_shardings=whole),
            rows=functools.partial(local_rows, mesh),
            put=lambda batch: jax.tree.map(lambda x: jax.make_array_from_process_local_data(by_rows, x), batch),
        )

    @classmethod
    def by_pmap(cls, task: Task, mesh: Mesh, *, train_shapes: int, eval_shapes: int) -> "Compiled":
        """By `jax.pmap` over the mesh's devices: each runs the program of one device on its rows, and sums with the others.

        The state is whole on every device. The rows of a device are those that would be its micro-batches on a single device.
        """
        devices = list(mesh.devices.flat)
        line = Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))
        state = abstract_state(task, line)
        here = sum(device.process_index == jax.process_index() for device in devices)

        whole = replicated(line)

        def on_each(step: Callable[..., Any], name: str, limit: int, **options: Any) -> Callable[..., Any]:
            function = limit_traces(functools.partial(step, task, axis_name=AXIS), name, limit)
            mapped = jax.pmap(function, AXIS, in_axes=(None, 0), out_axes=None, devices=devices, **options)
            return mapped if here == len(devices) else lambda *arguments: jax.tree.map(everywhere, mapped(*arguments))

        def everywhere(x: Array) -> Array:
            """What a pmap calls the array of this process, as the one of all that it is."""
            shards = [shard.data for shard in x.addressable_shards]
            return jax.make_array_from_single_device_arrays(x.shape, whole, shards)

        return cls(
            mesh=line,
            abstract_state=state,
            init=jax.jit(functools.partial(init_state, task), out_shardings=whole),
            train=on_each(train_step, "train_step", train_shapes, donate_argnums=0),
            evaluate=on_each(eval_step, "eval_step", eval_shapes),
            rows=functools.partial(interleaved_rows, line, task.micro_batches),
            put=lambda batch: jax.tree.map(lambda x: x.reshape(here, -1, *x.shape[1:]), batch),
        )


def mean_metrics(
    compiled: Compiled, params: PyTree, dataset: Dataset, tick: Callable[[int, int], None]
) -> dict[str, float]:
    """The objective's metrics over a whole dataset, from float64 sums of what each batch counts."""
    batches = dataset.plan.batches_per_epoch
    counted: dict[str, list[Term | Rows]] = {}
    for i in range(batches):
        found = compiled.evaluate(params, compiled.put(dataset.batch(i, compiled.rows)))
        for name, of_batch in jax.device_get(found).items():
            counted.setdefault(name, []).append(of_batch)
        tick(i + 1, batches)
    return dataset.objective.report({name: altogether(parts) for name, parts in counted.items()})


def altogether(parts: Sequence[Term | Rows]) -> Term | Rows:
    """What was counted in all batches: sums of sums and counts, or all rows that weigh something."""
    if isinstance(parts[0], Term):
        return Term(*(np.sum([np.asarray(part[i], np.float64) for part in parts], 0) for i in (0, 1)))
    values, weights = (np.concatenate([np.asarray(part[i]) for part in parts]) for i in (0, 1))
    return Rows(values[weights > 0], weights[weights > 0])  # type: ignore[arg-type]  # NumPy's, on the host
