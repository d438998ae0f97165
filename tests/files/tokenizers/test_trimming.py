"""Tokens that stay. Oracles: the whole tokenizer, on texts that need no token that went; merges and scores by hand."""

import json
import random
from collections import Counter
from typing import Any

import pytest
import tokenizers as library
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from flaxformer_lite.core.text import Characters, Tokenizer
from flaxformer_lite.core.text.characters import ByteTokenizer
from flaxformer_lite.files.tokenizers import SentencePiece
from flaxformer_lite.files.tokenizers.json_tokenizer import JsonTokenizer
from flaxformer_lite.files.tokenizers.subwords import AddedPieces
from flaxformer_lite.files.tokenizers.trimming import (
    TextNeeds,
    basic_ids,
    needed_by,
    scripts_of,
    to_trim,
    with_parts,
)

WORDS = "the cat sat on a hat mat die Katze saß auf dem Hut und 10 2 3. Straße Garten Wasser Kinder spielen bei Mädchen"
WORDS += " кот сидел на шляпе"
CYRILLIC = "кот сидел на шляпе"
KINDS = ["bytes", "bpe", "unigram", "words", "sentence bpe", "sentence unigram", "added"]
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}


def drawn(words: str, number: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(words.split(), k=6)) for _ in range(number)]


def sentence_piece(kind: str) -> Any:
    return SentencePiece(model_type=kind).train(drawn(WORDS, 200), 120 if kind == "bpe" else 75)  # type: ignore[arg-type]


def tokenizer_of(kind: str) -> Tokenizer:
    """A tokenizer of each kind, whose texts stand between <s> and </s>."""
    if kind.startswith("sentence"):
        return sentence_piece(kind.split()[1])
    if kind == "added":
        model = sentence_piece("bpe").model
        return AddedPieces(model, {121: {"content": "<de>", **FLAGS}}, {}, (False, True), True)
    special: dict[str, Any] = {"special_tokens": ["<unk>", "<s>", "</s>"], "show_progress": False}
    made, trainer = {
        "bytes": (
            models.BPE(unk_token="<unk>"),
            trainers.BpeTrainer(vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **special),
        ),
        "bpe": (models.BPE(unk_token="<unk>"), trainers.BpeTrainer(vocab_size=110, **special)),
        "unigram": (models.Unigram(), trainers.UnigramTrainer(vocab_size=120, unk_token="<unk>", **special)),
        "words": (models.WordPiece(unk_token="<unk>"), trainers.WordPieceTrainer(vocab_size=120, **special)),
    }[kind]
    whole = library.Tokenizer(made)
    if kind == "bytes":
        whole.pre_tokenizer, whole.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    elif kind == "words":
        whole.normalizer, whole.pre_tokenizer = normalizers.NFC(), pre_tokenizers.BertPreTokenizer()
        whole.decoder = decoders.WordPiece()
    else:
        whole.pre_tokenizer, whole.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    whole.train_from_iterator(drawn(WORDS, 200), trainer)
    whole.add_special_tokens([AddedToken("<mask>", special=True)])
    ends = [("<s>", whole.token_to_id("<s>")), ("</s>", whole.token_to_id("</s>"))]
    whole.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=ends
    )
    if kind == "words":
        whole.post_processor = processors.RobertaProcessing(ends[1], ends[0])
    return JsonTokenizer.of(whole.to_str(), {"unk_token": "<unk>", "mask_token": "<mask>"})


def trimmed(tokenizer: Tokenizer, lines: list[str]) -> tuple[JsonTokenizer, JsonTokenizer, list[int], TextNeeds]:
    base = to_trim(tokenizer)
    needed = needed_by(base, iter(lines))
    kept = with_parts(base, needed.ids | basic_ids(base, needed.scripts))
    return base, base.with_ids(kept), kept, needed


@pytest.mark.parametrize("kind", KINDS)
def test_texts_whose_tokens_stay_are_cut_as_before_and_others_keep_their_text(kind: str) -> None:
    lines = drawn("the cat sat on a mat dem 10", 30)
    old, new, kept, _ = trimmed(tokenizer_of(kind), lines)
    numbers = {i: number for number, i in enumerate(kept)}
    assert len(kept) < old.largest_id and new.largest_id == len(kept) - 1
    assert new.pieces(range(len(kept))) == old.pieces(kept)
    assert new.special[:5] == tuple(None if i is None else numbers[i] for i in old.special[:5])
    same, short = 0, 0
    for line in drawn(WORDS.replace(CYRILLIC, "7 9 z! sth mdc"), 1000, seed=1):
        before, after = old.encode(line), new.encode(line)
        if {*before} <= numbers.keys():
            assert after == [numbers[i] for i in before], line
            same += 1
        else:
            assert new.decode(after) == old.decode(before), line
            short += 1
        assert new.as_source(after)[-1] == numbers[old.as_source(before)[-1]]
    assert same > 5 and short > 5
    assert new.piece(new.as_source([])[-1]) == "</s>"


