"""Causal language modelling: every token is predicted from those before it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flaxformer_lite.core.data.packing import documents, overlapping_pieces, pack
from flaxformer_lite.core.data.records import Lengths, Pack, TokenPair
from flaxformer_lite.core.data.token_arrays import Rows
from flaxformer_lite.core.model import Inputs, ModelConfig
from flaxformer_lite.core.objectives.base import HeadObjective
from flaxformer_lite.core.objectives.batch import Batch, concat_pieces
from flaxformer_lite.core.text import DEFAULT_SPECIAL_IDS, SpecialIds, Tokenizer


@dataclass(frozen=True, kw_only=True)
class CausalLM(HeadObjective):
    """Language modelling: a decoder reads documents from BOS on and predicts the next token at every position, EOS last.

    Documents are cut into pieces of at most `data.max_target_length` tokens. Short pieces share a row; none attends to another,
    and each has positions from 0. A piece starts with the last token of the piece before, so every token is predicted exactly
    once.
    """

    kind: Literal["causal_lm"] = "causal_lm"

    command = "generate"
    decoder_special_ids = ("eos", "bos")

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError unless the model is a decoder alone with a head."""
        self.check_stacks(model, encoder=False, decoder=True)

    def packed_row(self, longest: Lengths) -> Lengths:
        return Lengths(0, longest.target)

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> Rows:
        """Returns the documents as packs of at most `longest.target` positions."""
        room, special = longest.target, DEFAULT_SPECIAL_IDS if tokenizer is None else tokenizer.special
        pieces, sizes = overlapping_pieces(documents(records, self.kind), room, special)
        return pack(pieces, sizes, room, seed)

    def example(self, record: Pack, lengths: Lengths, generator: np.random.Generator, special: SpecialIds) -> Batch:
        row = concat_pieces([piece[:-1] for piece in record.pieces], lengths.target, special.pad)
        inputs = Inputs(
            target_tokens=row.tokens,  # type: ignore[arg-type]
            target_mask=row.segments > 0,  # type: ignore[arg-type]
            target_positions=row.positions,  # type: ignore[arg-type]
            target_segments=row.segments,  # type: ignore[arg-type]
        )
        targets = concat_pieces([piece[1:] for piece in record.pieces], lengths.target, special.pad).tokens
        return Batch(inputs, targets, (row.segments > 0).astype(np.float32))  # type: ignore[arg-type]
