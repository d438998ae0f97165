"""Oracle: transformers, by tests/fixtures/tokenizer_classes.json (tests/makers/make_class_reference.py), and live."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from flaxformer_lite.interop.hf.languages import read_languages
from flaxformer_lite.interop.hf.tokenizer_classes import CLASSES, NLLB
from flaxformer_lite.interop.hf.tokenizer_files import find_tokenizers
from tests.support import needs
from tests.support.paths import FIXTURES
from tests.support.tokenizer_classes import CASES, TEXTS, ClassCase, said_by_library, write_class_case

RECORDED = json.loads((FIXTURES / "tokenizer_classes.json").read_text(encoding="utf-8"))["cases"]
IDS = [case.label for case in CASES]


def compare(case: ClassCase, theirs: dict[str, Any], folder: Path) -> None:
    """Compares every special token, role and language, and ids of texts with and without the class's template."""
    found = find_tokenizers(folder, {})
    assert found.tokenizers is not None, found.note
    ours, roles = found.tokenizers.source, theirs["roles"]
    assert {token: ours.encode(token) for token in theirs["special"]} == {t: [i] for t, i in theirs["special"].items()}
    assert (ours.unk_id, ours.mask_id) == (roles["unk"], roles["mask"])
    assert ours.bos_id in (roles["bos"], roles["cls"]) and ours.eos_id in (roles["eos"], roles["sep"])
    assert roles["pad"] in (None, ours.pad_id)
    bare = ours.encode_batch(TEXTS)
    assert bare == theirs["bare"]
    name = case.name.removesuffix("Fast")
    if not CLASSES[name].codes:  # which frame texts by their languages
        assert [ours.with_special_tokens(ids).tokens for ids in bare] == theirs["framed"]
        assert ours.with_special_tokens(*bare).tokens == theirs["pair"]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_class_adds_what_it_adds_in_the_library(case: ClassCase, tmp_path: Path) -> None:
    write_class_case(case, tmp_path / "folder")
    compare(case, RECORDED[case.label], tmp_path / "folder")


@needs.transformers
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_record_is_that_of_the_library(case: ClassCase, tmp_path: Path) -> None:
    write_class_case(case, tmp_path / "folder")
    assert said_by_library(case.name, tmp_path / "folder") == RECORDED[case.label]


@pytest.mark.parametrize(
    ("name", "codes", "direction"),
    [("MBartTokenizer", 25, ("behind", "start")), ("MBart50TokenizerFast", 52, ("before", "first"))],
)
def test_languages_that_no_file_lists_are_those_of_the_class(
    name: str, codes: int, direction: tuple[str, str], tmp_path: Path
) -> None:
    write_class_case(ClassCase("MBartTokenizer", "sentencepiece.bpe.model"), tmp_path / "folder")
    (tmp_path / "folder/tokenizer_config.json").unlink()
    config = {"model_type": "mbart", "tokenizer_class": name}
    found = find_tokenizers(tmp_path / "folder", config).tokenizers
    languages = read_languages(tmp_path / "folder", config, found)
    assert languages is not None and len(languages.codes) == codes
    assert (languages.source, languages.target) == direction


