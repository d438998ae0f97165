"""Sentence embeddings: which of some texts belongs to this one?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flaxformer_lite.bounds import PositiveFloat, check_bounds
from flaxformer_lite.data.records import Lengths, Pack, TokenPair
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.heads import unit_length
from flaxformer_lite.model.inputs import Inputs, Outputs
from flaxformer_lite.objectives.base import Batch, padded
from flaxformer_lite.objectives.losses import LossTerm, PerRowMetric, accuracy, cross_entropy
from flaxformer_lite.objectives.whole_texts import WholeTexts
from flaxformer_lite.text.characters import ByteTokenizer
from flaxformer_lite.text.special_ids import DEFAULT_SPECIAL_IDS, SpecialIds
from flaxformer_lite.text.tokenizer import Tokenizer

NEVER = -1e9
"""The score of a row that only fills up a batch."""


@dataclass(frozen=True, kw_only=True)
class SentenceEmbeddings(WholeTexts):
    """Pairs of texts that belong together: the source's vector should be nearest to that of its own target among all of the batch.

    The loss is the cross-entropy of the cosines divided by `temperature`, the other targets of the batch being the wrong answers
    (Henderson et al. 2017, arXiv:1705.00652, section 4.4), so more rows are harder. `accuracy` is how often its own is the
    nearest, in the batches of the evaluation.
    """

    kind: Literal["sentence_embeddings"] = "sentence_embeddings"
    temperature: PositiveFloat = 0.05
    """Divides the cosines; less makes near misses count more."""

    command = "embed"
    rows_independent = False

    def __post_init__(self) -> None:
        check_bounds(self, "objective")

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError where the model has two stacks, or makes no vectors."""
        super().check_model(model)
        if model.sentence_embedding is None:
            raise ValueError(
                f"model.sentence_embedding is None, but objective.kind '{self.kind}' compares vectors: set it, for example to "
                "SentenceEmbedding(pooling='mean')"
            )

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> list[Pack]:
        """Both texts of each pair as the model reads them. Raises: ValueError for a text on its own."""
        packs = []
        for number, record in enumerate(records, 1):
            if tokenizer is not None and not len(record.source):
                raise ValueError(
                    f"objective.kind is '{self.kind}', which reads pairs, but record {number} of the data has no source: name one "
                    "(source_column or source_field)"
                )
            texts = [(tokenizer or ByteTokenizer()).truncated([text.tolist()], longest.source) for text in record[:2]]
            packs.append(Pack(tuple(np.array(text.tokens, np.int32) for text in texts)))
        return packs

    def lengths(self, record: Pack) -> Lengths:
        """The room that the longer text needs."""
        return Lengths(max(map(len, record.pieces)), 0)

    def example(
        self,
        record: Pack,
        lengths: Lengths,
        generator: np.random.Generator | None = None,
        special: SpecialIds = DEFAULT_SPECIAL_IDS,
    ) -> Batch:
        """One row of a batch (no leading axis), with two texts `[2, S]`; the targets are never looked at."""
        inputs = Inputs(
            source_tokens=np.stack([padded(piece, lengths.source, special.pad) for piece in record.pieces]),  # type: ignore[arg-type]
            source_mask=np.stack([np.arange(lengths.source) < len(piece) for piece in record.pieces]),  # type: ignore[arg-type]
        )
        return Batch(inputs, np.zeros(1, np.int32), np.ones(1, np.float32))  # type: ignore[arg-type]

    def inputs(self, batch: Batch, model: ModelConfig) -> Inputs:
        """The texts `[B, 2, S]` one below the other, `[2·B, S]`: each source, and its target right after it."""
        tokens, mask = (jnp.asarray(x).reshape(-1, x.shape[-1]) for x in batch.inputs[:3:2])  # type: ignore[union-attr]
        flat = Inputs(source_tokens=tokens, source_mask=mask, token_types=jnp.zeros_like(tokens))
        return super().inputs(batch._replace(inputs=flat), model)

    def loss_logits(
        self, outputs: Outputs, batch: Batch
    ) -> tuple[Float[Array, "B B"], Int[Array, "B"], Float[Array, "B"]]:
        """The scores of every target for every source, which target is right, and which rows count."""
        assert outputs.embedding is not None
        source, target = unit_length(outputs.embedding).reshape(len(batch.weights), 2, -1).swapaxes(0, 1)
        weights = batch.weights[:, 0]
        scores = jnp.where(weights > 0, jnp.einsum("BD,CD->BC", source, target) / self.temperature, NEVER)
        return scores, jnp.arange(len(weights)), weights

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """The terms that training minimises."""
        return {"cross_entropy": cross_entropy(*self.loss_logits(outputs, batch))}

    def metrics(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm | PerRowMetric]:
        """What evaluation counts: nats per pair, and how many sources have their own target nearest."""
        scored = self.loss_logits(outputs, batch)
        return {"loss": cross_entropy(*scored), "accuracy": accuracy(*scored)}
