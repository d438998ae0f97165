"""Runners compile the train step and the evaluation step for the devices of a mesh.

Constructing a runner compiles no step. Each step is compiled when it is first called with a batch of a new shape.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Literal

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from jaxtyping import Array, Int, PyTree, UInt

from flaxformer_lite.core.base.once import once
from flaxformer_lite.core.model.config import check_heads
from flaxformer_lite.core.objectives import Batch, Counts
from flaxformer_lite.core.optim.selection import split
from flaxformer_lite.core.parallel.compiler import quick_options
from flaxformer_lite.core.parallel.mesh import interleaved_rows, local_rows
from flaxformer_lite.core.parallel.sharding import (
    batch_sharding,
    replicated,
    state_sharding,
    with_shardings,
    within_mesh,
)
from flaxformer_lite.core.step import (
    TrainState,
    TrainTask,
    eval_step,
    init_params,
    step_gradient,
    train_step,
    update,
    with_optimizer,
)


@once
def abstract_state(task: TrainTask, mesh: Mesh | AbstractMesh) -> TrainState:
    """Returns shapes, types and shardings of the state on the mesh.

    Raises: ValueError naming the parameter, or the heads, that an axis of the mesh does not divide.
    """
    state = jax.eval_shape(functools.partial(with_optimizer, task), abstract_params(task.without_update, mesh))
    return with_shardings(state, state_sharding(state, mesh))


@once
def abstract_params(task: TrainTask, mesh: Mesh | AbstractMesh) -> PyTree:
    """Returns the shapes and types of the parameters; tasks that differ only in their optimizers share them."""
    check_heads(task.model.config, mesh)
    return jax.eval_shape(functools.partial(init_params, task), jax.ShapeDtypeStruct((), np.uint32))


class Runner(ABC):
    """The steps of a task on the devices of a mesh, each compiled once for each shape of a batch."""

    def __init__(self, task: TrainTask, mesh: Mesh):
        self.task, self.mesh = task, mesh
        self.abstract_state = abstract_state(task, mesh)
        """Shapes, types and shardings of the state."""
        self.compiler_options = task.compiler_options.of(mesh)
        """XLA's options for these devices, by name."""

    @property
    def seed(self) -> np.uint32:
        return np.uint32(self.task.seed)

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        return tuple(self.compiler_options.items())

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all parameters."""
        return tuple(sorted(flatten_dict(self.abstract_state.params, sep="/")))

    @cached_property
    def compiled_init(self) -> jax.stages.Compiled:
        """The program that makes all parameters."""
        return compiled_parameters(self.task.without_update, self.mesh, self.paths)

    @cached_property
    def compiled_train_step(self) -> jax.stages.Wrapped:
        """The jitted train step, which can also be lowered without any data."""
        return jitted_update(type(self), train_step, self.task, self.mesh, self.options)

    @cached_property
    def compiled_eval_step(self) -> jax.stages.Wrapped:
        return jitted(type(self), eval_step, self.task.without_update, self.mesh, self.options)

    def init(self, params: Mapping[str, Array] | None = None) -> TrainState:
        """Returns the state before the first step, on the devices. params: known parameters, by their paths; others are made."""
        known = params or {}
        missing = tuple(path for path in self.paths if path not in known)
        made = {}
        if known and missing:
            made = compiled_parameters(self.task.without_update, self.mesh, missing)(self.seed)
        elif missing:
            made = self.compiled_init(self.seed)
        by_path: PyTree = unflatten_dict({**known, **made}, sep="/")
        return jitted_start(self.task, self.mesh)(by_path)

    def train_step(
        self, state: TrainState, batch: Batch, *, with_norm: bool = False
    ) -> tuple[TrainState, dict[str, Any]]:
        """Runs `step.train_step` on a batch from `shard_batch`. The old state is donated.

        with_norm: asks for `update_norm`, which a step leaves out where it costs time.
        """
        return self.compiled_train_step(state, batch)

    def eval_step(self, params: PyTree, batch: Batch) -> Counts:
        """Runs `step.eval_step` on a batch from `shard_batch`."""
        return self.compiled_eval_step(params, batch)

    def shard_batch(self, batch: Batch) -> Batch:
        """Puts the rows of `local_rows` on the devices of this process."""
        by_rows = batch_sharding(self.mesh)
        return jax.tree.map(lambda x: jax.make_array_from_process_local_data(by_rows, x), batch)

    @staticmethod
    @abstractmethod
    def divided(step: Callable[..., Any], task: TrainTask, mesh: Mesh) -> Callable[..., Any]:
        """Returns a step of a task as a function of state (or parameters) and batch that is divided over the devices."""

    @abstractmethod
    def local_rows(self, num_rows: int) -> Int[np.ndarray, "R"]:
        """Returns the indices of the rows this process reads of a batch of `num_rows`, in the order of `shard_batch`."""


class MeshRunner(Runner):
    """One program for the whole mesh: the compiler divides it as the shardings say.

    On one CPU a step is two programs, its gradient and its update: that of the update is the same for all shapes of batches. A CPU
    compiles a step in the time of several, and takes no longer for both parts than for one program. The norm of an update is
    that of the change of the parameters: within the program it would double the time of the update.
    """

    @cached_property
    def compiled_gradient(self) -> jax.stages.Wrapped:
        return jitted(type(self), step_gradient, self.task.without_update, self.mesh, self.options)

    @cached_property
    def compiled_update(self) -> jax.stages.Wrapped:
        options = self.task.compiler_options.of(self.mesh, update=True)
        return jitted_update(type(self), update, self.task, self.mesh, tuple(options.items()))

    def train_step(
        self, state: TrainState, batch: Batch, *, with_norm: bool = False
    ) -> tuple[TrainState, dict[str, Any]]:
        if self.mesh.size > 1 or self.mesh.devices.flat[0].platform != "cpu":
            return super().train_step(state, batch)
        before = jax.tree.map(np.array, self.trained(state)) if with_norm else None
        gradient = self.compiled_gradient(state.params, state.step, self.seed, batch)
        state, measured = self.compiled_update(state, gradient)
        return state, measured if before is None else {
            **measured,
            "update_norm": change_norm(before, self.trained(state)),
        }

    def trained(self, state: TrainState) -> PyTree:
        """Returns the parameters that train."""
        return split(state.params, self.task.trainable)[0]

    @staticmethod
    def divided(step: Callable[..., Any], task: TrainTask, mesh: Mesh) -> Callable[..., Any]:
        def whole(*arguments: object) -> PyTree:
            with within_mesh(mesh):
                return step(task, *arguments)

        return whole

    def local_rows(self, num_rows: int) -> Int[np.ndarray, "R"]:
        return local_rows(self.mesh, num_rows)


class PmapRunner(Runner):
    """The program of one device on each device, by `jax.shard_map`: each has the whole state, and all sum the gradient once a step.

    The rows of a device are those that would be its micro-batches on a single device.
    """

    def __init__(self, task: TrainTask, mesh: Mesh):
        super().__init__(task, Mesh(mesh.devices.reshape(-1, 1, 1), mesh.axis_names, axis_types=mesh.axis_types))

    @staticmethod
    def divided(step: Callable[..., Any], task: TrainTask, mesh: Mesh) -> Callable[..., Any]:
        return jax.shard_map(
            functools.partial(step, task, axis_name="data"),
            mesh=mesh,
            in_specs=(PartitionSpec(), batch_sharding(mesh).spec),
            out_specs=PartitionSpec(),
            check_vma=False,
        )

    def local_rows(self, num_rows: int) -> Int[np.ndarray, "R"]:
        return interleaved_rows(self.mesh, self.task.num_micro_batches, num_rows)


def shardings_of(task: TrainTask, mesh: Mesh) -> TrainState:
    shardings: TrainState = jax.tree.map(lambda x: x.sharding, abstract_state(task, mesh))
    return shardings


# Functions that a process compiles once for equal tasks

CompilerFlags = tuple[tuple[str, str], ...]


@once
def jitted(
    runner: type[Runner], step: Callable[..., Any], task: TrainTask, mesh: Mesh, options: CompilerFlags
) -> jax.stages.Wrapped:
    """Returns a step that changes no state, jitted."""
    function = runner.divided(step, task, mesh)
    return jax.jit(function, out_shardings=replicated(mesh), compiler_options=dict(options))


@once
def jitted_update(
    runner: type[Runner], step: Callable[..., Any], task: TrainTask, mesh: Mesh, options: CompilerFlags
) -> jax.stages.Wrapped:
    """Returns a step that changes the state, jitted."""
    return jax.jit(
        runner.divided(step, task, mesh),
        donate_argnums=0,
        out_shardings=(shardings_of(task, mesh), replicated(mesh)),
        # Parts of a batch that the model does not read stay arguments: the sizes of the arguments then sum to the shards.
        keep_unused=True,
        compiler_options=dict(options),
    )


@once
def compiled_parameters(task: TrainTask, mesh: Mesh, paths: tuple[str, ...]) -> jax.stages.Compiled:
    """Returns the compiled function of a seed that makes the parameters of these paths, and no others."""

    def made(seed: UInt[Array, ""]) -> dict[str, Array]:
        params = flatten_dict(init_params(task, seed), sep="/")
        return {path: params[path] for path in paths}

    shardings = flatten_dict(shardings_of(task, mesh).params, sep="/")
    of_paths = {path: shardings[path] for path in paths}
    function = jax.jit(
        made, in_shardings=replicated(mesh), out_shardings=of_paths, compiler_options=quick_options(mesh)
    )
    return function.lower(jax.ShapeDtypeStruct((), np.uint32)).compile()


@once
def jitted_start(task: TrainTask, mesh: Mesh) -> jax.stages.Wrapped:
    return jax.jit(functools.partial(with_optimizer, task), out_shardings=shardings_of(task, mesh))


def change_norm(before: PyTree, after: PyTree) -> np.floating:
    """Returns the joint Euclidean norm of the differences between two trees of parameters."""

    def squared(old: np.ndarray, new: Array) -> np.floating:
        change = (np.asarray(new, np.float32) - np.asarray(old, np.float32)).ravel()
        return np.dot(change, change)

    return np.sqrt(sum(jax.tree.leaves(jax.tree.map(squared, before, after))))


def make_runner(kind: Literal["mesh", "pmap"], task: TrainTask, mesh: Mesh) -> Runner:
    return (PmapRunner if kind == "pmap" else MeshRunner)(task, mesh)
