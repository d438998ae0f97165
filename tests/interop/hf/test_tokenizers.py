"""Oracle: transformers, by tests/fixtures/tokenizers (tests/makers/make_tokenizer_reference.py)."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, processors

from flaxformer_lite.core.text import SpecialIds, Tokenizers
from flaxformer_lite.files.tokenizers.kinds import load_tokenizer, save_tokenizer
from flaxformer_lite.files.tokenizers.subwords import FLAGS, MarianTokenizer
from flaxformer_lite.interop import read_folder
from flaxformer_lite.interop.hf.tokenizer_files import find_tokenizers, read_tokenizers
from flaxformer_lite.run import load
from tests.support.commands import Command
from tests.support.hf_folders import DATA
from tests.support.paths import FIXTURES
from tests.support.tokenizers import bytes_joined

FILES = FIXTURES / "tokenizers"
MANY = (10_000, 10_000)


def read(folder: Path, model_type: str = "") -> Tokenizers:
    found = read_tokenizers(folder, {"model_type": model_type}, MANY)
    assert found.tokenizers is not None, found.note
    return found.tokenizers


def expected(name: str) -> dict[str, Any]:
    return json.loads((FILES / name / "expected.json").read_text(encoding="utf-8"))


def copied(name: str, folder: Path, **settings: Any) -> Path:
    """A fixture's folder with other settings of the tokenizer."""
    copy = Path(shutil.copytree(FILES / name, folder / name))
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    return copy


@pytest.mark.parametrize("name", ["marian", "marian_separate"])
def test_marian_reads_and_writes_as_the_library(name: str, tmp_path: Path) -> None:
    """Both sides, saved and loaded: language codes, pieces without an id, pieces of the other side, spaces."""
    found, theirs = read(FILES / name), expected(name)
    save_tokenizer(found.source, tmp_path)
    save_tokenizer(found.target, tmp_path, "target_tokenizer")
    for side, tokenizer in {
        "source": load_tokenizer(tmp_path),
        "target": load_tokenizer(tmp_path, "target_tokenizer"),
    }.items():
        assert [tokenizer.as_source(tokenizer.encode(row["text"])) for row in theirs[side]] == [
            row["ids"] for row in theirs[side]
        ]
    target = load_tokenizer(tmp_path, "target_tokenizer")
    for row in theirs["answers"] + theirs["target"]:
        assert target.decode(row["ids"]) == row["back"]
    assert target.special[:5] == (40, 1, None, 0, None)
    assert target.vocab_size == (47 if name == "marian_separate" else 41)


@pytest.mark.parametrize("name", ["bert", "bert_cased", "roberta", "gpt2"])
def test_vocabularies_in_text_files_are_read_as_by_the_library(name: str) -> None:
    tokenizer, theirs = read(FILES / name).source, expected(name)
    for row in theirs["texts"]:
        ids = tokenizer.with_special_tokens(tokenizer.encode(row["text"])).tokens
        assert ids == row["ids"], row["text"]
        assert tokenizer.decode(ids) == row["back"], row["text"]
    for row in theirs["pairs"]:
        assert tokenizer.with_special_tokens(*map(tokenizer.encode, row["pair"])) == (row["ids"], row["types"])


def test_the_model_decides_the_class_if_the_folder_does_not(tmp_path: Path) -> None:
    """BART's is RoBERTa's, whose mask takes the space before it along; others are refused by name."""
    folder = copied("roberta", tmp_path)
    tokenizer = read(folder, "bart").source
    row = next(row for row in expected("roberta")["texts"] if "<mask>" in row["text"])
    assert tokenizer.with_special_tokens(tokenizer.encode(row["text"])).tokens == row["ids"]
    assert tokenizer.mask_id is not None and tokenizer.eos_id == 2 and tokenizer.pad_id == 1
    note = read_tokenizers(folder, {"tokenizer_class": "Qwen2Tokenizer"}, MANY).note
    assert "vocab.json" in note and "a Qwen2Tokenizer is not read" in note
    assert "reads 20" in read_tokenizers(folder, {"model_type": "bart"}, (20, 20)).note


