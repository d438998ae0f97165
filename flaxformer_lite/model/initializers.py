"""Initial values of kernels and embeddings."""

from dataclasses import dataclass
from typing import Annotated, Literal

from flax import linen as nn
from pydantic import Discriminator

from flaxformer_lite.base.bounds import Checked, NonNegativeFloat


@dataclass(frozen=True, kw_only=True)
class XavierUniform:
    """Kernels uniform in ±sqrt(6 / (fan-in + fan-out)), embeddings normal with standard deviation `d_model ** -0.5`.

    Reference: Glorot and Bengio 2010, Proceedings of AISTATS, equation 16.
    """

    kind: Literal["xavier_uniform"] = "xavier_uniform"

    def kernel(self) -> nn.initializers.Initializer:
        return nn.initializers.xavier_uniform()

    def embedding(self, d_model: int) -> nn.initializers.Initializer:
        return nn.initializers.normal(d_model**-0.5)


@dataclass(frozen=True, kw_only=True)
class Normal(Checked, at="model.initializer"):
    """Kernels and embeddings normal around 0, truncated at two standard deviations, as in BERT."""

    kind: Literal["normal"] = "normal"
    stddev: NonNegativeFloat = 0.02
    """Standard deviation before truncation."""

    def kernel(self) -> nn.initializers.Initializer:
        return nn.initializers.truncated_normal(self.stddev)

    def embedding(self, d_model: int) -> nn.initializers.Initializer:
        return nn.initializers.truncated_normal(self.stddev)


Initializer = Annotated[XavierUniform | Normal, Discriminator("kind")]
