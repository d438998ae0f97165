"""R-Drop: two passes of one row through dropout should predict the same."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer_lite.core.base.bounds import PositiveFloat
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.model.inputs import Outputs
from flaxformer_lite.core.model.layers import accumulation_dtype
from flaxformer_lite.core.objectives import Apply, Batch, LossTerm, Seq2Seq


@dataclass(frozen=True, kw_only=True)
class Consistency(Seq2Seq):
    """Translation by R-Drop: training reads each row twice, with different dropout, and the two predictions should agree.

    The mean of the two KL divergences is added to the mean of the two losses. A step takes twice the time.

    Reference: Liang et al. 2021, arXiv:2106.14448, equation 2.
    """

    kind: Literal["consistency"] = "consistency"  # type: ignore[assignment]
    weight: PositiveFloat = 1.0
    """Weight of the divergence. The paper adds the two losses, so its weight 5 is 2.5 here."""

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError for a model without dropout, or whose logits are never whole."""
        super().check_model(model)
        check_whole_logits(self, model)
        rates = (
            getattr(model.dropout, f"{place}_rate") for place in ("embedding", "attention", "feed_forward", "residual")
        )
        if not any(rates):
            raise ValueError(
                "all rates of model.dropout are 0, so both predictions of a row are the same: set a rate, or the objective to "
                "Seq2Seq()"
            )

    def terms(self, apply: Apply, batch: Batch, key: Array) -> dict[str, LossTerm]:
        """Returns the loss of the batch with each row followed by its copy, so that a mesh divides both alike."""
        return super().terms(apply, jax.tree.map(lambda x: jnp.repeat(x, 2, axis=0), batch), key)

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """Returns the smoothed cross-entropy, and the divergence of the two copies of each row."""
        terms = super().loss(outputs, batch)
        terms["consistency"] = divergence_of_copies(outputs.loss_logits, batch.weights, self.weight)  # type: ignore[arg-type]
        return terms


def check_whole_logits(objective: Seq2Seq, model: ModelConfig) -> None:
    """Raises: ValueError if the model computes its logits in chunks for the loss."""
    if model.head is not None and model.head.loss_chunk is not None:
        raise ValueError(
            f"model.head.loss_chunk is {model.head.loss_chunk}, but the objective {type(objective).__name__} reads all logits: "
            "set it to None"
        )


def divergence_of_copies(logits: Float[Array, "B2 T V"], weights: Float[Array, "B2 T"], weight: float) -> LossTerm:
    """Returns ½ KL(p‖q) + ½ KL(q‖p) in nats, for the predictions p and q of each row and of the copy that follows it."""
    logs = jax.nn.log_softmax(logits.astype(accumulation_dtype(logits)), -1)
    p, q = logs.reshape(-1, 2, *logs.shape[1:]).swapaxes(0, 1)
    both = ((jnp.exp(p) - jnp.exp(q)) * (p - q)).sum(-1)
    return LossTerm((both * weights[::2]).sum() / 2, weights[::2].sum(), weight)
