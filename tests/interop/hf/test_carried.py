"""Contract: an export of a trained run says what the folder said that it was imported from, field by field, in every family.

Every difference is listed here with its reason.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite import export_hf, import_hf, train
from flaxformer_lite.config import Config, TrainConfig
from flaxformer_lite.core.model import ModelConfig, Rotary, SentenceEmbedding
from flaxformer_lite.core.model.positions import YarnScaling
from flaxformer_lite.core.text import Characters
from flaxformer_lite.files.data import DataConfig, PlainText
from flaxformer_lite.interop.differences import check_same
from flaxformer_lite.interop.exporting import write_hf
from flaxformer_lite.interop.hf.card import About
from flaxformer_lite.interop.hf.import_folder import Imported, read_folder
from flaxformer_lite.interop.importing import objective
from flaxformer_lite.workdir import RunFolder
from tests.support.hf_folders import DATA, copied, imported, refused, with_options
from tests.support.quick import quick

FIRST = {
    *("bart/hub_layout", "bert/hub_layout", "bert/hub_token_classification", "gemma3/hub_layout", "gpt2/hub_layout"),
    *("llama/yarn", "m2m_100/hub_layout", "marian/hub_layout", "minilm/hub_layout", "modernbert/hub_layout"),
    *("mt5/hub_layout", "t5_1_1/madlad", "qwen2/hub_window", "falcon/hub_layout", "opt/plain", "phi/hub_layout"),
    *(
        "xlm_roberta/classification",
        "nomic_bert/masked_lm",
        "albert/hub_layout",
        "bloom/hub_layout",
        "t5gemma/hub_layout",
    ),
}
"""The fast suite's: folders as the hub has them, of all kinds of heads and files. Their families share the code that carries."""
LABELS = sorted(str(path.parent.relative_to(DATA)) for path in DATA.glob("*/*/config.json") if "torch" not in str(path))
LEFT_OUT = {
    "torch_dtype": "an older name of dtype",
    "transformers_version": "another program writes the folder",
    "_from_model_config": "the file is not made of the config",
    "auto_map": "the program that it names is not copied",
    "id2label": "only a head of classes has names of classes",
    "label2id": "only a head of classes has names of classes",
    "max_length": "max_new_tokens of generation_config.json states it",
    "bad_words_ids": "suppress_tokens states it",
    "min_length": "min_new_tokens states it",
}
STATED_ANEW = {
    "dtype": "an export has float32",
    "architectures": "the class is that of the tensors",
    "decoder_start_token_id": "an answer starts from a token, which null does not name",
}
ADDED = {
    "dtype": "an export has float32",
    "id2label": "a head of classes has names",
    "label2id": "a head of classes has names",
    "decoder_start_token_id": "an answer starts from this token",
}
GENERATED = (
    *("num_beams", "do_sample", "early_stopping", "length_penalty", "no_repeat_ngram_size", "forced_bos_token_id"),
    *("forced_eos_token_id", "cache_implementation", "max_length", "bad_words_ids", "min_length"),
    "encoder_no_repeat_ngram_size",
)
"""Options of decoding in `config.json`: an export has them in `generation_config.json`, and a model without answers none."""


def written(found: Imported, folder: Path, length: int = 7, model: ModelConfig | None = None, **origin: Any) -> Path:
    """The folder of a run of this model that was trained at this length; without an origin it was trained here."""
    data = DataConfig(tokenizer=None, max_source_length=length, max_target_length=length)
    config = Config(model=model or found.model, objective=objective(found, None), data=data, decode=found.decode)
    (folder / "files").mkdir(parents=True)
    write_hf(config, found.params, origin, folder / "files", None, folder / "out", About("a", 1, []))
    return folder / "out"


def origin_of(found: Imported) -> dict[str, Any]:
    return {"config": found.config, "generation": found.generation, "architecture": found.architecture}


def config_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def export_of(
    label: str, folder: Path, trained: Mapping[str, Any], *, length: int = 7
) -> tuple[dict[str, Any], dict[str, Any]]:
    """`config.json` and `generation_config.json` of a run that was trained at this length; `trained`: settings of its model."""
    found = imported(label)
    model = dataclasses.replace(found.model, **trained)
    out = written(found, folder, length, model, **origin_of(found), trained=True)
    rules = out / "generation_config.json"
    return config_in(out), json.loads(rules.read_text()) if rules.is_file() else {}


