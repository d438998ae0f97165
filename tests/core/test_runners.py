"""Laws of the runners: nothing is compiled before it is called, nor twice. Their numbers: tests/training/test_many_devices.py."""

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from flaxformer_lite.core import runners
from flaxformer_lite.core.data.batch_plan import Bucket
from flaxformer_lite.core.data.dataset import zero_batch
from flaxformer_lite.core.data.records import Lengths
from flaxformer_lite.core.objectives import Batch, LossTerm
from flaxformer_lite.core.optim import Constant
from flaxformer_lite.core.parallel import CompilerOptions
from flaxformer_lite.core.parallel.mesh import make_mesh
from flaxformer_lite.core.runners import MeshRunner, PmapRunner, Runner, make_runner
from flaxformer_lite.core.step import StepGradient, TrainState, TrainTask, across, train_step, with_optimizer
from flaxformer_lite.training.hooks import Hook, Hooks
from flaxformer_lite.training.task import train_task
from tests.support.experiments import num_programs, tiny_config


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mesh", "pmap"])
def test_one_program_takes_all_steps_of_a_shape(kind: str, monkeypatch: pytest.MonkeyPatch):
    """Law: neither the state that a step returns nor a batch of another shape in between makes JAX trace a step again."""
    traced = []

    def counted(task: TrainTask, state: TrainState, batch: Batch, **named: str) -> tuple[TrainState, dict[str, Array]]:
        traced.append(batch.targets.shape)
        return train_step(task, state, batch, **named)

    monkeypatch.setattr(runners, "train_step", counted)
    task = train_task(tiny_config())
    runner = make_runner(kind, task, make_mesh())
    short, long = (zero_batch(task.objective, Bucket(Lengths(length, length), 8)) for length in (3, 5))
    state = runner.init()
    for batch in (short, long, short, short):
        state, _ = runner.train_step(state, runner.shard_batch(batch))
    assert len(traced) == len(set(traced)) == 2


@pytest.mark.parametrize(("kind", "expected"), [("mesh", MeshRunner), ("pmap", PmapRunner)])
def test_a_runner_compiles_when_a_step_is_first_called(kind: str, expected: type, monkeypatch: pytest.MonkeyPatch):
    """Law: constructing traces no step; two evaluations of the same shape trace one."""
    traced = []

    def counted(task: TrainTask, params: PyTree, batch: Batch, axis_name: str | None = None) -> PyTree:
        traced.append(task)
        return {"tokens": LossTerm(params + across(batch.weights.sum(), axis_name), params)}

    monkeypatch.setattr(runners, "train_step", lambda *_, **__: pytest.fail("nobody has asked for a train step"))
    monkeypatch.setattr(runners, "eval_step", counted)
    task = train_task(tiny_config())
    runner = make_runner(kind, task, make_mesh())
    assert isinstance(runner, expected) and not traced
    batch = zero_batch(task.objective, Bucket(Lengths(5, 3), 8))
    for _ in range(2):
        assert float(runner.eval_step(jnp.ones(()), runner.shard_batch(batch))["tokens"].sum) == 1
    assert traced == [task.without_update]


@pytest.mark.slow
def test_a_step_of_one_cpu_is_two_programs_with_its_bits():
    """Laws: the update has one program for all shapes of batches, the gradient one for each; both have the bits of `train_step`.

    With the same options: by default the update has others.
    """
    task, mesh = train_task(tiny_config()), make_mesh(devices=jax.devices()[:1])
    task = replace(task, compiler_options=CompilerOptions(cpu=()))
    divided, whole = make_runner("mesh", task, mesh), make_runner("mesh", task, mesh)
    states = [divided.init(), whole.init()]
    for length in (3, 5, 3):
        batch = zero_batch(task.objective, Bucket(Lengths(length, length), 8))
        batch = divided.shard_batch(batch._replace(weights=np.ones_like(batch.weights)))
        (states[0], measured), (states[1], expected) = (
            divided.train_step(states[0], batch, with_norm=True),
            whole.compiled_train_step(states[1], batch),
        )
        assert measured.keys() == expected.keys()
        # That of the change, in float32: the parameters round what is added to them.
        assert float(measured.pop("update_norm")) == pytest.approx(float(expected.pop("update_norm")), rel=1e-4)
        for one, other in zip(*map(jax.tree.leaves, [(states[0], measured), (states[1], expected)]), strict=True):
            np.testing.assert_array_equal(one, other)
    assert isinstance(divided, MeshRunner)
    assert (num_programs(divided.compiled_gradient), num_programs(divided.compiled_update)) == (2, 1)
    assert all(
        x.sharding == y.sharding
        for x, y in zip(*map(jax.tree.leaves, (states[0], divided.abstract_state)), strict=True)
    )


