"""Packing for objectives on documents: cuts documents into pieces and puts pieces together until they fill rows.

Pieces and rows are numbers in arrays until one is read: `Spans` of records.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int, Integer

from flaxformer_lite.core.data.batch_plan import slices
from flaxformer_lite.core.data.records import Pack, TokenPair
from flaxformer_lite.core.data.token_arrays import Spans, TokenArrays
from flaxformer_lite.core.text import SpecialIds

PIECES_AT_ONCE = 1024
"""The number of pieces that are packed together: more pieces leave fewer gaps and take longer."""
WINDOWS_AT_ONCE = 256
"""The number of windows that are packed at the same time, by array operations."""
NUM_OTHERS = 8
"""The number of texts of other documents from which the false next text of a text is drawn."""

Tokens = Integer[np.ndarray, "_"]


def as_documents(records: Sequence[TokenPair], kind: str) -> TokenArrays:
    """Returns records without a source, each a document. Raises: ValueError for one with a source: nothing would read it."""
    arrays = TokenArrays.of(records)
    with_source = np.flatnonzero(arrays.sizes[:, 0])
    if len(with_source):
        raise ValueError(
            f"objective.kind is '{kind}', which reads documents, but record {with_source[0] + 1} of the data has a source too: "
            "set data.train.record to Documents, or choose the objective 'seq2seq'"
        )
    return arrays


def piece_numbers(counts: Int[np.ndarray, "D"]) -> tuple[Int[np.ndarray, "P"], Int[np.ndarray, "P"]]:
    """Returns for each piece its document, and its number among the document's pieces. counts: the pieces of each document."""
    record = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    firsts = (np.cumsum(counts) - counts).astype(np.int32)
    return record, np.arange(len(record), dtype=np.int32) - firsts[record]