def without_types(value: Any) -> Any:
    """A value; of a group all but the number type."""
    return {key: x for key, x in value.items() if "dtype" not in key} if isinstance(value, dict) else value


@pytest.mark.parametrize("label", quick(LABELS, FIRST.__contains__))
def test_every_field_that_is_still_true_is_in_the_export(label: str, tmp_path: Path) -> None:
    if refused(label):
        return
    theirs, generation = imported(label).config, imported(label).generation or {}
    config, rules = export_of(label, tmp_path, {})
    for name, value in theirs.items():
        if name in config and without_types(config[name]) == without_types(value):
            continue
        if name in GENERATED:
            assert name not in config
            ignored = imported(label).generation is not None  # the library reads that file alone
            assert not rules or ignored or name in LEFT_OUT or rules.get(name) == value, name
        else:
            assert name in (STATED_ANEW if name in config else LEFT_OUT), (name, value, config.get(name))
    assert config.keys() - theirs.keys() <= ADDED.keys()
    for name, value in generation.items():
        assert rules.get(name) == value or name in LEFT_OUT, (name, value, rules.get(name))
    again = read_folder(tmp_path / "out")
    check_same(
        again.model, dataclasses.replace(imported(label).model, sentence_embedding=again.model.sentence_embedding)
    )
    assert again.model.dropout == imported(label).model.dropout


@pytest.mark.parametrize("label", ["llama/hub_layout", "bert/hub_layout", "t5gemma/hub_layout", "bart/hub_layout"])
def test_a_setting_that_a_run_changed_is_the_runs_and_the_others_stay(label: str, tmp_path: Path) -> None:
    rates = dataclasses.replace(imported(label).model.dropout, attention_rate=0.25)
    kept, _ = export_of(label, tmp_path / "kept", {})
    changed, _ = export_of(label, tmp_path / "changed", {"dropout": rates})
    name = "attention_probs_dropout_prob" if label.startswith("bert") else "attention_dropout"
    assert changed.pop(name) == 0.25 and kept.pop(name) != 0.25
    older = {"rope_theta", "rope_scaling"}  # now in rope_parameters
    groups = {"encoder", "decoder"}
    for option in kept.keys() - older - groups:
        assert changed[option] == kept[option], option
    for group in groups & kept.keys():
        inner = kept[group].keys() - older - {name}
        assert {option: changed[group][option] for option in inner} == {option: kept[group][option] for option in inner}
    assert read_folder(tmp_path / "changed/out").model.dropout == rates


@pytest.mark.parametrize("label", ["llama/hub_layout", "qwen2/hub_layout", "m2m_100/hub_layout", "marian/hub_layout"])
def test_the_longest_text_is_the_imported_one_or_a_longer_one_of_training(label: str, tmp_path: Path) -> None:
    stated = imported(label).config["max_position_embeddings"]
    assert export_of(label, tmp_path / "short", {}, length=7)[0]["max_position_embeddings"] == stated
    longer = export_of(label, tmp_path / "long", {}, length=101)[0]["max_position_embeddings"]
    assert longer in (101, 102)


def test_a_scale_of_positions_that_a_length_decides_stays_with_a_longer_one(tmp_path: Path) -> None:
    """Oracle: the model that was imported. Without a length of its own, the scale is by the longest text of the folder."""
    found = imported("llama/yarn")
    assert isinstance(found.model.positions, Rotary) and isinstance(found.model.positions.scaling, YarnScaling)
    length = found.model.positions.scaling.original_length
    theirs = {**found.config, "max_position_embeddings": length}
    for name in ("rope_scaling", "rope_parameters"):
        if theirs.get(name):
            theirs[name] = {key: x for key, x in theirs[name].items() if key != "original_max_position_embeddings"}
    out = written(found, tmp_path, 2 * length, **origin_of(found) | {"config": theirs}, trained=True)
    assert config_in(out)["max_position_embeddings"] >= 2 * length
    assert read_folder(out).model.positions == found.model.positions


def test_a_decoder_that_was_trained_here_states_its_own_length(tmp_path: Path) -> None:
    """Oracle: data.max_target_length, and not the 32,768 or 2,048 that the library takes where nothing is stated."""
    out = written(imported("qwen2/plain"), tmp_path, 512)
    assert config_in(out)["max_position_embeddings"] in (512, 513)


