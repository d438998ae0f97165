"""Runners compile the train step and the evaluation step for the devices of a mesh.

Constructing a runner compiles no step. Each step is compiled when it is first called with a batch of a new shape.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from jaxtyping import Array, Int, PyTree

from flaxformer_lite.core.model.config import check_heads
from flaxformer_lite.core.objectives import Batch, Counts
from flaxformer_lite.core.parallel.mesh import interleaved_rows, local_rows
from flaxformer_lite.core.parallel.sharding import (
    batch_sharding,
    replicated,
    state_sharding,
    with_shardings,
    within_mesh,
)
from flaxformer_lite.core.step import TrainState, TrainTask, eval_step, step_gradient, train_step, update


def abstract_state(task: TrainTask, mesh: Mesh | AbstractMesh) -> TrainState:
    """Returns shapes, types and shardings of the state on the mesh.

    Raises: ValueError naming the parameter, or the heads, that an axis of the mesh does not divide.
    """
    check_heads(task.model.config, mesh)
    state = jax.eval_shape(task.initialize)
    return with_shardings(state, state_sharding(state, mesh))


class Runner(ABC):
    """The steps of a task on the devices of a mesh, each compiled once for each shape of a batch."""

    def __init__(self, task: TrainTask, mesh: Mesh):
        self.task, self.mesh = task, mesh
        self.abstract_state = abstract_state(task, mesh)
        """Shapes, types and shardings of the state."""
        self.compiler_options = task.compiler_options.of(mesh)
        """XLA's options for these devices, by name."""

    @property
    def state_shardings(self) -> TrainState:
        return jax.tree.map(lambda x: x.sharding, self.abstract_state)

    @cached_property
    def compiled_init(self) -> Any:
        return jax.jit(self.task.initialize, out_shardings=self.state_shardings).lower().compile()

    @cached_property
    def compiled_train_step(self) -> Any:
        """The jitted train step, which can also be lowered without any data."""
        return jax.jit(
            self.divided(train_step),
            donate_argnums=0,
            out_shardings=(self.state_shardings, replicated(self.mesh)),
            # Parts of a batch that the model does not read stay arguments: the sizes of the arguments then sum to the shards.
            keep_unused=True,
            compiler_options=self.compiler_options,
        )

    @cached_property
    def compiled_eval_step(self) -> Any:
        return jax.jit(
            self.divided(eval_step), out_shardings=replicated(self.mesh), compiler_options=self.compiler_options
        )

    def init(self) -> TrainState:
        """Returns the state before the first step, on the devices."""
        return self.compiled_init()

    def train_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        """Runs `step.train_step` on a batch from `shard_batch`. The old state is donated."""
        return self.compiled_train_step(state, batch)

    def eval_step(self, params: PyTree, batch: Batch) -> Counts:
        """Runs `step.eval_step` on a batch from `shard_batch`."""
        return self.compiled_eval_step(params, batch)

    def shard_batch(self, batch: Batch) -> Batch:
        """Puts the rows of `local_rows` on the devices of this process."""
        by_rows = batch_sharding(self.mesh)
        return jax.tree.map(lambda x: jax.make_array_from_process_local_data(by_rows, x), batch)

    @abstractmethod
    def divided(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a step of the task as a function of state (or parameters) and batch that is divided over the devices."""

    @abstractmethod
    def local_rows(self, num_rows: int) -> Int[np.ndarray, "R"]:
        """Returns the indices of the rows this process reads of a batch of `num_rows`, in the order of `shard_batch`."""


class MeshRunner(Runner):
    """One program for the whole mesh: the compiler divides it as the shardings say.

    On one CPU a step is two programs, its gradient and its update: that of the update is the same for all shapes of batches. A CPU
    compiles a step in the time of several, and takes no longer for both parts than for one program.
    """

    @cached_property
    def compiled_gradient(self) -> Any:
        return jax.jit(self.divided(step_gradient), compiler_options=self.compiler_options)

    @cached_property
    def compiled_update(self) -> Any:
        return jax.jit(
            self.divided(update),
            donate_argnums=0,
            out_shardings=(self.state_shardings, replicated(self.mesh)),
            compiler_options=self.compiler_options,
        )

    def train_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        if self.mesh.size > 1 or self.mesh.devices.flat[0].platform != "cpu":
            return super().train_step(state, batch)
        made: tuple[TrainState, dict[str, Array]] = self.compiled_update(
            state, self.compiled_gradient(state.params, state.step, batch)
        )
        return made

    def divided(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def whole(*arguments: Any) -> Any:
            with within_mesh(self.mesh):
                return step(self.task, *arguments)

        return whole

    def local_rows(self, num_rows: int) -> Int[np.ndarray, "R"]:
        return local_rows(self.mesh, num_rows)


class PmapRunner(Runner):
    """The program of one device on each device, by `jax.shard_map`: each has the whole state, and all sum the gradient once a step.

    The rows of a device are those that would be its micro-batches on a single device.
    """

    def __init__(self, task: TrainTask, mesh: Mesh):
        super().__init__(task, Mesh(mesh.devices.reshape(-1, 1, 1), mesh.axis_names, axis_types=mesh.axis_types))

    def divided(self, step: Callable[..., Any]) -> Callable[[Any, Batch], Any]:
        return jax.shard_map(
            functools.partial(step, self.task, axis_name="data"),
            mesh=self.mesh,
            in_specs=(PartitionSpec(), batch_sharding(self.mesh).spec),
            out_specs=PartitionSpec(),
            check_vma=False,
        )

    def local_rows(self, num_rows: int) -> Int[np.ndarray, "R"]:
        return interleaved_rows(self.mesh, self.task.num_micro_batches, num_rows)


def make_runner(kind: Literal["mesh", "pmap"], task: TrainTask, mesh: Mesh) -> Runner:
    return (PmapRunner if kind == "pmap" else MeshRunner)(task, mesh)
