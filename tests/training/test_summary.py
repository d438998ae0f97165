"""Oracle: the words that the start and the end of a training have, by hand."""

import dataclasses
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import jax
import pytest

from flaxformer_lite.base import hardware
from flaxformer_lite.core.parallel.mesh import MeshConfig, make_mesh
from flaxformer_lite.training import summary
from flaxformer_lite.training.summary import (
    describe_data,
    describe_devices,
    describe_weights,
    device_warnings,
)
from tests.support.experiments import tiny_config, with_train

NO_TEXT = with_train(tiny_config(), text_metrics=())
BEST_IS_10 = "; the best by loss is step 10"


def test_the_line_on_devices_names_the_axes_that_divide():
    assert describe_devices("mesh", make_mesh(devices=jax.devices()[:1]), 1) == "1 cpu device"
    mesh = make_mesh(MeshConfig(data=4, tensor=2))
    assert describe_devices("mesh", mesh, 2) == "8 cpu devices in 2 processes: mesh, data 4, tensor 2"


def test_the_shares_that_are_held_out_are_told():
    """By hand: a share for each split without data of its own."""
    plan = SimpleNamespace(batches_per_epoch=2, buckets=[0])
    train = SimpleNamespace(plan=plan, dropped=0, padding=0.25)
    data = cast(Any, SimpleNamespace(records=[0] * 80, train=train, eval=SimpleNamespace(pairs=[0] * 9)))
    held = dataclasses.replace(NO_TEXT, data=dataclasses.replace(NO_TEXT.data, eval=None, test=None, held_out=0.1))
    line = "80 training pairs in 2 batches an epoch, 1 shape, 25.0% padding"
    both = f"{line}; 9 held out for data.eval; a share of 0.1 held out for data.test"
    assert describe_data(held, data) == both
    tested = dataclasses.replace(held, data=dataclasses.replace(held.data, test=held.data.train))
    assert describe_data(tested, data) == f"{line}; 9 held out for data.eval"
    assert describe_data(NO_TEXT, data) == line


def test_an_accelerator_that_is_left_alone_is_told(monkeypatch: pytest.MonkeyPatch):
    """On a machine with a TPU, then with a GPU; not where the user has chosen the CPU."""
    assert list(device_warnings("float32")) == []
    for name, what in (("has_tpu", "a TPU"), ("has_nvidia_device", "an NVIDIA GPU")):
        monkeypatch.setattr(hardware, name, lambda: True)
        chosen = getattr(jax.config, "jax_platforms")  # noqa: B009  # types that JAX has not stated
        jax.config.update("jax_platforms", None)
        try:
            (warning,) = device_warnings("float32")
        finally:
            jax.config.update("jax_platforms", chosen)
        assert f"has {what}, but JAX computes on the CPU" in warning and "doctor" in warning
        assert list(device_warnings("float32")) == []


def test_bfloat16_on_a_gpu_without_units_for_it_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(summary, "compute_capability", lambda: 7.5)
    (warning,) = device_warnings("bfloat16")
    assert "compute capability 7.5" in warning and "set model.dtype to 'float32'" in warning
    assert list(device_warnings("float32")) == []
    monkeypatch.setattr(summary, "compute_capability", lambda: 8.0)
    assert list(device_warnings("bfloat16")) == []


@pytest.mark.parametrize(
    ("weights", "changes", "best", "said"),
    [
        ("last", {}, 10, f"step 12{BEST_IS_10}, which --weights best uses"),
        ("last", {"keep_best": 0}, 10, f"step 12{BEST_IS_10}"),
        ("last", {}, 12, "step 12, also the best by loss"),
        ("last", {}, None, "step 12"),
        ("best", {}, 10, "step 10"),
        ("ema", {}, 12, "the moving average at step 12; the best by loss is step 12, which --weights best uses"),
        ("average:2", {}, 10, f"the mean of steps 10, 12{BEST_IS_10}, which --weights best uses"),
        ("average:1", {}, None, "step 12"),
    ],
)
def test_the_end_says_which_weights_commands_use_and_which_are_the_best(weights, changes, best, said: str):
    """Oracle: by hand, for checkpoints of steps 8, 10 and 12."""
    checkpoints = Mock(latest=lambda: 12, best=lambda: best, newest_regular=lambda n: [12, 10, 8][:n])
    config = dataclasses.replace(with_train(NO_TEXT, **changes), weights=weights)
    assert describe_weights(config, checkpoints) == f"commands use weights {weights!r}: {said}"
    nothing = Mock(latest=lambda: 12, best=lambda: None)
    assert "'best', but no checkpoint was" in describe_weights(dataclasses.replace(NO_TEXT, weights="best"), nothing)
