"""Oracle: transformers, by tests/fixtures/tokenizers_languages (tests/makers/make_language_tokenizers.py)."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from flaxformer_lite import export_ctranslate2, export_hf, import_hf, load, train
from flaxformer_lite.config import TrainConfig
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.text import Languages, LanguageTokenizers, Tokenizers
from flaxformer_lite.files.data import TSV
from flaxformer_lite.files.tokenizers import FromRun, load_tokenizer, save_tokenizers
from flaxformer_lite.interop.ctranslate2 import token_names
from flaxformer_lite.interop.hf.languages import read_languages
from flaxformer_lite.interop.hf.tokenizer_files import find_tokenizers
from flaxformer_lite.run import Run
from tests.support import needs
from tests.support.commands import Command
from tests.support.experiments import num_programs
from tests.support.hf_folders import DATA
from tests.support.language_runs import LANGUAGE_FILES as FILES
from tests.support.language_runs import folder_with
from tests.support.paths import FIXTURES

NAMES = ["m2m_100", "mbart", "mbart50", "nllb", "nllb_legacy"]
MODEL_TYPES = {"m2m_100": "m2m_100", "nllb": "m2m_100", "nllb_legacy": "m2m_100", "mbart": "mbart", "mbart50": "mbart"}


def read(name: str, folder: Path) -> tuple[LanguageTokenizers, dict[str, Any]]:
    """The fixture's tokenizer, saved and loaded, with its languages; and what the library makes of it."""
    config = {"model_type": MODEL_TYPES[name]}
    found = find_tokenizers(FILES / name, config).tokenizers
    assert found is not None
    languages = read_languages(FILES / name, config, found)
    assert languages is not None
    save_tokenizers(found, folder)
    again = load_tokenizer(folder)
    tokenizers = LanguageTokenizers.of(Tokenizers(again, again), languages)
    return tokenizers, json.loads((FILES / name / "expected.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_sources_and_targets_of_a_direction_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    tokenizers, theirs = read(name, tmp_path)
    source, target = theirs["direction"]
    one = tokenizers.between(source, target)
    for row in theirs["rows"]:
        if name == "mbart50" and "</s>" in row["text"]:
            continue  # SentencePiece drops the space before a special token, the library's conversion of the model does not
        ids = one.source.encode(row["text"])
        assert one.source.as_source(ids) == row["source"], row["text"]
        eos = one.source.eos_id
        text_ids = [i for i in row["target"] if i != theirs["ids"][target]]
        assert [*one.target.encode(row["text"]), eos] == text_ids
        assert one.target.decode(row["target"]).strip() == row["back"].strip()
    decode = tokenizers.ids(source, target).decode
    assert decode == {"bos_id" if name == "mbart" else "forced_bos_id": theirs["ids"][target]}
    assert one.source.special[:4] == (1, 3, 0, 2)
    other = tokenizers.between(target, source)
    assert other.source.as_source([9]) == [
        theirs["ids"][target] if i == theirs["ids"][source] else 9 if i in (ids := one.source.encode("a"))[:1] else i
        for i in one.source.as_source([9])
    ]


@pytest.mark.parametrize("pair", [("deu_Latn", "fra_Latn"), ("fra_Latn", "deu_Latn"), ("fra_Latn", None)])
def test_the_direction_of_a_folder_is_from_its_source_to_its_target(
    pair: tuple[str, str | None], tmp_path: Path
) -> None:
    """Law: `src_lang` is read, `tgt_lang` is written; one alone is no direction."""
    shutil.copytree(FILES / "nllb", tmp_path / "nllb")
    settings = json.loads((tmp_path / "nllb/tokenizer_config.json").read_text())
    (tmp_path / "nllb/tokenizer_config.json").write_text(
        json.dumps(settings | {"src_lang": pair[0], "tgt_lang": pair[1]})
    )
    config = {"model_type": "m2m_100"}
    languages = read_languages(tmp_path / "nllb", config, find_tokenizers(tmp_path / "nllb", config).tokenizers)
    assert languages is not None and languages.direction == (pair if pair[1] else ())


def test_bytes_are_those_of_byt5(tmp_path: Path) -> None:
    found = find_tokenizers(FILES / "byt5", {"model_type": "t5"}).tokenizers
    assert found is not None and read_languages(FILES / "byt5", {"model_type": "t5"}, found) is None
    save_tokenizers(found, tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    for row in json.loads((FILES / "byt5/expected.json").read_text(encoding="utf-8"))["rows"]:
        ids = tokenizer.encode(row["text"])
        assert tokenizer.as_source(ids) == row["source"], row["text"]
        assert tokenizer.decode(row["source"]) == row["back"]
    assert tokenizer.special[:4] == (0, 2, None, 1)


def test_a_language_in_the_text_is_put_there() -> None:
    """Marian's codes. Oracle: the library's ids of the text with the code before it."""
    folder = FIXTURES / "tokenizers/marian"
    found = find_tokenizers(folder, {}).tokenizers
    assert found is not None
    languages = read_languages(folder, {"model_type": "marian"}, found)
    assert languages == Languages(codes=("de",), token=">>{}<<", source="none", target="source")
    rows = json.loads((folder / "expected.json").read_text(encoding="utf-8"))["source"]
    (expected,) = (row["ids"] for row in rows if row["text"] == ">>de<< the cat")
    tokenizer = LanguageTokenizers.of(found, languages).between(None, "de").source
    assert tokenizer.as_source(tokenizer.encode("the cat")) == expected


@pytest.mark.slow
def test_madlad_reads_the_language_with_the_space_before_it(tmp_path: Path, one_device: None, command: Command) -> None:
    """The published settings: the languages are pieces of the model, <s> is the padding, answers start from <unk>."""
    shutil.copytree(DATA / "t5_1_1/madlad", tmp_path / "model")
    shutil.copytree(FILES / "madlad", tmp_path / "model", dirs_exist_ok=True)
    run = load(import_hf(tmp_path / "model", tmp_path / "run"))
    theirs = json.loads((FILES / "madlad/expected.json").read_text(encoding="utf-8"))
    texts, sources = ([row[name] for row in theirs["rows"]] for name in ("text", "source"))
    german = run.between(None, "de").tokenizer
    assert [german.as_source(german.encode(text)) for text in texts] == sources
    assert [[*run.tokenizer.encode(f"<2de> {text}"), 2] for text in texts] == sources
    assert (german.pad_id, german.unk_id, german.eos_id, run.config.decode.bos_id) == (1, 0, 2, 0)
    (tmp_path / "in.txt").write_text(texts[0] + "\n")
    said = command("translate", run.folder.path, tmp_path / "in.txt", "--to", "de")
    (answer,) = run.hypotheses_of_ids(sources[:1])
    assert said.out == run.required_tokenizers.target_text(answer[0].tokens) + "\n"
    export_hf(run.folder.path, tmp_path / "out")
    again = load(import_hf(tmp_path / "out", tmp_path / "again"))
    assert again.config.data.languages == run.config.data.languages
    pairs = zip(jax.tree.leaves(again.params), jax.tree.leaves(run.params), strict=True)
    assert all(x.tobytes() == y.tobytes() for x, y in pairs)


@pytest.mark.usefixtures("own_programs")
@pytest.mark.slow
@pytest.mark.parametrize(("label", "name"), [("m2m_100/nllb", "nllb"), ("mbart/plain", "mbart")])
def test_a_run_translates_in_the_direction_that_is_named(
    label: str, name: str, tmp_path: Path, one_device: None, command: Command
) -> None:
    """Law: by codes as by the ids that the library gives; one program serves all directions."""
    run = load(import_hf(folder_with(label, name, tmp_path / "model"), tmp_path / "run"))
    theirs = json.loads((FILES / name / "expected.json").read_text(encoding="utf-8"))
    source, target = theirs["direction"]
    texts = [row["text"] for row in theirs["rows"][:3]]
    one, other = run.between(source, target), run.between(target, source)
    for direction, code in ((one, target), (other, source)):
        name_of = "bos_id" if name == "mbart" else "forced_bos_id"
        ids = [row["source"] for row in theirs["rows"][:3]]
        swapped = {theirs["ids"][source]: theirs["ids"][target]} if code == source else {}
        settings = {name_of: theirs["ids"].get(code, 0), "max_new_tokens": 5}
        by_ids = run.hypotheses_of_ids([[swapped.get(i, i) for i in row] for row in ids], **settings)
        expected = [run.required_tokenizers.target_text(answer[0].tokens) for answer in by_ids]
        assert direction.translate(texts, max_new_tokens=5) == expected
        decoder = direction.translator.decoder(max_new_tokens=5)
    assert num_programs(decoder.search.start) == 1
    with pytest.raises(ValueError, match=rf"to is '{target[:2]}', which is not one of .* perhaps you meant .*{target}"):
        run.between(source, target[:2])
    with pytest.raises(ValueError, match="from is missing"):
        load_without_direction(run).translate(texts)
    (tmp_path / "in.txt").write_text(texts[0] + "\n")
    heard = command("translate", run.folder.path, tmp_path / "in.txt", "--from", source, "--to", target)
    assert heard.out == one.translate(texts[:1])[0] + "\n" and "translating" not in heard.err
    if run.config.data.languages.direction:
        heard = command("translate", run.folder.path, tmp_path / "in.txt", "--from", source)
        assert f"translating from {source} to {target}, as data.languages.direction says" in heard.err


def load_without_direction(run: Run) -> Run:
    """The run as if its folder named no direction."""
    tokenizers = run.required_tokenizers
    assert isinstance(tokenizers, LanguageTokenizers)
    bare = replace(tokenizers, languages=replace(tokenizers.languages, direction=()))
    return replace(run, tokenizers=bare)


def test_pairs_have_the_tokens_of_their_direction(tmp_path: Path) -> None:
    """Oracle: the library's ids of texts and of their targets, whose end training adds."""
    tokenizers, theirs = read("nllb", tmp_path)
    rows = theirs["rows"][:4]
    found = [
        *tokenizers.encode_pairs([Pair(row["text"], row["text"], languages=tuple(theirs["direction"])) for row in rows])
    ]
    assert [(pair.source, pair.target) for pair in found] == [(row["source"][:-1], row["target"][:-1]) for row in rows]
    assert tokenizers.reading
    with pytest.raises(ValueError, match="'<2xx>', which is no piece"):
        LanguageTokenizers.of(tokenizers, Languages(codes=("xx",), token="<2{}>"))
    behind, _ = read("nllb_legacy", tmp_path / "behind")
    with pytest.raises(ValueError, match=r"use alone: train with --data\.languages\.source before$"):
        [*behind.encode_pairs([Pair("a", "b", languages=("deu_Latn", "fra_Latn"))])]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nllb", "mbart50", "mbart"])
def test_pairs_fine_tune_an_imported_run_in_the_rows_of_the_library(
    name: str, tmp_path: Path, one_device: None
) -> None:
    """Oracle: the library's sources and labels, and these as its models shift them: mBART wraps the last one."""
    label = "m2m_100/nllb" if name == "nllb" else "mbart/plain"
    start = import_hf(folder_with(label, name, tmp_path / "model"), tmp_path / "start")
    theirs = json.loads((FILES / name / "expected.json").read_text(encoding="utf-8"))
    rows = {row["text"]: row for row in theirs["rows"] if row["text"] and "</s>" not in row["text"]}
    (tmp_path / "own.tsv").write_text("".join(f"{text}\t{text}\n" for text in rows), encoding="utf-8")
    pairs, config = TSV(path=str(tmp_path / "own.tsv"), languages=tuple(theirs["direction"])), load(start).config
    data = replace(config.data, train=pairs, eval=pairs, tokenizer=FromRun(path=str(start)))
    steps = TrainConfig(steps=2, eval_every=2, init_from=str(start), text_metrics=("exact_match",))
    decode = replace(config.decode, bos_id=config.decode.bos_id if name == "mbart" else 2)
    run = train(replace(config, data=data, decode=decode, train=steps), tmp_path / "run")
    found = [*run.rows(1), *run.rows(2)]
    assert {row.places[0].line for row in found} == {*range(1, len(rows) + 1)}
    for row in found:
        (inputs, labels, weights, *_), expected = row.example, [*rows.values()][row.places[0].line - 1]
        for ids, mask, wanted in (
            (inputs.source_tokens, inputs.source_mask, expected["source"]),
            (labels, weights, expected["target"]),
            (
                inputs.target_tokens,
                inputs.target_mask,
                [expected["target"][-1] if name == "mbart" else 2, *expected["target"][:-1]],
            ),
        ):
            assert ids[mask > 0].tolist() == wanted, row.source
    kept = (tmp_path / "run/hypotheses/eval-step-00000002.txt").read_text(encoding="utf-8").split("\n")[:-1]
    assert run.between(*theirs["direction"]).translate([*rows], beam_size=1) == kept
    assert run.evaluate("eval")["loss"] > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"codes": ()}, "codes is"),
        ({"codes": ("a", "a")}, "each once"),
        ({"codes": ("a",), "token": "x"}, "must have {} once"),
        ({"codes": ("a", "b"), "direction": ("a",)}, "must be two codes"),
        ({"codes": ("a", "b"), "direction": ("a", "c")}, "to is 'c'"),
    ],
)
def test_languages_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Languages(**settings)


