"""Hand-worked pieces and packs, and laws: every token is predicted exactly once, no row is too full, the seed decides."""

import functools

import numpy as np
import pytest

from flaxformer_lite.core.data.packing import (
    NUM_OTHERS,
    PIECES_AT_ONCE,
    WINDOWS_AT_ONCE,
    as_documents,
    cut_evenly,
    drawn_texts,
    overlapping_pieces,
    pack,
    packs,
    pairs_of_texts,
    separate_pieces,
    with_ends,
    without_ends,
)
from flaxformer_lite.core.data.records import Pack, TokenPair
from flaxformer_lite.core.data.token_arrays import Spans, TokenArrays
from flaxformer_lite.core.text.special_ids import BOS, DEFAULT_SPECIAL_IDS, EOS


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


def one(document: np.ndarray) -> TokenArrays:
    return as_documents([TokenPair(tokens(), document)], "causal_lm")


def listed(pieces) -> list[list[int]]:
    return [piece.tolist() for piece in pieces]


def whole(texts: TokenArrays, spans: Spans) -> list[Pack]:
    """The rows of pieces, with BOS and EOS."""
    make = packs(spans, functools.partial(with_ends, texts, DEFAULT_SPECIAL_IDS))
    return [make(i) for i in range(len(spans.ends))]


def inner(texts: TokenArrays, spans: Spans) -> list[Pack]:
    """The rows of pieces of the texts alone."""
    make = packs(spans, functools.partial(without_ends, texts))
    return [make(i) for i in range(len(spans.ends))]


def numbered(sizes, room: int, seed: int, window: int = PIECES_AT_ONCE) -> tuple[list[list[int]], list[int]]:
    """The numbers of the pieces in each row of a pack, and the positions that it uses."""
    number = np.arange(len(sizes))
    spans, used = pack(Spans.one_each(number, number * 0, number), sizes, room, seed, window)
    return [[record for record, _, _ in spans.row(i)] for i in range(len(used))], used.tolist()


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ([], [[BOS, EOS]]),
        ([7], [[BOS, 7, EOS]]),
        ([7, 8], [[BOS, 7, 8, EOS]]),  # three inputs, EOS as a target
        ([7, 8, 9], [[BOS, 7, 8, 9], [9, EOS]]),
        ([7, 8, 9, 10, 11, 12, 13], [[BOS, 7, 8, 9], [9, 10, 11, 12], [12, 13, EOS]]),
    ],
)
def test_overlapping_pieces_by_hand(document: list[int], expected: list[list[int]]):
    text = one(tokens(*document))
    spans, sizes = overlapping_pieces(text, 3, DEFAULT_SPECIAL_IDS)
    assert [listed(row.pieces) for row in whole(text, spans)] == [[piece] for piece in expected]
    assert sizes.tolist() == [len(piece) - 1 for piece in expected]


def test_an_empty_text_has_no_piece_and_changes_no_other():
    counts, sizes = cut_evenly(np.array([3, 0, 5, 0]), 4)
    assert counts.tolist() == [1, 0, 2, 0] and sizes.tolist() == [3, 4, 1]


def test_every_token_is_predicted_exactly_once():
    """Law: the tokens after the first of each piece are the document and EOS, whatever the lengths."""
    given = [np.arange(4, 4 + length, dtype=np.int32) for length in range(40)]
    texts = as_documents([TokenPair(tokens(), document) for document in given], "causal_lm")
    for most in (1, 2, 5, 13):
        cut = [row.pieces[0] for row in whole(texts, overlapping_pieces(texts, most, DEFAULT_SPECIAL_IDS)[0])]
        starts = [i for i, piece in enumerate(cut) if piece[0] == BOS]
        assert max(map(len, cut)) <= most + 1 and len(starts) == len(given)
        for document, start, stop in zip(given, starts, [*starts[1:], len(cut)], strict=True):
            pieces = cut[start:stop]
            assert np.concatenate([piece[1:] for piece in pieces]).tolist() == [*document, EOS]
            assert [piece[0] for piece in pieces] == [BOS, *(piece[-1] for piece in pieces[:-1])]


def test_separate_pieces_by_hand():
    for document, expected in (((4, 5, 6, 7, 8), [[4, 5], [6, 7], [8]]), ((4, 5), [[4, 5]]), ((), [[]])):
        text = one(tokens(*document))
        spans, sizes = separate_pieces(text, 2)
        assert [row.pieces[0].tolist() for row in inner(text, spans)] == expected
        assert sizes.tolist() == [len(piece) for piece in expected]


def test_the_longest_come_first_into_the_first_row_with_room():
    """Oracle: worked by hand for rows of 10: 10; 7 + 3; 6 + 4; 5 + 2, in whichever order they came."""
    sizes = np.array([4, 7, 2, 10, 3, 6, 5])
    for seed in range(5):
        rows, used = numbered(sizes, 10, seed)
        assert [sizes[row].tolist() for row in rows] == [[10], [7, 3], [6, 4], [5, 2]] and used == [10, 10, 10, 7]


def test_packs_hold_every_piece_once_and_no_row_is_too_full():
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 14, 500)
    rows, _ = numbered(sizes, 13, seed=3, window=64)
    assert sorted(number for row in rows for number in row) == list(range(500))
    assert all(sizes[row].sum() <= 13 for row in rows)
    # First fit decreasing needs at most 11/9 of the best number of rows, and 6/9 more, in each of the 8 windows.
    assert len(rows) <= 11 / 9 * sizes.sum() / 13 + 8 * (1 + 6 / 9)