def test_damaged_vocabularies_are_refused(tmp_path: Path) -> None:
    folder = copied("marian", tmp_path)
    model = (folder / "source.spm").read_bytes()
    for ids, what in (
        ({"a": 0, "b": 0}, "id of its own"),
        ({"a": "0"}, "id of its own"),
        ({"a": 0}, "special token: <pad>"),
    ):
        with pytest.raises(ValueError, match=what):
            MarianTokenizer(model, ids)
    (folder / "source.spm").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"source\.spm with vocab\.json"):
        read(folder)
    folder = copied("bert", tmp_path, cls_token="[BEGIN]")
    with pytest.raises(ValueError, match=r"vocab\.txt holds no BertTokenizer that can be read: .*lacks .* \[BEGIN\]"):
        read(folder, "bert")
    folder = copied("gpt2", tmp_path, added_tokens_decoder={"7000": {"content": "<far>"}})
    with pytest.raises(ValueError, match="'<far>' should be the added token 7000"):
        read(folder, "gpt2")
    save_tokenizer(MarianTokenizer(model, {"<pad>": 0, "<unk>": 1, "</s>": 7}), tmp_path)
    hollow = load_tokenizer(tmp_path)
    assert hollow.vocab_size == 8 and hollow.decode([3, 7]) == "" and hollow.word_starts([3, 3]) == [True, False]
    path = tmp_path / "tokenizer.marian.json"
    path.write_text('{"kind": "marian", "model": "", "ids": []}')
    with pytest.raises(ValueError, match='"ids" is missing or of another type: it must be a dict'):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("token", [5, {"content": 5}, {"text": "</s>"}])
def test_special_tokens_that_are_no_strings_are_refused(token: Any, tmp_path: Path) -> None:
    for name, role in (("marian", "eos_token"), ("gpt2", "bos_token")):
        with pytest.raises(
            ValueError, match=r"a special token is .*: it must be a string, or an object with its content"
        ):
            read(copied(name, tmp_path, **{role: token}), name)
        shutil.rmtree(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "complaint"), [("gpt2", "number from 0 to 16777215"), ("marian", "from 0 to 16777215")]
)
def test_an_id_without_bounds_is_refused(name: str, complaint: str, tmp_path: Path) -> None:
    """It took a minute, or a list of that length."""
    folder = Path(shutil.copytree(FILES / name, tmp_path / name))
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    (folder / "vocab.json").write_text(json.dumps(vocabulary | {"far": 2**40}), encoding="utf-8")
    with pytest.raises(ValueError, match=complaint):
        read(folder, name)


def test_an_id_without_bounds_of_a_tokenizer_json_is_refused(tmp_path: Path) -> None:
    """The library writes every id up to the largest one: for minutes, or until the memory ends."""
    folder = Path(shutil.copytree(DATA / "minilm" / "hub_layout", tmp_path / "far"))
    description = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    description["model"]["vocab"]["g"] = 2**31
    (folder / "tokenizer.json").write_text(json.dumps(description), encoding="utf-8")
    with pytest.raises(ValueError, match="the id 2147483648: an id must be from 0 to 16777215"):
        read(folder, "bert")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shared", "separate"])
