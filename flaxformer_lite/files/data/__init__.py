"""Sources of data and their settings.

Sources (`source` → `text_files`, `hub`, `built_in` → `mixture` → `held_out`) read pairs of texts; `reading` tokenizes them,
`refused` tells which rows cannot be read. `store` keeps large data tokenized on disk. `config` has the settings.
"""

from flaxformer_lite.files.data.built_in import Dates, PythonDocs
from flaxformer_lite.files.data.config import DataConfig
from flaxformer_lite.files.data.hub import HubDataset, Parquet
from flaxformer_lite.files.data.mixture import Mixture
from flaxformer_lite.files.data.source import DataSource
from flaxformer_lite.files.data.text_files import CSV, TSV, CoNLL, JSONLines, ParallelText, PlainText

__all__ = [
    "CSV",
    "TSV",
    "CoNLL",
    "DataConfig",
    "DataSource",
    "Dates",
    "HubDataset",
    "JSONLines",
    "Mixture",
    "ParallelText",
    "Parquet",
    "PlainText",
    "PythonDocs",
]
