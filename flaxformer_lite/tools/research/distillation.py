"""Distillation by words: a student learns the probabilities that its teacher gives to each word."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Gt, Le
from jaxtyping import Array, Float

from flaxformer_lite.core.data import Lengths, TokenPair
from flaxformer_lite.core.data.token_arrays import Rows
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.model.inputs import Outputs
from flaxformer_lite.core.model.layers import accumulation_dtype
from flaxformer_lite.core.objectives import Apply, Batch, LossTerm, Seq2Seq
from flaxformer_lite.core.text import SpecialIds
from flaxformer_lite.tools.research.predictions import Predictions, SoftTargets, TaughtPair, file_vocab_size


@dataclass(frozen=True, kw_only=True)
class Distillation(Seq2Seq):
    """Translation with a teacher: the loss is the mean of the cross-entropies with the words and with a teacher's probabilities.

    Training alone reads the probabilities, in `Batch.extra`; pairs that the teacher did not read learn from their words.

    Reference: Hinton et al. 2015, arXiv:1503.02531; for each word, Kim & Rush 2016, arXiv:1606.07947, section 3.1.
    """

    kind: Literal["distillation"] = "distillation"  # type: ignore[assignment]
    predictions: str
    """The file with the probabilities for the targets of `data.train`, which `flaxformer-lite teach` writes."""
    weight: Annotated[float, Gt(0), Le(1)] = 0.5
    """Weight of the teacher's probabilities; the words of the target have the rest of 1."""

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError for a model without both stacks, or whose logits are never whole."""
        super().check_model(model)
        if model.head is not None and model.head.loss_chunk is not None:
            raise ValueError(
                f"model.head.loss_chunk is {model.head.loss_chunk}, but the objective Distillation reads all logits: set it to None"
            )

    def training_rows(self, rows: Sequence[Any]) -> Rows:
        """Returns the pairs with their predictions. Raises: ValueError if the file has none of them."""
        predictions = Predictions.read(self.predictions)
        if not predictions.coverage(rows):
            raise ValueError(
                f"objective.predictions is {self.predictions!r}, which has none of the training pairs: write it for this config, "
                "with `flaxformer-lite teach CONFIG --teacher RUN`"
            )
        assert isinstance(rows, Rows)
        return Rows(rows.lengths, lambda i: predictions.taught(rows[i]), fingerprint=predictions.fingerprint())

    def example(
        self, record: TokenPair | TaughtPair, lengths: Lengths, generator: np.random.Generator, special: SpecialIds
    ) -> Batch:
        row = super().example(TokenPair(*record[:2]), lengths, generator, special)
        if not isinstance(record, TaughtPair):
            return row
        positions, needed = len(record.soft_targets.ids), len(record.target) + 1
        if positions not in (0, needed):
            raise ValueError(
                f"objective.predictions has {positions} positions for a target of {needed} tokens with EOS: set "
                "data.subword_sampling to None, as a teacher reads each pair in one "
                "segmentation; or write the file again, with `flaxformer-lite teach`"
            )
        padding = ((0, lengths.target - positions), (0, 0))
        return row._replace(extra=SoftTargets(*(np.pad(x, padding) for x in record.soft_targets)))

    def terms(self, apply: Apply, batch: Batch, key: Array) -> dict[str, LossTerm]:
        """Returns the terms of `loss`. Raises: ValueError if the file is of another vocabulary than the model."""
        size = apply.model.config.vocab_sizes[1]
        if batch.extra is not None and (theirs := file_vocab_size(self.predictions)) != size:
            raise ValueError(
                f"objective.predictions is {self.predictions!r}, of a vocabulary of {theirs:,} tokens, but the model's has "
                f"{size:,}: write it for this config, with `flaxformer-lite teach CONFIG --teacher RUN`"
            )
        return super().terms(apply, batch, key)

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """Returns the smoothed cross-entropy with the words, and that with the teacher's probabilities."""
        soft, weights = batch.extra, batch.weights
        if soft is None:
            return super().loss(outputs, batch)
        of_words = weights * (1 - self.weight * (soft.probs.sum(-1) > 0))
        words = self.head_loss(outputs.loss_logits, batch.targets, of_words)
        return {
            **{name: term._replace(count=weights.sum()) for name, term in words.items()},
            "distillation": soft_cross_entropy(outputs.loss_logits, soft, weights, self.weight),  # type: ignore[arg-type]
        }


def soft_cross_entropy(
    logits: Float[Array, "*B V"], soft: SoftTargets, weights: Float[Array, "*B"], weight: float = 1.0
) -> LossTerm:
    """Returns the weighted cross-entropy in nats with the probabilities p of a teacher: `-Σ p_k log q_k - r/V Σ log q`.

    The rest r is what the p_k of its K tokens leave to 1. Positions without probabilities add 0 to the sum, and count.
    """
    z = logits.astype(accumulation_dtype(logits))
    given = soft.probs.sum(-1)
    expected = (jnp.take_along_axis(z, soft.ids, -1) * soft.probs).sum(-1) + (1 - given) * z.mean(-1)
    losses = jnp.where(given > 0, jax.nn.logsumexp(z, -1) - expected, 0)
    return LossTerm((losses * weights).sum(), weights.sum(), weight)
