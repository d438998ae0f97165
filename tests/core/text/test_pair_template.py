"""Oracle: texts and lists written out by hand."""

import pytest

from flaxformer_lite.core.text.characters import ByteTokenizer
from flaxformer_lite.core.text.pair_template import cut_pair, pair_ending, pair_text

TEMPLATE = "<{query}|{document}> yes?"


def test_a_text_with_the_name_of_a_place_is_written_as_it_is():
    assert pair_text(TEMPLATE, "{document}", "b") == "<{document}|b> yes?"


def test_the_ending_is_what_all_pairs_end_with():
    tokenizer = ByteTokenizer()
    assert pair_ending(TEMPLATE, tokenizer) == tokenizer.encode("> yes?")
    assert pair_ending("{query}{document}", tokenizer) == []


@pytest.mark.parametrize(
    ("most", "kept"), [(6, [1, 2, 3, 4, 8, 9]), (5, [1, 2, 3, 8, 9]), (3, [1, 8, 9]), (2, [8, 9]), (1, [9])]
)
def test_a_long_pair_keeps_its_ending(most: int, kept: list[int]):
    assert cut_pair([1, 2, 3, 4, 8, 9], [8, 9], most).tokens == kept
