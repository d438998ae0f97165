"""Sentence embeddings: texts that belong together get similar vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flaxformer_lite.core.base.bounds import PositiveFloat
from flaxformer_lite.core.data.records import Lengths, Pack, TokenPair
from flaxformer_lite.core.data.token_arrays import Rows, TokenArrays
from flaxformer_lite.core.model import Inputs, ModelConfig
from flaxformer_lite.core.model.inputs import Outputs
from flaxformer_lite.core.model.norms import unit_length
from flaxformer_lite.core.objectives.batch import Batch, host_row, pad_tokens
from flaxformer_lite.core.objectives.classification import WholeTexts
from flaxformer_lite.core.objectives.losses import LossTerm, PerRowMetric, accuracy, cross_entropy
from flaxformer_lite.core.text import SpecialIds, Tokenizer
from flaxformer_lite.core.text.characters import ByteTokenizer

PADDING_LOGIT = -1e9
"""The logit of a padding row of the batch: it is never the nearest."""


@dataclass(frozen=True, kw_only=True)
class SentenceEmbeddings(WholeTexts):
    """Pairs of texts that belong together: of all targets in the batch, a source's own target should be the nearest.

    The loss is the cross-entropy over the cosines divided by `temperature`. The other targets of the batch are the negatives, so
    larger batches are harder. `accuracy` is the fraction of sources whose own target is the nearest in its evaluation batch.

    Reference: Henderson et al. 2017, arXiv:1705.00652, section 4.4.
    """

    kind: Literal["sentence_embeddings"] = "sentence_embeddings"
    temperature: PositiveFloat = 0.05
    """Divides the cosines; a lower one gives more weight to near misses."""

    command = "embed"
    rows_independent = False

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError if the model has two stacks, or no sentence embedding."""
        super().check_model(model)
        if model.sentence_embedding is None:
            raise ValueError(
                f"model.sentence_embedding is None, but objective.kind '{self.kind}' compares vectors: set it, for example to "
                "SentenceEmbedding(pooling='mean')"
            )

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> Rows:
        """Returns one row a record, of two pieces. Raises: ValueError for a record without a source."""
        arrays, reader = TokenArrays.of(records), tokenizer or ByteTokenizer()
        sizes = arrays.sizes
        without_source = np.flatnonzero(sizes[:, 0] == 0)
        if tokenizer is not None and len(without_source):
            raise ValueError(
                f"objective.kind is '{self.kind}', which reads pairs, but record {without_source[0] + 1} of the data has no "
                "source: name one (source_column or source_field)"
            )

        def make(i: int) -> Pack:
            texts = [reader.truncated([text.tolist()], longest.source) for text in arrays[i][:2]]
            return Pack(tuple(np.array(text.tokens, np.int32) for text in texts))

        num_special = len(reader.truncated([[]], 0).tokens)
        used = num_special + np.minimum(sizes.max(1), max(longest.source - num_special, 0))
        return Rows.source_only(used, make)

    def example(self, record: Pack, lengths: Lengths, generator: np.random.Generator, special: SpecialIds) -> Batch:
        """Returns a row without the axis B, whose inputs are two texts `[2, S]`; its targets are not used."""
        tokens = [pad_tokens(text, lengths.source, special.pad) for text in record.pieces]
        masks = [np.arange(lengths.source) < len(text) for text in record.pieces]
        return host_row(
            np.zeros(1, np.int32),
            np.ones(1, np.float32),
            source_tokens=np.stack(tokens),
            source_mask=np.stack(masks),
        )

    def inputs(self, batch: Batch, model: ModelConfig) -> Inputs:
        """Returns the texts `[B, 2, S]` as rows `[2·B, S]`: each source, then its target."""
        given = jnp.asarray(batch.inputs.source_tokens), jnp.asarray(batch.inputs.source_mask)
        tokens, mask = (x.reshape(-1, x.shape[-1]) for x in given)
        flat = Inputs(source_tokens=tokens, source_mask=mask, token_types=jnp.zeros_like(tokens))
        return super().inputs(batch._replace(inputs=flat), model)

    def scored(self, outputs: Outputs, batch: Batch) -> tuple[Float[Array, "B B"], Int[Array, "B"], Float[Array, "B"]]:
        """Returns the logits of every target for every source, the index of the right target, and the weight of each row."""
        assert outputs.embedding is not None
        source, target = unit_length(outputs.embedding).reshape(len(batch.weights), 2, -1).swapaxes(0, 1)
        weights = batch.weights[:, 0]
        cosines = jnp.einsum("BD,CD->BC", source, target)
        logits = jnp.where(weights > 0, cosines / self.temperature, PADDING_LOGIT)
        return logits, jnp.arange(len(weights)), weights

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """Returns the cross-entropy over the batch's targets, in nats per pair."""
        return {"cross_entropy": cross_entropy(*self.scored(outputs, batch))}

    def metrics(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm | PerRowMetric]:
        """Returns nats per pair, and the number of sources whose own target is the nearest."""
        scored = self.scored(outputs, batch)
        return {"loss": cross_entropy(*scored), "accuracy": accuracy(*scored)}
