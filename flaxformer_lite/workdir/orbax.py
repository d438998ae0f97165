"""Orbax's CheckpointManager, as `checkpoint.py` needs it: quiet, with files that can be checked, kept as we say."""

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from flaxformer_lite.workdir.digests import DamageError, check_digests, unsealed, write_digests

META = "meta.json"
"""Beside the arrays of a checkpoint, in the folder `meta`: meta, metrics, and the path and type of every leaf."""


class Quiet(logging.Filter):
    """Drops what Orbax logs (through absl) below errors; everybody else's lines pass.

    Errors lose their tracebacks, many screens for one full disk: the exception reaches the caller anyway.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if f"{os.sep}orbax{os.sep}" not in record.pathname:
            return True
        record.exc_info = record.exc_text = None
        return record.levelno >= logging.ERROR


@dataclass(frozen=True)
class Preserve:
    """Orbax's preservation policy, asked with the checkpoints there are after each save.

    Orbax's own `BestN` reads the metrics of all checkpoints when a folder is opened, where one damaged file would stop
    it, and knows nothing of checkpoints that are damaged or of NaN.
    """

    kept: Callable[[list[int]], set[int]]

    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        del context
        kept = self.kept([info.step for info in checkpoints])
        return [info.step in kept for info in checkpoints]


class CheckedTree(ocp.PyTreeCheckpointHandler):
    """Orbax's handler for trees, which at last, before the atomic rename, writes down what its files should hold."""

    def finalize(self, directory: Any) -> None:
        super().finalize(directory)
        write_digests(Path(directory))


def make_manager(folder: Path, kept: Callable[[list[int]], set[int]], read_only: bool) -> ocp.CheckpointManager:
    """A manager of the checkpoints in `folder`; what an earlier process left half-written is removed first."""
    if not read_only and jax.process_index() == 0:  # Orbax can do this too, but not before the first save
        for half_written in folder.glob(f"*{ocp.path.atomicity_types.TMP_DIR_SUFFIX}*"):
            shutil.rmtree(half_written)
    registry = ocp.DefaultCheckpointHandlerRegistry()
    tree, document = CheckedTree(), ocp.JsonCheckpointHandler(filename=META)
    # One handler for both: a manager that has saved with one kind of arguments cannot restore with another's.
    registry.add("state", ocp.args.PyTreeSave, tree)
    registry.add("state", ocp.args.PyTreeRestore, tree)
    registry.add("meta", ocp.args.JsonSave, document)
    options = ocp.CheckpointManagerOptions(
        preservation_policy=Preserve(kept),
        read_only=read_only,
        # If the folder cannot be written, save() says so; otherwise threads would wait minutes for a folder to appear.
        async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
    )
    return ocp.CheckpointManager(folder, options=options, handler_registry=registry)


def read_tree(manager: ocp.CheckpointManager, step: int, abstract: PyTree, *, partial: bool = False) -> PyTree:
    """The arrays of a checkpoint (`partial`: those that `abstract` has), with its shardings or on the first local device."""
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None) or here), abstract
    )
    restore_args = ocp.checkpoint_utils.construct_restore_args(target)
    arguments = ocp.args.PyTreeRestore(item=target, restore_args=restore_args, partial_restore=partial)
    return manager.restore(step, args=ocp.args.Composite(state=arguments)).state


def read_document(folder: Path, step: int) -> dict[str, Any]:
    """What is written beside the arrays of a checkpoint. Raises: DamageError."""
    return unsealed(folder / str(step) / "meta" / META)


def why_damaged(folder: Path, step: int) -> str | None:
    """Why a checkpoint is not whole, in a few words; None if it is."""
    try:
        read_document(folder, step)
        check_digests(folder / str(step) / "state")
    except DamageError as damage:
        return str(damage)
    return None
