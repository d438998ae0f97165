"""Rows and losses of translation, worked by hand."""

from unittest.mock import Mock

from flaxformer_lite.core.data.records import Lengths
from flaxformer_lite.core.objectives import Seq2Seq
from flaxformer_lite.core.text import Tokenizer
from tests.support.objectives import record


def test_lengths_count_the_special_tokens():
    assert Seq2Seq().make_rows([record([4, 5, 6], [5])], Lengths(9, 9), 0).lengths.tolist() == [[4, 2]]


def test_special_ids_before_a_source_are_part_of_its_length():
    """Oracle: by hand, for 4 tokens with EOS: the end of a source goes where its special ids leave no room."""
    tokenizer = Mock(Tokenizer, as_source=lambda ids: [9, *ids, 3], ends_pairs=False)
    rows = Seq2Seq().make_rows([record([4] * n, [5]) for n in (1, 2, 3)], Lengths(4, 9), 0, tokenizer)
    assert [row.source.tolist() for row in rows] == [[9, 4], [9, 4, 4], [9, 4, 4]]
    assert rows.lengths.tolist() == [[3, 2], [4, 2], [4, 2]]