def test_tasks_of_another_rate_or_seed_share_all_programs_but_the_update(monkeypatch: pytest.MonkeyPatch):
    """Law: the gradient is traced once for all of them, and each has its own seed; equal tasks share the update too."""
    traced: list[str] = []

    def gradient(task: TrainTask, params: PyTree, step: Array, seed: Array, batch: Batch) -> StepGradient:
        traced.append("gradient")
        return StepGradient(seed.astype(jnp.float32), batch.weights.sum(), params)

    def update(task: TrainTask, state: TrainState, given: StepGradient) -> tuple[TrainState, dict[str, Array]]:
        traced.append("update")
        return state, {"loss": given.loss}

    monkeypatch.setattr(runners, "step_gradient", gradient)
    monkeypatch.setattr(runners, "update", update)
    config, mesh, losses = tiny_config(), make_mesh(devices=jax.devices()[:1]), []
    for rate, seed in ((1e-3, 0), (2e-3, 2**32 - 1), (1e-3, 0)):
        optimizer = replace(config.optimizer, schedule=Constant(peak_rate=rate))
        task = train_task(replace(config, optimizer=optimizer, train=replace(config.train, seed=seed)))
        runner = make_runner("mesh", task, mesh)
        state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), runner.abstract_state)
        batch = runner.shard_batch(zero_batch(task.objective, Bucket(Lengths(5, 3), 8)))
        losses.append(float(runner.train_step(state, batch)[1]["loss"]))
    assert traced == ["gradient", "update", "update"] and losses == [0, 2.0**32, 0]


@pytest.mark.slow
def test_parameters_that_are_known_leave_the_others_and_the_optimizer_as_they_were():
    """Law: the bits of the parameters that are made do not depend on which others are made, nor on the program."""
    task = train_task(replace(tiny_config(), optimizer=replace(tiny_config().optimizer, ema_decay=0.5)))
    runner = make_runner("mesh", task, make_mesh(devices=jax.devices()[:1]))
    whole = jax.jit(task.initialize)()
    flat = flatten_dict(whole.params, sep="/")
    known = {path: x + 1 for path, x in flat.items() if "kernel" not in path}
    assert 0 < len(known) < len(flat)
    expected = unflatten_dict({**flat, **known}, sep="/")
    chex.assert_trees_all_equal(runner.init(), whole)
    chex.assert_trees_all_equal(runner.init(known), with_optimizer(task, expected))


def test_known_parameters_compile_no_program_that_makes_all(monkeypatch: pytest.MonkeyPatch):
    """A start from another run makes those that the run has not; the program of a whole model would take seconds."""
    task = train_task(tiny_config())
    runner = make_runner("mesh", task, make_mesh(devices=jax.devices()[:1]))
    made: list[Sequence[str]] = []

    def noted(task: TrainTask, mesh: Mesh, paths: Sequence[str]) -> Callable[[Any], dict[str, Array]]:
        made.append(paths)
        return zeros_of(runner, paths)

    monkeypatch.setattr(runners, "compiled_parameters", noted)
    missing = runner.paths[:2]
    state = runner.init({path: x for path, x in zeros_of(runner, runner.paths)(0).items() if path not in missing})
    assert made == [missing]
    chex.assert_trees_all_equal_shapes_and_dtypes(state.params, runner.abstract_state.params)


def zeros_of(runner: Runner, paths: Sequence[str]) -> Callable[[Any], dict[str, Array]]:
    """Returns a function of a seed that makes parameters of these paths, all of them zeros."""
    shapes = flatten_dict(runner.abstract_state.params, sep="/")
    return lambda seed: {path: jnp.zeros(shapes[path].shape, shapes[path].dtype) for path in paths}


class Norm(Hook):
    def measure(self, gradient: PyTree) -> dict[str, Array]:
        return {"norm": optax.tree.norm(gradient)}


def test_a_process_keeps_no_hook_for_the_next_run(monkeypatch: pytest.MonkeyPatch):
    """A hook may hold parameters, or data."""

    def gradient(task: TrainTask, params: PyTree, step: Array, seed: Array, batch: Batch) -> StepGradient:
        return StepGradient(jnp.zeros(()), batch.weights.sum(), params)

    monkeypatch.setattr(runners, "step_gradient", gradient)
    task = replace(train_task(tiny_config()), measures=Hooks([hook := Norm()], is_first=True, stop=Mock()).measures)
    runner = make_runner("mesh", task, make_mesh(devices=jax.devices()[:1]))
    state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), runner.abstract_state)
    batch = runner.shard_batch(zero_batch(task.objective, Bucket(Lengths(5, 3), 8)))
    assert "gradient/norm" in runner.train_step(state, batch)[1]
    there = weakref.ref(hook)
    del hook, task, runner, state
    gc.collect()
    assert there() is None
