"""Laws of the config: JSON and back is the same config, and every mistake is one line that names the setting and the way out."""

import contextlib
import dataclasses
import functools
import json
import math
import re
import typing
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.cli.commands.train import default_workdir
from flaxformer_lite.config import Config, TrainConfig, from_json, load_config, to_json
from flaxformer_lite.config.differences import differences, flatten
from flaxformer_lite.config.experiment import Resolved
from flaxformer_lite.config.settings import MARKS, SETTINGS, has_mark
from flaxformer_lite.core.base.annotations import Answers, Resume
from flaxformer_lite.core.model import DropoutRates, LayerNorm, Learned, RMSNorm, Rotary, Transformer
from flaxformer_lite.core.objectives import BaseObjective, CausalLM, Seq2Seq
from flaxformer_lite.core.optim import AdamW, Cosine, Lion, OptimizerConfig
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.core.text.characters import Bytes
from flaxformer_lite.files.data import JSONLines, Mixture, ParallelText
from flaxformer_lite.files.records import RecordKinds
from flaxformer_lite.files.tokenizers import FromRun, SentencePiece
from flaxformer_lite.files.tokenizers.subword_sampling import BPEDropout
from tests.support.experiments import tiny_config, with_train
from tests.support.objectives import OBJECTIVES, smallest_model
from tests.support.small_models import CONFIGS, NO_DROPOUT, arrays, inputs_of, params_of

CONFIG = tiny_config()
IN_EPOCHS = dataclasses.replace(
    CONFIG,
    train=dataclasses.replace(CONFIG.train, steps=TrainConfig.steps, epochs=2.5, eval_every=0.5),
    resolved=Resolved(batches_per_epoch=7, bucket_lengths=(20,)),
)
IN_ROWS = dataclasses.replace(
    CONFIG, data=dataclasses.replace(CONFIG.data, tokens_per_batch=4096, rows_multiple=64, rows=8)
)


def changed(part: str, **changes) -> Config:
    return dataclasses.replace(CONFIG, **{part: dataclasses.replace(getattr(CONFIG, part), **changes)})


def without_eval(config: Config) -> Config:
    data = dataclasses.replace(config.data, eval=None)
    return dataclasses.replace(with_train(config, text_metrics=()), data=data)


def edited(path: str, value: object) -> str:
    """The config's JSON with one value put in; a path that is not there is added."""
    tree = json.loads(to_json(CONFIG))
    *parents, leaf = path.split(".")
    node = tree
    for parent in parents:
        node = node[parent]
    node[leaf] = value
    return json.dumps(tree)


