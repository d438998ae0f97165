"""Masked language modelling: what was covered? And, where it is asked, does the second text follow the first?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
from annotated_types import Gt
from jaxtyping import Array, Float, Int

from flaxformer_lite.bounds import Fraction, check_bounds
from flaxformer_lite.data.packing import documents, even_pieces, pack, pairs_of_texts, separate_pieces
from flaxformer_lite.data.records import Lengths, Pack, TokenPair
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.inputs import Inputs, Outputs, read_types
from flaxformer_lite.objectives.base import (
    BaseObjective,
    Batch,
    check_id,
    concat_pieces,
    padded,
)
from flaxformer_lite.objectives.corruption import mask_tokens, sample_masked_positions
from flaxformer_lite.objectives.losses import LossTerm, PerRowMetric, accuracy, cross_entropy
from flaxformer_lite.text.special_ids import DEFAULT_SPECIAL_IDS, EOS, SpecialIds
from flaxformer_lite.text.tokenizer import Tokenizer


class Piece(NamedTuple):
    """What stands in a row between padding and padding: a text, or two, with BOS and EOS."""

    tokens: Int[np.ndarray, "_"]
    words: Int[np.ndarray, "_"]
    """The number of each token's word; -1 at BOS and EOS."""
    types: Int[np.ndarray, "_"]


@dataclass(frozen=True, kw_only=True)
class MaskedLM(BaseObjective):
    """Masked language modelling: an encoder reads documents in which some tokens are covered, and should say what they were.

    Documents are cut into pieces between BOS and EOS, which share rows of `data.max_source_length` as those of a causal model do.
    The tokens are chosen anew for every step; at evaluation they are a function of the example alone. `accuracy` and `loss` are
    those of the chosen tokens. Reference: Devlin et al. 2018, arXiv:1810.04805, section 3.1.
    """

    kind: Literal["masked_lm"] = "masked_lm"
    mask_token: Annotated[int, Gt(EOS + 1), "set it to model.vocab_size - 1"] | None = None
    """The id that covers a token: `model.vocab_size - 1`, which a tokenizer that is trained here leaves free; None: the one that
    the tokenizer of another run has."""
    mask_rate: Fraction = 0.15
    """Share of the tokens to be told: 80 % of these are covered, 10 % become a random token, 10 % stay."""
    whole_words: bool = False
    """Choose the tokens of a word together: from a "▁" to the next, with other tokenizers what stands between white space."""
    next_sentence: bool = False
    """A row is two texts, and the model also says whether the second follows the first in its document, as in every other row, or
    is from another one. Scored by `model.pooler` with 2 classes, of which the first means that it follows."""

    command = "fill-mask"

    def __post_init__(self) -> None:
        check_bounds(self, "objective")

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError where the model is not an encoder alone, with an id to spare."""
        self.check_stacks(model, encoder=True, decoder=False)
        if self.mask_token is not None:
            check_id("mask_token", self.mask_token, model)
        if self.next_sentence and (model.pooler is None or model.pooler.num_classes != 2):
            found = "None" if model.pooler is None else f"one of {model.pooler.num_classes} classes"
            raise ValueError(
                f"model.pooler is {found}, but objective.next_sentence scores 2: set model.pooler to Pooler(num_classes=2), or "
                "leave out objective.next_sentence"
            )

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (*super().metric_names, *(["next_sentence_accuracy"] if self.next_sentence else []))

    @property
    def mask_id(self) -> int | None:
        return self.mask_token

    def num_tokenizer_ids(self, vocab_size: int) -> int:
        return vocab_size if self.mask_token is None else self.mask_token

    def packed_row(self, longest: Lengths) -> Lengths:
        return Lengths(longest.source, 0)

    def inputs(self, batch: Batch, model: ModelConfig) -> Inputs:
        return batch.inputs._replace(token_types=read_types(model, batch.inputs.token_types))

    # What fills a row ------------------------------------------------------------------------------------------------

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> list[Pack]:
        """The documents as packs of `longest.source` positions at most; words are those of the tokenizer, where it is given.

        With `next_sentence` a pack is a text, the one that follows it, and texts of other documents.
        """
        room = longest.source
        if room < 3 + 2 * self.next_sentence:
            raise ValueError(
                f"data.max_source_length is {room}: give at least {3 + 2 * self.next_sentence}, tokens between BOS and EOS"
            )
        if tokenizer is not None:
            self.check_mask(tokenizer.special)
        texts = documents(records, self.kind)
        if self.next_sentence:
            packs = pairs_of_texts([even_pieces(text, (room - 3) // 2) for text in texts], seed)
        else:
            pieces = [piece for text in texts for piece in separate_pieces(text, room - 2)]
            packs = pack(pieces, [len(piece) + 2 for piece in pieces], room, seed)
        if not self.whole_words or tokenizer is None:
            return packs
        return [
            row._replace(words=tuple(np.cumsum(tokenizer.word_starts(piece.tolist())) for piece in row.pieces))
            for row in packs
        ]

    def check_mask(self, special: SpecialIds) -> None:
        """Raises: ValueError where nothing can cover a token of that tokenizer."""
        if self.mask_token is None and special.mask is None:
            raise ValueError(
                "objective.mask_token is None, but the tokenizer has no id for the mask: set it to model.vocab_size - 1"
            )
        if self.mask_token not in (None, special.mask) and self.mask_token < (special.size or 0):
            raise ValueError(
                f"objective.mask_token is {self.mask_token}, which is a token of the tokenizer's {special.size}: set it to "
                "model.vocab_size - 1"
            )

    def lengths(self, record: Pack) -> Lengths:
        """The positions that the pack's tokens take."""
        if self.next_sentence:
            first, *others = map(len, record.pieces)
            return Lengths(first + max(others) + 3, 0)
        return Lengths(sum(len(piece) + 2 for piece in record.pieces), 0)

    def example(
        self, record: Pack, lengths: Lengths, generator: np.random.Generator, special: SpecialIds = DEFAULT_SPECIAL_IDS
    ) -> Batch:
        """One row of a batch (no leading axis), padded to `lengths`; at most ceil(mask_rate · length) tokens are to be told."""
        words = record.words or tuple(np.arange(len(piece)) for piece in record.pieces)
        labels = None
        if self.next_sentence:
            second = 1 if generator.random() < 0.5 else int(generator.integers(2, len(record.pieces)))
            labels = np.int32(second > 1)
            pieces = [wrapped([(record.pieces[i], words[i]) for i in (0, second)], special)]
        else:
            pieces = [wrapped([text], special) for text in zip(record.pieces, words, strict=True)]
        row = concat_pieces([piece.tokens for piece in pieces], lengths.source, special.pad)
        most = math.ceil(self.mask_rate * lengths.source)
        numbers = padded(numbered([piece.words for piece in pieces]), lengths.source, -1)
        wanted = max(1, round(self.mask_rate * int((numbers >= 0).sum())))
        chosen = sample_masked_positions(numbers, min(wanted, most), generator)
        tokens = row.tokens.copy()
        mask_token = special.mask if self.mask_token is None else self.mask_token
        assert mask_token is not None
        tokens[chosen] = mask_tokens(row.tokens[chosen], mask_token, special.size or mask_token, generator)
        inputs = Inputs(
            source_tokens=tokens,  # type: ignore[arg-type]
            source_mask=row.segments > 0,  # type: ignore[arg-type]
            source_positions=row.positions,  # type: ignore[arg-type]
            source_segments=row.segments,  # type: ignore[arg-type]
            predict_positions=padded(chosen, most),  # type: ignore[arg-type]
            token_types=padded(np.concatenate([piece.types for piece in pieces]), lengths.source),  # type: ignore[arg-type]
        )
        weights = (np.arange(most) < len(chosen)).astype(np.float32)
        return Batch(inputs, padded(row.tokens[chosen], most), weights, labels)  # type: ignore[arg-type]

    # What counts -----------------------------------------------------------------------------------------------------

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """The terms that training minimises."""
        terms = super().loss(outputs, batch)
        if self.next_sentence:
            assert outputs.class_logits is not None and batch.labels is not None
            terms["next_sentence"] = cross_entropy(outputs.class_logits, batch.labels, row_weights(batch))
        return terms

    def metrics(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm | PerRowMetric]:
        """What evaluation counts, of the chosen tokens and of the rows."""
        counted = super().metrics(outputs, batch)
        if self.next_sentence:
            assert outputs.class_logits is not None and batch.labels is not None
            counted["next_sentence_accuracy"] = accuracy(outputs.class_logits, batch.labels, row_weights(batch))
        return counted


