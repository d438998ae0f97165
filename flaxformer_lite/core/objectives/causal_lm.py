"""Causal language modelling: every token is predicted from those before it."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flaxformer_lite.core.data.packing import as_documents, overlapping_pieces, pack, packs, with_ends
from flaxformer_lite.core.data.records import Lengths, Pack, TokenPair
from flaxformer_lite.core.data.token_arrays import Rows
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.objectives.base import HeadObjective
from flaxformer_lite.core.objectives.batch import Batch, concat_pieces, host_row
from flaxformer_lite.core.text import DEFAULT_SPECIAL_IDS, SpecialIds, Tokenizer


@dataclass(frozen=True, kw_only=True)
class CausalLM(HeadObjective):
    """Language modelling: a decoder reads documents from BOS on and predicts the next token at every position, EOS last.

    Documents are cut into pieces of at most `data.max_target_length` tokens. Short pieces share a row; none attends to another,
    and each has positions from 0. A piece starts with the last token of the piece before, so every token is predicted exactly
    once.
    """

    kind: Literal["causal_lm"] = "causal_lm"

    decoder_special_ids = ("eos", "bos")

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError unless the model is decoder-only and has a head."""
        self.check_stacks(model, encoder=False, decoder=True)

    def packed_row(self, longest: Lengths) -> Lengths:
        return Lengths(0, longest.target)

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> Rows:
        """Returns the documents as packs of at most `longest.target` positions."""
        room = longest.target
        special = DEFAULT_SPECIAL_IDS if tokenizer is None else tokenizer.special
        texts = as_documents(records, self.kind)
        spans, used = pack(*overlapping_pieces(texts, room, special), room, seed)
        make = packs(spans, functools.partial(with_ends, texts, special))
        return Rows(np.stack([np.zeros_like(used), used], 1), make, spans)

    def example(self, record: Pack, lengths: Lengths, generator: np.random.Generator, special: SpecialIds) -> Batch:
        row = concat_pieces([piece[:-1] for piece in record.pieces], lengths.target, special.pad)
        return host_row(
            concat_pieces([piece[1:] for piece in record.pieces], lengths.target, special.pad).tokens,
            (row.segments > 0).astype(np.float32),
            target_tokens=row.tokens,
            target_mask=row.segments > 0,
            target_positions=row.positions,
            target_segments=row.segments,
        )
