"""The run folder on disk: config.json, metrics, samples and checkpoints.

`folder.py` has the files of a run and its lock. `checkpoints.py` saves and restores states through Orbax (`orbax.py`);
`retention.py` chooses which checkpoints are kept, and `digests.py` detects damaged files. `weights.py` selects parameters: last,
best, ema, averaged, or those of a run to start from.
"""

from flaxformer_lite.workdir.checkpoints import Checkpoints
from flaxformer_lite.workdir.digests import parameter_digest
from flaxformer_lite.workdir.folder import RunFolder
from flaxformer_lite.workdir.weights import abstract_params, open_checkpoints, restore_weights, warm_start

__all__ = [
    "Checkpoints",
    "RunFolder",
    "abstract_params",
    "open_checkpoints",
    "parameter_digest",
    "restore_weights",
    "warm_start",
]
