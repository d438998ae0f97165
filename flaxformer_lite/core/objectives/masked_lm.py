"""Masked language modelling, optionally with next-sentence prediction."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
from annotated_types import Gt
from jaxtyping import Array, Float, Int

from flaxformer_lite.core.base.bounds import Fraction
from flaxformer_lite.core.data.packing import as_documents, pack, packs, pairs_of_texts, separate_pieces, without_ends
from flaxformer_lite.core.data.records import Lengths, Pack, TokenPair
from flaxformer_lite.core.data.token_arrays import Rows
from flaxformer_lite.core.model import Inputs, ModelConfig
from flaxformer_lite.core.model.inputs import Outputs, read_types
from flaxformer_lite.core.objectives.base import HeadObjective, check_pooler
from flaxformer_lite.core.objectives.batch import Batch, host_row, pad_tokens
from flaxformer_lite.core.objectives.losses import Counts, LossTerm, accuracy, cross_entropy
from flaxformer_lite.core.text import SpecialIds, Tokenizer
from flaxformer_lite.core.text.special_ids import EOS, check_token_ids


@dataclass(frozen=True, kw_only=True)
class MaskedLM(HeadObjective):
    """Masked language modelling: an encoder reads documents in which some tokens are masked, and predicts these tokens.

    Documents are cut into pieces between BOS and EOS, which share rows of `data.max_source_length`. Each step selects other tokens;
    in evaluation they depend on the example only. `accuracy` and `loss` are those of the selected tokens.

    Reference: Devlin et al. 2018, arXiv:1810.04805, section 3.1.
    """

    kind: Literal["masked_lm"] = "masked_lm"
    mask_token: Annotated[int, Gt(EOS + 1), "set it to model.vocab_size - 1"] | None = None
    """The id of the mask: `model.vocab_size - 1`, which a tokenizer that is trained here leaves free. None: the mask of the
    tokenizer of another run."""
    mask_rate: Fraction = 0.15
    """Fraction of the tokens that are predicted. 80 % of them are masked, 10 % become a random token, 10 % stay."""
    whole_words: bool = False
    """Select all tokens of a word together. A word begins at "▁"; with other tokenizers, at white space."""
    next_sentence: bool = False
    """A row is two texts, and the model also predicts whether the second follows the first in its document. In half of the rows
    it does; in the others it is of another document. `model.pooler` needs 2 classes, the first for "follows"."""

    @property
    def mask_id(self) -> int | None:
        return self.mask_token

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (*super().metric_names, *(["next_sentence_accuracy"] if self.next_sentence else []))

    # The model and the tokenizer -------------------------------------------------------------------------------------

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError unless the model is encoder-only, with the id of the mask and the pooler that it needs."""
        self.check_stacks(model, encoder=True, decoder=False)
        check_token_ids([self.mask_token], model.vocab_size, "objective.mask_token is")
        if self.next_sentence:
            check_pooler(model, 2, "objective.next_sentence scores", ", or leave out objective.next_sentence")

    def num_tokenizer_ids(self, vocab_size: int) -> int:
        return vocab_size if self.mask_token is None else self.mask_token

    def check_mask(self, special: SpecialIds) -> None:
        """Raises: ValueError without a mask token, or with one that the tokenizer uses for text."""
        mask = special.mask if self.mask_token is None else self.mask_token
        size = special.size or 0
        if mask is None or (mask != special.mask and mask < size):
            raise ValueError(
                f"objective.mask_token is {self.mask_token}: it must be the tokenizer's own mask ({special.mask}), or an id "
                f"behind its {size} tokens: set it to {size}, and model.vocab_size to {size + 1} or more"
            )

    # From records to rows --------------------------------------------------------------------------------------------

    def packed_row(self, longest: Lengths) -> Lengths:
        return Lengths(longest.source, 0)

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> Rows:
        """Returns the documents as packs of at most `longest.source` positions.

        With `next_sentence` a pack is a text, the text that follows it, and texts of other documents.
        """
        room = longest.source
        least = 3 + 2 * self.next_sentence
        if room < least:
            raise ValueError(
                f"data.max_source_length is {room}: it must be at least {least}, for tokens between BOS and EOS"
            )
        if tokenizer is not None:
            self.check_mask(tokenizer.special)
        texts = as_documents(records, self.kind)
        if self.next_sentence:
            spans, lengths = pairs_of_texts(texts, (room - 3) // 2, seed)
            used = lengths.sum(1, dtype=np.int32) + 3
        else:
            pieces, sizes = separate_pieces(texts, room - 2)
            spans, used = pack(pieces, sizes + 2, room, seed)
        row = packs(spans, functools.partial(without_ends, texts))

        def with_words(i: int) -> Pack:
            plain = row(i)
            if not self.whole_words or tokenizer is None:
                return plain
            words = tuple(np.cumsum(tokenizer.word_starts(piece.tolist())) for piece in plain.pieces)
            return plain._replace(words=words)

        return Rows.source_only(used, with_words, spans)

    def example(self, record: Pack, lengths: Lengths, generator: np.random.Generator, special: SpecialIds) -> Batch:
        """Returns a row without the axis B, padded to `lengths`, with at most ⌈mask_rate · length⌉ tokens to predict."""
        pieces, label = self.texts(record, generator)
        row = row_of_texts(pieces, lengths.source, special)
        most = math.ceil(self.mask_rate * lengths.source)
        wanted = max(1, round(self.mask_rate * np.count_nonzero(row.words >= 0)))
        selected = sample_masked_positions(row.words, min(wanted, most), generator)
        mask_token = special.mask if self.mask_token is None else self.mask_token
        assert mask_token is not None
        masked = row.tokens.copy()
        masked[selected] = mask_tokens(row.tokens[selected], mask_token, special.size or mask_token, generator)
        return host_row(
            pad_tokens(row.tokens[selected], most),
            (np.arange(most) < len(selected)).astype(np.float32),
            label,
            source_tokens=masked,
            source_mask=row.segments > 0,
            source_positions=row.positions,
            source_segments=row.segments,
            predict_positions=pad_tokens(selected, most),
            token_types=row.types,
        )

    def texts(
        self, record: Pack, generator: np.random.Generator
    ) -> tuple[list[list["NumberedTokens"]], np.int32 | None]:
        """Returns the texts of each piece of a row, and the label of the row's next sentence."""

        def text(i: int) -> NumberedTokens:
            return record.pieces[i], record.words[i] if record.words else np.arange(len(record.pieces[i]))

        read = self.pieces_read(record, generator)
        if read is None:
            return [[text(i)] for i in range(len(record.pieces))], None
        return [[text(i) for i in read]], np.int32(read[1] > 1)

    def pieces_read(self, record: Pack, generator: np.random.Generator) -> Sequence[int] | None:
        if not self.next_sentence:
            return None
        return 0, 1 if generator.random() < 0.5 else int(generator.integers(2, len(record.pieces)))

    def inputs(self, batch: Batch, model: ModelConfig) -> Inputs:
        return batch.inputs._replace(token_types=read_types(model, batch.inputs.token_types))

    # From outputs to figures -----------------------------------------------------------------------------------------

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """Returns the cross-entropy of the selected tokens and, if asked, of the next sentence."""
        terms = super().loss(outputs, batch)
        return terms | ({"next_sentence": cross_entropy(*next_sentences(outputs, batch))} if self.next_sentence else {})

    def metrics(self, outputs: Outputs, batch: Batch) -> Counts:
        """Returns the counts of the selected tokens and, if asked, of the rows."""
        counts = super().metrics(outputs, batch)
        if self.next_sentence:
            counts["next_sentence_accuracy"] = accuracy(*next_sentences(outputs, batch))
        return counts


def next_sentences(outputs: Outputs, batch: Batch) -> tuple[Float[Array, "B C"], Int[Array, "B"], Float[Array, "B"]]:
    """Returns logits and labels of the second texts, and the weights of the rows: 0 for a padding row of the batch."""
    assert outputs.class_logits is not None and batch.labels is not None
    return outputs.class_logits, batch.labels, (batch.weights.sum(-1) > 0).astype(batch.weights.dtype)


# Masks -----------------------------------------------------------------------------------------------------------------


def sample_masked_positions(
    words: Int[np.ndarray, "S"], max_positions: int, generator: np.random.Generator
) -> Int[np.ndarray, "_"]:
    """Returns the sorted positions of up to `max_positions` tokens, in whole words drawn at random.

    words: the word number of each token; -1 for a token that must not be drawn. A word longer than the rest is skipped.
    """
    positions = np.flatnonzero(words >= 0)
    word_numbers = words[positions]
    sizes = np.bincount(word_numbers)
    numbers = np.flatnonzero(sizes)
    order = numbers[generator.permutation(len(numbers))]
    ends = sizes[order].cumsum()
    first = int(ends.searchsorted(max_positions, side="right"))  # the words before it fit, all together
    drawn = np.zeros(len(sizes), bool)
    drawn[order[:first]] = True
    room = max_positions - int(sizes[order[:first]].sum())
    for i, size in zip(order[first:].tolist(), sizes[order[first:]].tolist(), strict=True):
        if room == 0:
            break
        if size <= room:
            drawn[i] = True
            room -= size
    return positions[drawn[word_numbers]]


def mask_tokens(
    tokens: Int[np.ndarray, "P"], mask_token: int, num_ids: int, generator: np.random.Generator
) -> Int[np.ndarray, "P"]:
    """Replaces tokens by the mask (80 %) or a random token (10 %); the other 10 % stay.

    Random tokens are below `num_ids` and above the four special ids of tokenizers trained here.

    Reference: Devlin et al. 2018, arXiv:1810.04805, section 3.1.
    """
    draw = generator.random(len(tokens))
    other = generator.integers(EOS + 1, num_ids, len(tokens))
    return np.where(draw < 0.8, mask_token, np.where(draw < 0.9, other, tokens)).astype(np.int32)


# Texts with special ids ------------------------------------------------------------------------------------------------

NumberedTokens = tuple[Int[np.ndarray, "_"], Int[np.ndarray, "_"]]
"""The tokens of a text, without special ids, and the word number of each."""


class RowOfTexts(NamedTuple):
    """Pieces of texts in one padded row, with special ids."""

    tokens: Int[np.ndarray, "S"]
    positions: Int[np.ndarray, "S"]
    """Position in the piece, from 0; 0 in the padding."""
    segments: Int[np.ndarray, "S"]
    """Number of the piece, from 1; 0 in the padding."""
    words: Int[np.ndarray, "S"]
    """Number of the word; no two texts share one. -1 for special ids and padding."""
    types: Int[np.ndarray, "S"]
    """0 in a piece's first text, 1 in its second; 0 in the padding."""


def row_of_texts(pieces: Sequence[Sequence[NumberedTokens]], length: int, special: SpecialIds) -> RowOfTexts:
    """Returns the pieces in a row of `length` positions: BOS before a piece's first text, EOS after every text."""
    tokens, words = np.full(length, special.pad, np.int32), np.full(length, -1, np.int32)
    positions, segments, types = np.zeros((3, length), np.int32)
    end = first_word = 0
    for segment, piece in enumerate(pieces, 1):
        first = end
        for number, (text, word_numbers) in enumerate(piece):
            start = end
            if number == 0 and special.bos is not None:
                tokens[start] = special.bos
                start += 1
            stop = start + len(text)
            tokens[start:stop], words[start:stop] = text, word_numbers + first_word
            first_word += int(word_numbers[-1]) + 1 if len(word_numbers) else 0
            if special.eos is not None:
                tokens[stop] = special.eos
                stop += 1
            types[end:stop] = number
            end = stop
        positions[first:end], segments[first:end] = np.arange(end - first), segment
    return RowOfTexts(tokens, positions, segments, words, types)
