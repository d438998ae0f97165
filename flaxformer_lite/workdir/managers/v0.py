"""Orbax's interface v0, its CheckpointManager, with digests."""

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from flaxformer_lite.workdir.managers.manager import save_seconds
from flaxformer_lite.workdir.manifest import META, write_digests, write_own_digests


class CheckedTree(ocp.PyTreeCheckpointHandler):
    """Orbax's handler for trees. Each process computes the digests of the files that it wrote, once they are complete; the first
    one adds those of the others last, before the atomic rename."""

    async def async_save(self, directory: Any, *arguments: Any, **named: Any) -> Any:
        written = await super().async_save(directory, *arguments, **named)
        subfolder = f"ocdbt.process_{jax.process_index()}"  # Orbax's name
        return [ocp.future.ChainedFuture(written or [], lambda: write_own_digests(Path(directory), subfolder))]

    def finalize(self, directory: Any) -> None:
        super().finalize(directory)
        write_digests(Path(directory))


class V0Manager:
    """`Manager` by Orbax's CheckpointManager."""

    def __init__(self, folder: Path, policy: object) -> None:
        registry = ocp.DefaultCheckpointHandlerRegistry()
        # The layout that `read_tree` reads, whatever Orbax's default is
        registry.add("state", ocp.args.PyTreeSave, CheckedTree(use_ocdbt=True, use_zarr3=False))
        registry.add("meta", ocp.args.JsonSave, ocp.JsonCheckpointHandler(filename=META))
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy,
            # If the folder cannot be written, save() raises; otherwise threads would wait minutes for a folder to appear.
            async_options=ocp.AsyncOptions(timeout_secs=save_seconds(), create_directories_asynchronously=False),
        )
        self._orbax = ocp.CheckpointManager(folder, options=options, handler_registry=registry)

    def save(self, step: int, state: PyTree, document: dict[str, object]) -> None:
        items = ocp.args.Composite(state=ocp.args.PyTreeSave(state), meta=ocp.args.JsonSave(document))
        # Without force, Orbax silently skips a step below its latest, as after falling back from a damaged one.
        self._orbax.save(step, args=items, force=True)

    def steps(self) -> list[int]:
        return sorted(self._orbax.all_steps())

    def delete(self, step: int) -> None:
        self._orbax.delete(step)

    def wait(self) -> None:
        self._orbax.wait_until_finished()

    def reload(self) -> None:
        self._orbax.reload()

    def close(self) -> None:
        self._orbax.close()
