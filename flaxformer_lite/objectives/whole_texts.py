"""The common part of objectives on whole texts: a row is one text or two, and the model predicts one thing of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from flaxformer_lite.data.records import LabelledText, Lengths, TokenPair
from flaxformer_lite.data.token_arrays import Rows, TokenArrays
from flaxformer_lite.model import Inputs, ModelConfig
from flaxformer_lite.model.inputs import check_one_stack, text_inputs
from flaxformer_lite.objectives.base import BaseObjective
from flaxformer_lite.objectives.batch import Batch, pad_tokens
from flaxformer_lite.text import DEFAULT_SPECIAL_IDS, SpecialIds, Tokenizer
from flaxformer_lite.text.characters import ByteTokenizer


@dataclass(frozen=True, kw_only=True)
class WholeTexts(BaseObjective):
    """Rows for a model with one stack, an encoder or a decoder: BOS, a text, EOS, and for a pair the second text and EOS.

    Texts are truncated to `data.max_source_length` together, the longest first.
    """

    unit = counted = "examples"

    def longest_row(self, longest: Lengths) -> Lengths:
        return Lengths(longest.source, 0)

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError if the model has two stacks."""
        check_one_stack(model, f"objective.kind '{self.kind}'")

    def inputs(self, batch: Batch, model: ModelConfig) -> Inputs:
        tokens, mask, types = batch.inputs.source_tokens, batch.inputs.source_mask, batch.inputs.token_types
        assert tokens is not None and mask is not None
        return text_inputs(model, tokens, mask, types)


@dataclass(frozen=True, kw_only=True)
class LabelledTexts(WholeTexts):
    """Texts or pairs with one label each. A subclass defines `label_value` and `target`."""

    command = "classify"

    def label_value(self, label: str, record: int) -> float:
        """Returns a label as a number. Raises: ValueError for an illegal one, with the number of its record."""
        raise NotImplementedError

    def target(self, label: float) -> Int[np.ndarray, "1"] | Float[np.ndarray, "1"]:
        """Returns the label as a row of `Batch.targets`."""
        raise NotImplementedError

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> Rows:
        """Returns one row a record. Raises: ValueError for an illegal label."""
        arrays, reader = TokenArrays.of(records), tokenizer or ByteTokenizer()
        values = [0.0 if tokenizer is None else self.label_value(text, n) for n, text in enumerate(arrays.labels, 1)]
        sizes = arrays.sizes
        one, two = (len(reader.truncated([[]] * texts, 0).tokens) for texts in (1, 2))

        def make(i: int) -> LabelledText:
            record = arrays[i]
            texts = [text.tolist() for text in ((record.source, record.target) if len(record.source) else record[1:2])]
            tokens, types = reader.truncated(texts, longest.source)
            return LabelledText(np.array(tokens, np.int32), np.array(types, np.int32), values[i])

        num_special = np.where(sizes[:, 0] > 0, two, one)
        used = num_special + np.minimum(sizes.sum(1), np.maximum(longest.source - num_special, 0))
        return Rows.source_only(used, make)

    def example(
        self,
        record: LabelledText,
        lengths: Lengths,
        generator: np.random.Generator | None = None,
        special: SpecialIds = DEFAULT_SPECIAL_IDS,
    ) -> Batch:
        inputs = Inputs(
            source_tokens=pad_tokens(record.tokens, lengths.source, special.pad),  # type: ignore[arg-type]
            source_mask=np.arange(lengths.source) < len(record.tokens),  # type: ignore[arg-type]
            token_types=pad_tokens(record.types, lengths.source),  # type: ignore[arg-type]
        )
        return Batch(inputs, self.target(record.label), np.ones(1, np.float32))  # type: ignore[arg-type]