def test_a_merge_stays_with_all_that_it_joins() -> None:
    """By hand: "abcd" is ab + cd; "bc" comes later than both, so nothing makes it on the way."""
    letters = [*"abcdefé"]
    pieces = [*letters, "ab", "cd", "bc", "abcd", "ef", "<unk>"]
    merges = [("a", "b"), ("c", "d"), ("b", "c"), ("ab", "cd"), ("e", "f")]
    made = library.Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges, unk_token="<unk>"))
    old = JsonTokenizer.of(made.to_str(), {"unk_token": "<unk>"})
    kept = with_parts(old, basic_ids(old, {}) | {*old.encode("abcd")})
    assert old.pieces(kept) == [*"abcdef", "ab", "cd", "abcd", "<unk>"]  # é is a letter of no script of the texts
    new = old.with_ids(kept)
    assert new.merges == [("a", "b"), ("c", "d"), ("ab", "cd")]
    assert [new.pieces(new.encode(text)) for text in ("abcd", "bc", "aé")] == [["abcd"], ["b", "c"], ["a", "<unk>"]]


def test_the_letters_of_a_kept_piece_stay_whatever_their_script() -> None:
    """By hand: "λό" is joined from its letters, which are of no script of the texts; ж is in no kept piece."""
    pieces = [*"abλόж", "λό", "<unk>"]
    made = library.Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [("λ", "ό")], unk_token="<unk>"))
    old = JsonTokenizer.of(made.to_str(), {"unk_token": "<unk>"})
    kept = with_parts(old, basic_ids(old, {"LATIN"}) | {*old.encode("λό")})
    assert old.pieces(kept) == [*"abλό", "λό", "<unk>"]
    new = old.with_ids(kept)
    assert new.pieces(new.encode("aλόb")) == ["a", "λό", "b"]


def test_unknown_text_costs_as_much_as_before() -> None:
    """By hand: the lowest score -20 sets the cost of an unknown character, -30; so x beside it is cheaper in "ax" than alone."""
    scored = [("<unk>", 0.0), ("a", -1.0), ("b", -20.0), ("aé", -25.0), ("é", -40.0), ("ж", -20.0)]
    old = JsonTokenizer.of(library.Tokenizer(models.Unigram(scored, 0)).to_str(), {"unk_token": "<unk>"})
    new = old.with_ids([0, 1, 3])
    assert [new.pieces(new.encode(text)) for text in ("aéa", "axa")] == [["aé", "a"], ["a", "<unk>", "a"]]
    listed = json.loads(new.description)["model"]
    assert min(score for _, score in listed["vocab"]) == -40.0 and listed["unk_id"] == 0


def test_letters_of_the_texts_scripts_stay_and_every_sign() -> None:
    """By hand: a Greek letter among a thousand is a quotation, one among a hundred a script."""
    assert scripts_of(Counter({"a": 99, "ж": 1, "9": 900})) == {"LATIN", "CYRILLIC"}
    assert scripts_of(Counter({"a": 2000, "λ": 1})) == {"LATIN"} and scripts_of(Counter("12 3")) == set()
    pieces = [
        "<unk>",
        "ж",
        "▁ж",
        "é",
        "жж",
        "9",
        "▁9",
        "٣",
        "٣٣",
        "!",
        "。",
        "▁",
        "a",
        "ab",
        "\u0301",
        "<0x0A>",
        "<0x0AA>",
    ]
    made = library.Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], 0))
    old = JsonTokenizer.of(made.to_str(), {"unk_token": "<unk>"})
    assert {*old.pieces(basic_ids(old, {"CYRILLIC"}))} == {*pieces} - {"é", "жж", "٣٣", "ab", "<0x0AA>"}


def test_lines_held_out_tell_how_many_need_a_token_that_went() -> None:
    """By hand: of 40 lines every tenth is held out; two of the four have words that stand nowhere else."""
    lines = ["the cat"] * 40
    lines[9], lines[29], lines[30] = "Hut", "Katze 2", "mat"
    *_, kept, needed = trimmed(tokenizer_of("words"), [*lines, " "])
    assert (needed.held_out, needed.number_short(set())) == (4, 2)
    assert needed.number_short(kept) == 0
    with pytest.raises(ValueError, match="every line of the text is blank"):
        trimmed(tokenizer_of("words"), [" ", ""])


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (ByteTokenizer(), "the tokenizer is a ByteTokenizer: only tables of subwords are cut"),
        (Characters().train(["abc"], 10), "the tokenizer is a CharacterTokenizer"),
        (
            JsonTokenizer.of(library.Tokenizer(models.BPE({"a</w>": 0}, [], end_of_word_suffix="</w>")).to_str(), {}),
            "marks parts of words by '</w>'",
        ),
    ],
)
def test_a_table_that_cannot_be_cut_is_refused(tokenizer: Tokenizer, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        to_trim(tokenizer)


def test_an_id_without_a_token_may_stay_behind_all_others_alone() -> None:
    made = library.Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0))
    made.add_tokens([AddedToken("<x>")])
    old = JsonTokenizer.of(made.to_str(), {"unk_token": "<unk>"})
    assert old.with_ids([0, 2, 7]).pieces([0, 1]) == ["<unk>", "<x>"]