def message(text: str) -> str:
    with pytest.raises(ValueError) as caught:
        from_json(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_json_and_back_is_the_same_config():
    """Law, with another variant of every union than the default."""
    other = Config(
        model=dataclasses.replace(CONFIG.model, norm=RMSNorm(), positions=Learned(max_positions=40)),
        data=dataclasses.replace(CONFIG.data, train=ParallelText(source="a", target="b"), target_tokenizer=None),
        optimizer=OptimizerConfig(algorithm=Lion(), schedule=Cosine(peak_rate=1e-3)),
        train=CONFIG.train,
        decode=DecodeConfig(beam_size=3, alpha=0.5),
    )
    for config in (CONFIG, other):
        assert from_json(to_json(config)) == config


def test_whole_numbers_are_fine_where_fractions_are_expected():
    objective: Any = from_json(edited("objective.label_smoothing", 0)).objective
    assert objective.label_smoothing == 0


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("model.d_modle", 12, ["no setting model.d_modle", "model.d_model"]),
        ("data.train.num_example", 12, ["no setting data.train.num_example", "data.train.num_examples"]),
        ("trian", {}, ["no setting trian", "train"]),
        ("model.d_model", "12", ["model.d_model is '12': it must be a whole number, at least 1"]),
        ("model.d_model", 12.5, ["model.d_model", "12.5"]),
        ("train.text_metrics", ["blue"], ["train.text_metrics is ('blue',)", "'bleu'", "perhaps you meant bleu"]),
        ("model.norm", {"kind": "layernorm"}, ["model.norm", "layernorm", "'layer_norm'", "'rms_norm'"]),
        ("model.share_target_output", "yes", ["model.share_target_output", "'yes'"]),
        ("train.steps", 0, ["train.steps is 0: it must be at least 1; the default is 10000"]),
        (
            "train.mesh.data",
            True,
            ["config.json: train.mesh.data is True: it must be a whole number, at least 1, or -1"],
        ),
        ("train.dtype", "bf16", ["config.json: there is no setting train.dtype; perhaps you meant model.dtype"]),
        ("objective.label_smoothing", 10**400, ["objective.label_smoothing is 1000"]),
        ("model.norm", {"epsilon": 1e-5}, ["model.norm is {", "it must have a kind, one of 'layer_norm', "]),
        ("model.norm", 3, ["model.norm is 3: it must have a kind, one of 'layer_norm'"]),
        ("train", [], ["train is []: it must be a JSON object"]),
        (
            "train.seed",
            2**32,
            ["train.seed is 4294967296: it must be at least 0 and below 4294967296; the default is 0"],
        ),
        ("data.bucket_lengths", [8, 1], ["data.bucket_lengths is (8, 1): it must be values that are each at least 2"]),
    ],
)
def test_a_mistake_in_json_names_the_setting(path: str, value: object, words: list[str]):
    found = message(edited(path, value))
    for word in words:
        assert word in found


@pytest.mark.parametrize("number", [2, 0, "1", None, True])
def test_the_format_of_a_later_release_is_refused(number: object):
    assert json.loads(to_json(CONFIG))["format"] == 1
    assert message(edited("format", number)).endswith(
        f"format is {number!r}, but this release reads format 1: install a newer flaxformer_lite"
    )
    without = {name: value for name, value in json.loads(to_json(CONFIG)).items() if name != "format"}
    assert from_json(json.dumps(without)) == CONFIG


