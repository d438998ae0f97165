"""Hand-worked lines on devices. Restoring, warm starts and other data: test_loop.py."""

import dataclasses

import jax
import pytest

from flaxformer_lite.base import hardware
from flaxformer_lite.optim import Cosine, OptimizerConfig
from flaxformer_lite.parallel.mesh import MeshConfig, make_mesh
from flaxformer_lite.training import setup
from flaxformer_lite.training.setup import describe_devices, describe_length, device_warnings, mesh_for
from tests.support.experiments import tiny_config, with_train


def test_the_line_on_devices_names_the_axes_that_divide():
    assert describe_devices("mesh", make_mesh(devices=jax.devices()[:1]), 1) == "1 cpu device"
    mesh = make_mesh(MeshConfig(data=4, tensor=2))
    assert describe_devices("mesh", mesh, 2) == "8 cpu devices in 2 processes: mesh, data 4, tensor 2"


def test_rows_that_the_devices_do_not_divide_are_refused():
    assert mesh_for(tiny_config()).size == 8
    with pytest.raises(ValueError, match=r"data\.rows_multiple is 8, which 8 devices with 2 micro-batches each"):
        mesh_for(with_train(tiny_config(), num_micro_batches=2))


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
    monkeypatch.setattr(setup, "compute_capability", lambda: 7.5)
    (warning,) = device_warnings("bfloat16")
    assert "compute capability 7.5" in warning and "set model.dtype to 'float32'" in warning
    assert list(device_warnings("float32")) == []
    monkeypatch.setattr(setup, "compute_capability", lambda: 8.0)
    assert list(device_warnings("bfloat16")) == []


def test_pmap_is_refused_by_a_jax_whose_arrays_differ(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "__version_info__", (0, 7, 2))
    with pytest.raises(
        ValueError, match=r"train\.runner is 'pmap', which needs JAX 0\.8 or newer, and this is .*'mesh'"
    ):
        mesh_for(with_train(tiny_config(), runner="pmap"))
    assert mesh_for(tiny_config()).size == 8


def test_a_run_that_is_made_longer_is_told_of_its_schedule():
    """Oracle: by hand: half a cosine over 12 steps has come to 0; over 24 it is at (1 + cos(12 pi / 23)) / 2 of 0.01."""
    constant = tiny_config()
    cosine = dataclasses.replace(constant, optimizer=OptimizerConfig(schedule=Cosine(peak_rate=1e-2)))
    assert describe_length(None, cosine, 12) == describe_length(cosine, with_train(cosine, eval_every=7), 12) == ""
    assert describe_length(constant, with_train(constant, steps=24), 12) == "", "its rates do not depend on the length"
    assert describe_length(cosine, with_train(cosine, steps=24), 12) == (
        "; train.steps was 12 and is now 24: the learning rate continues with 4.66e-03, on a schedule of that length"
    )
