"""Contract: every mistake in an option is one line with the setting, the value, what is legal, and the way out."""

import dataclasses
import itertools
import shlex
from typing import Any

import pytest

from flaxformer_lite.config import from_json, load_config, to_json
from flaxformer_lite.config.differences import flatten
from flaxformer_lite.config.experiment import Resolved
from flaxformer_lite.config.options import apply_options, as_options
from flaxformer_lite.core.model import RMSNorm
from flaxformer_lite.core.optim import Adafactor

WRONG = {
    "--model.d-model 7": "model.d_model 7 is not divisible by model.num_heads 4: change one",
    "extra": "extra belongs to no option",
    "--train.stpes 9": "--train.stpes; perhaps you meant --train.steps",
    "--train.step 20": "--train.step; perhaps you meant --train.steps",
    "--steps 20": "--steps; perhaps you meant --train.steps",
    "--seed 3": "--seed; perhaps you meant --train.seed",
    "--batch-size 32": "--batch-size; it is --data.rows, or --data.tokens-per-batch for a batch of more short ",
    "--train.num-epochs 3": "--train.num-epochs; it is --train.epochs",
    "--resolved.batches-per-epoch 3": "--resolved.batches-per-epoch; ",
    "--data.rows 8 --data.rows-multiple 8": "--data.rows 8 and --data.rows-multiple 8: one takes the place of the other",
    "--data.tokens-per-batch 9 --data.rows 8": "--data.rows 8 and --data.tokens-per-batch 9: one takes the place of",
    "--train.steps 9 --train.epochs 2": "--train.epochs 2 and --train.steps 9: one takes the place of the other; leave",
    "--train.epochs 0": "train.epochs is 0: it must be above 0 and finite, or None; the default is None",
    "--train.eval-every 0": "train.eval_every is 0: it must be a whole number, at least 1, or a number, above 0 and f",
    "--optimizer.schedule.warmup-steps 1.0": "optimizer.schedule.warmup_steps is 1.0: it must be a whole number, at least 0, "
    "or a number, at least 0 and below 1",
    "--train.dtype bf16": "--train.dtype; perhaps you meant --model.dtype",
    "--train.dtype=bfloat16": "--train.dtype; perhaps you meant --model.dtype",
    "--data.remat=ful": "--data.remat; perhaps you meant --model.remat",
    "--model.pooler 3": "model.pooler is no option: it is chosen in the config file",
    "--train.clip-norm 1": "--train.clip-norm; perhaps you meant --optimizer.clip-norm",
    "--train.num-layers 3": "--train.num-layers; perhaps you meant --model.num-encoder-layers or --model.",
    "--qqq 1": "--qqq; `train CONFIG --help` lists all",
    "--train.steps 5 extra": "train.steps is (5, 'extra'): it must be a whole number, at least 1",
    "--train.steps 2e2": "train.steps is 200.0: it must be a whole number, at least 1",
    "--train.steps=2e2": "train.steps is 200.0: it must be a whole number, at least 1",
    "--train.patience many": "train.patience is 'many': it must be a whole number, at least 1, or None",
    "--optimizer.weight-decay high": "optimizer.weight_decay is 'high': it must be a number, at least 0 and finite",
    "--data.bucket-lengths 8 x": "data.bucket_lengths is (8, 'x'): it must be values that are each a whole number, at least 2",
    "--train.steps": "--train.steps has no value: add one",
    "--model.activation rel": "model.activation is 'rel': it must be 'relu' or 'gelu' or 'gelu_tanh' or 'silu' or 'tanh' or 'l",
    "--model.norm.kind rms_norm": "model.norm.kind is no option: it is chosen in the config file",
    "--optimizer.algorithm adam": "optimizer.algorithm is 'adam': as an option it must be one of adamw, adafactor, ",
    "--optimizer.algorithm": "optimizer.algorithm is '': as an option it must be one of adamw, ",
    "--optimizer.algorithm adafactor --optimizer.algorithm.b1 0": "--optimizer.algorithm.b1; ",
    "--optimizer.algorithm.b1 0.8 --optimizer.algorithm adafactor": "--optimizer.algorithm adafactor stands for its default "
    "settings: give it before --optimizer.algorithm.b1",
    "--model.norm rms_norm 3": "model.norm is 'rms_norm 3': as an option it must be one of layer_norm, rms_norm, ",
    "--lr 3": "--lr; it is --optimizer.schedule.peak-rate",
    "--train.batchsize 3": "--train.batchsize; it is --data.rows, or",
    "--train.mesh.data True": "train.mesh.data is True: it must be a whole number, at least 1, or -1",
}


