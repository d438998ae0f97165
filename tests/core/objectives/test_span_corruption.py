"""Laws of corrupted rows."""

import numpy as np
import pytest

from flaxformer_lite.core.data.dataset import Dataset
from flaxformer_lite.core.data.records import Lengths
from flaxformer_lite.core.objectives import SpanCorruption
from flaxformer_lite.core.objectives.span_corruption import span_counts, with_sentinels
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.files.data.config import DataConfig
from tests.support.objectives import example, record, some_documents


@pytest.mark.parametrize(("density", "mean_span"), [(0.15, 3.0), (0.5, 2.0), (0.3, 1.0)])
def test_source_and_target_give_back_the_text(density: float, mean_span: float):
    """Law: each sentinel of the source stands for what follows it in the target; shares and lengths are those asked for."""
    objective = SpanCorruption(first_sentinel=99, num_sentinels=40, noise_density=density, mean_span=mean_span)
    lengths = Lengths(41, 23)
    documents = some_documents(40, vocab_size=59)
    noise = 0
    rows = objective.make_rows(documents, lengths, 0)
    for i, pack in enumerate(rows):
        batch = example(objective, pack, lengths, i, 1)
        source, target = (
            np.asarray(tokens)[counts].tolist()[:-1]
            for tokens, counts in (
                (batch.inputs.source_tokens, batch.inputs.source_mask),
                (batch.targets, batch.weights > 0),
            )
        )
        assert rows.lengths[i].tolist() == [len(source) + 1, len(target) + 1]
        spans: dict[int, list[int]] = {}
        for token in target:
            if token > 59:
                spans[token] = []
            else:
                spans[list(spans)[-1]].append(token)
        assert list(spans) == [99 - j for j in range(len(spans))]
        expected = [t for token in source for t in (spans[token] if token > 59 else [token])]
        if len(pack.pieces[0]) > 1:
            assert expected == pack.pieces[0].tolist()
            assert len(target) - len(spans) == min(max(round(density * len(expected)), 1), len(expected) - 1)
            noise += len(spans)
    assert noise > 30


def test_pieces_are_as_long_as_both_sides_have_room():
    """Oracle: every longer piece tried; 512 tokens to read take 568 of text, as the paper's have, and 114 to write."""
    objective = SpanCorruption(first_sentinel=9_999)
    rows = objective.make_rows([record([], [5] * 2000)], Lengths(512, 512), 0)
    assert len(rows[0].pieces[0]) == 568
    assert rows.lengths[0].tolist() == [512, 114]
    for longest in (Lengths(512, 50), Lengths(30, 512)):
        (first, *_) = objective.make_rows([record([], [5] * 2000)], longest, 0)
        here, more = (objective.corrupted_lengths(len(first.pieces[0]) + n) for n in (0, 1))
        assert all(n <= room for n, room in zip(here, longest, strict=True))
        assert not all(n <= room for n, room in zip(more, longest, strict=True))
    with pytest.raises(ValueError, match=r"room for 28 spans a row, but objective\.num_sentinels is 27"):
        SpanCorruption(first_sentinel=99, num_sentinels=27).make_rows([record([], [5])], Lengths(512, 512), 0)


def test_short_documents_fill_short_rows():
    """Law: a batch has the shape of the first bucket that holds its rows, not that of the longest document."""
    records = [record([], [5] * length) for length in (9, 9, 60, 60)]
    longest = {"max_source_length": 64, "max_target_length": 64}
    config = DataConfig(tokens_per_batch=64, rows_multiple=1, bucket_lengths=(12, 64), **longest)
    data = Dataset.training(records, SpanCorruption(first_sentinel=99, num_sentinels=40), config, seed=0)
    assert {batch.inputs.source_tokens.shape for batch in map(data.batch, range(4))} == {(5, 12), (1, 64)}
    # By hand: 12 tokens lose 2 in 1 span, so 12 positions remain; 70 tokens lose 10 in 3, so 64 remain.
    assert {batch.inputs.target_tokens.shape for batch in map(data.batch, range(4))} == {(5, 4), (1, 14)}


def test_a_sentinel_is_no_piece_of_text():
    tokenizer = CharacterTokenizer("abcdef")
    SpanCorruption(first_sentinel=11, num_sentinels=2).make_rows([record([], [5])], Lengths(9, 9), 0, tokenizer)
    with pytest.raises(ValueError, match=r"make 9 a sentinel, but for the tokenizer it is the piece 'f'"):
        SpanCorruption(first_sentinel=10, num_sentinels=2).make_rows([record([], [5])], Lengths(9, 9), 0, tokenizer)


def test_spans_by_hand():
    """10 tokens, two spans of two: sentinels 28 and 27 stand for them, and name them in the target."""
    text = np.arange(4, 14)
    left_out = np.array([0, 0, 1, 1, 0, 0, 0, 1, 1, 0], bool)
    assert with_sentinels(text, left_out, 28).tolist() == [4, 5, 28, 8, 9, 10, 27, 13]
    assert with_sentinels(text, ~left_out, 28).tolist() == [28, 6, 7, 27, 11, 12, 26]
    assert with_sentinels(text[:0], left_out[:0], 28).tolist() == []


@pytest.mark.parametrize(
    ("length", "counts"), [(0, (0, 0)), (1, (0, 0)), (2, (1, 1)), (3, (1, 1)), (20, (3, 1)), (100, (15, 5))]
)
def test_spans_have_at_least_one_token_and_never_all(length: int, counts: tuple[int, int]):
    """By hand: 15 % of the tokens in spans of 3."""
    assert span_counts(length, 0.15, 3.0) == counts
