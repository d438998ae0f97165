"""A batch, and the padded arrays of one row of it, in NumPy on the host."""

from collections.abc import Sequence
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
from jaxtyping import Array, Float, Int

from flaxformer_lite.core.data import Lengths, TokenPair
from flaxformer_lite.core.model import Inputs
from flaxformer_lite.core.text.special_ids import PAD, SpecialIds


class Batch(NamedTuple):
    """The data of one step. One row of it is the same tree without the axis B."""

    inputs: Inputs
    """The model's inputs."""
    targets: Int[Array, "B T"] | Float[Array, "B 1"] | Float[Array, "B C"]
    """The expected token at each position that the head scores; for whole texts one class or one number, or 1 for each class that
    a text has, 0 for the others."""
    weights: Float[Array, "B T"]
    """The weight of each target in losses and metrics: 1, or 0 for padding."""
    labels: Int[Array, "B"] | None = None
    """For next-sentence prediction: 0 if a row's second text follows its first, else 1."""
    extra: Any = None
    """Further arrays [B, …] of an objective's own, a tree."""


def host_row(targets: Any, weights: Any, labels: Any = None, **inputs: Any) -> Batch:
    """Returns a row without the axis B, whose arrays are NumPy's: `inputs` are those of `Inputs`, by name.

    The one place where NumPy's arrays stand for those of a compiled function, which JAX makes of them.
    """
    return Batch(Inputs(**inputs), targets, weights, labels)


def pad_tokens(
    tokens: Sequence[SupportsIndex] | Int[np.ndarray, "_"], length: int, fill: int = PAD
) -> Int[np.ndarray, "T"]:
    """Returns the tokens, followed by padding up to `length`."""
    row = np.full(length, fill, np.int32)
    row[: len(tokens)] = tokens
    return row


def text_row(targets: object, weights: object, text: Any, lengths: Lengths, special: SpecialIds) -> Batch:
    """Returns a row for a model with one stack, without the axis B. The text begins with its tokens and their types."""
    tokens, types = text[:2]
    return host_row(
        targets,
        weights,
        source_tokens=pad_tokens(tokens, lengths.source, special.pad),
        source_mask=np.arange(lengths.source) < len(tokens),
        token_types=pad_tokens(types, lengths.source),
    )


def encoder_decoder_row(record: TokenPair, lengths: Lengths, special: SpecialIds) -> Batch:
    """Returns a row for an encoder–decoder, as teacher forcing reads it.

        encoder   source … EOS
        decoder   start target …
        targets   target … EOS

    Without a start in `special`, the record is whole (text … EOS [from]; [to] text … EOS), and the decoder predicts its start last.

    Raises: ValueError if the tokenizer has no EOS.
    """
    if special.eos is None:
        raise ValueError(
            "the tokenizer has no id that ends a text (eos), so no answer could end: choose another tokenizer"
        )
    source = pad_tokens(record.source, lengths.source, special.pad)
    read = np.full(lengths.target, special.pad, np.int32)
    targets = pad_tokens(record.target, lengths.target, special.pad)
    added = 0 if special.start is None else 1
    read[added : len(record.target) + added] = record.target
    if special.start is None:
        targets[: len(record.target)] = np.roll(record.target, -1)
    else:
        source[len(record.source)] = special.eos
        read[0] = special.start
        targets[len(record.target)] = special.eos
    target_mask = np.arange(lengths.target) < len(record.target) + added
    return host_row(
        targets,
        target_mask.astype(np.float32),
        source_tokens=source,
        source_mask=np.arange(lengths.source) < len(record.source) + added,
        target_tokens=read,
        target_mask=target_mask,
    )


class ConcatenatedPieces(NamedTuple):
    """Several pieces in one padded row: `a b c | d e | · ·` has positions 0 1 2 0 1 0 0 and segments 1 1 1 2 2 0 0."""

    tokens: Int[np.ndarray, "T"]
    positions: Int[np.ndarray, "T"]
    """Position in the piece, from 0; 0 in the padding."""
    segments: Int[np.ndarray, "T"]
    """Number of the piece, from 1; 0 in the padding."""


def concat_pieces(pieces: Sequence[Int[np.ndarray, "_"]], length: int, fill: int = PAD) -> ConcatenatedPieces:
    """Returns the pieces one after the other in a row of `length` positions."""
    positions = np.concatenate([np.arange(len(piece)) for piece in pieces])
    segments = np.repeat(np.arange(1, len(pieces) + 1), [len(piece) for piece in pieces])
    return ConcatenatedPieces(
        pad_tokens(np.concatenate(pieces), length, fill), pad_tokens(positions, length), pad_tokens(segments, length)
    )
