"""All data sources that a config can name. The contract for a new one is `DataSource` in source.py."""

from typing import Annotated

from pydantic import Discriminator

from flaxformer_lite.data.mixture import MixedKinds, Mixture

SourceKinds = MixedKinds | Mixture
Source = Annotated[SourceKinds, Discriminator("kind")]
OptionalSource = Annotated[SourceKinds | None, Discriminator("kind")]
