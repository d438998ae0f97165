"""Checkpoints in a bucket, by TensorStore: each process writes its shards, and the first one completes the step.

The arrays are zarr3 in an OCDBT database, as Orbax writes them if it is asked for zarr3, so that Orbax opens the folder. Each chunk
and each node of the database has a checksum (CRC-32C), which TensorStore compares when it reads.

    checkpoints/40/state.3-0/_METADATA the names of the arrays, for Orbax
    checkpoints/40/state.3-0/p1/       what process 1 of several has written
    checkpoints/40/state.3-0/done.1    process 1 has written all; its content is the reason if that failed

A save: each process copies its shards to its memory, which is all that the training waits for. Then it writes them in one
transaction, and its `done`. The first process waits for all of them, joins the databases, copies the small files, changes the
ledger, and deletes steps that are not kept.
"""

import itertools
import json
import math
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
import tensorstore
from jaxtyping import PyTree

from flaxformer_lite.base.atomic_files import write_whole
from flaxformer_lite.base.stores import Store, StoreError, in_one_line, new_context
from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.parallel.sharding import allgather_text
from flaxformer_lite.workdir.arrays import name_of
from flaxformer_lite.workdir.bucket import RunBucket
from flaxformer_lite.workdir.managers.manager import divide
from flaxformer_lite.workdir.manifest import META

WRITES = {"config": {"compression": None, "max_inline_value_bytes": 1024}, "target_data_file_size": 2**28}
"""The settings of a new database."""
MAX_CHUNK_BYTES = 2**26
SHARDS_SECONDS = 1800.0
"""Longest time to wait for the shards of other processes."""


class Shards(NamedTuple):
    """The shards of an array that this process writes, copied."""

    path: str
    metadata: dict[str, Any]
    parts: list[tuple[Any, np.ndarray]]
    """Pairs of an index and what is there."""


class BucketManager:
    """`Manager` for a run in a bucket.

    A process that has lost the run raises ConflictError; a store that does not answer is a TimeoutError, after which training goes
    on without that step.
    """

    def __init__(self, bucket: RunBucket, policy: object) -> None:
        self._bucket, self._policy = bucket, policy
        self._steps, self._saves = set(bucket.ledger.steps), itertools.count()
        self._start = bucket.ledger.start
        self._thread = ThreadPoolExecutor(1)
        self._saving: Future[None] | None = None

    def save(self, step: int, state: PyTree, document: dict[str, object]) -> None:
        self.wait()
        place = f"checkpoints/{step}/state.{self._start}-{next(self._saves)}"
        shards = copy_shards(state)
        self._steps, old = divide(self._policy, self._steps | {step})
        description, text = orbax_metadata(leaves_by_path(state)), json.dumps(document)
        self._saving = self._thread.submit(self._complete, step, place, shards, description, text, old)

    def _complete(
        self, step: int, place: str, shards: list[Shards], description: bytes, document: str, old: list[int]
    ) -> None:
        bucket, index, count = self._bucket, jax.process_index(), jax.process_count()
        if index == 0:
            write_shards(bucket.store, place if count == 1 else f"{place}/p0", shards)
            if count > 1:
                self._wait_for_others(step, place)
                join_shards(bucket.store, place)
            bucket.store.write(f"{place}/_METADATA", description)
            bucket.add_step(step, place, document, old)
        else:
            reason = ""
            try:
                write_shards(bucket.store, f"{place}/p{index}", shards)
            except StoreError as error:
                reason = str(error)
            bucket.store.write(f"{place}/done.{index}", reason.encode())
            write_whole(bucket.here / f"checkpoints/{step}/meta/{META}", document)
        self._remove(old)

    def _wait_for_others(self, step: int, place: str) -> None:
        """Waits until all other processes have written their shards. Raises: TimeoutError if one failed, or is not heard of."""
        names = [f"{place}/done.{i}" for i in range(1, jax.process_count())]
        end, pause = time.monotonic() + SHARDS_SECONDS, 0.1
        while len(done := self._bucket.store.read_all(names)) < len(names) and not any(done.values()):
            if time.monotonic() > end:
                raise TimeoutError(f"a process wrote no shards of step {step} in {SHARDS_SECONDS:.0f} s")
            time.sleep(pause)
            pause = min(2 * pause, 2.0)
        if reason := next(filter(None, done.values()), b""):
            raise TimeoutError(f"a process could not write its shards of step {step}: {reason.decode()}")

    def steps(self) -> list[int]:
        return sorted(self._steps)

    def delete(self, step: int) -> None:
        self.wait()
        self._steps.discard(step)
        if jax.process_index() == 0:
            self._bucket.change(steps=self._bucket.steps_without([step]))
        self._remove([step])

    def _remove(self, steps: list[int]) -> None:
        """Deletes steps that the ledger does not list any more."""
        self._bucket.forget_others(self._steps)
        for step in steps if jax.process_index() == 0 else []:
            self._bucket.store.delete(self._bucket.store.names(f"checkpoints/{step}/"))

    def wait(self) -> None:
        saving, self._saving = self._saving, None
        if saving is None:
            return
        failure = ""
        try:
            saving.result()
        except (StoreError, TimeoutError) as error:
            failure = json.dumps([isinstance(error, TimeoutError), str(error)])
        for is_timeout, reason in map(json.loads, filter(None, allgather_text(failure))):
            raise (TimeoutError if is_timeout else OSError)(reason)

    def reload(self) -> None:
        if jax.process_index() > 0:
            self._bucket.reload()
        self._steps = set(self._bucket.ledger.steps)
        self._bucket.forget_others(self._steps)

    def close(self) -> None:
        self._thread.shutdown()


