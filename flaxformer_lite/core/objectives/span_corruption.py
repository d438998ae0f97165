"""Span corruption: a decoder writes the spans that the encoder's text lacks."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Lt
from jaxtyping import Bool, Int

from flaxformer_lite.core.base.bounds import Fraction, PositiveInt
from flaxformer_lite.core.data.packing import as_documents, packs, separate_pieces, without_ends
from flaxformer_lite.core.data.records import Lengths, Pack, TokenPair
from flaxformer_lite.core.data.token_arrays import Rows
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.objectives.base import HeadObjective
from flaxformer_lite.core.objectives.batch import Batch, encoder_decoder_row
from flaxformer_lite.core.text import SpecialIds, Tokenizer
from flaxformer_lite.core.text.special_ids import EOS, check_token_ids


@dataclass(frozen=True, kw_only=True)
class SpanCorruption(HeadObjective):
    """T5's objective: some spans of a document are replaced by one sentinel each, and the decoder predicts these spans.

        document   a b c d e f g h
        encoder    a b <1> e f <2> h EOS
        decoder    <1> c d <2> g <3> EOS

    Each step draws new spans; in evaluation they depend on the example only. Reference: Raffel et al. 2019, arXiv:1910.10683,
    section 3.1.4.
    """

    kind: Literal["span_corruption"] = "span_corruption"
    first_sentinel: int
    """The id of the first sentinel: `model.vocab_size - 1`, or the id that the tokenizer of another run has (T5: 32099). Each
    further sentinel has the id below."""
    num_sentinels: PositiveInt = 100
    """Number of sentinels. A tokenizer that is trained here has only the ids below them."""
    noise_density: Fraction = 0.15
    """Fraction of the tokens in the removed spans."""
    mean_span: Annotated[float, Ge(1), Lt(math.inf)] = 3.0
    """Average length of a span, in tokens."""

    decoder_special_ids = ("eos", "pad")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_sentinels >= self.first_sentinel - EOS:
            raise ValueError(
                f"objective.num_sentinels is {self.num_sentinels}: it must leave ids for text below objective.first_sentinel, "
                f"which is {self.first_sentinel}"
            )

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError unless the model is an encoder–decoder with one vocabulary that has the sentinels."""
        self.check_stacks(model, encoder=True, decoder=True)
        check_token_ids([self.first_sentinel], model.vocab_size, "objective.first_sentinel is")
        if model.target_vocab_size is not None:
            raise ValueError(
                f"model.target_vocab_size is {model.target_vocab_size}, but objective.kind 'span_corruption' has one vocabulary "
                "for both sides: leave it out"
            )

    @property
    def last_sentinel(self) -> int:
        """The lowest id that is a sentinel."""
        return self.first_sentinel + 1 - self.num_sentinels

    @property
    def sentinel_ids(self) -> range:
        return range(self.last_sentinel, self.first_sentinel + 1)

    def num_tokenizer_ids(self, vocab_size: int) -> int:
        return self.last_sentinel

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> Rows:
        """Returns the documents in pieces, one a row, as long as both sides fit into `longest` after the corruption."""
        most = self.longest_piece(longest)
        spans = span_counts(most, self.noise_density, self.mean_span)[1]
        if not 1 <= spans <= self.num_sentinels:
            raise ValueError(
                f"data.max_source_length {longest.source} and data.max_target_length {longest.target} leave room for {spans} "
                f"spans a row, but objective.num_sentinels is {self.num_sentinels}: a row needs at least 1 span, and a sentinel "
                "for each; change the lengths, or raise num_sentinels"
            )
        if tokenizer is not None:
            self.check_sentinels(tokenizer)
        texts = as_documents(records, self.kind)
        pieces, sizes = separate_pieces(texts, most)
        lengths = np.array([self.corrupted_lengths(size) for size in range(most + 1)], np.int32)
        return Rows(lengths[sizes], packs(pieces, functools.partial(without_ends, texts)), pieces)

    def check_sentinels(self, tokenizer: Tokenizer) -> None:
        """Raises: ValueError if a sentinel is a piece of text in the tokenizer of another run; T5's sentinels are extra_id_…."""
        for i in range(self.last_sentinel, min(self.first_sentinel + 1, tokenizer.vocab_size)):
            (piece,) = tokenizer.pieces([i])
            if "extra_id" not in piece:
                raise ValueError(
                    f"objective.first_sentinel {self.first_sentinel} and objective.num_sentinels {self.num_sentinels} make {i} a "
                    f"sentinel, but for the tokenizer it is the piece {piece!r}: raise model.vocab_size and first_sentinel"
                )

    def longest_piece(self, longest: Lengths) -> int:
        """Returns the number of tokens of the longest piece whose sides both fit, at least 1."""
        most = 1
        while all(n <= room for n, room in zip(self.corrupted_lengths(most + 1), longest, strict=True)):
            most += 1
        return most

    def longest_row(self, longest: Lengths) -> Lengths:
        """Returns the source's length, with the target that its longest piece leaves: about a quarter of it."""
        return longest._replace(target=self.corrupted_lengths(self.longest_piece(longest)).target)

    def corrupted_lengths(self, length: int) -> Lengths:
        """Returns the positions that a piece of `length` tokens needs on both sides."""
        noise, spans = span_counts(length, self.noise_density, self.mean_span)
        return Lengths(length - noise + spans + 1, noise + max(spans, min(length, 1)) + 1)

    def example(self, record: Pack, lengths: Lengths, generator: np.random.Generator, special: SpecialIds) -> Batch:
        (text,) = record.pieces
        is_noise = noise_spans(len(text), self.noise_density, self.mean_span, generator)
        source, target = (with_sentinels(text, removed, self.first_sentinel) for removed in (is_noise, ~is_noise))
        return encoder_decoder_row(TokenPair(source, target), lengths, special)


# Spans, in NumPy on the host --------------------------------------------------------------------------------------------


def span_counts(length: int, noise_density: float, mean_span: float) -> tuple[int, int]:
    """Returns the number of removed tokens, and of spans.

    Removes at least one token and never all; nothing if there are fewer than two.
    """
    if length < 2:
        return 0, 0
    noise = min(max(round(length * noise_density), 1), length - 1)
    return noise, min(max(round(noise / mean_span), 1), noise, length - noise)


def noise_spans(
    length: int, noise_density: float, mean_span: float, generator: np.random.Generator
) -> Bool[np.ndarray, "_"]:
    """Returns whether each token is removed: remaining and removed spans alternate, with random lengths of at least 1.

    The first span remains. Reference: Raffel et al. 2019, arXiv:1910.10683, section 3.1.4.
    """
    noise, spans = span_counts(length, noise_density, mean_span)
    if spans == 0:
        return np.zeros(length, bool)
    lengths = [random_parts(total, spans, generator) for total in (length - noise, noise)]
    return np.repeat(np.tile([False, True], spans), np.stack(lengths, 1).reshape(-1))


def random_parts(total: int, parts: int, generator: np.random.Generator) -> Int[np.ndarray, "_"]:
    """Splits `total` into `parts` whole numbers of at least 1; every split is equally probable."""
    cuts = np.sort(generator.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))


def with_sentinels(
    tokens: Int[np.ndarray, "_"], removed: Bool[np.ndarray, "_"], first_sentinel: int
) -> Int[np.ndarray, "_"]:
    """Replaces each removed span by one sentinel: `first_sentinel`, then the id below, and so on."""
    starts = removed & ~np.concatenate([[False], removed])[:-1]
    replaced = np.where(starts, first_sentinel - np.cumsum(starts) + 1, tokens)
    return replaced[~removed | starts].astype(np.int32)
