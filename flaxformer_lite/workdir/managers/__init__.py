"""Writers of checkpoints by Orbax, through the interface that is installed: v0, or v1, which is all that Orbax 1 has.

Both write the same files. Only what writes a run imports them.
"""

from flaxformer_lite.workdir.managers.choice import make_manager

__all__ = ["make_manager"]
