"""Translation: one text goes in, another comes out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flaxformer_lite.bounds import Rate, check_bounds
from flaxformer_lite.data.records import Lengths, TokenPair
from flaxformer_lite.model.inputs import Outputs
from flaxformer_lite.objectives.base import (
    BaseObjective,
    Batch,
    pair_example,
)
from flaxformer_lite.objectives.losses import LossTerm, cross_entropy
from flaxformer_lite.text.special_ids import DEFAULT_SPECIAL_IDS, SpecialIds
from flaxformer_lite.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Seq2Seq(BaseObjective):
    """Translation: the source ends in EOS; the decoder reads `decode.bos_id` and the target, and should say the target and EOS."""

    kind: Literal["seq2seq"] = "seq2seq"
    label_smoothing: Rate = 0.1
    """The share of probability spread evenly over all V classes, the target's own among them. Evaluation never smooths."""

    unit = "pairs"
    command = "translate"
    translates = True
    truncates_records = True
    decoder_special_ids = ("eos", "pad")

    def __post_init__(self) -> None:
        check_bounds(self, "objective")

    def packed_row(self, longest: Lengths) -> None:
        return None

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> Sequence[TokenPair]:
        """The records, each a row, their sources with what the tokenizer puts before a text: nothing, where it was trained here."""
        start = np.array([] if tokenizer is None else tokenizer.as_source([])[:-1], np.int32)
        if not len(start):
            return records
        room = longest.source - 1
        return [record._replace(source=np.concatenate([start, record.source])[:room]) for record in records]

    def lengths(self, record: TokenPair) -> Lengths:
        """The room that the record needs."""
        return Lengths(len(record.source) + 1, len(record.target) + 1)

    def example(
        self,
        record: TokenPair,
        lengths: Lengths,
        generator: np.random.Generator | None = None,
        special: SpecialIds = DEFAULT_SPECIAL_IDS,
    ) -> Batch:
        """One row of a batch (no leading axis), padded to `lengths`; nothing about it is random."""
        return pair_example(record, lengths, special)

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """The terms that training minimises."""
        smoothing = self.label_smoothing
        return {
            "cross_entropy": cross_entropy(outputs.loss_logits, batch.targets, batch.weights, label_smoothing=smoothing)
        }
