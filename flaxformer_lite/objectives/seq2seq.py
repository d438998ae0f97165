"""Translation: one text goes in, another comes out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flaxformer_lite.data.records import Lengths, TokenPair
from flaxformer_lite.losses import Term, cross_entropy
from flaxformer_lite.objectives.base import (
    BaseObjective,
    Batch,
    check_smoothing,
    pair_example,
)
from flaxformer_lite.tokenizer import Tokenizer
from flaxformer_lite.transformer import Outputs


@dataclass(frozen=True, kw_only=True)
class Seq2Seq(BaseObjective):
    """Translation: the source ends in EOS; the decoder reads BOS and the target, and should say the target and EOS."""

    kind: Literal["seq2seq"] = "seq2seq"
    label_smoothing: float = 0.1
    """The share of probability spread evenly over all V classes, the target's own among them. Evaluation never smooths."""

    def __post_init__(self) -> None:
        check_smoothing(self.label_smoothing)

    def full_row(self, longest: Lengths) -> None:
        return None

    def compose(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> Sequence[TokenPair]:
        """The records as they are: each fills a row."""
        return records

    def lengths(self, record: TokenPair) -> Lengths:
        """The room that the record needs."""
        return Lengths(len(record.source) + 1, len(record.target) + 1)

    def example(self, record: TokenPair, lengths: Lengths, generator: np.random.Generator | None = None) -> Batch:
        """One row of a batch (no leading axis), padded to `lengths`; nothing about it is random."""
        return pair_example(record, lengths)

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, Term]:
        """The terms that training minimises."""
        smoothing = self.label_smoothing
        return {"cross_entropy": cross_entropy(outputs.scored, batch.targets, batch.weights, label_smoothing=smoothing)}
