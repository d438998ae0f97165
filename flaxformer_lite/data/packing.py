"""Packing for objectives on documents: cuts documents into pieces and puts pieces together until they fill rows."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from flaxformer_lite.data.records import Pack, TokenPair
from flaxformer_lite.text import SpecialIds

WINDOW = 1024
"""Pieces that are packed together: more leave fewer gaps and take longer."""
NUM_OTHERS = 8
"""Texts of other documents from which the false next text of a text is drawn."""


def documents(records: Sequence[TokenPair], kind: str) -> list[Int[np.ndarray, "T"]]:
    """Returns the texts of records without a source. Raises: ValueError for a record with a source: nothing would read it."""
    for number, record in enumerate(records, 1):
        if len(record.source):
            raise ValueError(
                f"objective.kind is '{kind}', which reads documents, but record {number} of the data has a source too: "
                "set source_field (or source_column) to None, or choose the objective 'seq2seq'"
            )
    return [record.target for record in records]


def overlapping_pieces(
    document: Int[np.ndarray, "T"], max_inputs: int, special: SpecialIds
) -> list[Int[np.ndarray, "_"]]:
    """Cuts BOS, the document and EOS into pieces of at most `max_inputs` input tokens and the token after the last one.

    Each piece starts with the last token of the piece before, so every token but BOS is predicted exactly once.
    """
    tokens = np.asarray(special.with_bos_eos(document), np.int32)
    return [tokens[start : start + max_inputs + 1] for start in range(0, len(tokens) - 1, max_inputs)]


def separate_pieces(document: Int[np.ndarray, "T"], max_length: int) -> list[Int[np.ndarray, "_"]]:
    """Cuts the document into pieces of at most `max_length` tokens; an empty document is one empty piece."""
    return [document[start : start + max_length] for start in range(0, max(len(document), 1), max_length)]


def even_pieces(document: Int[np.ndarray, "T"], max_length: int) -> list[Int[np.ndarray, "_"]]:
    """Cuts the document into an even number of pieces of nearly the same length, at most `max_length` tokens each."""
    return np.array_split(document, 2 * max(1, -(-len(document) // (2 * max_length))))


def pack(
    pieces: Sequence[Int[np.ndarray, "_"]], sizes: Sequence[int], room: int, seed: int, window: int = WINDOW
) -> list[Pack]:
    """Packs all pieces into rows of at most `room` positions; `sizes` has the positions that each piece needs.

    The pieces are shuffled, so a window of them is a random sample. Inside a window the longest come first, each into the
    first row with room for it.
    """
    order = np.random.Generator(np.random.Philox(key=[seed, 0], counter=[0, 0, 0, 2])).permutation(len(pieces))
    packs = []
    for start in range(0, len(order), window):
        rows: list[list[int]] = []
        left: list[int] = []
        for i in sorted(order[start : start + window].tolist(), key=lambda i: -sizes[i]):
            row = next((row for row, free in enumerate(left) if sizes[i] <= free), len(rows))
            if row == len(rows):
                rows.append([])
                left.append(room)
            rows[row].append(i)
            left[row] -= sizes[i]
        packs += [Pack(tuple(pieces[i] for i in row)) for row in rows]
    return packs


def pairs_of_texts(pieces: Sequence[Sequence[Int[np.ndarray, "_"]]], seed: int) -> list[Pack]:
    """Returns for every second piece of each document: the piece, its next one, and `NUM_OTHERS` drawn from other documents.

    Raises: ValueError if there are no other documents.
    """
    filled = [document for document in pieces if all(map(len, document))]
    if not filled and len(pieces) == 1:  # an empty row, for its shape
        return [Pack(tuple(pieces[0][:1]) * 3)]
    if len(filled) < 2:
        raise ValueError(
            "objective.next_sentence needs texts of other documents, but the data has only one of two tokens or more: add "
            "documents, or cut the text into several (PlainText.documents)"
        )
    generator = np.random.Generator(np.random.Philox(key=[seed, 0], counter=[0, 0, 0, 3]))
    packs = []
    for number, document in enumerate(filled):
        for i in range(0, len(document), 2):
            others = (number + generator.integers(1, len(filled), NUM_OTHERS)) % len(filled)
            drawn = [filled[other][generator.integers(len(filled[other]))] for other in others]
            packs.append(Pack((document[i], document[i + 1], *drawn)))
    return packs
