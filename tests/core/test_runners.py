"""Laws of the runners: nothing is compiled before it is called, nor twice. Their numbers: tests/training/test_many_devices.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, PyTree

from flaxformer_lite.core import runners
from flaxformer_lite.core.data.batch_plan import Bucket
from flaxformer_lite.core.data.dataset import zero_batch
from flaxformer_lite.core.data.records import Lengths
from flaxformer_lite.core.objectives import Batch, LossTerm
from flaxformer_lite.core.parallel.mesh import make_mesh
from flaxformer_lite.core.runners import MeshRunner, PmapRunner, make_runner
from flaxformer_lite.core.step import TrainState, TrainTask, across, train_step
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
    assert traced == [task]


def test_a_step_of_one_cpu_is_two_programs_with_its_bits():
    """Laws: the update has one program for all shapes of batches, the gradient one for each; both have the bits of `train_step`."""
    config = tiny_config()
    task, mesh = train_task(config), make_mesh(devices=jax.devices()[:1])
    divided, whole = make_runner("mesh", task, mesh), make_runner("mesh", task, mesh)
    states = [divided.init(), whole.init()]
    for length in (3, 5, 3):
        batch = zero_batch(task.objective, Bucket(Lengths(length, length), 8))
        batch = divided.shard_batch(batch._replace(weights=np.ones_like(batch.weights)))
        (states[0], measured), (states[1], expected) = (
            divided.train_step(states[0], batch),
            whole.compiled_train_step(states[1], batch),
        )
        assert measured.keys() == expected.keys()
        for one, other in zip(*map(jax.tree.leaves, [(states[0], measured), (states[1], expected)]), strict=True):
            np.testing.assert_array_equal(one, other)
    assert isinstance(divided, MeshRunner)
    assert (num_programs(divided.compiled_gradient), num_programs(divided.compiled_update)) == (2, 1)
    assert all(
        x.sharding == y.sharding
        for x, y in zip(*map(jax.tree.leaves, (states[0], divided.abstract_state)), strict=True)
    )
