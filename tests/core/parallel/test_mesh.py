"""Oracles: sizes and rows worked out by hand."""

import itertools
from typing import Any

import jax
import numpy as np
import pytest

from flaxformer_lite.config.train import TrainConfig
from flaxformer_lite.core.parallel.mesh import MeshConfig, check_rows, interleaved_rows, local_rows, make_mesh
from flaxformer_lite.tools.planning.topology import describe_slice
from tests.support import needs
from tests.support.slices import stand_ins

TOPOLOGIES = (
    *("v5e:1x1", "v5e:2x2", "v5e:2x4", "v5e:4x4", "v5e:4x8", "v5e:8x8", "v5e:8x16", "v5e:16x16"),
    *("v6e:1x1", "v6e:2x2", "v6e:2x4", "v6e:4x4", "v6e:4x8", "v6e:8x8", "v6e:8x16", "v6e:16x16"),
    *("v4:2x2x1", "v4:2x2x4", "v4:4x4x4", "v5p:2x2x1", "v5p:2x2x2", "v5p:2x4x4", "v5p:4x4x4", "v5p:4x4x8"),
    *("tpu7x:2x2x1", "tpu7x:2x2x2", "tpu7x:2x2x4", "tpu7x:2x4x4"),
)


def all_sizes(num_devices: int) -> list[MeshConfig]:
    """Every mesh of powers of two."""
    powers = [2**n for n in range(num_devices.bit_length())]
    sizes = itertools.product(powers, powers)
    return [MeshConfig(fsdp=fsdp, tensor=tensor) for fsdp, tensor in sizes if fsdp * tensor <= num_devices]


def test_sizes_of_a_mesh():
    """Oracle: by hand."""
    assert MeshConfig(fsdp=2).shape(8) == (4, 2, 1)
    assert MeshConfig(data=2, fsdp=-1, tensor=2).shape(8) == (2, 2, 2)
    assert make_mesh().shape == {"data": 8, "fsdp": 1, "tensor": 1}
    with pytest.raises(ValueError, match=r"train\.mesh\.fsdp 3, train\.mesh\.tensor 1 do not make up 8 devices"):
        MeshConfig(fsdp=3).shape(8)
    with pytest.raises(ValueError, match=r"do not make up 8 devices"):
        MeshConfig(data=1, fsdp=2, tensor=2).shape(8)
    with pytest.raises(ValueError, match=r"train\.mesh\.data and train\.mesh\.fsdp are -1"):
        MeshConfig(fsdp=-1)
    with pytest.raises(ValueError, match=r"train\.mesh\.tensor is 0: it must be at least 1, or -1"):
        MeshConfig(tensor=0)
    with pytest.raises(ValueError, match=r"train\.runner 'pmap' copies the whole model"):
        TrainConfig(runner="pmap", mesh=MeshConfig(fsdp=2))


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_mesh_of_powers_of_two_can_be_made(topology: str):
    """`jax.make_mesh` refuses most of them on a v6e, v4 or v5p."""
    devices = stand_ins(topology)
    for config in all_sizes(len(devices)):
        mesh = make_mesh(config, devices)
        assert mesh.devices.shape == config.shape(len(devices)) and set(mesh.devices.flat) == set(devices)
        assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}


def test_a_mesh_of_chips_without_a_block_is_refused():
    with pytest.raises(ValueError, match=r"train\.mesh\.data 3, .* cannot arrange 3 of .*: choose powers of two"):
        make_mesh(devices=stand_ins("v6e:2x2")[:3])


@pytest.mark.parametrize("num_slices", [2, 4])
@pytest.mark.parametrize("topology", ["v5e:4x4", "v6e:2x4", "v4:2x2x4", "v5p:4x4x4", "tpu7x:2x2x2"])
def test_data_alone_goes_over_the_network_between_slices(topology: str, num_slices: int):
    devices = stand_ins(topology, num_slices)
    for config in all_sizes(len(devices)):
        data = config.shape(len(devices))[0]
        if data % num_slices:
            with pytest.raises(ValueError, match=rf"train\.mesh\.data is {data}, .* are {num_slices} TPU slices"):
                make_mesh(config, devices)
        else:
            grid = make_mesh(config, devices).devices
            assert grid.shape == config.shape(len(devices)) and set(grid.flat) == set(devices)
            for index, inside in enumerate(np.split(grid, num_slices)):
                assert {device.slice_index for device in inside.flat} == {index}


def test_slices_of_different_sizes_are_refused():
    with pytest.raises(ValueError, match=r"cannot arrange 12 of these TPU's devices"):
        make_mesh(MeshConfig(data=2, fsdp=-1), stand_ins("v5e:2x4") + stand_ins("v5e:2x2", 2)[4:])


@needs.libtpu
@pytest.mark.parametrize("num_slices", [1, 2])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_stand_ins_are_as_the_compiler_describes_the_devices(topology: str, num_slices: int):
    def facts(device: Any) -> tuple[Any, ...]:
        index = device.slice_index if num_slices > 1 else 0
        return (index, *device.coords, device.core_on_chip, device.platform, device.device_kind)

    real = describe_slice(topology, num_slices).devices
    assert sorted(map(facts, stand_ins(topology, num_slices))) == sorted(map(facts, real))


def test_rows_divide_over_what_divides_rows():
    check_rows("data.rows_multiple", 4, make_mesh(MeshConfig(tensor=2)))
    with pytest.raises(ValueError, match=r"rows_multiple is 4, which 8 devices do not divide: make it a multiple of 8"):
        check_rows("data.rows_multiple", 4, make_mesh())
    with pytest.raises(
        ValueError, match=r"which 4 devices with 2 micro-batches each do not divide: make it a multiple of 8"
    ):
        check_rows("data.rows_multiple", 4, make_mesh(MeshConfig(tensor=2)), num_micro_batches=2)


def test_which_rows_a_device_of_a_pmap_has():
    """Oracle: by hand. 2 devices with 2 micro-batches: rows 0, 4 and 1, 5 on the first, 2, 6 and 3, 7 on the second."""
    line = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))
    assert interleaved_rows(line, 2, 8).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    assert local_rows(make_mesh(MeshConfig(tensor=4)), 6).tolist() == list(range(6))