def test_text_that_is_not_json_is_refused_in_one_line():
    assert "config.json" in message("{")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: changed("model", num_heads=5), ["model.d_model 12", "model.num_heads 5", "model.attention.d_key"]),
        (lambda: changed("model", num_heads=0), ["model.num_heads is 0", "at least 1"]),
        (
            lambda: changed("model", target_vocab_size=17),
            ["model.target_vocab_size is 17", "model.share_source_target"],
        ),
        (
            lambda: changed("model", positions=Learned(max_positions=39)),
            ["max_positions 39", "data.max_source_length 40"],
        ),
        (lambda: changed("data", target_tokenizer=Bytes()), ["data.target_tokenizer", "model.share_source_target"]),
        (lambda: changed("data", bucket_lengths=()), ["data.bucket_lengths"]),
        (lambda: changed("data", eval=None), ["data.eval is None", "train.text_metrics"]),
        (
            lambda: with_train(without_eval(CONFIG), keep_best=2),
            ["data.eval is None", "train.keep_best (it is 2) to 1"],
        ),
        (lambda: dataclasses.replace(without_eval(CONFIG), weights="best"), ["weights is 'best'", "data.eval is None"]),
        (
            lambda: dataclasses.replace(with_train(CONFIG, keep_best=0), weights="best"),
            ["weights is 'best'", "train.keep_best is 0", "1 or more"],
        ),
        (lambda: changed("train", num_micro_batches=3), ["data.rows_multiple 8", "train.num_micro_batches 3"]),
        (lambda: changed("train", steps=0), ["train.steps is 0", "at least 1"]),
        (lambda: changed("train", epochs=2), ["train.epochs is 2", "train.steps is 12", "leave one out"]),
        (lambda: changed("data", rows=8), ["data.rows is 8", "data.tokens_per_batch is 256", "leave one out"]),
        (
            lambda: changed("data", rows=8, tokens_per_batch=4096),
            ["data.rows is 8", "data.rows_multiple is 8", "leave one out"],
        ),
        (
            lambda: with_train(IN_ROWS, num_micro_batches=3),
            ["data.rows 8", "train.num_micro_batches 3"],
        ),
        (
            lambda: (
                dataclasses.replace(
                    IN_EPOCHS, optimizer=OptimizerConfig(schedule=Cosine(peak_rate=1, warmup_steps=19))
                ).concrete
            ),
            ["warmup_steps", "train.steps is 18", "make the run longer"],
        ),
        (lambda: changed("train", seed=-1), ["train.seed is -1"]),
        (lambda: changed("train", patience=0), ["train.patience is 0"]),
        (
            lambda: changed("train", best_metric="bleu"),
            ["train.best_metric is 'bleu'", "train.text_metrics", "perplexity"],
        ),
        (lambda: dataclasses.replace(CONFIG, weights="averag:3"), ["weights is 'averag:3'", "average:N"]),
        (lambda: dataclasses.replace(CONFIG, weights="average:4"), ["average:4", "train.keep_latest", "at least 4"]),
        (
            lambda: changed("optimizer", schedule=Cosine(peak_rate=1, warmup_steps=13)),
            ["warmup_steps", "train.steps is 12"],
        ),
        (lambda: changed("decode", num_hypotheses=2), ["decode.num_hypotheses", "decode.beam_size"]),
        (lambda: changed("decode", bos_id=None), ["decode.bos_id is None", "set it to a token id"]),
        (lambda: changed("decode", eos_ids=(3, 149)), ["decode.eos_ids has 149", "between 0 and 148"]),
        (lambda: changed("decode", pad_id=149), ["decode.pad_id has 149", "between 0 and 148"]),
        (lambda: changed("model", norm=RMSNorm(epsilon=-1e-6)), ["model.norm.epsilon is -1e-06", "at least 0"]),
        (lambda: changed("model", norm=LayerNorm(epsilon=math.nan)), ["model.norm.epsilon is nan", "finite"]),
        (lambda: changed("model", positions=Rotary(base=math.inf)), ["model.positions.base is inf", "finite"]),
        (lambda: changed("objective", label_smoothing=-0.1), ["objective.label_smoothing is -0.1"]),
    ],
)
def test_an_impossible_combination_names_all_it_involves(make, words: list[str]):
    with pytest.raises(ValueError) as caught:
        make()
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_epochs_are_so_many_batches():
    """Oracle: by hand; 2.5 epochs of 7 batches are 17.5 steps, half an epoch 3.5, both rounded to the even number."""
    concrete = IN_EPOCHS.concrete
    assert (concrete.train.steps, concrete.train.epochs, concrete.train.eval_every) == (18, None, 4)
    assert concrete.resolved is None and concrete.concrete == concrete
    short = with_train(IN_EPOCHS, epochs=0.01, eval_every=1e-3)
    assert (short.concrete.train.steps, short.concrete.train.eval_every) == (1, 1)
    unknown = dataclasses.replace(IN_EPOCHS, resolved=None)
    assert unknown.concrete is unknown
    steps = dataclasses.replace(CONFIG, resolved=Resolved(batches_per_epoch=7, bucket_lengths=(20,)))
    assert steps.concrete == CONFIG
    assert from_json(to_json(IN_EPOCHS)) == IN_EPOCHS
    assert type(from_json(to_json(with_train(IN_EPOCHS, eval_every=2))).train.eval_every) is int


def test_a_run_goes_on_with_its_own_lengths():
    """Law: "auto" is what the run has, also one of an older release without facts; other lengths are told apart."""
    auto, facts = changed("data", bucket_lengths="auto"), Resolved(batches_per_epoch=7, bucket_lengths=(16, 40))
    before = dataclasses.replace(auto, resolved=facts)
    assert auto.data.lengths[0] == 8, "nothing is known"
    assert auto.continuing(before) == before and before.concrete.data.lengths == (16, 40)
    assert differences(before.concrete, auto.continuing(before).concrete) == {}
    assert differences(before.concrete, CONFIG.continuing(before).concrete) == {
        "data.bucket_lengths": ((16, 40), (20,))
    }
    assert auto.continuing(CONFIG) == CONFIG


