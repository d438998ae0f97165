"""Oracles: searches in a formula of memory, by hand; the parser of commands; the memory of real trainings."""

import json
import math
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from flaxformer_lite.base import hardware
from flaxformer_lite.config import Config, load_config
from flaxformer_lite.core.data.batch_plan import Bucket, batch_shapes
from flaxformer_lite.core.model import DropoutRates, LoRA
from flaxformer_lite.core.parallel.mesh import make_mesh
from flaxformer_lite.core.parallel.sharding import replicated
from flaxformer_lite.tools.planning import fit as fit_module
from flaxformer_lite.tools.planning.fit import (
    find_fit,
    micro_batch_numbers,
    same_numbers,
    smaller_batches,
    trials_in_words,
    with_settings,
)
from flaxformer_lite.tools.planning.plan import plan_bucket
from tests.support.commands import Command
from tests.support.paths import ROOT

STATES = {"adamw": 3.0, "adafactor": 1.1}


def formula(config: Config, bucket: Bucket) -> float:
    """Memory in MiB of a model of 100 MiB: its state and gradient, and activations of a micro-batch with its logits."""
    algorithm, model = config.optimizer.algorithm, config.model
    state = STATES[algorithm.kind] - 0.5 * (getattr(algorithm, "moment_dtype", None) is not None)
    stored = {"none": 1.0, "dots": 0.6, "full": 0.2}[model.remat]
    assert model.head is not None
    logits = (model.head.loss_chunk or bucket.lengths.target) / bucket.lengths.target
    rows = bucket.rows / config.train.num_micro_batches
    return 100 * (state + 1) + rows * bucket.lengths.target / 100 * (stored + logits)


@pytest.fixture
def by_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_module, "planned_step", lambda config, mesh, bucket: (config, bucket))
    monkeypatch.setattr(fit_module, "memory", lambda step: formula(*step) * 2**20)


GPT = ["--data.tokens-per-batch", "65536", "--data.rows-multiple", "64", "--train.num-micro-batches", "1"]
"""64 rows of 1,024, at once."""


@pytest.mark.usefixtures("by_formula")
@pytest.mark.parametrize("limit", [700, 415, 360, 230, 200])
def test_numbers_change_only_where_nothing_else_fits_and_few_steps_are_compiled(limit: int):
    config = load_config("gpt2_small", [*GPT, "--train.num-micro-batches", "8"])
    result = find_fit(config, jax.devices()[:1], limit * 2**20)
    (bucket,) = batch_shapes(config.objective, config.data)
    smallest = {"model.head.loss_chunk": 128, "model.remat": "full", "train.num_micro_batches": 64}

    def least(**algorithm: Any) -> float:
        changes = {f"optimizer.{name}": value for name, value in algorithm.items()}
        return formula(with_settings(config, changes | smallest), bucket)

    assert len(result.trials) <= 12
    if result.found is None:
        assert not any(trial.fits for trial in result.trials)
        return
    found = with_settings(config, result.found.settings)
    (shape,) = batch_shapes(found.objective, found.data)
    assert formula(found, shape) <= limit and (shape == bucket) == (least(algorithm="adafactor") <= limit)
    if shape != bucket:
        assert shape.rows < bucket.rows
        return
    changed = {name for name in result.found.settings if name.startswith("optimizer.")}
    assert bool(changed) == (least() > limit)
    fewer = [*micro_batch_numbers(config, 1, below=found.train.num_micro_batches)]
    assert not fewer or formula(with_settings(config, result.found.settings | fewer[-1]), bucket) > limit


@pytest.mark.slow
@pytest.mark.usefixtures("by_formula")
def test_of_settings_that_fit_the_cheapest_is_found():
    """By hand: the chunk takes 655 to 82 MiB; 16 micro-batches of 4,096 positions still keep the device busy."""
    config = load_config("gpt2_small", GPT)

    def settings(limit: int) -> dict[str, Any]:
        found = find_fit(config, jax.devices()[:1], limit * 2**20).found
        assert found is not None
        return found.settings

    assert settings(2000) == {}
    assert settings(1200) == {"model.head.loss_chunk": 128}
    assert settings(800) == {"model.head.loss_chunk": 128, "train.num_micro_batches": 2}
    assert settings(450) == {"model.head.loss_chunk": 128, "train.num_micro_batches": 16}
    assert settings(430) == {"model.head.loss_chunk": 128, "train.num_micro_batches": 16, "model.remat": "dots"}
    assert settings(405)["model.remat"] == "full" and settings(405)["train.num_micro_batches"] == 64


