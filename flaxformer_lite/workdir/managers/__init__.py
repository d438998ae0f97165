"""Writers of checkpoints. In a folder Orbax writes, through the interface that is installed: v0, or v1, the only one of Orbax 1.

Both interfaces write the same files. In a bucket TensorStore writes. Only what writes a run imports these modules.
"""

from flaxformer_lite.workdir.managers.choice import make_manager

__all__ = ["make_manager"]