@needs.ctranslate2
@pytest.mark.slow
def test_ctranslate2_reads_a_direction_as_tokens(tmp_path: Path, one_device: None) -> None:
    """As docs/systems/ctranslate2.md says: the language before a source, and the other as the prefix of its answer."""
    import ctranslate2

    run = load(import_hf(folder_with("m2m_100/nllb", "nllb", tmp_path / "model"), tmp_path / "run"))
    export_ctranslate2(run.folder.path, tmp_path / "folder")
    translator = ctranslate2.Translator(str(tmp_path / "folder"), compute_type="float32")
    direction, ids = run.between("deu_Latn", "fra_Latn"), run.tokenizer.encode("the cat sat")
    for beam_size in (1, 4):
        settings = {"max_decoding_length": 9, "min_decoding_length": 0, "beam_size": beam_size}
        (found,) = translator.translate_batch(
            [["deu_Latn", *run.tokenizer.pieces(ids)]], target_prefix=[["fra_Latn"]], **settings
        )
        sources = [direction.tokenizer.as_source(ids)]
        ours = direction.hypotheses_of_ids(
            sources, beam_size=beam_size, num_hypotheses=1, max_new_tokens=9, early_stopping=True
        )[0][0]
        names = token_names(direction.tokenizer, 150)
        assert [names[i] for i in ours.tokens] == found.hypotheses[0]
