"""The choice between Orbax's interfaces."""

from pathlib import Path
from typing import Any, Literal

import jax
import orbax.checkpoint as ocp

from flaxformer_lite.workdir.managers.manager import Manager, delete_incomplete


def make_manager(folder: Path, policy: Any, shared: bool, api: Literal["v0", "v1"] | None = None) -> Manager:
    """Returns a manager of the checkpoints in `folder`, after deleting checkpoints that an earlier process left incomplete.

    `policy.should_preserve` chooses which checkpoints are kept.
    If not `shared`, it belongs to this process alone and waits for no other.
    api: Orbax's interface; None: v0 if Orbax has it.

    Raises: ValueError for v1 and several processes that share no folder.
    """
    if jax.process_index() == 0:  # Orbax can do this too, but not before the first save
        delete_incomplete(folder)
    if not shared:
        folder.mkdir(parents=True, exist_ok=True)  # Orbax does this for all processes together only
    if (api or ("v0" if hasattr(ocp, "CheckpointManager") else "v1")) == "v0":
        from flaxformer_lite.workdir.managers.v0 import V0Manager

        return V0Manager(folder, policy, shared)
    from flaxformer_lite.workdir.managers.v1 import V1Manager

    return V1Manager(folder, policy, shared)
