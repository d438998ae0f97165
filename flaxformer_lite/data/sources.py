"""All data sources that a config can name. The contract for a new one is `DataSource` in source.py."""

from typing import Annotated

from pydantic import Discriminator

from flaxformer_lite.data.corpora import PlainText, PythonDocs
from flaxformer_lite.data.dates import Dates
from flaxformer_lite.data.hub import HubDataset, Parquet
from flaxformer_lite.data.text_files import TSV, JSONLines, ParallelText

SourceKinds = ParallelText | TSV | JSONLines | Parquet | HubDataset | PlainText | Dates | PythonDocs
Source = Annotated[SourceKinds, Discriminator("kind")]
OptionalSource = Annotated[SourceKinds | None, Discriminator("kind")]
