"""Oracle: ids worked out by hand."""

import pytest

from flaxformer_lite.core.text.characters import Bytes, Characters
from flaxformer_lite.core.text.special_ids import UNK
from tests.support.tokenizers import TEXT


def test_characters_by_frequency_then_code_point() -> None:
    tokenizer = Characters().train(["banana", "", "cab"], 8)  # a: 4, b: 2, n: 2, c: 1
    assert tokenizer.pieces(range(4, 8)) == ["a", "b", "n", "c"]
    assert Characters().train(["banana", "cab"], 100).vocab_size == 8
    small = Characters().train(["banana", "cab"], 6)
    assert small.encode("banana") == [5, 4, UNK, 4, UNK, 4]
    assert small.decode(small.encode("banana")) == "baaa"


def test_bytes_of_a_hand_worked_word() -> None:
    tokenizer = Bytes().train(["anything"], 260)
    assert tokenizer.encode("é a") == [0xC3 + 4, 0xA9 + 4, 0x20 + 4, 0x61 + 4]
    assert tokenizer.pieces(tokenizer.encode("é a")) == ["<0xC3>", "<0xA9>", "<0x20>", "a"]
    assert tokenizer.decode([0xC3 + 4, 0x61 + 4]) == "\ufffda"


def test_bytes_need_260_ids() -> None:
    with pytest.raises(ValueError, match=r"model\.vocab_size is 259: bytes need 260"):
        Bytes().train(TEXT, 259)
