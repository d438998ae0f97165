"""The arrays of a checkpoint, read by TensorStore: those that Orbax wrote in a folder, and those in a bucket."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import tensorstore
from jaxtyping import Array, PyTree

from flaxformer_lite.base.hardware import check_platforms
from flaxformer_lite.base.stores import Store, new_context
from flaxformer_lite.core.base.tree_paths import leaves_by_path


class Arrays(NamedTuple):
    """The place of the arrays of a checkpoint, and the way in which TensorStore reads them."""

    spec: dict[str, Any]
    database: dict[str, Any]

    def open(self, path: str, context: tensorstore.Context) -> tensorstore.TensorStore:
        spec = self.spec | {"kvstore": self.database | {"path": name_of(path)}}
        return tensorstore.open(spec, read=True, open=True, context=context).result()


def name_of(path: str) -> str:
    """Returns the name of an array in the database, as Orbax forms it, by its path in the state."""
    return f"{path.replace('/', '.')}/"


def in_folder(folder: Path) -> Arrays:
    """Returns the arrays in the folder `state` of a checkpoint, as Orbax writes them."""
    base = {"driver": "file", "path": f"{folder.resolve()}/"}
    return Arrays({"driver": "zarr"}, {"driver": "ocdbt", "base": base})


def in_store(store: Store, folder: str) -> Arrays:
    """Returns the arrays in a folder of a store, as managers/bucket.py writes them; a missing chunk is an error, not zeros."""
    spec = {"driver": "zarr3", "fill_missing_data_reads": False}
    return Arrays(spec, store.database(folder))


def read_tree(arrays: Arrays, abstract: PyTree) -> PyTree:
    """Returns the arrays in `abstract` of a checkpoint's state in its types and shardings, or on the first local device."""
    check_platforms()
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    def read(path: str, x: Any) -> Array:
        stored = arrays.open(path, context)
        sharding = getattr(x, "sharding", None) or here
        return jax.make_array_from_callback(
            x.shape, sharding, lambda index: stored[index].read().result().astype(x.dtype, copy=False)
        )

    context, leaves = new_context(), leaves_by_path(abstract)
    with ThreadPoolExecutor() as pool:
        return jax.tree.unflatten(jax.tree.structure(abstract), pool.map(read, leaves, leaves.values()))


def check_arrays(arrays: Arrays, paths: Iterable[str]) -> None:
    """Reads arrays, one after the other, and drops them. Raises: ValueError of TensorStore if one is damaged."""
    context = new_context()
    for path in paths:
        arrays.open(path, context).read().result()
