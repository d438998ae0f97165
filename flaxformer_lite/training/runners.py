"""The steps, compiled for the devices."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh
from jaxtyping import Array, Int, PyTree

from flaxformer_lite.model.config import check_heads
from flaxformer_lite.model.inputs import example_inputs
from flaxformer_lite.objectives import Batch
from flaxformer_lite.objectives.losses import LossTerm, PerRowMetric
from flaxformer_lite.parallel.mesh import interleaved_rows, local_rows
from flaxformer_lite.parallel.sharding import (
    batch_sharding,
    replicated,
    state_sharding,
    with_shardings,
    within_mesh,
)
from flaxformer_lite.training.step import TrainState, TrainTask, eval_step, first_state, init_state, train_step


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


def abstract_state(task: TrainTask, mesh: Mesh | AbstractMesh) -> TrainState:
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
    evaluate: Callable[[PyTree, Batch], dict[str, LossTerm | PerRowMetric]]
    rows: Callable[[int], Int[np.ndarray, "R"]]
    """Of a batch of that many rows the numbers of those that this process has to read, in the order that `put` takes them."""
    put: Callable[[Batch], Batch]
    """Such rows on the devices."""

    @classmethod
    def of(cls, task: TrainTask, mesh: Mesh, *, train_shapes: int, eval_shapes: int) -> "Compiled":
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
    def by_pmap(cls, task: TrainTask, mesh: Mesh, *, train_shapes: int, eval_shapes: int) -> "Compiled":
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
            rows=functools.partial(interleaved_rows, line, task.num_micro_batches),
            put=lambda batch: jax.tree.map(lambda x: x.reshape(here, -1, *x.shape[1:]), batch),
        )