@pytest.mark.usefixtures("by_formula")
def test_micro_batches_become_fewer_where_much_is_free():
    result = find_fit(load_config("gpt2_small", [*GPT, "--train.num-micro-batches", "8"]), jax.devices()[:1], 2**31)
    assert result.found is not None and result.found.settings == {"train.num_micro_batches": 1}
    words = trials_in_words(result, "the command")
    assert (
        "needed: 1,710.7 MiB; free: 337.3 MiB" in words
        and words.endswith("the command")
        and "losses are those of the config as it is" in words
    )
    for change in ({"dropout": DropoutRates(residual_rate=0.1)}, {"lora": LoRA(dropout=0.1)}):
        config = replace(result.config, model=replace(result.config.model, **change))
        assert "random numbers of dropout" in trials_in_words(replace(result, config=config), "the command")


def test_micro_batches_leave_every_batch_as_it_is():
    """Law: of any config; a batch of 96 rows in eights can be cut into 96 parts, where data.rows_multiple says so."""
    for name, groups in product(("transformer_base_wmt14", "quickstart", "bert_base", "char_lm"), (1, 2, 4)):
        config = load_config(name)
        before = batch_shapes(config.objective, config.data)
        for settings in micro_batch_numbers(config, groups):
            changed = with_settings(config, settings)
            assert batch_shapes(changed.objective, changed.data) == before
            assert changed.data.rows_multiple % (groups * changed.train.num_micro_batches) == 0
    one_shape = load_config(
        "gpt2_small",
        ["--data.tokens-per-batch", "98304", "--data.rows-multiple", "8", "--train.num-micro-batches", "1"],
    )
    assert max(s["train.num_micro_batches"] for s in micro_batch_numbers(one_shape, 1)) == 96


def test_a_batch_in_rows_is_halved_down_to_a_row_on_each_device():
    """Oracle: by hand; micro-batches leave it as it is."""
    config = load_config("bert_base", ["--data.rows", "48"])
    assert [settings["data.rows"] for settings in smaller_batches(config, 4)] == [24, 12, 4]
    assert all("data.rows_multiple" not in settings for settings in smaller_batches(config, 4))
    assert [s["train.num_micro_batches"] for s in micro_batch_numbers(config, 4)] == [1, 2, 3, 4, 6, 12]
    assert {s["data.rows"] for s in micro_batch_numbers(config, 4)} == {48}


def test_short_texts_get_no_chunk():
    assert all("model.head.loss_chunk" in s for s in same_numbers(load_config("bert_base"), 1)[1:])
    settings = same_numbers(load_config("quickstart"), 1)
    assert not any("model.head.loss_chunk" in s for s in settings[:1]) and settings[-1]["model.remat"] == "full"


@pytest.mark.parametrize("groups", [1, 4])
def test_smaller_batches_end_with_a_row_on_each_device(groups: int):
    config = load_config("transformer_base_wmt14")
    others = fit_module.smaller_batches(config, groups)
    tokens = [other["data.tokens_per_batch"] for other in others]
    assert tokens == sorted(tokens, reverse=True) and all(n < config.data.tokens_per_batch for n in tokens)
    assert plan_bucket(with_settings(config, others[-1])).rows == groups


def test_the_command_makes_the_config_that_was_compiled():
    words = ["--model.remat", "dots", "--optimizer.algorithm.b2", "0.9", *GPT]
    settings = {
        "optimizer.algorithm": "adafactor",
        "optimizer.algorithm.scale_by_parameter": False,
        "model.remat": "full",
    }
    line = fit_module.command("gpt2_small", words, settings)
    assert line.startswith("flaxformer-lite train gpt2_small --") and line.count("remat") == 1 and "b2" not in line
    assert load_config("gpt2_small", shlex.split(line)[3:]) == with_settings(load_config("gpt2_small", words), settings)


