"""Oracles: sizes and rows worked out by hand."""

import jax
import numpy as np
import pytest

from flaxformer_lite.config.train import TrainConfig
from flaxformer_lite.parallel.mesh import MeshConfig, check_rows, interleaved_rows, local_rows, make_mesh


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


def test_rows_divide_over_what_divides_rows():
    check_rows(4, make_mesh(MeshConfig(tensor=2)))
    with pytest.raises(ValueError, match=r"rows_multiple is 4, which 8 devices do not divide: make it a multiple of 8"):
        check_rows(4, make_mesh())
    with pytest.raises(
        ValueError, match=r"which 4 devices with 2 micro-batches each do not divide: make it a multiple of 8"
    ):
        check_rows(4, make_mesh(MeshConfig(tensor=2)), num_micro_batches=2)


def test_which_rows_a_device_of_a_pmap_has():
    """Oracle: by hand. 2 devices with 2 micro-batches: rows 0, 4 and 1, 5 on the first, 2, 6 and 3, 7 on the second."""
    line = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))
    assert interleaved_rows(line, 2, 8).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    assert local_rows(make_mesh(MeshConfig(tensor=4)), 6).tolist() == list(range(6))
