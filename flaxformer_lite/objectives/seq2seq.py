"""Translation: an encoder reads one text, a decoder writes another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge, Le
from jaxtyping import Array, Float, Int

from flaxformer_lite.base.bounds import NonNegativeFloat, Rate
from flaxformer_lite.data import Lengths, TokenPair
from flaxformer_lite.data.records import TaughtPair
from flaxformer_lite.data.token_arrays import Rows, TokenArrays
from flaxformer_lite.model import ModelConfig
from flaxformer_lite.model.inputs import Outputs
from flaxformer_lite.objectives.base import BaseObjective
from flaxformer_lite.objectives.batch import Batch, encoder_decoder_row
from flaxformer_lite.objectives.losses import (
    LogitStats,
    LossTerm,
    cross_entropy,
    divergence_of_copies,
    logit_stats,
    soft_cross_entropy,
)
from flaxformer_lite.objectives.risk import Answers, ExpectedRisk, expected_risk, sentence_bleu, with_answers
from flaxformer_lite.text import DEFAULT_SPECIAL_IDS, SpecialIds, Tokenizer


@dataclass(frozen=True, kw_only=True)
class Seq2Seq(BaseObjective):
    """Translation: the encoder reads the source and EOS; the decoder reads `decode.bos_id` and predicts the target and EOS."""

    kind: Literal["seq2seq"] = "seq2seq"
    label_smoothing: Rate = 0.1
    """Probability spread evenly over all V classes, the target's own included. Evaluation does not smooth."""
    consistency: NonNegativeFloat = 0.0
    """Weight of R-Drop: each row is read twice in training, with different dropout, and the mean of the two KL divergences between
    its predictions is added to the mean of the two losses. It doubles the time of a step. The paper adds the losses, so its weight
    5 is 2.5 here (Liang et al. 2021, arXiv:2106.14448)."""
    distillation: Annotated[float, Ge(0), Le(1)] = 0.0
    """Weight of the cross-entropy with a teacher's probabilities (`data.predictions`); that with the words of the target has the
    rest of 1. Pairs that the teacher did not read learn from their words alone."""
    risk: ExpectedRisk | None = None
    """Minimum-risk training: the model draws answers to each source, and learns to prefer those with the better BLEU; None: no."""

    unit = "pairs"
    command = "translate"
    translates = True
    truncates_records = True
    decoder_special_ids = ("eos", "pad")

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError if the model has not both stacks, or nothing that a consistency could compare."""
        super().check_model(model)
        for name in ("consistency", "distillation"):
            if not (weight := getattr(self, name)):
                continue
            if self.risk is not None:
                raise ValueError(
                    f"objective.{name} is {weight}, and objective.risk is set, but risk has rows of its own in a batch: set "
                    f"objective.{name} to 0, or objective.risk to None"
                )
            if model.head is not None and model.head.loss_chunk is not None:
                raise ValueError(
                    f"objective.{name} is {weight}, which compares all logits, but model.head.loss_chunk is "
                    f"{model.head.loss_chunk}: set one of them to 0 or None"
                )
        if self.consistency and not any(
            getattr(model.dropout, f"{place}_rate") for place in ("embedding", "attention", "feed_forward", "residual")
        ):
            raise ValueError(
                f"objective.consistency is {self.consistency}, but all rates of model.dropout are 0, so both predictions of a "
                "row are the same: set a rate, or objective.consistency to 0"
            )

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> Rows:
        """Returns one row a record. A tokenizer that starts every source with special ids has them added, within the length."""
        prefix = np.array([] if tokenizer is None else tokenizer.as_source([])[:-1], np.int32)
        arrays, max_tokens = TokenArrays.of(records), longest.source - 1
        sizes = arrays.sizes  # without EOS after the source, and the start before the target
        if not len(prefix):
            return Rows(sizes + 1, arrays.__getitem__)

        def with_prefix(i: int) -> TokenPair:
            record = arrays[i]
            return record._replace(source=np.concatenate([prefix, record.source])[:max_tokens])

        sizes[:, 0] = np.minimum(sizes[:, 0] + len(prefix), max_tokens)
        return Rows(sizes + 1, with_prefix)

    def example(
        self,
        record: TokenPair | TaughtPair,
        lengths: Lengths,
        generator: np.random.Generator | None = None,
        special: SpecialIds = DEFAULT_SPECIAL_IDS,
    ) -> Batch:
        return encoder_decoder_row(record, lengths, special)

    @property
    def drawn_answers(self) -> ExpectedRisk | None:
        return self.risk

    @property
    def teacher_weight(self) -> float:
        return self.distillation

    def training_batch(self, batch: Batch, answers: Answers | None = None) -> Batch:
        """Returns the batch, for a consistency with each row followed by its copy, so that a mesh divides both alike.

        With `answers`, each row's target is followed by its answers; the rows of the source stay as they are.
        """
        if answers is not None:
            return with_answers(batch, answers)
        return jax.tree.map(lambda x: jnp.repeat(x, 2, axis=0), batch) if self.consistency else batch

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """Returns the smoothed cross-entropy, and the distillation, the consistency or the risk of the rows of `training_batch`."""
        logits, targets, weights = outputs.loss_logits, batch.targets, batch.weights
        if self.risk is not None:
            return self.losses_of_answers(logit_stats(logits, targets), targets, weights, self.risk)
        soft, share = batch.soft_targets, self.distillation
        if soft is None:
            terms = {"cross_entropy": cross_entropy(logits, targets, weights, label_smoothing=self.label_smoothing)}
        else:
            of_words = weights * (1 - share * (soft.probs.sum(-1) > 0))
            words = cross_entropy(logits, targets, of_words, label_smoothing=self.label_smoothing)
            terms = {
                "cross_entropy": words._replace(count=weights.sum()),
                "distillation": soft_cross_entropy(logits, soft, weights, share),  # type: ignore[arg-type]  # no loss_chunk
            }
        if self.consistency:
            terms["consistency"] = divergence_of_copies(logits, weights, self.consistency)  # type: ignore[arg-type]  # no loss_chunk
        return terms

    def losses_of_answers(
        self, stats: LogitStats, targets: Int[Array, "BN T"], weights: Float[Array, "BN T"], settings: ExpectedRisk
    ) -> dict[str, LossTerm]:
        """Returns the cross-entropy of the references, and the risk of the answers that follow each of them."""
        each = settings.num_samples + 1
        stats, targets, weights = jax.tree.map(lambda x: x.reshape(-1, each, x.shape[-1]), (stats, targets, weights))
        references, answers = (jax.tree.map(lambda x, part=part: x[:, part], stats) for part in (0, slice(1, None)))
        mask, lengths = weights[:, 1:] > 0, (weights > 0).sum(-1)
        bleu = sentence_bleu(targets[:, 1:], lengths[:, 1:], targets[:, :1], lengths[:, :1])
        risk = expected_risk(answers, mask, 1 - bleu, exists=(weights[:, 0] > 0).any(-1))
        return {
            "cross_entropy": cross_entropy(
                references, targets[:, 0], weights[:, 0], label_smoothing=self.label_smoothing
            ),
            "risk": risk._replace(weight=settings.weight),
        }
