"""Laws of the runners: nothing is compiled before it is called, nor twice. Their numbers: tests/training/test_many_devices.py."""

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import PyTree

from flaxformer_lite.data.batch_plan import Bucket
from flaxformer_lite.data.dataset import zero_batch
from flaxformer_lite.data.records import Lengths
from flaxformer_lite.objectives import Batch
from flaxformer_lite.objectives.losses import LossTerm
from flaxformer_lite.parallel.mesh import make_mesh
from flaxformer_lite.training import runners
from flaxformer_lite.training.runners import MeshRunner, PmapRunner, make_runner, traced_once
from flaxformer_lite.training.step import TrainTask, across
from tests.support.experiments import tiny_config


def test_tracing_the_same_shapes_again_is_an_error():
    """Here a setting of JAX that is part of the key of its cache is another one."""
    function = jax.jit(traced_once(lambda x: x + 1, "step"))
    function(jnp.zeros(2)), function(jnp.zeros(3)), function(jnp.zeros(2)), function(jnp.zeros(2, jnp.int32))
    with (
        jax.default_matmul_precision("float32"),
        pytest.raises(AssertionError, match=r"^step was traced twice for the same shapes: something recompiles it"),
    ):
        function(jnp.zeros(2))


@pytest.mark.parametrize(("kind", "expected"), [("mesh", MeshRunner), ("pmap", PmapRunner)])
def test_a_runner_compiles_when_a_step_is_first_called(kind: str, expected: type, monkeypatch: pytest.MonkeyPatch):
    """Law: constructing traces no step; two evaluations of the same shape trace one."""
    traced = []

    def counted(task: TrainTask, params: PyTree, batch: Batch, axis_name: str | None = None) -> PyTree:
        traced.append(task)
        return {"tokens": LossTerm(params + across(batch.weights.sum(), axis_name), params)}

    monkeypatch.setattr(runners, "train_step", lambda *_, **__: pytest.fail("nobody has asked for a train step"))
    monkeypatch.setattr(runners, "eval_step", counted)
    task = TrainTask.of(tiny_config())
    runner = make_runner(kind, task, make_mesh())
    assert isinstance(runner, expected) and not traced
    batch = zero_batch(task.objective, Bucket(Lengths(5, 3), 8))
    for _ in range(2):
        assert float(runner.eval_step(jnp.ones(()), runner.shard_batch(batch))["tokens"].sum) == 1
    assert traced == [task]