def test_no_pieces_make_no_rows():
    assert numbered(np.zeros(0, np.int32), 5, 0) == ([], [])


def test_packs_are_a_function_of_the_seed():
    first, again, other = (numbered(1 + np.arange(100) % 5, 7, seed, window=16) for seed in (3, 3, 4))
    assert first == again != other


def slow_pack(sizes: list[int], room: int, seed: int, window: int) -> list[list[int]]:
    """First fit decreasing as a loop over pieces and rows."""
    order = np.random.Generator(np.random.Philox(key=[seed, 0], counter=[0, 0, 0, 2])).permutation(len(sizes))
    packs: list[list[int]] = []
    for start in range(0, len(order), window):
        rows: list[list[int]] = []
        for i in sorted(order[start : start + window].tolist(), key=lambda i: -sizes[i]):
            for row in rows:
                if sum(sizes[j] for j in row) + sizes[i] <= room:
                    row.append(i)
                    break
            else:
                rows.append([i])
        packs += rows
    return packs


@pytest.mark.parametrize("number", [3, 8, 40, 8 * (WINDOWS_AT_ONCE + 2) + 5])
def test_windows_are_packed_at_once_as_one_after_the_other(number: int):
    """Oracle: a slow loop. The numbers have no whole window, one, several, and more than are packed at once."""
    sizes = np.random.default_rng(number).integers(1, 14, number)
    rows, used = numbered(sizes, 13, seed=3, window=8)
    assert rows == slow_pack(sizes.tolist(), 13, 3, 8)
    assert used == [sizes[row].sum() for row in rows]


def test_a_record_with_a_source_is_no_document():
    pairs = [TokenPair(tokens(), tokens(4)), TokenPair(tokens(5), tokens(6))]
    assert as_documents(pairs[:1], "causal_lm").view(0, 1).tolist() == [4]
    with pytest.raises(
        ValueError, match=r"^objective\.kind is 'causal_lm'.*record 2 .*set data\.train\.record to Documents"
    ):
        as_documents(pairs, "causal_lm")


def test_every_second_piece_and_its_next_one_by_hand():
    """Documents of 9, 1, 4 and 5 tokens, pieces of at most 2: six of 2, 2, 2, 1, 1, 1; none; two of 2; four of 2, 1, 1, 1."""
    records = [TokenPair(tokens(), np.arange(10 * i, 10 * i + n, dtype=np.int32)) for i, n in enumerate((9, 1, 4, 5))]
    texts = as_documents(records, "masked_lm")
    spans, lengths = pairs_of_texts(texts, 2, 0)
    rows = inner(texts, spans)
    firsts = [listed(row.pieces)[:2] for row in rows]
    assert firsts == [
        *([[0, 1], [2, 3]], [[4, 5], [6]], [[7], [8]]),
        *([[20, 21], [22, 23]],),
        *([[30, 31], [32]], [[33], [34]]),
    ]
    for i in range(len(rows)):
        first, *others = listed(rows[i].pieces)
        assert lengths[i].tolist() == [len(first), max(map(len, others))]
        assert all(other[0] // 10 != first[0] // 10 for other in others[1:])


def test_texts_of_others_are_drawn_evenly_from_all_other_documents():
    """Law: never of the own document, each other one and each of its pieces equally often. Oracle: counts, by chi-squared."""
    counts = np.tile([2, 4, 6], 7)
    filled = np.arange(21) * 3
    rows = [drawn_texts(filled, counts, seed) for seed in range(200)]
    documents, pieces = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    assert documents[:6, 0].tolist() == [0, 3, 3, 6, 6, 6] and pieces[:6, 0].tolist() == [0, 0, 2, 0, 2, 4]
    assert (documents[:, 0] == documents[:, 1]).all() and (pieces[:, 0] + 1 == pieces[:, 1]).all()
    assert (documents[:, 2:] != documents[:, :1]).all()
    third = documents[:, 0] == 6
    drawn = np.bincount(documents[third, 2:].ravel(), minlength=61)[filled]
    assert drawn[2] == 0 and drawn.sum() == 3 * 200 * NUM_OTHERS
    others = np.delete(drawn, 2)
    assert ((others - others.mean()) ** 2 / others.mean()).sum() < 43.8  # 0.1 % of a fair draw, 19 degrees of freedom
    of_last = np.bincount(pieces[:, 2:][documents[:, 2:] == 60], minlength=6)
    assert ((of_last - of_last.mean()) ** 2 / of_last.mean()).sum() < 20.5 and len(of_last) == 6  # 5 degrees


def test_the_length_of_the_others_counts_the_next_piece_too():
    texts = [TokenPair(tokens(), tokens(*range(size))) for size in (8, 2)]
    assert pairs_of_texts(as_documents(texts, "masked_lm"), 4, 0)[1].tolist() == [[4, 4], [1, 4]]


def test_of_two_documents_each_is_the_other_one():
    texts = as_documents([TokenPair(tokens(), tokens(*range(ten, ten + 4))) for ten in (10, 20)], "masked_lm")
    for row, ten in zip(inner(texts, pairs_of_texts(texts, 2, 0)[0]), (10, 20), strict=True):
        own, following, *others = listed(row.pieces)
        assert own == [ten, ten + 1] and following == [ten + 2, ten + 3]
        assert others and all(other[0] // 10 == 3 - ten // 10 for other in others)