def test_ema_weights_need_an_ema():
    with pytest.raises(ValueError, match=r"weights is 'ema'.*optimizer\.ema_decay"):
        dataclasses.replace(CONFIG, weights="ema", optimizer=OptimizerConfig())


def test_float64_needs_jax_to_compute_in_64_bits():
    with pytest.raises(ValueError, match=r"model\.dtype is 'float64', but JAX computes in 32 bits.*JAX_ENABLE_X64=1"):
        changed("model", dtype="float64")
    with jax.enable_x64(True):
        assert changed("model", dtype="float64").model.dtype == "float64"


def test_a_resumed_run_may_only_change_its_length_and_its_cadences():
    longer = with_train(CONFIG, steps=99, eval_every=7, checkpoint_every=8, log_every=9, keep_latest=4)
    assert differences(CONFIG, dataclasses.replace(longer, weights="best")) == {}
    other = changed("optimizer", algorithm=Lion(), weight_decay=0.5)
    assert differences(CONFIG, other)["optimizer.weight_decay"] == (0.01, 0.5)
    assert differences(CONFIG, other)["optimizer.algorithm.kind"] == ("adamw", "lion")
    assert differences(CONFIG, with_train(CONFIG, seed=1)) == {"train.seed": (0, 1)}


def test_some_settings_change_if_that_is_asked_for():
    """Oracle: by hand; neither shapes, nor the order of the data, nor the form of the optimizer's state."""
    optimizer = OptimizerConfig(
        schedule=Cosine(peak_rate=1.0),
        clip_norm=None,
        weight_decay=0.5,
        algorithm=AdamW(b1=0.5, b2=0.5, eps=1.0),
        ema_decay=0.8,
    )
    asked = dataclasses.replace(
        with_train(CONFIG, num_micro_batches=2, patience=7, text_metrics=()),
        optimizer=optimizer,
        model=dataclasses.replace(CONFIG.model, dropout=NO_DROPOUT, dtype="bfloat16", remat="full", scan_unroll=2),
    )
    assert len(differences(CONFIG, asked)) > 12 and differences(CONFIG, asked, on_request=True) == {}
    for other in (
        with_train(CONFIG, seed=1),
        with_train(CONFIG, best_metric="accuracy"),
        changed("optimizer", ema_decay=None),
        changed("optimizer", algorithm=AdamW(moment_dtype="bfloat16")),
        changed("optimizer", algorithm=Lion()),
        changed("model", d_ff=CONFIG.model.d_ff + 1),
        changed("model", dropout=dataclasses.replace(CONFIG.model.dropout, residual_scaling="evaluation")),
        changed("data", rows_multiple=2 * CONFIG.data.rows_multiple),
    ):
        assert len(differences(CONFIG, other, on_request=True)) >= 1


def test_settings_are_listed_as_on_the_command_line():
    paths = MARKS.keys()
    assert {"train.steps", "data.train.source", "model.attention.d_key", "optimizer.schedule.peak_rate"} <= paths
    assert flatten(CONFIG).keys() <= paths


def test_variants_that_share_a_setting_give_it_the_same_marks():
    """Law: what a mark permits depends on the path alone, since a message names the path."""
    shared = [setting.path for setting in SETTINGS if setting.marks != MARKS[setting.path]]
    assert not shared and len(SETTINGS) > len(MARKS)


