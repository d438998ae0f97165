"""Batches of sequences of different lengths: sorts, cuts and pads. `placement.py` calls a function for them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

ANSWERS_FACTOR = 32
"""The most answer tokens (maximum length × beams) that a batch may hold for each source token.

A search holds a key and a value for each. The default settings of a beam of 5 need 17, those of generation 14.
"""


class InputBatch(NamedTuple):
    """Sequences that are answered by one call, and the shape that they are padded to."""

    members: list[int]
    """Indices of the sequences, at most `rows`; further rows are padding."""
    rows: int
    length: int
    """Tokens of a row."""


def padded_length(length: int) -> int:
    """Returns the number of tokens that a row of `length` tokens is padded to, so that rows share few compiled shapes."""
    return max(8, 1 << (length - 1).bit_length())


def finely_padded_length(length: int) -> int:
    """Returns the smallest of 8, 12, 16, 24, 32, 48, … that is at least `length`: less padding, and up to twice the shapes."""
    power = padded_length(length)
    return power * 3 // 4 if 8 < length <= power * 3 // 4 else power


def plan_batches(
    lengths: Sequence[int],
    batch_tokens: int,
    answer_tokens: Callable[[int], int] = lambda length: 0,
    padded: Callable[[int], int] = padded_length,
) -> list[InputBatch]:
    """Returns batches of at most `batch_tokens` tokens, longest sequences first, of few different shapes.

    Lengths are rounded up by `padded`. `answer_tokens` returns the tokens that a search has room for in a row of such a length;
    those of a batch are at most `ANSWERS_FACTOR * batch_tokens`. Rows are rounded up to 1, 8, 16, 32, … or to the most that these
    limits allow. A batch has at least one row.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batches: list[InputBatch] = []
    start = 0
    while start < len(order):
        length = padded(lengths[order[start]])
        row_tokens = max(length, -(-answer_tokens(length) // ANSWERS_FACTOR))
        max_rows = max(1, batch_tokens // row_tokens)
        members = order[start : start + max_rows]
        batches.append(InputBatch(members, min(padded_rows(len(members)), max_rows), length))
        start += len(members)
    return batches


def padded_rows(count: int) -> int:
    """Returns the smallest of 1, 8, 16, 32, 64, … that is at least `count`."""
    return 1 if count <= 1 else max(8, 1 << (count - 1).bit_length())


def pad_rows(
    sequences: Sequence[Sequence[int]], shape: tuple[int, int], fill: int = 0, *, left: bool = False
) -> Int[np.ndarray, "B S"]:
    """Returns the sequences as the first rows of an array, with `fill` elsewhere: on the right, or on the `left`."""
    array = np.full(shape, fill, np.int32)
    for row, sequence in zip(array, sequences, strict=False):
        start = len(row) - len(sequence) if left else 0
        row[start : start + len(sequence)] = sequence
    return array