def test_an_imported_marian_translates_text(kind: str, tmp_path: Path, one_device: None, command: Command) -> None:
    """Returns the text of the predicted ids; it is the same after an export."""
    name = "marian" if kind == "shared" else "marian_separate"
    folder = Path(shutil.copytree(DATA / "marian" / kind, tmp_path / "folder"))
    shutil.copytree(FILES / name, folder, dirs_exist_ok=True)
    assert "no tokenizer" not in command("import", "hf", folder, tmp_path / "run").err
    run, rows = load(tmp_path / "run"), [row for row in expected(name)["source"] if row["text"]]
    target = run.required_tokenizers.target
    answers = run.hypotheses_of_ids([row["ids"] for row in rows], beam_size=1)
    texts = run.translate([row["text"] for row in rows], beam_size=1)
    assert texts == [target.decode(best.tokens) for best, *_ in answers] and any(texts)
    command("export", "hf", tmp_path / "run", tmp_path / "out")
    assert read_folder(tmp_path / "out").max_length == run.config.data.max_source_length == 29
    for path in FILES.glob(f"{name}/*[!d].*"):
        assert path.name == "expected.json" or (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


def one_file(folder: Path, template: bool = False, **settings: Any) -> Path:
    """A folder with a tokenizer.json of RoBERTa's kind: <s>, <pad> and </s> have the ids 0, 1 and 2, the last byte 258."""
    made = bytes_joined()
    if not template:
        made.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def special_of(folder: Path, **config: Any) -> SpecialIds:
    found = find_tokenizers(folder, config).tokenizers
    assert found is not None
    return found.target.special


def test_the_template_and_the_models_ids_say_which_token_begins_and_which_ends(tmp_path: Path) -> None:
    """Hand-worked. Two names for an end: the template decides, then eos_token_id, then the name `eos`."""
    names = {"eos_token": "<pad>", "sep_token": "</s>", "bos_token": "<pad>", "cls_token": "<s>"}
    for number, (template, config, ids) in enumerate(
        [
            (True, {"eos_token_id": 1, "bos_token_id": 1}, (0, 2)),
            (False, {"eos_token_id": [7, 2], "bos_token_id": 0}, (0, 2)),
            (False, {"eos_token_id": 7}, (1, 1)),
            (False, {}, (1, 1)),
        ]
    ):
        special = special_of(one_file(tmp_path / str(number), template, **names), **config)
        assert (special.bos, special.eos) == ids, config


def test_the_template_or_the_config_says_what_the_tokenizers_settings_do_not(tmp_path: Path) -> None:
    """Hand-worked; generation_config.json counts before config.json, and null means that there is none."""
    special = special_of(one_file(tmp_path / "template", template=True))
    assert (special.bos, special.eos) == (0, 2)
    folder = one_file(tmp_path / "config", bos_token=None)
    special = special_of(folder, eos_token_id=2, bos_token_id=0, pad_token_id=1)
    assert (special.pad, special.bos, special.eos) == (1, None, 2)
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert special_of(folder, eos_token_id=2).eos == 5


def test_an_end_that_the_model_does_not_have_is_noted(tmp_path: Path) -> None:
    found = find_tokenizers(one_file(tmp_path / "a", eos_token="<pad>"), {"eos_token_id": 2})
    (note,) = found.notes
    assert "ends a text with '<pad>', id 1, but eos_token_id is 2" in note
    assert find_tokenizers(tmp_path / "a", {"eos_token_id": [2, 1]}).notes == []


ADDED = {"content": "<far>", "special": True}


def test_added_tokens_past_the_models_table_are_left_out(tmp_path: Path) -> None:
    folder = one_file(
        tmp_path / "a", added_tokens_decoder={"259": {"content": "<near>"}, "260": ADDED}, pad_token="<far>"
    )
    whole, cut = (read_tokenizers(folder, {}, (size, size)) for size in (261, 260))
    assert whole.tokenizers is not None and cut.tokenizers is not None and whole.notes == []
    assert whole.tokenizers.target.encode("<far>") == [260] and len(cut.tokenizers.target.encode("<far>")) == 5
    assert cut.tokenizers.target.encode("<near>") == [259] and cut.tokenizers.target.largest_id == 259
    (note,) = cut.notes
    assert note.endswith("piece by piece: '<far>' (the model has no row for an id from 260 on)")
    assert "259 ids, and the model reads 258" in read_tokenizers(folder, {}, (258, 258)).note


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"added_tokens_decoder": {"300": ADDED}}, "'<far>' should be the added token 300: that id does not follow"),
        ({"added_tokens_decoder": {"5": ADDED}}, "'<far>' should be the added token 5"),
        ({"added_tokens_decoder": {"259": ADDED, "260": ADDED}}, "'<far>' should be the added token 260"),
        ({"added_tokens_decoder": {"259": ADDED, "0259": {"content": "b"}}}, "'<far>' and 'b' have the same id 259"),
        ({"added_tokens_decoder": {"-1": ADDED}}, "the added token '<far>' has the id '-1'"),
        ({"added_tokens_decoder": [ADDED]}, "added_tokens_decoder is not an object"),
        ({"additional_special_tokens": "<far>"}, "additional_special_tokens is '<far>': it must be a list"),
        ({"additional_special_tokens": [5]}, "a special token is 5: it must be a string"),
        ({"additional_special_tokens": ["\ud83d"]}, "cannot be read"),
        ({"eos_token": {"content": "</s>", "lstrip": "no"}}, "the token '</s>' cannot be read"),
    ],
)
def test_an_added_token_that_cannot_be_read_is_refused_by_name(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        find_tokenizers(one_file(tmp_path / "a", **settings), {})


def test_a_tokenizer_json_whose_tokens_have_other_ids_is_refused(tmp_path: Path) -> None:
    """The library gives an added token the next free id, whatever the file says, and prints a warning at most."""
    folder = one_file(tmp_path / "a")
    description = json.loads((folder / "tokenizer.json").read_text())
    description["added_tokens"].append(
        {"id": 400, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, **ADDED}
    )
    (folder / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(ValueError, match="'<far>' should be the added token 400"):
        find_tokenizers(folder, {})


def test_a_role_in_an_older_folder_makes_the_token_of_a_tokenizer_json_special(tmp_path: Path) -> None:
    """As transformers 5.24: without the role, or in a folder with `added_tokens_decoder`, the answer keeps the token."""
    folder = one_file(tmp_path / "a")
    made = bytes_joined()
    made.add_tokens([AddedToken("<end>", special=False)])
    made.save(str(folder / "tokenizer.json"))
    (folder / "special_tokens_map.json").write_text('{"eos_token": "<end>"}')
    for settings, answer in (({}, "a"), ({"added_tokens_decoder": {}, "eos_token": "<end>"}, "a<end>")):
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        tokenizer = read(folder).target
        assert tokenizer.special.eos == 259 and tokenizer.decode([*tokenizer.encode("a"), 259]) == answer


def test_two_added_tokens_with_one_id_are_refused_in_older_folders(tmp_path: Path) -> None:
    folder = one_file(tmp_path / "a")
    (folder / "added_tokens.json").write_text('{"<a>": 259, "<b>": 259}')
    with pytest.raises(ValueError, match="'<a>' and '<b>' have the same id 259"):
        find_tokenizers(folder, {})


def pieces_alone(folder: Path, name: str, model: str, **settings: Any) -> Path:
    folder.mkdir()
    shutil.copy(FIXTURES / "tokenizer_folders" / model, folder / name)
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(
    ("settings", "around"),
    [
        ({}, (True, False)),
        ({"add_eos_token": True}, (True, True)),
        ({"add_bos_token": False}, (False, False)),
        ({"tokenizer_class": "LlamaTokenizer"}, (True, False)),
    ],
)
def test_the_folder_says_what_stands_around_a_text(
    settings: dict[str, Any], around: tuple[bool, bool], tmp_path: Path
) -> None:
    """Hand-worked: the model's <s> and </s> are 1 and 2."""
    tokenizer = read(pieces_alone(tmp_path / "a", "tokenizer.model", "llama.model", **settings), "llama").target
    ids = tokenizer.encode("hello")
    assert tokenizer.with_special_tokens(ids).tokens == [1] * around[0] + ids + [2] * around[1]
    assert tokenizer.as_prompt(tokenizer.encode("hello</s>")) == [1] * around[0] + [*ids, 2]
    assert tokenizer.special.bos == 1 and tokenizer.special.eos == 2


@pytest.mark.parametrize(
    "settings",
    [
        {"pad_token": ""},
        {"mask_token": {"content": ""}},
        {"additional_special_tokens": ["", "<new>"]},
        {"added_tokens_decoder": {"60": {"content": "", "special": False}}},
    ],
    ids=str,
)
@pytest.mark.parametrize("json_too", [False, True])
def test_a_token_without_text_is_none(settings: dict[str, Any], json_too: bool, tmp_path: Path) -> None:
    """Oracle: the same folder without it, as transformers 5.24 reads it. Every text was this token."""
    if json_too:
        folder, plain = one_file(tmp_path / "a", **settings), one_file(tmp_path / "b")
        description = json.loads((folder / "tokenizer.json").read_text())
        description["added_tokens"].append({"id": 299, "content": "", **dict.fromkeys(FLAGS, False)})
        (folder / "tokenizer.json").write_text(json.dumps(description))
    else:
        folder = pieces_alone(tmp_path / "a", "tokenizer.model", "llama.model", **settings)
        plain = pieces_alone(tmp_path / "b", "tokenizer.model", "llama.model")
    assert read(folder, "llama").target.encode("hello user") == read(plain, "llama").target.encode("hello user")


def test_an_encoder_with_a_sentence_piece_model_alone_ends_its_texts(tmp_path: Path) -> None:
    tokenizer = read(pieces_alone(tmp_path / "a", "tokenizer.model", "llama.model"), "bert").target
    assert tokenizer.with_special_tokens([9]).tokens == [1, 9, 2]


def test_sentinels_of_t5_are_tokens_as_far_as_the_table_goes(tmp_path: Path) -> None:
    """The model has 20 pieces; the sentinels follow, the last one first: <extra_id_99> is 20, <extra_id_0> 119."""
    folder = pieces_alone(tmp_path / "a", "spiece.model", "t5.model")
    tokenizer = read(folder, "t5").target
    assert tokenizer.encode("<extra_id_0><extra_id_99>") == [119, 20]
    ids = [*tokenizer.encode("hello"), 119, *tokenizer.encode("user")]
    assert tokenizer.decode(ids) == "hello user" and tokenizer.pieces([119]) == ["<extra_id_0>"]
    found = read_tokenizers(folder, {"model_type": "t5"}, (21, 21))
    assert found.tokenizers is not None and found.tokenizers.target.encode("<extra_id_99>") == [20]
    assert "'<extra_id_98>', '<extra_id_97>', '<extra_id_96>' and 96 more" in found.notes[0]
    assert len(found.tokenizers.target.encode("<extra_id_0>")) > 1


def test_an_added_token_of_marian_is_refused_by_name(tmp_path: Path) -> None:
    folder = copied("marian", tmp_path, additional_special_tokens=[">>de<<", "<sep>"])
    with pytest.raises(ValueError, match="the added token '<sep>' is not implemented for Marian"):
        read(folder)
