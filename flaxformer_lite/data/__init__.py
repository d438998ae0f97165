"""Data sources, and batches as a function of (seed, step).

`records` has the shapes of an example. Sources (`source` → `text_files`, `hub`, `built_in` → `mixture` → `held_out`) read pairs
of texts. `store` keeps large data tokenized on disk, `token_arrays` reads it.
`batch_plan` decides which records make batch s; `dataset` makes the batch, its rows by the objective (`RowMaker`).
`packing` helps objectives to fill rows with documents. `config` has the settings.
"""

from flaxformer_lite.data.built_in import Dates, PythonDocs
from flaxformer_lite.data.config import DataConfig
from flaxformer_lite.data.hub import HubDataset, Parquet
from flaxformer_lite.data.mixture import Mixture
from flaxformer_lite.data.records import Lengths, Pair, TokenPair
from flaxformer_lite.data.source import DataSource
from flaxformer_lite.data.text_files import CSV, TSV, JSONLines, ParallelText, PlainText

__all__ = [
    "CSV",
    "TSV",
    "DataConfig",
    "DataSource",
    "Dates",
    "HubDataset",
    "JSONLines",
    "Lengths",
    "Mixture",
    "Pair",
    "ParallelText",
    "Parquet",
    "PlainText",
    "PythonDocs",
    "TokenPair",
]
