"""What objectives on whole texts share: a text, or two, is a row, and the model says one thing of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flaxformer_lite.data.records import LabelledText, Lengths, TokenPair
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.inputs import Inputs, check_one_stack, text_inputs
from flaxformer_lite.objectives.base import BaseObjective, Batch, padded
from flaxformer_lite.text.characters import ByteTokenizer
from flaxformer_lite.text.special_ids import DEFAULT_SPECIAL_IDS, SpecialIds
from flaxformer_lite.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class WholeTexts(BaseObjective):
    """Rows are BOS, a text, EOS, and for a pair the second text and EOS; what is longer than `data.max_source_length` is cut, the
    longer text first. A model with an encoder or with a decoder alone reads them.
    """

    unit = "examples"

    def packed_row(self, longest: Lengths) -> None:
        return None

    def longest_row(self, longest: Lengths) -> Lengths:
        return Lengths(longest.source, 0)

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError where the model has two stacks."""
        check_one_stack(model, f"objective.kind '{self.kind}'")

    def inputs(self, batch: Batch, model: ModelConfig) -> Inputs:
        tokens, mask, types = batch.inputs.source_tokens, batch.inputs.source_mask, batch.inputs.token_types
        assert tokens is not None and mask is not None
        return text_inputs(model, tokens, mask, types)


@dataclass(frozen=True, kw_only=True)
class LabelledTexts(WholeTexts):
    """Texts, or pairs of them, with a label each."""

    command = "classify"

    def number(self, label: str, record: int) -> float:
        """The label of that record as a number. Raises: ValueError where it is none."""
        raise NotImplementedError

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> list[LabelledText]:
        """The records as the model reads them. Raises: ValueError for a label that is none."""
        rows = []
        for number, record in enumerate(records, 1):
            texts = [text.tolist() for text in ((record.source, record.target) if len(record.source) else record[1:2])]
            tokens, types = (tokenizer or ByteTokenizer()).truncated(texts, longest.source)
            label = 0.0 if tokenizer is None else self.number(record.label, number)
            rows.append(LabelledText(np.array(tokens, np.int32), np.array(types, np.int32), label))
        return rows

    def lengths(self, record: LabelledText) -> Lengths:
        """The room that the record needs."""
        return Lengths(len(record.tokens), 0)

    def target(self, label: float) -> np.ndarray:
        """The label as a row of `Batch.targets`."""
        raise NotImplementedError

    def example(
        self,
        record: LabelledText,
        lengths: Lengths,
        generator: np.random.Generator | None = None,
        special: SpecialIds = DEFAULT_SPECIAL_IDS,
    ) -> Batch:
        """One row of a batch (no leading axis), padded to `lengths`; nothing about it is random."""
        inputs = Inputs(
            source_tokens=padded(record.tokens, lengths.source, special.pad),  # type: ignore[arg-type]
            source_mask=np.arange(lengths.source) < len(record.tokens),  # type: ignore[arg-type]
            token_types=padded(record.types, lengths.source),  # type: ignore[arg-type]
        )
        return Batch(inputs, self.target(record.label), np.ones(1, np.float32))  # type: ignore[arg-type]