def test_languages_of_nllb_stand_before_its_mask(tmp_path: Path) -> None:
    """Oracle: the published places, 256,000 pieces and <pad>, then ace_Arab 256001 to zul_Latn 256202, <mask> 256203."""
    write_class_case(ClassCase("MBartTokenizer", "sentencepiece.bpe.model"), tmp_path / "folder")
    (tmp_path / "folder/tokenizer_config.json").write_text('{"tokenizer_class": "NllbTokenizer"}')
    found = find_tokenizers(tmp_path / "folder", {"model_type": "m2m_100"}).tokenizers
    assert found is not None
    first, last, mask = (found.source.encode(token) for token in ("ace_Arab", "zul_Latn", "<mask>"))
    assert (last[0] - first[0], mask[0] - first[0]) == (201, 202)
    languages = read_languages(tmp_path / "folder", {"model_type": "m2m_100"}, found)
    assert languages is not None and languages.codes == tuple(NLLB.split()) and len(languages.codes) == 202
    listed = {"tokenizer_class": "NllbTokenizer", "additional_special_tokens": ["eng_Latn", "xyz_Latn"]}
    (tmp_path / "folder/tokenizer_config.json").write_text(json.dumps(listed))
    found = find_tokenizers(tmp_path / "folder", {"model_type": "m2m_100"}).tokenizers
    assert [found.source.encode(token)[0] - first[0] for token in ("eng_Latn", "xyz_Latn", "<mask>")] == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("BigBirdTokenizer", "spiece.model", ("a BigBirdTokenizer", "spiece.model", "tokenizer.json")),
        ("InternLM2Tokenizer", "tokenizer.model", ("a InternLM2Tokenizer", "tokenizer.model", "tokenizer.json")),
        ("XLMRobertaTokenizer", "sentencepiece.bpe.model", ("sentencepiece.bpe.model", "tokenizer.json")),
        ("TekkenTokenizer", "tekken.json", ("tekken.json", "tokenizer.json")),
        ("LlamaTokenizer", "tokenizer/tokenizer.model", ("tokenizer/tokenizer.model", "beside config.json")),
        ("LlamaTokenizer", "readme.txt", ("no file of a tokenizer",)),
    ],
)
def test_the_reason_that_a_run_has_no_tokenizer_names_the_files(
    name: str, file: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    """Law: a class that would add tokens is not read as if it added none; the reason says what the folder has."""
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_bytes((FIXTURES / "tokenizer_folders/llama.model").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    found = find_tokenizers(tmp_path, {})
    assert found.tokenizers is None and all(word in found.note for word in words), found.note


UNUSUAL = {
    "normalizer": normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]),
    "pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)]),
    "post_processor": processors.TemplateProcessing("<s> $A </s> </s>", "$A $B", [("<s>", 0), ("</s>", 1)]),
}
"""Parts that the classes of transformers 5 replace by their own."""


@pytest.mark.parametrize("name", ["LlamaTokenizer", "GemmaTokenizer", "T5Tokenizer", "GPT2Tokenizer", "BertTokenizer"])
@pytest.mark.parametrize("part", UNUSUAL)
def test_ids_are_those_of_the_file_whatever_the_class_would_make_of_it(part: str, name: str, tmp_path: Path) -> None:
    """Oracle: `tokenizers`, which reads the file alone."""
    library = Tokenizer(models.BPE({"<s>": 0, "</s>": 1, **{chr(i): i for i in range(33, 127)}, "Ġ": 2, "▁": 3}, []))
    library.add_special_tokens(["<s>", "</s>"])
    setattr(library, part, UNUSUAL[part])
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, "extra_ids": 0}))
    ours = find_tokenizers(tmp_path, {}).tokenizers.source
    for text in ("The HOUSE no. 17", "ﬁne  words", "<s>a</s>"):
        ids = library.encode(text).ids
        assert ours.encode(text) == library.encode(text, add_special_tokens=False).ids
        if part == "post_processor":
            assert ours.with_special_tokens(ours.encode(text)).tokens == ids


def test_a_file_of_tiktoken_is_not_called_a_model_of_sentencepiece(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(
        b"".join(base64.b64encode(bytes([i])) + b" %d\n" % i for i in range(256))
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
    found = find_tokenizers(tmp_path, {})
    assert found.tokenizers is None and "no SentencePiece model: its lines are tiktoken's" in found.note


def test_a_class_that_is_not_known_is_named(tmp_path: Path) -> None:
    write_class_case(ClassCase("PreTrainedTokenizerFast", "tokenizer.json", {}, ("<s>",)), tmp_path / "folder")
    (tmp_path / "folder/tokenizer_config.json").write_text('{"tokenizer_class": "OwnTokenizerFast"}')
    found = find_tokenizers(tmp_path / "folder", {})
    assert found.tokenizers is not None and "tokenizer_class is OwnTokenizer" in found.notes[-1]


def test_tokens_that_the_model_has_no_row_for_are_left_out_with_their_roles(tmp_path: Path) -> None:
    """Law: a role whose token the class would add past the model's rows is the one that the model's config states."""
    write_class_case(ClassCase("GPT2Tokenizer", "tokenizer.json", {}, ()), tmp_path / "folder")
    found = find_tokenizers(tmp_path / "folder", {"eos_token_id": 7}, 256)
    assert found.tokenizers is not None and found.tokenizers.source.eos_id == 7
    assert "<|endoftext|>" in found.notes[0]
