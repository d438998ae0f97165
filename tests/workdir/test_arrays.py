"""The arrays of a checkpoint in a bucket: read as they were written, by any devices, or refused. Oracle: the arrays themselves."""

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flaxformer_lite.base.stores import Store
from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.workdir.arrays import check_arrays, in_store, read_tree
from flaxformer_lite.workdir.managers import bucket as manager
from flaxformer_lite.workdir.managers.bucket import copy_shards, write_shards


def sharding(*axes: Any, shape: tuple[int, int] = (4, 2)) -> NamedSharding:
    devices = np.array(jax.devices()[: shape[0] * shape[1]]).reshape(shape)
    return NamedSharding(Mesh(devices, ("fsdp", "tensor")), PartitionSpec(*axes))


def numbers(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(scale=100, size=shape).astype(dtype)


ARRAYS = {
    "kernel": numbers((8, 6), np.float32),
    "layers": {"bias": numbers((4,), jnp.bfloat16), "deep": numbers((2, 4, 3), np.int32)},
    "zeros": np.zeros((8, 2), np.float32),
    "step": np.int32(7),
    "empty": np.zeros((0, 3), np.float32),
    "flag": np.array([True, False]),
}


def state() -> dict[str, Any]:
    """The arrays, divided or copied in several ways over eight devices; a NumPy scalar stays on the host."""
    shardings = {
        "kernel": ("fsdp", "tensor"),
        "layers/bias": ("fsdp",),
        "layers/deep": (None, "fsdp"),
        "zeros": ("tensor",),
    }
    leaves = {
        path: x if path == "step" else jax.device_put(x, sharding(*shardings.get(path, ())))
        for path, x in leaves_by_path(ARRAYS).items()
    }
    return jax.tree.unflatten(jax.tree.structure(ARRAYS), leaves.values())


def write(store: Store, folder: str = "state") -> None:
    write_shards(store, folder, copy_shards(state()))


def abstract(like: Any = None) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=like), ARRAYS)


def assert_same(found: Any) -> None:
    for (path, x), y in zip(leaves_by_path(found).items(), jax.tree.leaves(ARRAYS), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape) and np.asarray(x).tobytes() == y.tobytes(), path


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_all_shards_come_back_bit_by_bit_on_other_devices(protocol: str, tmp_path: Path):
    store = Store(f"{protocol}://{tmp_path}/run")
    write(store)
    assert_same(read_tree(in_store(store, "state"), abstract()))
    assert_same(read_tree(in_store(store, "state"), abstract(sharding())))
    kernel = jax.ShapeDtypeStruct((8, 6), np.float32, sharding=sharding("tensor", shape=(1, 2)))
    found = read_tree(in_store(store, "state"), {"kernel": kernel})["kernel"]
    np.testing.assert_array_equal(found, ARRAYS["kernel"])
    assert found.sharding == kernel.sharding
    check_arrays(in_store(store, "state"), leaves_by_path(ARRAYS))


def test_chunks_of_a_limited_size_come_back_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(manager, "MAX_CHUNK_BYTES", 8)
    store = Store(f"file://{tmp_path}/run")
    write(store)
    assert_same(read_tree(in_store(store, "state"), abstract()))


def read_or_refused(folder: Path) -> bool:
    """Returns whether all arrays are read; they are then those that were written."""
    arrays = in_store(Store(f"file://{folder}"), "state")
    try:
        found = read_tree(arrays, abstract())
    except ValueError:
        return False
    assert_same(found)
    return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(Store(f"file://{tmp_path}/run"))
    return tmp_path / "run"


def test_a_flipped_bit_is_never_read(folder: Path):
    """Law: 120 drawn bits of all objects, weighted by size; each is refused, or in bytes that nothing reads."""
    random, refused = np.random.default_rng(0), 0
    objects = sorted(path for path in folder.rglob("*") if path.is_file())
    sizes = np.array([path.stat().st_size for path in objects])
    for _ in range(120):
        path = objects[random.choice(len(objects), p=sizes / sizes.sum())]
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[random.integers(len(whole))] ^= 1 << int(random.integers(8))
        path.write_bytes(bytes(damaged))
        refused += not read_or_refused(folder)
        path.write_bytes(whole)
    assert read_or_refused(folder) and refused > 100


def test_an_object_that_is_gone_or_cut_is_never_read(folder: Path, tmp_path: Path):
    objects = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    for i, name in enumerate(objects):
        for harm in "gone", "cut":
            copy = tmp_path / f"{i}-{harm}"
            shutil.copytree(folder, copy)
            if harm == "gone":
                (copy / name).unlink()
            else:
                (copy / name).write_bytes((folder / name).read_bytes()[: (folder / name).stat().st_size // 2])
            assert not read_or_refused(copy), f"{name} is {harm}"


def test_a_check_reads_all(folder: Path):
    largest = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    damaged = bytearray(largest.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    largest.write_bytes(bytes(damaged))
    with pytest.raises(ValueError, match="DATA_LOSS"):
        check_arrays(in_store(Store(f"file://{folder}"), "state"), leaves_by_path(ARRAYS))
