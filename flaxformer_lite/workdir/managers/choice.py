"""The choice between Orbax's interfaces, for a run in a folder, and the manager of a run in a bucket."""

from pathlib import Path
from typing import Literal

import jax

from flaxformer_lite.workdir.bucket import RunBucket
from flaxformer_lite.workdir.managers.manager import Manager, delete_incomplete


def make_manager(
    folder: Path, policy: object, bucket: RunBucket | None = None, api: Literal["v0", "v1"] | None = None
) -> Manager:
    """Returns a manager of the checkpoints in `folder`, after deleting checkpoints that an earlier process left incomplete.

    `policy.should_preserve` chooses which checkpoints are kept.
    bucket: `folder` is in the working copy of this bucket; None: Orbax writes into the folder.
    api: Orbax's interface; None: v0 if Orbax has it.
    """
    if bucket is not None:
        from flaxformer_lite.workdir.managers.bucket import BucketManager

        return BucketManager(bucket, policy)
    import orbax.checkpoint as ocp  # takes a second

    if jax.process_index() == 0:  # Orbax can do this too, but not before the first save
        delete_incomplete(folder)
    if (api or ("v0" if hasattr(ocp, "CheckpointManager") else "v1")) == "v0":
        from flaxformer_lite.workdir.managers.v0 import V0Manager

        return V0Manager(folder, policy)
    from flaxformer_lite.workdir.managers.v1 import V1Manager

    return V1Manager(folder, policy)
