"""Orbax's manager, which writes the checkpoints of `checkpoints.py`, with digests. Only what writes a run imports it."""

import shutil
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from flaxformer_lite.workdir.manifest import META, write_digests, write_own_digests

SAVE_SECONDS = 100 * 365 * 86_400
"""The longest save, by the clock on the wall, which Orbax reads: it runs on while a machine sleeps, and jumps when it is set."""

SAVE_SECONDS_OF_SEVERAL = 20 * 86_400
"""The same for several processes, whose barriers count milliseconds in 32 bits."""


class CheckedTree(ocp.PyTreeCheckpointHandler):
    """Orbax's handler for trees. Each process computes the digests of the files that it wrote, once they are complete; the first
    one adds those of the others last, before the atomic rename."""

    async def async_save(self, directory: Any, *arguments: Any, **named: Any) -> Any:
        written = await super().async_save(directory, *arguments, **named)
        own = f"ocdbt.process_{jax.process_index()}"  # Orbax's name
        return [ocp.future.ChainedFuture(written or [], lambda: write_own_digests(Path(directory), own))]

    def finalize(self, directory: Any) -> None:
        super().finalize(directory)
        write_digests(Path(directory))


def make_manager(folder: Path, policy: Any, shared: bool) -> ocp.CheckpointManager:
    """Returns a manager of the checkpoints in `folder`, after deleting checkpoints that an earlier process left incomplete.

    `policy.should_preserve` chooses which checkpoints are kept.
    If not `shared`, it belongs to this process alone and waits for no other.
    """
    if jax.process_index() == 0:  # Orbax can do this too, but not before the first save
        for incomplete in folder.glob(f"*{ocp.path.atomicity_types.TMP_DIR_SUFFIX}*"):
            shutil.rmtree(incomplete)
    processes = ocp.options.MultiprocessingOptions()
    if not shared:
        here = jax.process_index()
        processes = ocp.options.MultiprocessingOptions(
            primary_host=here, active_processes={here}, barrier_sync_key_prefix=f"process{here}"
        )
        folder.mkdir(parents=True, exist_ok=True)  # Orbax does this for all processes together only
    registry = ocp.DefaultCheckpointHandlerRegistry()
    # The layout that `read_tree` reads, whatever Orbax's default is
    tree = CheckedTree(use_ocdbt=True, use_zarr3=False, multiprocessing_options=processes)
    registry.add("state", ocp.args.PyTreeSave, tree)
    document = ocp.JsonCheckpointHandler(filename=META, multiprocessing_options=processes)
    registry.add("meta", ocp.args.JsonSave, document)
    options = ocp.CheckpointManagerOptions(
        preservation_policy=policy,
        create=shared,
        multiprocessing_options=processes,
        # If the folder cannot be written, save() raises; otherwise threads would wait minutes for a folder to appear.
        async_options=ocp.AsyncOptions(
            timeout_secs=SAVE_SECONDS if jax.process_count() == 1 else SAVE_SECONDS_OF_SEVERAL,
            create_directories_asynchronously=False,
        ),
    )
    return ocp.CheckpointManager(folder, options=options, handler_registry=registry)
