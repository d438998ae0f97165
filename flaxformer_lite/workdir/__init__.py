"""The run folder on disk: config.json, metrics, samples and checkpoints.

`folder.py` has the files of a run and its lock, `samples.py` the names and the layout of its answers. `checkpoints.py` saves,
keeps and restores states; Orbax writes them, through `managers/`. `manifest.py` detects damaged files, and other settings or
tokenizers than a checkpoint was trained with. `weights.py` selects parameters: last, best, ema, averaged, or those of a run to
start from. `frozen.py` leaves the frozen parameters of a LoRA run out of its checkpoints.
`copies.py` copies a run elsewhere, and reads runs at URLs; `remote_run.py` reads and writes the files for it.
"""

from flaxformer_lite.workdir.checkpoints import Checkpoints
from flaxformer_lite.workdir.copies import open_run
from flaxformer_lite.workdir.folder import RunFolder
from flaxformer_lite.workdir.frozen import parameter_digest
from flaxformer_lite.workdir.weights import abstract_saved_params, open_checkpoints, restore_weights, warm_start

__all__ = [
    "Checkpoints",
    "RunFolder",
    "abstract_saved_params",
    "open_checkpoints",
    "open_run",
    "parameter_digest",
    "restore_weights",
    "warm_start",
]