@pytest.mark.parametrize(
    ("path", "marks"),
    [
        ("train.steps", {Resume.FREE, Answers.SAME}),
        ("train.mesh.data", {Resume.FREE, Answers.SAME}),
        ("train.seed", {Answers.SAME}),
        ("optimizer.schedule.of_a_schedule_from_outside", {Resume.ON_REQUEST, Answers.SAME}),
        ("optimizer.algorithm.b1", {Resume.ON_REQUEST, Answers.SAME}),
        ("optimizer.algorithm.of_an_algorithm_from_outside", {Answers.SAME}),
        ("model.dtype", {Resume.ON_REQUEST, Answers.CHOSEN}),
        ("decode.sampling.top_k", {Answers.CHOSEN}),
        ("model.d_model", set()),
        ("other.setting", set()),
    ],
)
def test_a_setting_has_the_marks_of_its_groups_too(path: str, marks: set):
    assert {mark for mark in (*Resume, *Answers) if has_mark(path, mark)} == marks


@functools.cache
def logits_with(dropout: DropoutRates) -> np.ndarray:
    """The logits of a model of one layer on either side, without a dropout key."""
    one_layer = {"num_encoder_layers": 1, "num_decoder_layers": 1, "dtype": "float32"}
    config = dataclasses.replace(CONFIGS["pre_norm_all_shared"], **one_layer)
    source, target, *_ = arrays(config)
    variables = {"params": jax.tree.map(jnp.asarray, params_of(config))}
    model: Any = Transformer(dataclasses.replace(config, dropout=dropout))
    return np.asarray(jax.jit(model.apply)(variables, inputs_of(source, target)).logits)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(DropoutRates)])
def test_a_setting_of_dropout_that_changes_answers_is_not_marked_as_the_same(name: str):
    """Oracle: the outputs without a dropout key, before and after the setting changes, where evaluation rescales."""
    before = DropoutRates(residual_scaling="evaluation")
    after = dataclasses.replace(before, **{name: "training" if name == "residual_scaling" else 0.4})
    is_same = np.array_equal(logits_with(before), logits_with(after))
    assert has_mark(f"model.dropout.{name}", Answers.SAME) == is_same


def test_overrides_reach_into_the_variant_that_the_config_chose(tmp_path: Path):
    file = tmp_path / "small.json"
    file.write_text(to_json(CONFIG))
    config = load_config(
        str(file), ["--train.checkpoint-every", "40", "--data.eval.num-examples", "50", "--model.scan-unroll", "2"]
    )
    assert config == dataclasses.replace(
        with_train(CONFIG, checkpoint_every=40),
        data=dataclasses.replace(CONFIG.data, eval=dataclasses.replace(CONFIG.data.eval, num_examples=50)),
        model=dataclasses.replace(CONFIG.model, scan_unroll=2),
    )


