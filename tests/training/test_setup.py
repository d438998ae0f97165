"""Hand-worked lines on devices. Restoring, warm starts and other data: test_loop.py."""

import jax
import pytest

from flaxformer_lite.parallel.mesh import MeshConfig, make_mesh
from flaxformer_lite.training.setup import describe_devices, mesh_for
from tests.support.experiments import tiny_config, with_train


def test_the_line_on_devices_names_the_axes_that_divide():
    assert describe_devices("mesh", make_mesh(devices=jax.devices()[:1]), 1) == "1 cpu device"
    mesh = make_mesh(MeshConfig(data=4, tensor=2))
    assert describe_devices("mesh", mesh, 2) == "8 cpu devices in 2 processes: mesh, data 4, tensor 2"


def test_rows_that_the_devices_do_not_divide_are_refused():
    assert mesh_for(tiny_config()).size == 8
    with pytest.raises(ValueError, match=r"data\.rows_multiple is 8, which 8 devices with 2 micro-batches each"):
        mesh_for(with_train(tiny_config(), num_micro_batches=2))