def test_a_run_keeps_its_settings_and_others_train_in_a_folder_of_their_own(tmp_path: Path):
    """Where nothing changes the command continues the run."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").touch()
    for name in (str(run), f"{run}/", f"{run}/config.json"):
        assert fit_module.command(name, [], {}) == f"flaxformer-lite train {name}"
        for words, settings in (([], {"model.remat": "full"}), (["--model.remat", "full"], {})):
            wanted = f"flaxformer-lite train {name} --workdir {run}-fit --model.remat full"
            assert fit_module.command(name, words, settings) == wanted


@pytest.mark.parametrize(
    ("message", "gigabytes"),
    [
        ("Ran out of memory in memory space hbm. Used 17.63G of 15.75G hbm. Exceeded hbm capacity by 1.88G.", 17.63),
        ("Ran out of memory in memory space hbm. Used 1843.2M of 1.75G hbm.", 1.8),
        (
            "Ran out of memory on HBM, the total memory required for HLO temporaries (40.48G) exceeds available HBM",
            42.48,
        ),
        ("Ran out of memory elsewhere", math.inf),
    ],
)
def test_a_refusal_says_how_much_is_needed(message: str, gigabytes: float, monkeypatch: pytest.MonkeyPatch):
    """Some messages count the arguments, here 2 GiB, and some do not."""
    monkeypatch.setattr(fit_module, "compiled_or_refused", lambda step: (None, message))
    state = jax.ShapeDtypeStruct((2**29,), "float32", sharding=replicated(make_mesh(devices=jax.devices()[:1])))
    step: Any = SimpleNamespace(arguments=(state,))
    assert fit_module.memory(step) == pytest.approx(gigabytes * 2**30)


@pytest.mark.usefixtures("by_formula")
def test_the_command_prints_one_command_or_that_nothing_fits(command: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hardware, "process_memory", lambda: 0)  # that of the tests before
    line = ["plan", "configs/gpt2_small.py", "--fit", *GPT]
    out = command(*line, "--memory", "1.5GiB").lines
    assert out[-1] == f"flaxformer-lite train configs/gpt2_small.py {' '.join(GPT)} --model.head.loss-chunk 128"
    found = json.loads(command(*line, "--memory", "700MiB", "--json").out)["found"]
    assert "--train.num-micro-batches" in found["command"] and found["needed_bytes"] <= 700 * 2**20
    status, said = command.ended(*line, "--memory", "100MiB")
    assert status == 1 and said.out.count("does not fit") >= 3
    assert "none of these fits into 100.0 MiB: the smallest needs" in said.err


TRAINING = """
import ctypes, re, sys
from pathlib import Path
import jax
from flaxformer_lite import train
from flaxformer_lite.base.hardware import process_memory
from flaxformer_lite.config import load_config
from flaxformer_lite.core.parallel.mesh import make_mesh
from flaxformer_lite.core.parallel.sharding import shard_bytes
from flaxformer_lite.tools.planning.fit import memory
from flaxformer_lite.tools.planning.plan import plan_bucket, planned_step
from flaxformer_lite.training import Hook

class Meter(Hook):
    def before_step(self, run, step):
        jax.block_until_ready(run.state)
        if step == 2:
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")
            self.before = process_memory() - shard_bytes(run.state)
        if step == 3:
            self.peak = process_memory("VmHWM") - self.before

config, meter = load_config("char_lm", sys.argv[2:]), Meter()
train(config, sys.argv[1], hooks=[meter])
print(meter.peak / memory(planned_step(config, make_mesh(), plan_bucket(config))))
"""
"""Trains three steps. Prints the peak of the second over the plan's: the state and what the step adds, once it is compiled."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc shows the memory of a process")
def test_a_training_needs_the_memory_that_was_planned(tmp_path: Path):
    """Measured by hand: 20 toy sizes of all configs needed 0.3 to 6 % more than planned."""
    sizes = "--data.tokens-per-batch 6144 --data.rows-multiple 96 --model.scan-unroll 1 --train.steps 3"
    words = f"{sizes} --optimizer.schedule.warmup-steps 1".split()
    words += ["--model.remat", "full", "--train.num-micro-batches", "4"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, str(tmp_path / "run"), *words],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) == pytest.approx(1, abs=0.1)