def copy_shards(state: PyTree) -> list[Shards]:
    """Returns copies of the shards that this process writes."""
    here, load, chosen = jax.process_index(), Counter[int](), []
    for path, x in leaves_by_path(state).items():
        array = x if isinstance(x, jax.Array) else jax.device_put(np.asarray(x), jax.local_devices()[0])
        writers = writers_of(array.sharding, array.shape, array.dtype.itemsize, load)
        shards = {str(shard.index): shard for shard in array.addressable_shards if writers[str(shard.index)] == here}
        for shard in shards.values():
            shard.data.copy_to_host_async()
        chosen.append((path, array, shards.values()))
    return [
        Shards(path, metadata_of(array), [(shard.index, copied(shard.data)) for shard in shards])
        for path, array, shards in chosen
        if shards
    ]


def copied(array: jax.Array) -> np.ndarray:
    """Returns a copy on the host; an array of a CPU is there already, and its memory is used again."""
    return np.array(array) if next(iter(array.devices())).platform == "cpu" else np.asarray(array)


def write_shards(store: Store, folder: str, shards: list[Shards]) -> None:
    """Writes shards in one transaction. Raises: StoreError."""
    transaction = tensorstore.Transaction(atomic=True)  # else two commits in a row may leave files that nothing needs
    context = new_context()
    kvstore, opened = store.database(folder) | WRITES, []
    for of_array in shards:
        spec = {
            "driver": "zarr3",
            "kvstore": kvstore | {"path": name_of(of_array.path)},
            "metadata": of_array.metadata,
            "store_data_equal_to_fill_value": True,  # so that a missing chunk is an error
        }
        opened.append(tensorstore.open(spec, create=True, open=True, context=context, transaction=transaction))
    with in_one_line(store.url):
        writes = [
            array.result()[index].write(values, can_reference_source_data_indefinitely=True)
            for array, of_array in zip(opened, shards, strict=True)
            for index, values in of_array.parts
        ]
        for write in writes:
            write.copy.result()
        transaction.commit_async().result()


def orbax_metadata(paths: Iterable[str]) -> bytes:
    """Returns the description by which Orbax finds arrays, in nested dictionaries."""
    tree = {}
    for names in (path.split("/") for path in paths):
        keys = [{"key": name, "key_type": 2} for name in names]
        value = {"value_type": "np.ndarray", "skip_deserialize": False}
        tree[str(tuple(names))] = {"key_metadata": keys, "value_metadata": value}
    return json.dumps({"tree_metadata": tree, "use_zarr3": True}).encode()


def writers_of(sharding: Any, shape: tuple[int, ...], itemsize: int, load: Counter[int]) -> dict[str, int]:
    """Returns for each shard, by its index as text, the process that writes it: of those that have it, the one with the least load.

    load: the bytes that each process writes, to which the shards are added. All processes come to the same result. The first
        process writes an array that each process has for itself.
    """
    owners: dict[str, set[int]] = {}
    for device, place in sharding.devices_indices_map(shape).items():
        owners.setdefault(str(place), set()).add(0 if sharding.is_fully_addressable else device.process_index)
    size = math.prod(sharding.shard_shape(shape)) * itemsize
    writers = {}
    for index, processes in owners.items():
        writers[index] = min(sorted(processes), key=lambda process: load[process])
        load[writers[index]] += size
    return writers


def metadata_of(array: jax.Array) -> dict[str, object]:
    """Returns zarr's description of an array, without compression, which brings little for floating-point numbers."""
    chunk = chunk_shape(array.sharding.shard_shape(array.shape), array.dtype.itemsize)
    return {
        "shape": array.shape,
        "data_type": array.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
    }


def chunk_shape(shard: tuple[int, ...], itemsize: int) -> list[int]:
    """Returns the shape of chunks of at most `MAX_CHUNK_BYTES` that divide a shard evenly; who reads a part reads whole chunks."""
    shape = [max(1, size) for size in shard]
    while math.prod(shape) * itemsize > MAX_CHUNK_BYTES:
        factor, axis = min((smallest_factor(size), axis) for axis, size in enumerate(shape) if size > 1)
        shape[axis] //= factor
    return shape


def smallest_factor(number: int) -> int:
    """Returns the smallest prime factor of a number above 1."""
    return next((d for d in range(2, math.isqrt(number) + 1) if number % d == 0), number)


def join_shards(store: Store, place: str) -> None:
    """Makes one database of those of all processes, which refers to their files."""
    transaction, context = tensorstore.Transaction(atomic=True), new_context()
    with in_one_line(store.url):
        whole = tensorstore.KvStore.open(store.database(place) | WRITES, context=context).result()
        for i in range(jax.process_count()):
            shards = tensorstore.KvStore.open(store.database(f"{place}/p{i}") | WRITES, context=context).result()
            shards.experimental_copy_range_to(whole.with_transaction(transaction)).result()
        transaction.commit_async().result()