def test_help_lists_the_settings_and_is_no_mistake(tmp_path: Path, capsys):
    file = tmp_path / "small.json"
    file.write_text(to_json(CONFIG))
    with pytest.raises(SystemExit) as caught:
        load_config(str(file), ["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "--train.checkpoint-every" in out
    # Variants stand at the top, before the first group of options.
    assert "model.norm               [layer_norm], rms_norm, deviation_norm\n" in out.partition("╭")[0]
    assert "`--optimizer.algorithm adafactor` takes another one" in out.partition("╭")[0]
    assert ".kind" not in out
    # With one value of a union too: `--train.mesh.data -1`, `--decode.early-stopping never`.
    for option in (
        "train.mesh.data",
        "decode.early-stopping",
        "decode.max-new-tokens",
        "model.scan-unroll",
        "train.seed",
    ):
        assert re.search(rf"--{re.escape(option)}\b", out), option
    groups = re.findall(r"(?m)^\W*([a-z]+) options\W*$", out)
    assert groups == ["data", "train", "optimizer", "model", "objective", "decode", "metrics"]
    assert f"groups below are {', '.join(groups[:-1])} and {groups[-1]}" in out


def test_a_config_file_must_have_get_config(tmp_path: Path):
    (tmp_path / "mine.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match=r"mine\.py has no function get_config"):
        load_config(str(tmp_path / "mine.py"))
    (tmp_path / "torn.py").write_text("def get_config():\n    return 1 / 0\n")
    with pytest.raises(ValueError, match=r"torn\.py, line 2: ZeroDivisionError"):
        load_config(str(tmp_path / "torn.py"))
    with pytest.raises(ValueError, match=r"there is no config file .*/mime\.py; perhaps you meant .*/mine\.py$"):
        load_config(str(tmp_path / "mime.py"))
    with pytest.raises(ValueError, match=r"there is no config file .*; there are .*/mine\.py, .*/torn\.py"):
        load_config(str(tmp_path))


def test_a_run_folder_stands_for_its_config_and_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "config.json").write_text(to_json(CONFIG))
    assert load_config(str(tmp_path)) == load_config(str(tmp_path / "config.json")) == CONFIG
    assert default_workdir(str(tmp_path)) == default_workdir(str(tmp_path / "config.json")) == str(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert load_config("char_lm").objective == CausalLM() and default_workdir("char_lm") == "runs/char_lm"


def test_a_run_in_a_store_stands_for_its_config_and_is_continued(tmp_path: Path):
    url = f"file://{tmp_path}/run.v2"
    (tmp_path / "run.v2").mkdir()
    with pytest.raises(
        ValueError, match=rf"there is no config file {url}/config\.json: name a \.json file, or the folder of"
    ):
        load_config(url)
    (tmp_path / "run.v2" / "config.json").write_text(to_json(CONFIG))
    assert load_config(url) == load_config(f"{url}/config.json") == CONFIG
    assert default_workdir(url) == default_workdir(f"{url}/config.json") == url
    for other in ("gs://bucket/tiny.json", "https://example.com/run/config.json"):
        with pytest.raises(ValueError, match=rf"{other} is a URL: choose a run folder with --workdir"):
            default_workdir(other)


@pytest.mark.parametrize(
    ("objective", "tokenizer", "message"),
    [
        (
            CausalLM(),
            SentencePiece(),
            "data.subword_sampling is set, but objective.kind 'causal_lm' composes its rows once",
        ),
        (
            Seq2Seq(),
            SentencePiece(model_type="unigram"),
            "data.subword_sampling.kind is 'bpe_dropout', but data.tokenizer is",
        ),
        (Seq2Seq(), Bytes(), "set it to SentencePiece(model_type='bpe'), or data.subword_sampling to None"),
    ],
)
def test_sampling_fits_the_tokenizer_and_the_objective(objective: Any, tokenizer: Any, message: str):
    bpe, sampling = SentencePiece(), BPEDropout()
    changed("data", tokenizer=bpe, subword_sampling=sampling)
    changed("data", tokenizer=FromRun(path="x"), subword_sampling=sampling)
    layers = {"num_encoder_layers": 0} if objective.kind == "causal_lm" else {}
    with pytest.raises(ValueError, match=re.escape(message)):
        dataclasses.replace(
            without_eval(CONFIG),
            model=dataclasses.replace(CONFIG.model, **layers),
            objective=objective,
            data=dataclasses.replace(CONFIG.data, eval=None, tokenizer=tokenizer, subword_sampling=sampling),
        )


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.kind)
def test_a_record_is_one_that_the_objective_reads(objective: BaseObjective):
    """Law: each objective reads plain texts and what it says, of one source or of several; every other record is refused."""
    tiny = tiny_config()
    train = dataclasses.replace(tiny.train, text_metrics=())
    for record in typing.get_args(RecordKinds):
        source = JSONLines(path="x", record=record())
        for setting, data in (("train", source), ("train.sources.1", Mixture(sources=(JSONLines(path="y"), source)))):
            parts = dataclasses.replace(tiny.data, train=data, eval=None)
            kind = rf"objective\.kind '{objective.kind}' reads {objective.reads}: "
            message = rf"^data\.{setting}\.record has {record.reads}, but {kind}"
            fits = record.reads in ("texts", objective.reads)
            with contextlib.nullcontext() if fits else pytest.raises(ValueError, match=message):
                Config(model=smallest_model(objective), objective=objective, data=parts, train=train)
