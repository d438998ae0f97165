"""Instruction tuning: a decoder reads whole conversations, and learns the answers in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from flaxformer_lite.core.data.packing import pack
from flaxformer_lite.core.data.records import Lengths, Pack, TokenPair
from flaxformer_lite.core.data.token_arrays import Rows, Spans, TokenArrays
from flaxformer_lite.core.objectives.batch import Batch, concat_pieces
from flaxformer_lite.core.objectives.causal_lm import CausalLM
from flaxformer_lite.core.text import SpecialIds, Tokenizer
from flaxformer_lite.core.text.pairs import ANSWER_FLAGS, Extent


@dataclass(frozen=True, kw_only=True)
class Instruction(CausalLM):
    """Language modelling of conversations. The loss counts only answers: their tokens, and the one that ends each.

    A record is a conversation (`Conversations`) or a pair, which is a user's message and its answer. Several share a
    row; none attends to another, and each has positions from 0. A conversation of more than `data.max_target_length` tokens and
    one loses its first turns; a system prompt stays if it can. One whose last answer does not fit is left out.
    """

    kind: Literal["instruction"] = "instruction"  # type: ignore[assignment]  # of a class that is another kind
    answers: Literal["all", "last"] = "all"
    """The answers of a conversation that count."""
    template: str | None = None
    """File of a chat template in Jinja. None: that of the tokenizer's run, or a plain one if it has none. The run folder keeps a
    copy of what the run began with."""

    unit = "conversations"
    reads = "conversations"

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> Rows:
        """Returns packs of the conversations that have an answer, of at most `longest.target` positions."""
        arrays = TokenArrays.of(records)
        counts = np.ones(len(arrays), np.int64)
        sizes = np.maximum(arrays.sizes[:, 1] - 1, 0)
        note = ""
        if tokenizer is not None:
            counts = (num_answers(arrays) > 0).astype(np.int64)
            note = left_out(arrays, int(counts.sum()), longest)
        kept = np.flatnonzero(counts)
        whole = Spans.one_each(kept, np.zeros_like(kept), arrays.sizes[kept, 1])
        spans, used = pack(whole, sizes[kept], longest.target, seed)

        def make(i: int) -> Pack:
            chats = [arrays[record] for record, _, _ in spans.row(i)]
            return Pack(tuple(chat.target for chat in chats), answers=tuple(chat.array(ANSWER_FLAGS) for chat in chats))

        return Rows(np.stack([np.zeros_like(used), used], 1), make, spans, note=note)

    def example(self, record: Pack, lengths: Lengths, generator: np.random.Generator, special: SpecialIds) -> Batch:
        counted = concat_pieces([answers[1:].astype(np.int32) for answers in record.answers], lengths.target, 0).tokens
        weights: Any = counted.astype(np.float32)
        return super().example(record, lengths, generator, special)._replace(weights=weights)


def num_answers(arrays: TokenArrays) -> Int[np.ndarray, "I"]:
    """Returns the number of predicted tokens in the answers of every record: all but a first token.

    Raises: ValueError for pairs.
    """
    if any(len(shard.ids) and ANSWER_FLAGS not in shard.columns for shard in arrays.shards):
        raise ValueError("these records are pairs of token ids: conversations need the tokens of answers too")
    return arrays.each(ANSWER_FLAGS, lambda column: column.sums_behind(1))


def left_out(arrays: TokenArrays, num_kept: int, longest: Lengths) -> str:
    """Returns which conversations were cut or left out; "" if none was. Raises: ValueError if none is left."""
    is_cut = arrays.extents == Extent.CUT
    refused = int((arrays.extents == Extent.REFUSED).sum())
    cut, too_long = int(is_cut.sum()), int((is_cut & (arrays.sizes[:, 1] == 0)).sum())
    without = len(arrays) - num_kept - too_long - refused
    reasons = (
        (refused, "were left out, as they are not conversations or the chat template refuses them"),
        (cut - too_long, f"lost their first turns to fit in data.max_target_length {longest.target}"),
        (
            too_long,
            f"were left out, as even their last turn does not fit in data.max_target_length {longest.target}",
        ),
        (without, "were left out, as they have no answer"),
    )
    said = f"of {len(arrays):,} conversations " + "; ".join(f"{n:,} {reason}" for n, reason in reasons if n)
    if not num_kept:
        raise ValueError(f"no conversation is left to learn from: {said}")
    return said if cut or without else ""