def test_a_run_keeps_the_origin_of_the_weights_that_it_starts_from(tmp_path: Path) -> None:
    """Law: what describes the import goes from run to run, marked as trained, with the files of sentence embeddings."""
    first = RunFolder(import_hf(DATA / "minilm/hub_layout", tmp_path / "first"))
    for name in ("second", "third"):
        (tmp_path / name).mkdir()
    RunFolder(tmp_path / "second").keep_origin(first)
    RunFolder(tmp_path / "third").keep_origin(RunFolder(tmp_path / "second"))
    RunFolder(tmp_path / "fourth", silent=True).keep_origin(first)
    before, after = (json.loads((tmp_path / name / "imported.json").read_text()) for name in ("first", "third"))
    assert after == before | {"trained": True} and before["config"]["model_type"] == "bert"
    names = [path.relative_to(tmp_path / "first") for path in (tmp_path / "first/huggingface").rglob("*.json")]
    sentence = [name for name in names if "sentence" in name.name or name.name in ("modules.json", "config.json")]
    assert len(sentence) >= 2 and all((tmp_path / "third" / name).is_file() for name in sentence)
    assert not (tmp_path / "fourth").exists()


@pytest.mark.slow
def test_an_imported_run_that_was_trained_is_exported_with_its_config(tmp_path: Path, one_device: None) -> None:
    """The whole way: import, two steps at a shorter length, export; as `chats.py` of docs/fine-tuning.md begins."""
    start = import_hf(DATA / "llama/hub_layout", tmp_path / "start")
    base = RunFolder(start).config()
    (tmp_path / "text.txt").write_text("the cat sat\na hat\n" * 9)
    text = PlainText(path=str(tmp_path / "text.txt"))
    data = dataclasses.replace(base.data, train=text, eval=text, tokenizer=Characters(), max_target_length=5)
    decode = dataclasses.replace(base.decode, pad_id=0, bos_id=2, eos_ids=(3,))
    config = dataclasses.replace(
        base, data=data, decode=decode, train=TrainConfig(steps=2, eval_every=2, init_from=str(start))
    )
    run = train(config, tmp_path / "run")
    export_hf(run.folder.path, tmp_path / "out")
    found, theirs = config_in(tmp_path / "out"), config_in(DATA / "llama/hub_layout")
    assert {name for name in theirs if found.get(name) != theirs[name]} == {
        *("torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id")
    }
    card = (tmp_path / "out/README.md").read_text()
    assert "imported from another checkpoint, trained with" in card


@pytest.mark.parametrize(
    ("label", "problem"),
    [
        ("bert/classification", "multi_label_classification"),
        ("bert/regression", "multi_label_classification"),
        ("roberta/classification", "single_label_classification"),
        ("bert/regression", "regression"),
    ],
)
def test_the_problem_of_a_folder_is_that_of_the_run_and_of_its_export(label: str, problem: str, tmp_path: Path) -> None:
    """Also where the folder that was imported lacks the option, without which the library counts the classes."""
    found = read_folder(with_options(copied(label, tmp_path), problem_type=problem))
    chosen = objective(found, None)
    assert (chosen.label_threshold == 0.5) == (problem == "multi_label_classification")
    assert (chosen.kind == "regression") == (problem == "regression")
    without = {name: value for name, value in found.config.items() if name != "problem_type"}
    needed = problem if problem == "multi_label_classification" else None
    for place, theirs, wanted in (("with", found.config, problem), ("without", without, needed)):
        out = written(found, tmp_path / place, **origin_of(found) | {"config": theirs})
        assert config_in(out).get("problem_type") == wanted


def test_another_pooling_than_that_of_the_import_is_written(tmp_path: Path) -> None:
    label = "minilm/hub_layout"
    assert imported(label).model.sentence_embedding is not None
    export_of(label, tmp_path, {"sentence_embedding": SentenceEmbedding(pooling="max")})
    assert read_folder(tmp_path / "out").model.sentence_embedding == SentenceEmbedding(pooling="max")


def test_a_null_that_the_class_would_fill_stays(tmp_path: Path) -> None:
    """`PegasusConfig` forces an end where `config.json` says nothing; other options of decoding are in their own file."""
    found = imported("pegasus/hub_layout")
    options = found.config | {"forced_eos_token_id": None, "forced_bos_token_id": 3, "num_beams": None}
    decode = dataclasses.replace(found.decode, forced_eos_id=None)
    out = written(
        found._replace(config=options, decode=decode),
        tmp_path,
        **origin_of(found) | {"config": options},
    )
    assert config_in(out)["forced_eos_token_id"] is None
    assert not {"forced_bos_token_id", "num_beams"} & config_in(out).keys()
