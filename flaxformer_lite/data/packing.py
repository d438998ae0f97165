"""Packing: documents cut into pieces, and pieces put together until they fill rows."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from flaxformer_lite.data.records import Pack, TokenPair
from flaxformer_lite.text.special_ids import SpecialIds

WINDOW = 1024
"""Pieces that are composed into rows together: more leave fewer gaps and take longer."""


NUM_OTHERS = 8
"""Texts of other documents that a text may be followed by in the place of its own next one."""


def documents(records: Sequence[TokenPair], kind: str) -> list[Int[np.ndarray, "T"]]:
    """The texts of records that have nothing else. Raises: ValueError where one has a source, which would go unread."""
    for number, record in enumerate(records, 1):
        if len(record.source):
            raise ValueError(
                f"objective.kind is '{kind}', which reads documents, but record {number} of the data has a source too: "
                "choose a source of plain text (source_field None), or the objective 'seq2seq'"
            )
    return [record.target for record in records]


def overlapping_pieces(document: Int[np.ndarray, "T"], most: int, special: SpecialIds) -> list[Int[np.ndarray, "_"]]:
    """BOS, the document and EOS, in pieces that say which token follows which: at most `most` tokens to read, and the one after
    the last of them.

    Each piece starts with the last token of the one before, so every token but BOS follows another exactly once.
    """
    tokens = np.asarray(special.with_bos_eos(document), np.int32)
    return [tokens[start : start + most + 1] for start in range(0, len(tokens) - 1, most)]


def separate_pieces(document: Int[np.ndarray, "T"], most: int) -> list[Int[np.ndarray, "_"]]:
    """The document in pieces of at most `most` tokens, one after the other; an empty document is one empty piece."""
    return [document[start : start + most] for start in range(0, max(len(document), 1), most)]


def even_pieces(document: Int[np.ndarray, "T"], most: int) -> list[Int[np.ndarray, "_"]]:
    """The document in an even number of pieces of nearly the same length, at most `most` tokens each."""
    return np.array_split(document, 2 * max(1, -(-len(document) // (2 * most))))


def pack(
    pieces: Sequence[Int[np.ndarray, "_"]], sizes: Sequence[int], room: int, seed: int, window: int = WINDOW
) -> list[Pack]:
    """All pieces, each in one row of at most `room` positions; `sizes` says how many each needs.

    The pieces are shuffled, so that a window holds a sample of them; inside it the longest come first, each into the
    first row that has room.
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
    """For every other piece of each document: it, the next one, and NUM_OTHERS of other documents, drawn by the seed.

    Raises: ValueError where there are no other documents.
    """
    filled = [document for document in pieces if all(map(len, document))]
    if not filled and len(pieces) == 1:  # a blank row, for its shape
        return [Pack(tuple(pieces[0][:1]) * 3)]
    if len(filled) < 2:
        raise ValueError(
            "objective.next_sentence needs texts of other documents, but there is one document of two tokens or more: give "
            "more, or cut the text into several (PlainText.documents)"
        )
    generator = np.random.Generator(np.random.Philox(key=[seed, 0], counter=[0, 0, 0, 3]))
    packs = []
    for number, document in enumerate(filled):
        for i in range(0, len(document), 2):
            others = (number + generator.integers(1, len(filled), NUM_OTHERS)) % len(filled)
            drawn = [filled[other][generator.integers(len(filled[other]))] for other in others]
            packs.append(Pack((document[i], document[i + 1], *drawn)))
    return packs
