"""Oracle: the tokenizers library itself, and templates written out by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, processors

from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.text.tokenizer import Tokenizers
from flaxformer_lite.files.data.store import open_shards, write_shard
from flaxformer_lite.files.tokenizers.json_tokenizer import JsonTokenizer
from flaxformer_lite.files.tokenizers.kinds import load_tokenizer, save_tokenizer
from tests.support.tokenizers import NAMES, bytes_joined, word_pieces


def test_word_pieces_and_their_template() -> None:
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    found = JsonTokenizer.of(word_pieces().to_str(), names)
    assert found.special[:5] == (0, 1, 2, 3, 4) and found.vocab_size == 9
    assert found.encode("a bbc ab z") == [5, 6, 7, 8, 5, 7, 1]
    assert found.encode_batch(["a", ""]) == [[5], []]
    assert found.with_special_tokens([5, 6], [7]) == ([2, 5, 6, 3, 7, 3], [0, 0, 0, 0, 1, 1])
    assert found.with_special_tokens([5]).tokens == [2, 5, 3] and found.with_special_tokens([]).tokens == [2, 3]
    assert found.word_starts([5, 6, 7, 8]) == [True, True, False, False]
    assert found.decode([2, 5, 6, 7, 3]) == "a bb" and found.pieces([2, 7]) == ["[CLS]", "##b"]
    with pytest.raises(IndexError):
        found.pieces([9])


def test_bytes_and_their_template(tmp_path: Path) -> None:
    """Every text comes back; a pair has two ends between its texts, and one token type. Saved and loaded, the same."""
    description = bytes_joined().to_str()
    save_tokenizer(JsonTokenizer.of(description, NAMES), tmp_path)
    found = load_tokenizer(tmp_path)
    assert found.special[:5] == (1, None, 0, 2, None)
    text = "naïve  café 🙂\n"
    assert found.decode(found.encode(text)) == text
    assert found.with_special_tokens([9], [8, 7]) == ([0, 9, 2, 2, 8, 7, 2], [0] * 7)
    library = tokenizers.Tokenizer.from_str(description).encode("ab", "c")
    assert found.with_special_tokens(found.encode("ab"), found.encode("c")) == (library.ids, library.type_ids)
    assert found.word_starts(found.encode("a b")) == [True, True, False]


def test_the_largest_id_counts_gaps_and_the_template() -> None:
    """Hand-worked: the pieces end at 7, with gaps; the template's own token has 9, which is no piece."""
    found = tokenizers.Tokenizer(models.BPE(vocab={"b": 0, "c": 7}, merges=[]))
    assert JsonTokenizer.of(found.to_str(), {}).largest_id == 7
    found.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 9)])
    tokenizer = JsonTokenizer.of(found.to_str(), {})
    assert tokenizer.vocab_size == 2 and tokenizer.largest_id == 9
    Tokenizers(tokenizer, tokenizer).check_ids((10, 10))
    with pytest.raises(ValueError, match=r"the target's tokenizer has the id 9, .* between 0 and 8"):
        Tokenizers(tokenizer, tokenizer).check_ids((10, 9))


def test_ids_after_a_gap_are_answered_and_stored(tmp_path: Path) -> None:
    """Two pieces, the second of which has id 70,000: more than 16 bits, and more than there are pieces."""
    tokenizer = JsonTokenizer.of(tokenizers.Tokenizer(models.BPE(vocab={"b": 0, "c": 70_000}, merges=[])).to_str(), {})
    both = Tokenizers(tokenizer, tokenizer)
    assert both.target_text([70_000, 0, 5, 90_000, 70_000]) == tokenizer.decode([70_000, 0, 70_000])
    assert "c" in both.target_text([70_000])
    digest = write_shard(tmp_path / "0", [Pair("bc", "c")], both)["arrays"]
    assert open_shards({tmp_path / "0": digest})[0].ids.tolist() == [0, 70_000, 70_000]


def test_a_template_is_read_where_the_letter_a_is_no_token() -> None:
    """Nothing stands for what is unknown, and only "b" and "c" are known; hand-worked."""
    found = tokenizers.Tokenizer(models.BPE(vocab={"b": 0, "c": 1, "<s>": 2}, merges=[]))
    found.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", 2)]
    )
    tokenizer = JsonTokenizer.of(found.to_str(), {"bos_token": "<s>"})
    assert tokenizer.encode("abc") == [0, 1] and tokenizer.with_special_tokens([0, 1]).tokens == [2, 0, 1]
    assert tokenizer.with_special_tokens([1], [0]) == ([2, 1, 2, 0], [0, 0, 0, 1])
    nothing = JsonTokenizer.of(tokenizers.Tokenizer(models.BPE(vocab={}, merges=[])).to_str(), {})
    with pytest.raises(ValueError, match="makes no token of any piece"):
        nothing.with_special_tokens([0])


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "(b+)+$"}, "behavior": "Isolated", "invert": False}),
        ("normalizer", {"type": "Replace", "pattern": {"Regex": "(b+)+$"}, "content": ""}),
        (
            "model",
            {"type": "WordPiece", "unk_token": "no", "continuing_subword_prefix": "", "max_input_chars_per_word": 9},
        ),
    ],
)
def test_a_tokenizer_that_the_library_gives_up_on_is_an_error_of_one_line(part: str, value: dict[str, Any]) -> None:
    """A regular expression that backtracks without end, a word that is unknown without an id: panics and bare exceptions."""
    description = json.loads(word_pieces().to_str())
    vocabulary = {"vocab": description["model"]["vocab"]} if part == "model" else {}
    tokenizer = JsonTokenizer.of(json.dumps(description | {part: value | vocabulary}), {})
    for read in (tokenizer.encode, lambda text: tokenizer.encode_batch([text])):
        with pytest.raises(ValueError, match=r"^the tokenizers library cannot read it: "):
            read("b" * 60 + "!")


def test_answers_lack_every_special_token_and_no_other() -> None:
    """Hand-worked: <x> is special without a role, <y> is added and stays, id 0 is a piece though it fills the rows."""
    made = tokenizers.Tokenizer(models.BPE(vocab={"b": 0, "c": 1, "<s>": 2}, merges=[]))
    made.add_tokens([tokenizers.AddedToken("<x>", special=True), tokenizers.AddedToken("<y>")])
    tokenizer = JsonTokenizer.of(made.to_str(), {"bos_token": "<s>"})
    assert tokenizer.special[:5] == (0, None, 2, None, None)
    assert tokenizer.decode([2, 0, 3, 1, 4]) == "b c <y>" and tokenizer.encode("<s>b<x>") == [2, 0, 3]


@pytest.mark.parametrize("token", [5, ["[CLS]"], {"content": 5}])
def test_special_tokens_are_strings(token: Any) -> None:
    with pytest.raises(ValueError, match=r"cls_token is .*: it must be a string, or an object with its content"):
        JsonTokenizer.of(word_pieces().to_str(), {"cls_token": token})
