"""Small experiments that several tests train: a config, and one like it on files."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jaxtyping import PyTree

from flaxformer_lite.config import Config, TrainConfig, to_json
from flaxformer_lite.core.data.dataset import Dataset
from flaxformer_lite.core.model import DotProduct, DropoutRates, ModelConfig
from flaxformer_lite.core.objectives import Batch, Seq2Seq
from flaxformer_lite.core.optim import Constant, OptimizerConfig
from flaxformer_lite.core.parallel.mesh import make_mesh
from flaxformer_lite.core.runners import Runner
from flaxformer_lite.core.step import TrainState, train_step
from flaxformer_lite.core.text import Characters, Tokenizers
from flaxformer_lite.files.data import DataConfig, Dates
from flaxformer_lite.files.data.reading import tokenize
from flaxformer_lite.training.task import train_task
from flaxformer_lite.workdir.weights import abstract_saved_params


def tiny_config(**changes: Any) -> Config:
    """Dates with a model of a few thousand parameters, dropout on; `changes` replace whole parts."""
    parts: dict[str, Any] = {
        "model": ModelConfig(
            vocab_size=149,
            d_model=12,
            num_heads=3,
            d_ff=23,
            num_encoder_layers=2,
            num_decoder_layers=2,
            # Key biases have no gradient but rounding noise, which Adam would blow up to full steps: none here.
            attention=DotProduct(bias=False),
            # In one kind of place only: each place costs half a second to compile.
            dropout=DropoutRates(embedding_rate=0, attention_rate=0, feed_forward_rate=0, residual_rate=0.1),
        ),
        "objective": Seq2Seq(label_smoothing=0.1),
        "data": DataConfig(
            train=Dates(num_examples=200),
            eval=Dates(split="held_out", num_examples=20),
            tokenizer=Characters(),
            tokens_per_batch=16 * 16,
            rows_multiple=8,
            bucket_lengths=(20,),
            max_source_length=40,
            max_target_length=11,
        ),
        "optimizer": OptimizerConfig(schedule=Constant(peak_rate=1e-2), weight_decay=0.01, ema_decay=0.9),
        "train": TrainConfig(steps=12, eval_every=5, checkpoint_every=4, log_every=3, text_metrics=("exact_match",)),
    }
    return Config(**{**parts, **changes})


def num_programs(function: Any) -> int:
    """Returns how many programs a jitted function has compiled."""
    return function._cache_size()


def tiniest_config() -> Config:
    """`tiny_config` with one layer on either side and one shape of batches, for tests of many runs."""
    tiny = tiny_config()
    return dataclasses.replace(
        tiny,
        model=dataclasses.replace(tiny.model, num_encoder_layers=1, num_decoder_layers=1),
        data=dataclasses.replace(tiny.data, bucket_lengths=(40,)),
    )


def normal_params(config: Config, seed: int) -> PyTree:
    """Parameters that nobody trained: normal numbers of variance 1."""
    generator = np.random.default_rng(seed)
    return jax.tree.map(lambda x: np.float32(generator.normal(size=x.shape)), abstract_saved_params(config))


def write_config_file(path: Path, config: Config) -> Path:
    """The config as a JSON file that train.py takes."""
    path.write_text(to_json(config), encoding="utf-8")
    return path


def use_one_device(patch: pytest.MonkeyPatch) -> None:
    """Runs are trained and loaded on the first device alone, as on a machine that has no more."""
    for module in ("training.setup", "run.run", "workdir.weights"):
        patch.setattr(f"flaxformer_lite.{module}.make_mesh", lambda *_: make_mesh(devices=jax.devices()[:1]))


def with_train(config: Config, **changes: Any) -> Config:
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **changes))


def train_losses(config: Config, steps: int) -> list[float]:
    """The losses of the first steps, without a run folder: a config may hold parts that no config file can name."""
    assert config.data.train is not None and config.data.tokenizer is not None
    pairs = config.data.train.open("data.train")
    tokenizer = config.data.tokenizer.train((text for pair in pairs for text in pair[:2]), config.model.vocab_size)
    records = tokenize(pairs, Tokenizers(tokenizer, tokenizer))
    dataset = Dataset.training(records, config.objective, config.data, config.train.seed, tokenizer)
    task = train_task(config)
    state = jax.jit(task.initialize)()
    step, losses = jax.jit(functools.partial(train_step, task)), []
    for number in range(steps):
        state, measured = step(state, dataset.batch(number))
        losses.append(float(measured["loss"]))
    return losses


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl, without what the machine decides."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    measured = ("tokens_per_second", "examples_per_second", "mfu", "peak_memory_bytes")
    return [{k: v for k, v in json.loads(line).items() if k not in measured} for line in lines]


def saved(folder: Path) -> list[str]:
    """The names of a run's checkpoints."""
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


@functools.cache
def first_batch() -> Batch:
    """The first batch of the tiny config."""
    config = tiny_config()
    data, objective = config.data, config.objective
    pairs = data.train.open("data.train")
    tokenizer = data.tokenizer.train((text for pair in pairs for text in pair[:2]), config.model.vocab_size)
    records = tokenize(pairs, Tokenizers(tokenizer, tokenizer))
    return Dataset.training(records, objective, data, config.train.seed, tokenizer).batch(0)


def after_steps(runner: Runner, steps: int) -> tuple[TrainState, TrainState]:
    """The state before and after some steps on one batch."""
    before = jax.device_get(runner.init())
    state = runner.init()
    for _ in range(steps):
        state, _ = runner.train_step(state, runner.shard_batch(first_batch()))
    return before, jax.device_get(state)
