"""Checkpoints in a bucket, by TensorStore: each process writes its shards, and the first one completes the step.

The arrays are zarr3 in an OCDBT database, which is Orbax's format of storage; the names of the files are others. Each chunk and
each node of the database has a checksum (CRC-32C), which TensorStore compares when it reads.

    checkpoints/40/state.3-0/p1/       what process 1 of several has written
    checkpoints/40/state.3-0/done.1    process 1 has written all; its content is the reason if that failed

A save: each process copies its shards to its memory, writes them in one transaction, then its `done`. The first one waits for all
of them, joins the databases, copies the small files, changes the ledger, and deletes steps that are not kept.
"""

import itertools
import json
import math
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import tensorstore
from jaxtyping import PyTree

from flaxformer_lite.base.stores import Store, StoreError, in_one_line, new_context
from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.parallel.sharding import allgather_text
from flaxformer_lite.workdir.bucket import RunBucket
from flaxformer_lite.workdir.managers.manager import divide

WRITES = {"config": {"compression": None, "max_inline_value_bytes": 1024}, "target_data_file_size": 2**28}
"""The settings of a new database."""
MAX_CHUNK_BYTES = 2**26
WAIT_SECONDS = 1800.0
"""Longest time to wait for the shards of other processes."""


class BucketManager:
    """`Manager` for a run in a bucket.

    A process that has lost the run raises ConflictError; a store that does not answer is a TimeoutError, after which training goes
    on without that step.
    """

    def __init__(self, bucket: RunBucket, policy: Any) -> None:
        self._bucket, self._policy = bucket, policy
        self._steps, self._saves = set(bucket.ledger.steps), itertools.count()
        self._start = bucket.ledger.start
        self._thread = ThreadPoolExecutor(1)
        self._saving: Future[None] | None = None

    def save(self, step: int, state: PyTree, document: dict[str, Any]) -> None:
        self.wait()
        place = f"checkpoints/{step}/state.{self._start}-{next(self._saves)}"
        several = jax.process_count() > 1
        written = write_shards(self._bucket.store, f"{place}/p{jax.process_index()}" if several else place, state)
        self._steps, old = divide(self._policy, self._steps | {step})
        self._saving = self._thread.submit(self._complete, step, place, written, json.dumps(document), old)

    def _complete(self, step: int, place: str, written: Any, document: str, old: list[int]) -> None:
        bucket, index = self._bucket, jax.process_index()
        if index == 0:
            with in_one_line(bucket.store.url):
                written.result()
            if jax.process_count() > 1:
                self._wait_for_others(step, place)
                join_shards(bucket.store, place)
            bucket.add_step(step, place, document, old)
        else:
            reason = ""
            try:
                with in_one_line(bucket.store.url):
                    written.result()
            except StoreError as error:
                reason = str(error)
            bucket.store.write(f"{place}/done.{index}", reason.encode())
            bucket.follow_step(step, place, document, old)
        self._remove(old)

    def _wait_for_others(self, step: int, place: str) -> None:
        """Waits until all other processes have written their shards. Raises: TimeoutError if one failed, or is not heard of."""
        names = {f"{place}/done.{i}" for i in range(1, jax.process_count())}
        end, pause = time.monotonic() + WAIT_SECONDS, 0.1
        while names:
            done = self._bucket.store.read_all(names)
            if reason := next(filter(None, done.values()), b""):
                raise TimeoutError(f"a process could not write its shards of step {step}: {reason.decode()}")
            if not (names := names - done.keys()):
                return
            if time.monotonic() > end:
                raise TimeoutError(f"a process wrote no shards of step {step} in {WAIT_SECONDS:.0f} s")
            time.sleep(pause)
            pause = min(2 * pause, 2.0)

    def steps(self) -> list[int]:
        return sorted(self._steps)

    def delete(self, step: int) -> None:
        self.wait()
        self._steps.discard(step)
        self._bucket.drop_step(step, everywhere=jax.process_index() == 0)
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
        failure: Exception | None = None
        try:
            saving.result()
        except (StoreError, TimeoutError) as error:
            failure = error
        failures = allgather_text(
            "" if failure is None else json.dumps([isinstance(failure, TimeoutError), str(failure)])
        )
        for is_timeout, reason in map(json.loads, filter(None, failures)):
            raise (TimeoutError if is_timeout else OSError)(reason)

    def reload(self) -> None:
        if jax.process_index() > 0:
            self._bucket.reload()
        self._steps = set(self._bucket.ledger.steps)
        self._bucket.forget_others(self._steps)

    def close(self) -> None:
        self._thread.shutdown()


def write_shards(store: Store, folder: str, state: PyTree) -> Any:
    """Starts to write the shards of this process in one transaction; returns its result once all of them are copied."""
    transaction, context, here = tensorstore.Transaction(), new_context(), jax.process_index()
    kvstore = store.database(folder) | WRITES
    opened, load = [], Counter[int]()
    for path, x in leaves_by_path(state).items():
        array = x if isinstance(x, jax.Array) else jax.device_put(np.asarray(x), jax.local_devices()[0])
        writers = writers_of(array.sharding, array.shape, array.dtype.itemsize, load)
        shards = {str(shard.index): shard for shard in array.addressable_shards if writers[str(shard.index)] == here}
        if not shards:
            continue
        for shard in shards.values():
            shard.data.copy_to_host_async()
        spec = {
            "driver": "zarr3",
            "kvstore": kvstore | {"path": f"{path}/"},
            "metadata": metadata_of(array),
            "store_data_equal_to_fill_value": True,  # so that a missing chunk is an error
        }
        array_there = tensorstore.open(spec, create=True, open=True, context=context, transaction=transaction)
        opened.append((array_there, shards.values()))  # all are opened at the same time: each is a request
    with in_one_line(store.url):
        writes = [
            array_there.result()[shard.index].write(np.asarray(shard.data))
            for array_there, shards in opened
            for shard in shards
        ]
        for write in writes:
            write.copy.result()
    return transaction.commit_async()


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


def metadata_of(array: jax.Array) -> dict[str, Any]:
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
