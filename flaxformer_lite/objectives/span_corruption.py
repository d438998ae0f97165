"""Span corruption: what was left out?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Lt

from flaxformer_lite.bounds import Fraction, PositiveInt, check_bounds
from flaxformer_lite.data.packing import documents, separate_pieces
from flaxformer_lite.data.records import Lengths, Pack, TokenPair
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.objectives.base import (
    BaseObjective,
    Batch,
    check_id,
    pair_example,
)
from flaxformer_lite.objectives.corruption import noise_spans, span_counts, with_sentinels
from flaxformer_lite.text.special_ids import DEFAULT_SPECIAL_IDS, EOS, SpecialIds
from flaxformer_lite.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class SpanCorruption(BaseObjective):
    """T5's: an encoder reads a document with a sentinel in the place of some spans, and the decoder should say what these were.

    The decoder's text is each sentinel and the span that it stands for. Spans are drawn anew for every step; at evaluation they
    are a function of the example alone. Reference: Raffel et al. 2019, arXiv:1910.10683, section 3.1.4.
    """

    kind: Literal["span_corruption"] = "span_corruption"
    first_sentinel: int
    """The id of the first sentinel: `model.vocab_size - 1`, or what the tokenizer of another run has (T5: 32099). The others go
    down from there."""
    num_sentinels: PositiveInt = 100
    """Ids that are sentinels. A tokenizer that is trained here has only those below them."""
    noise_density: Fraction = 0.15
    """Share of the tokens that are left out."""
    mean_span: Annotated[float, Ge(1), Lt(math.inf)] = 3.0
    """Tokens of a span, on average."""

    decoder_special_ids = ("eos", "pad")

    def __post_init__(self) -> None:
        check_bounds(self, "objective")
        if self.num_sentinels >= self.first_sentinel - EOS:
            raise ValueError(
                f"objective.num_sentinels is {self.num_sentinels}: it must leave ids for text below objective.first_sentinel, "
                f"which is {self.first_sentinel}"
            )

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError where the model is not an encoder–decoder with one vocabulary and ids to spare."""
        self.check_stacks(model, encoder=True, decoder=True)
        check_id("first_sentinel", self.first_sentinel, model)
        if model.target_vocab_size is not None:
            raise ValueError(
                f"model.target_vocab_size is {model.target_vocab_size}, but objective.kind 'span_corruption' has one vocabulary "
                "for both sides: leave it out"
            )

    def num_tokenizer_ids(self, vocab_size: int) -> int:
        return self.first_sentinel + 1 - self.num_sentinels

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> list[Pack]:
        """The documents in pieces, one a row, as long as fits both sides once the spans are left out."""
        most = 1
        while all(n <= room for n, room in zip(self.room(most + 1), longest, strict=True)):
            most += 1
        spans = span_counts(most, self.noise_density, self.mean_span)[1]
        if not 1 <= spans <= self.num_sentinels:
            raise ValueError(
                f"data.max_source_length {longest.source} and data.max_target_length {longest.target} have room for {spans} "
                f"spans a row, and objective.num_sentinels is {self.num_sentinels}: make it 1 to as many spans as sentinels"
            )
        if tokenizer is not None:
            self.check_sentinels(tokenizer)
        return [Pack((piece,)) for text in documents(records, self.kind) for piece in separate_pieces(text, most)]

    def check_sentinels(self, tokenizer: Tokenizer) -> None:
        """Raises: ValueError where a sentinel is a piece of text in a tokenizer from another run; T5's own are named extra_id."""
        last = self.first_sentinel + 1 - self.num_sentinels
        for i in range(last, min(self.first_sentinel + 1, tokenizer.vocab_size)):
            if "extra_id" not in (piece := tokenizer.pieces([i])[0]):
                raise ValueError(
                    f"objective.first_sentinel {self.first_sentinel} and objective.num_sentinels {self.num_sentinels} make {i} a "
                    f"sentinel, but for the tokenizer it is the piece {piece!r}: raise model.vocab_size and first_sentinel"
                )

    def room(self, length: int) -> Lengths:
        """What a piece of that many tokens needs on both sides."""
        noise, spans = span_counts(length, self.noise_density, self.mean_span)
        return Lengths(length - noise + spans + 1, noise + max(spans, min(length, 1)) + 1)

    def lengths(self, record: Pack) -> Lengths:
        """The room that the record needs."""
        return self.room(len(record.pieces[0]))

    def example(
        self, record: Pack, lengths: Lengths, generator: np.random.Generator, special: SpecialIds = DEFAULT_SPECIAL_IDS
    ) -> Batch:
        """One row of a batch (no leading axis), padded to `lengths`."""
        (text,) = record.pieces
        left_out = noise_spans(len(text), self.noise_density, self.mean_span, generator)
        source, target = (with_sentinels(text, part, self.first_sentinel) for part in (left_out, ~left_out))
        return pair_example(TokenPair(source, target), lengths, special)