def cut_evenly(
    sizes: Int[np.ndarray, "D"], most: int, least_pieces: int = 0
) -> tuple[Int[np.ndarray, "D"], Int[np.ndarray, "P"]]:
    """Returns the number of pieces of each text, and the size of every piece: `most`, and the rest for a text's last piece."""
    counts = np.maximum(-(-sizes // most), least_pieces)
    piece_sizes = np.full(counts.sum(), most, np.int32)
    filled = counts > 0
    piece_sizes[np.cumsum(counts)[filled] - 1] = (sizes - (counts - 1) * most)[filled]
    return counts, piece_sizes


def overlapping_pieces(texts: TokenArrays, max_inputs: int, special: SpecialIds) -> tuple[Spans, Int[np.ndarray, "P"]]:
    """Cuts BOS, each document and EOS into pieces of at most `max_inputs` input tokens and the token after the last one.

    Each piece starts with the last token of the piece before, so every token but BOS is predicted exactly once. Also returns the
    number of input tokens of every piece. BOS is before the token 0, EOS behind the last: `with_ends` reads such a piece.
    """
    lengths = texts.sizes[:, 1]
    before = int(special.bos is not None)
    behind = int(special.eos is not None)
    counts, sizes = cut_evenly(lengths + before + behind - 1, max_inputs)
    record, number = piece_numbers(counts)
    start = number * max_inputs - before
    return Spans.one_each(record, start, np.minimum(start + max_inputs + 1, lengths[record] + behind)), sizes


def with_ends(texts: TokenArrays, special: SpecialIds, record: int, start: int, stop: int) -> Tokens:
    """Returns a piece of `overlapping_pieces`."""
    text = texts.view(record, 1)
    first: list[Any] = [special.bos] if start < 0 else []
    last: list[Any] = [special.eos] if stop > len(text) else []
    return np.concatenate([first, text[max(start, 0) : stop], last], dtype=np.int32, casting="unsafe")


def separate_pieces(texts: TokenArrays, max_length: int) -> tuple[Spans, Int[np.ndarray, "P"]]:
    """Cuts each document into pieces of at most `max_length` tokens, and returns their sizes too; an empty one is one piece."""
    lengths = texts.sizes[:, 1]
    counts, sizes = cut_evenly(lengths, max_length, least_pieces=1)
    record, number = piece_numbers(counts)
    start = number * max_length
    return Spans.one_each(record, start, np.minimum(start + max_length, lengths[record])), sizes


def without_ends(texts: TokenArrays, record: int, start: int, stop: int) -> Tokens:
    """Returns a piece of a document, without special tokens."""
    return texts.view(record, 1)[start:stop].astype(np.int32)


def packs(spans: Spans, read: Callable[[int, int, int], Tokens]) -> Callable[[int], Pack]:
    """Returns the function that makes row i; `read` returns a piece by its record, start and stop."""
    return lambda i: Pack(tuple(read(*span) for span in spans.row(i)))


def pack(
    pieces: Spans, sizes: Int[np.ndarray, "P"], room: int, seed: int, window: int = PIECES_AT_ONCE
) -> tuple[Spans, Int[np.ndarray, "R"]]:
    """Packs all pieces into rows of at most `room` positions. sizes: the positions of each piece. Also returns those of each row.

    The pieces are shuffled, so a window of them is a random sample. Inside a window the longest pieces come first, each into the
    first row with room for it.
    """
    sizes = np.asarray(sizes, np.int32)
    order = np.random.Generator(np.random.Philox(key=[seed, 0], counter=[0, 0, 0, 2])).permutation(len(sizes))
    whole = len(order) - len(order) % window
    blocks = [order[chunk].reshape(-1, window) for chunk in slices(whole, WINDOWS_AT_ONCE * window)]
    if whole < len(order):
        blocks.append(order[None, whole:])
    packed = [first_fit_decreasing(block, sizes, room) for block in blocks] or [(order, order)]
    members, counts = (np.concatenate(parts) for parts in zip(*packed, strict=True))
    ends = np.cumsum(counts)
    used = np.add.reduceat(sizes[members], ends - counts) if len(counts) else np.zeros(0, np.int32)
    return Spans(pieces.record[members], pieces.start[members], pieces.stop[members], ends), used


def first_fit_decreasing(
    windows: Int[np.ndarray, "W K"], sizes: Int[np.ndarray, "P"], room: int
) -> tuple[Int[np.ndarray, "M"], Int[np.ndarray, "R"]]:
    """Packs the pieces of each window: the longest first, each into the window's first row with room for it.

    Returns the piece numbers of all rows, window after window, in the order of packing, and the number of pieces in each row.
    """
    each = np.arange(len(windows))
    window = windows.shape[1]
    windows = np.take_along_axis(windows, np.argsort(-sizes[windows], axis=1, kind="stable"), 1).astype(np.int32)
    needed = sizes[windows]
    left = np.full((len(windows), window), room, np.int32)
    rows = np.empty(windows.shape, np.int32)
    most = 1  # rows of any window that hold a piece, and an empty one
    for k in range(window):
        rows[:, k] = np.argmax(left[:, :most] >= needed[:, k : k + 1], axis=1)
        left[each, rows[:, k]] -= needed[:, k]
        most = min(max(most, int(rows[:, k].max()) + 2), window)
    members = np.take_along_axis(windows, np.argsort(rows, axis=1, kind="stable"), 1)
    counts = np.stack([np.bincount(row, minlength=window) for row in rows])
    return members.reshape(-1), counts[counts > 0].astype(np.int32)


def pairs_of_texts(texts: TokenArrays, max_length: int, seed: int) -> tuple[Spans, Int[np.ndarray, "R 2"]]:
    """Returns for every second piece of each document: the piece, its next one, and `NUM_OTHERS` drawn from other documents.

    A document is cut into an even number of pieces of nearly the same length, at most `max_length` tokens each. Also returns the
    lengths of each row's first piece and of its longest other one.

    Raises: ValueError if the data has no other documents.
    """
    sizes = texts.sizes[:, 1].astype(np.int64)
    counts = 2 * np.maximum(1, -(-sizes // (2 * max_length)))
    filled = np.flatnonzero(sizes >= counts)  # no piece is empty
    if not len(filled) and len(texts) == 1:  # an empty row, for its shape
        members = pieces = np.zeros((1, 3), np.int64)
    elif len(filled) < 2:
        raise ValueError(
            "objective.next_sentence needs texts of other documents, but the data has only one of two tokens or more: add "
            "documents, or cut the text into several (PlainText.documents)"
        )
    else:
        members, pieces = drawn_texts(filled, counts[filled], seed)
    whole, longer = np.divmod(sizes[members], counts[members])
    start = pieces * whole + np.minimum(pieces, longer)
    lengths = whole + (pieces < longer)
    spans = Spans.one_each(members.reshape(-1), start.reshape(-1), (start + lengths).reshape(-1))
    ends = members.shape[1] * np.arange(1, len(members) + 1)
    return spans._replace(ends=ends), np.stack([lengths[:, 0], lengths[:, 1:].max(1)], 1)


def drawn_texts(
    filled: Int[np.ndarray, "D"], counts: Int[np.ndarray, "D"], seed: int
) -> tuple[Int[np.ndarray, "R M"], Int[np.ndarray, "R M"]]:
    """Returns the documents of next-sentence rows, among those `filled`, and the piece numbers. counts: the pieces of each."""
    generator = np.random.Generator(np.random.Philox(key=[seed, 0], counter=[0, 0, 0, 3]))
    rows = counts // 2
    documents = np.empty((rows.sum(), 2 + NUM_OTHERS), np.int32)
    pieces = np.empty_like(documents)
    numbers = np.repeat(np.arange(len(filled), dtype=np.int32), rows)
    firsts = np.cumsum(rows) - rows
    for chunk in slices(len(documents)):
        document = numbers[chunk]
        steps = generator.integers(1, len(filled), (len(document), NUM_OTHERS))
        others = (document[:, None] + steps) % len(filled)
        documents[chunk, :2] = filled[document, None]
        documents[chunk, 2:] = filled[others]
        k = 2 * (np.arange(chunk.start, chunk.stop) - firsts[document])
        pieces[chunk, 0] = k
        pieces[chunk, 1] = k + 1
        pieces[chunk, 2:] = generator.integers(counts[others])
    return documents, pieces
