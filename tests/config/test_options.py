"""Contract: every mistake in an option is one line with the setting, the value, what is legal, and the way out."""

from pathlib import Path

import pytest

from flaxformer_lite.config import load_config
from flaxformer_lite.config.options import in_words

WRONG = {
    "--train.stpes 9": "there is no option --train.stpes; perhaps you meant --train.steps or --train.seed",
    "--train.step 20": "there is no option --train.step; perhaps you meant --train.steps",
    "--steps 20": "there is no option --steps; perhaps you meant --train.steps",
    "--batch-size 32": "there is no option --batch-size; a batch is counted in tokens: --data.tokens-per-batch 4096 is 32 rows "
    "of 128, and every batch has a multiple of --data.rows-multiple rows",
    "--train.num-epochs 3": "there is no option --train.num-epochs; training is counted in steps: --train.steps N, for E epochs E "
    "times the batches of an epoch, which the first line of a training says",
    "--train.dtype bf16": "there is no option --train.dtype; perhaps you meant --model.dtype bfloat16",
    "--train.dtype=bfloat16": "there is no option --train.dtype; perhaps you meant --model.dtype",
    "--data.remat=ful": "there is no option --data.remat; perhaps you meant --model.remat full",
    "--model.pooler 3": "model.pooler is None in the config file: a group is set there, as a value of its class",
    "--train.clip-norm 1": "there is no option --train.clip-norm; perhaps you meant --optimizer.clip-norm",
    "--train.num-layers 3": "there is no option --train.num-layers; perhaps you meant --model.num-encoder-layers or "
    "--model.num-decoder-layers",
    "--qqq 1": "there is no option --qqq; `--help` after CONFIG lists all",
    "--train.steps 5 extra": "extra belongs to no option: write --SETTING VALUE",
    "--train.steps 2e2": "train.steps is '2e2': it must be a whole number",
    "--train.steps=2e2": "train.steps is '2e2': it must be a whole number",
    "--train.patience many": "train.patience is 'many': it must be a whole number or None",
    "--optimizer.weight-decay high": "optimizer.weight_decay is 'high': it must be a number",
    "--data.bucket-lengths 8 x": "data.bucket_lengths is '8 x': it must be values, separated by spaces, that are each a whole "
    "number",
    "--train.steps": "--train.steps has no value: add one",
    "--model.activation rel": "model.activation is 'rel': it must be one of relu, gelu, gelu_tanh, silu, tanh, linear, reglu, "
    "geglu, geglu_tanh, swiglu; perhaps you meant relu",
    "--model.norm.kind rms_norm": "model.norm.kind is layer_norm in the config file: a kind is chosen there, as another class "
    "for model.norm; `--help` after CONFIG lists the kinds",
}


@pytest.mark.parametrize("typed", WRONG)
def test_a_wrong_option_is_answered(typed: str):
    with pytest.raises(ValueError) as caught:
        load_config("quickstart", typed.split())
    assert str(caught.value) == WRONG[typed]


def test_types_are_named():
    assert in_words(bool | None) == "True or False or None"
    assert in_words(tuple[str, ...]) == "values, separated by spaces, that are each a text"


def test_a_run_folder_in_place_of_a_config_is_answered_with_its_config(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=rf"^{tmp_path} is a run folder: {tmp_path}/config\.json is its config"):
        load_config(str(tmp_path))


def test_a_mistake_in_the_file_names_the_file_with_options_too(tmp_path):
    """Law: the file is checked before its options, so what is wrong in it is said of the file."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import dataclasses\nfrom flaxformer_lite.config import load_config\n\n\ndef get_config():\n"
        "    config = load_config('quickstart')\n"
        "    return dataclasses.replace(config, train=dataclasses.replace(config.train, mirror=7))\n"
    )
    for options in ([], ["--train.seed", "3"]):
        with pytest.raises(ValueError, match=r"mine\.py: train\.mirror is 7: "):
            load_config(str(file), options)