def row_weights(batch: Batch) -> Float[Array, "B"]:
    """1 for each row with something in it."""
    return (batch.weights.sum(-1) > 0).astype(batch.weights.dtype)


def wrapped(texts: Sequence[tuple[Int[np.ndarray, "_"], Int[np.ndarray, "_"]]], special: SpecialIds) -> Piece:
    """The tokens of one text or two, with the numbers of their words: BOS before the first, EOS after each."""
    parts = []
    for number, (tokens, words) in enumerate(texts):
        whole = np.asarray((special if number == 0 else special._replace(bos=None)).with_bos_eos(tokens), np.int32)
        start = int(number == 0 and special.bos is not None)
        marked = np.full(len(whole), -1)
        marked[start : start + len(tokens)] = words
        parts.append((whole, marked, np.full(len(whole), number)))
    tokens, marks, types = zip(*parts, strict=True)
    return Piece(np.concatenate(tokens), numbered(marks), np.concatenate(types))


def numbered(words: Sequence[Int[np.ndarray, "_"]]) -> Int[np.ndarray, "_"]:
    """The numbers of the words of several texts, so that no two texts share one; -1 stays."""
    result, before = [], 0
    for own in words:
        result.append(np.where(own < 0, -1, own + before))
        before += int(own.max(initial=-1)) + 1
    return np.concatenate(result)
