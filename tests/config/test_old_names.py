"""Oracle: configs that the release before the renaming wrote, and trees renamed by hand."""

import dataclasses
import json
from pathlib import Path

import pytest

from flaxformer_lite.config import old_names
from flaxformer_lite.config.load import load_config
from flaxformer_lite.config.old_names import modernize, renamed_setting
from flaxformer_lite.config.serialize import from_json, to_json
from flaxformer_lite.model.config import DecoderSize, SlidingWindow
from flaxformer_lite.model.positions import Rotary
from tests.support.experiments import tiny_config
from tests.support.paths import FIXTURES, ROOT

CHANGED = {"quickstart": ("decode",), "multi30k_en_de_raw": ("model", "data", "optimizer", "train", "weights")}
"""The parts of a config that have other values now: quickstart names its longest answer, the plain text has another recipe."""
OLD = sorted((FIXTURES / "before_rebuild" / "configs").glob("*.json"))


def leaves(tree: object, path: str = "") -> dict[str, object]:
    if not isinstance(tree, dict) or not tree:
        return {path[1:]: tree}
    return {leaf: value for key in tree for leaf, value in leaves(tree[key], f"{path}.{key}").items()}


@pytest.mark.parametrize("file", OLD, ids=lambda file: file.stem)
def test_an_old_config_loads_to_the_same_values(file: Path):
    """Every leaf of the old file, under its name of today, has its old value; files of `configs/` are what they were."""
    config = from_json(file.read_bytes(), str(file))
    assert from_json(to_json(config)) == config
    old, new = leaves(json.loads(file.read_text())), leaves(json.loads(to_json(config)))
    merged = [path for olds in old_names.MERGED.values() for path in olds]
    for path, value in old.items():
        if path in old_names.CHANGED:
            value = old_names.CHANGED[path][1].get(value)
        if path not in (*old_names.REMOVED, *merged) and (value is not None or path in new):
            assert new[renamed_setting(path) or path] == value
    assert new["decode.eos_ids"] == [old["decode.eos_id"], *old["decode.more_eos_ids"]]
    if (today := ROOT / "configs" / f"{file.stem}.py").exists():
        changed = {name: getattr(config, name) for name in CHANGED.get(file.stem, ())}
        assert dataclasses.replace(load_config(str(today)), **changed) == config


def test_the_ids_that_end_an_answer_became_one_list():
    """Oracle: worked by hand; None was no end at all, and a setting that is not in the file had its default."""
    cases = [({"eos_id": 5, "more_eos_ids": [8, 9]}, [5, 8, 9]), ({"eos_id": None, "more_eos_ids": []}, [])]
    cases += [({"eos_id": 5}, [5]), ({"more_eos_ids": [9]}, [3, 9]), ({"eos_ids": [7]}, [7])]
    for old, new in cases:
        assert modernize({"decode": old}) == {"decode": {"eos_ids": new}}
    assert renamed_setting("decode.more_eos_ids") == renamed_setting("decode.eos_id") == "decode.eos_ids"


def test_tokenized_text_became_a_tokenizer_of_bleu():
    """Oracle: worked by hand; False, the default of old, is the choice by language now."""
    assert modernize({"data": {"tokenized": True}}) == {"data": {}, "metrics": {"bleu_tokenizer": "none"}}
    assert modernize({"data": {"tokenized": False}}) == {"data": {}}
    assert renamed_setting("data.tokenized") == "metrics.bleu_tokenizer"


def test_renamed_grouped_and_removed_settings(monkeypatch, capsys):
    renamed = {"a.b.c": "a.b.d", "a.x.share": "a.x.fraction", "a.size": "a.window.size", "a.x": "a.window.positions"}
    monkeypatch.setattr(old_names, "RENAMED", renamed)
    monkeypatch.setattr(old_names, "REMOVED", {"a.host": ("h:0", "it is no setting of an experiment")})
    assert modernize({"a": {"b": {"c": 1}, "size": 2, "x": {"share": 3}, "host": None}}) == {
        "a": {"b": {"d": 1}, "window": {"size": 2, "positions": {"fraction": 3}}}
    }
    assert modernize({"a": {"b": None, "size": None, "x": None}}) == {"a": {"b": None, "window": None}}
    assert modernize({"a": {"size": None, "x": 3}}) == {"a": {"window": {"positions": 3}}}
    assert modernize({"a": {"b": {"d": 1}}, "c": [2]}) == {"a": {"b": {"d": 1}}, "c": [2]}
    assert capsys.readouterr().err == ""
    assert modernize({"a": {"host": "h:0"}}) == {"a": {}}
    assert capsys.readouterr().err == ""
    assert modernize({"a": {"host": "h:1"}}, "old.json") == {"a": {}}
    assert (
        capsys.readouterr().err == "warning: old.json: a.host 'h:1' was left out: it is no setting of an experiment\n"
    )
    names = {"a.b.c": "a.b.d", "a.x.share": "a.window.positions.fraction", "a.size": "a.window.size", "a.d": None}
    assert {old: renamed_setting(old) for old in names} == names


def test_a_file_with_both_names_is_refused():
    tree = json.loads(to_json(tiny_config()))
    tree["train"]["micro_batches"] = 1
    with pytest.raises(ValueError, match=r"there is no setting train\.micro_batches"):
        from_json(json.dumps(tree))


@pytest.mark.parametrize("option", ["--train.micro-batches", "--train.micro_batches"])
def test_an_old_option_is_answered_with_the_new_one(tmp_path: Path, option: str):
    (tmp_path / "config.json").write_text(to_json(tiny_config()))
    with pytest.raises(ValueError) as caught:
        load_config(str(tmp_path / "config.json"), [option, "2"])
    assert str(caught.value) == f"there is no option {option}; it is now --train.num-micro-batches"


def test_windows_and_sizes_of_a_decoder_became_one_value_each():
    tree = json.loads(to_json(tiny_config()))
    model = tree["model"]
    del model["sliding_window"], model["decoder"]
    rotary = {"kind": "rotary", "base": 11.0, "share": 0.5, "layout": "half_split", "scaling": None}
    model |= {"attention_window": 3, "window_layers": [1], "window_positions": rotary}
    model |= {"positions": rotary, "decoder_num_heads": None, "decoder_d_ff": 7}
    found = from_json(json.dumps(tree)).model
    positions = Rotary(base=11.0, fraction=0.5)
    assert found.positions == positions
    assert found.sliding_window == SlidingWindow(size=3, layers=(1,), positions=positions)
    assert found.decoder == DecoderSize(d_ff=7)
    model |= dict.fromkeys(("attention_window", "window_layers", "window_positions", "decoder_d_ff"))
    found = from_json(json.dumps(tree)).model
    assert (found.sliding_window, found.decoder) == (None, None)