@pytest.mark.parametrize("typed", WRONG)
def test_a_wrong_option_is_answered(typed: str):
    with pytest.raises(ValueError) as caught:
        load_config("quickstart", typed.split())
    assert str(caught.value).removeprefix("there is no option ").startswith(WRONG[typed])


def test_a_mistake_in_the_file_names_the_file_with_options_too(tmp_path):
    """Law: the file is checked before its options, so what is wrong in it is said of the file."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import dataclasses\nfrom flaxformer_lite.config import load_config\n\n\ndef get_config():\n"
        "    config = load_config('quickstart')\n"
        "    return dataclasses.replace(config, train=dataclasses.replace(config.train, profile=7))\n"
    )
    for options in ([], ["--train.seed", "3"]):
        with pytest.raises(ValueError, match=r"train\.profile is 7: it must be a text"):
            load_config(str(file), options)


TYPED: dict[str, dict[str, Any]] = {
    "--data.rows 8": {"data.rows": 8, "data.tokens_per_batch": 4096, "data.rows_multiple": 64},
    "--data.rows 8 --data.rows None": {"data.rows": None},
    "--data.rows None --data.rows-multiple 8": {"data.rows": None, "data.rows_multiple": 8},
    "--train.epochs 2.5": {"train.epochs": 2.5, "train.steps": 10_000},
    "--train.epochs None --train.steps 999": {"train.epochs": None, "train.steps": 999},
    "--train.eval-every 1": {"train.eval_every": 1},
    "--train.eval-every 1.0": {"train.eval_every": 1.0},
    "--optimizer.schedule.warmup-steps 0.1": {"optimizer.schedule.warmup_steps": 0.1},
}


@pytest.mark.parametrize("typed", TYPED)
def test_a_typed_setting_takes_the_place_of_the_files_other_one(typed: str):
    """Oracle: by hand; the file has a batch in tokens and a length in steps, which go back to their defaults."""
    config = load_config("quickstart")
    there = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, tokens_per_batch=512, rows_multiple=16),
        train=dataclasses.replace(config.train, steps=777),
    )
    settings = flatten(apply_options(there, typed.split()))
    assert {setting: (settings[setting], type(settings[setting])) for setting in TYPED[typed]} == {
        setting: (value, type(value)) for setting, value in TYPED[typed].items()
    }


@pytest.mark.parametrize(
    ("words", "kept"),
    [("--train.log-every 7", True), ("--data.rows 8", False), ("--objective.label-smoothing 0", False)],
)
def test_facts_of_the_data_are_dropped_with_another_reading_of_it(words: str, kept: bool):
    config = dataclasses.replace(
        load_config("quickstart"), resolved=Resolved(batches_per_epoch=9, bucket_lengths=(20,))
    )
    assert (apply_options(config, words.split()).resolved is not None) == kept


def test_an_object_of_json_is_a_dict_setting():
    config = load_config("quickstart", ["--optimizer.rates", '{"encoder/*": 0.1}'])
    assert config.optimizer.rates == {"encoder/*": 0.1} and from_json(to_json(config)) == config
    with pytest.raises(ValueError, match=r"optimizer\.rates is \{'encoder/\*': -1\}: it must be a dict .* above 0"):
        load_config("quickstart", ["--optimizer.rates", '{"encoder/*": -1}'])


def test_the_name_of_a_variant_stands_for_its_default_settings():
    options = [
        "--optimizer.algorithm",
        "adafactor",
        "--optimizer.algorithm.no-scale-by-parameter",
        "--model.norm=rms_norm",
    ]
    config = load_config("quickstart", [*options, "--train.steps", "300"])
    assert config.optimizer.algorithm == Adafactor(scale_by_parameter=False) and config.model.norm == RMSNorm()
    assert (
        config.train.steps == 300 and config.optimizer.weight_decay == load_config("quickstart").optimizer.weight_decay
    )


def test_the_order_of_options_does_not_matter():
    """The batch of eight rows fits the last number of micro-batches, not the config's."""
    options = ("--data.rows-multiple 8", "--optimizer.algorithm adafactor", "--train.num-micro-batches 1")
    configs = [load_config("llama_1b", " ".join(words).split()) for words in itertools.permutations(options)]
    assert all(config == configs[0] for config in configs) and configs[0].train.num_micro_batches == 1


def test_settings_of_python_are_words():
    """By hand: a list and a tuple are several words, and what is false is switched off."""
    settings = {"train.trainable": ["a/*", "b"], "fp16": False, "train.frozen_dtype": "bfloat16", "data.rows": 8}
    words = ["--train.trainable", "a/*", "b", "--no-fp16", "--train.frozen-dtype", "bfloat16", "--data.rows", "8"]
    assert shlex.split(as_options(settings)) == words
    assert as_options(settings) == as_options(settings | {"train.trainable": ("a/*", "b")})
