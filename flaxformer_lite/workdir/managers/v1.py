"""Orbax's interface v1, with digests: Orbax writes a step, and this file keeps the sequence of steps.

`training.Checkpointer` of v1 reads the metadata of all steps when it opens a folder, so one damaged file would stop it.
"""

import asyncio
import contextlib
import json
import shutil
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from flaxformer_lite.workdir.managers.manager import TEMPORARY, delete_incomplete, divide, save_seconds
from flaxformer_lite.workdir.manifest import META, steps_in, write_digests

ocp: Any = getattr(orbax.checkpoint, "v1", orbax.checkpoint)
"""The interface v1: beside v0 in Orbax 0.12, at the top of Orbax 1."""


class Handler(ocp.handlers.CheckpointableHandler):
    """Writes an item of a checkpoint. No item is read through Orbax."""

    async def load(self, directory: Any, abstract_checkpointable: Any = None) -> Any:
        raise NotImplementedError

    async def metadata(self, directory: Any) -> None:
        return None

    def is_handleable(self, checkpointable: object) -> bool:
        return True

    def is_abstract_handleable(self, abstract_checkpointable: object) -> bool:
        return True


class CheckedTree(Handler):
    """Orbax's handler for trees. The first process computes the digests of all files once they are complete."""

    async def save(self, directory: Any, checkpointable: Any) -> Awaitable[None]:
        written = await ocp.handlers.PyTreeHandler().save(directory, checkpointable)

        async def finish() -> None:
            await written
            if jax.process_index() == 0:
                await asyncio.to_thread(write_digests, Path(await directory.await_creation()))

        return Later(finish)


class Document(Handler):
    """Writes a JSON document."""

    async def save(self, directory: Any, checkpointable: Any) -> Awaitable[None]:
        async def write() -> None:
            folder = Path(await directory.await_creation())
            if jax.process_index() == 0:
                await asyncio.to_thread((folder / META).write_text, json.dumps(checkpointable), encoding="utf-8")

        return Later(write)


class Later(NamedTuple):
    """The part of a save in the background. Its coroutine is made once it is awaited: Python warns of one that never is awaited."""

    run: Callable[[], Coroutine[Any, Any, None]]

    def __await__(self) -> Generator[Any, None, None]:
        return self.run().__await__()


class V1Manager:
    """`Manager` by `save_checkpointables_async`."""

    def __init__(self, folder: Path, policy: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._policy, self._steps = folder, policy, set(steps_in(folder))
        self._thread, self._saving = ThreadPoolExecutor(1), Future[None]()
        self._saving.set_result(None)
        registry = ocp.handlers.local_registry(include_global_registry=False)
        registry.add(CheckedTree, checkpointable_name="state")
        registry.add(Document, checkpointable_name="meta")
        self._context = ocp.Context()
        self._context.checkpointables.registry = registry
        # The layout that `read_tree` reads, whatever Orbax's default is
        self._context.array.saving.use_ocdbt, self._context.array.saving.use_zarr3 = True, False
        # If the folder cannot be written, save() raises; otherwise threads would wait minutes for a folder to appear.
        self._context.asynchronous.create_directories_asynchronously = False
        self._context.asynchronous.timeout_secs = save_seconds()

    def save(self, step: int, state: PyTree, document: dict[str, object]) -> None:
        self.wait()
        state = jax.tree.map(
            lambda x: x if isinstance(x, jax.Array) else np.asarray(x), state
        )  # v1 has no NumPy scalars
        self._on_first(lambda: delete_incomplete(self._folder, str(step)), f"before {step}")
        with self._context:
            written = ocp.save_checkpointables_async(self._folder / str(step), {"state": state, "meta": document})
        self._steps, old = divide(self._policy, self._steps | {step})

        def finish() -> None:
            written.result()
            if jax.process_index() == 0:
                for number in old:
                    self._remove(number)

        self._saving = self._thread.submit(finish)

    def steps(self) -> list[int]:
        return sorted(self._steps)

    def delete(self, step: int) -> None:
        self.wait()
        self._on_first(lambda: self._remove(step), f"delete {step}")
        self._steps.discard(step)

    def wait(self) -> None:
        saving, self._saving = self._saving, Future()
        self._saving.set_result(None)
        saving.result()

    def reload(self) -> None:
        self._steps = set(steps_in(self._folder))

    def close(self) -> None:
        self._thread.shutdown()

    def _remove(self, step: int) -> None:
        """Takes the name away first, so that a step exists as a whole or not at all."""
        unnamed = self._folder / f"{step}{TEMPORARY}-deleted"
        with contextlib.suppress(FileNotFoundError):
            (self._folder / str(step)).rename(unnamed)
            shutil.rmtree(unnamed)

    def _on_first(self, function: Callable[[], None], name: str) -> None:
        """Calls a function in the first process, while the others wait."""
        if jax.process_index() == 0:
            function()
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(f"flaxformer_lite checkpoint {name}")
