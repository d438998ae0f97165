"""Orbax's CheckpointManager as `checkpoints.py` needs it: quiet, with digests, and with our choice of what is kept."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from flaxformer_lite.workdir.manifest import META, write_digests

SAVE_SECONDS = 100 * 365 * 86_400
"""The longest save, by the clock on the wall, which Orbax reads: it runs on while a machine sleeps, and jumps when it is set."""

SAVE_SECONDS_OF_SEVERAL = 20 * 86_400
"""The same for several processes, whose barriers count milliseconds in 32 bits."""


@dataclass(frozen=True)
class Preserve:
    """Orbax's preservation policy: chooses after each save which checkpoints are kept.

    Orbax's own `BestN` reads the metrics of all checkpoints when a folder is opened, so one damaged file would stop it. It
    also knows no damaged checkpoints and no NaN.
    """

    kept: Callable[[list[int]], set[int]]

    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        del context
        kept = self.kept([info.step for info in checkpoints])
        return [info.step in kept for info in checkpoints]


class CheckedTree(ocp.PyTreeCheckpointHandler):
    """Orbax's handler for trees; it writes the digests of all files last, before the atomic rename."""

    def finalize(self, directory: Any) -> None:
        super().finalize(directory)
        write_digests(Path(directory))


def make_manager(
    folder: Path, kept: Callable[[list[int]], set[int]], read_only: bool, shared: bool
) -> ocp.CheckpointManager:
    """Returns a manager of the checkpoints in `folder`, after deleting checkpoints that an earlier process left incomplete.

    If not `shared`, it belongs to this process alone and waits for no other.
    """
    if not read_only and jax.process_index() == 0:  # Orbax can do this too, but not before the first save
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
    tree = CheckedTree(multiprocessing_options=processes)
    document = ocp.JsonCheckpointHandler(filename=META, multiprocessing_options=processes)
    # One handler for both: a manager that has saved with one kind of arguments cannot restore with another's.
    registry.add("state", ocp.args.PyTreeSave, tree)
    registry.add("state", ocp.args.PyTreeRestore, tree)
    registry.add("meta", ocp.args.JsonSave, document)
    options = ocp.CheckpointManagerOptions(
        preservation_policy=Preserve(kept),
        read_only=read_only,
        create=shared,
        multiprocessing_options=processes,
        # If the folder cannot be written, save() raises; otherwise threads would wait minutes for a folder to appear.
        async_options=ocp.AsyncOptions(
            timeout_secs=SAVE_SECONDS if jax.process_count() == 1 else SAVE_SECONDS_OF_SEVERAL,
            create_directories_asynchronously=False,
        ),
    )
    return ocp.CheckpointManager(folder, options=options, handler_registry=registry)


def read_tree(manager: ocp.CheckpointManager, step: int, abstract: PyTree, *, partial: bool = False) -> PyTree:
    """Returns the arrays of a checkpoint with the shardings in `abstract`, or on the first local device.

    Args:
        partial: read only the arrays that are in `abstract`.
    """
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None) or here), abstract
    )
    restore_args = ocp.checkpoint_utils.construct_restore_args(target)
    arguments = ocp.args.PyTreeRestore(item=target, restore_args=restore_args, partial_restore=partial)
    return manager.restore(step, args=ocp.args.Composite(state=arguments)).state
