"""A run that translates, with random parameters, and more checkpoints of it."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
from jaxtyping import PyTree

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.core.model.config import ModelConfig
from flaxformer_lite.core.model.positions import Learned
from flaxformer_lite.core.objectives import CausalLM
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.core.text.characters import Bytes
from flaxformer_lite.core.text.tokenizer import Tokenizers
from flaxformer_lite.files.data.config import DataConfig
from flaxformer_lite.files.tokenizers.kinds import save_tokenizer
from flaxformer_lite.run import write_run
from flaxformer_lite.training.loop_state import LoopState
from flaxformer_lite.workdir import RunFolder, abstract_saved_params, open_checkpoints
from tests.support.experiments import tiny_config, with_train, write_config_file

LINES = ["20 nov 2026", "", "20. Nov. 2026", "2026年11月20日", "a"]


def run_config() -> Config:
    config = tiny_config()
    decode = DecodeConfig(max_length_ratio=0.5, max_length_extra=6, batch_tokens=128)
    model = dataclasses.replace(config.model, vocab_size=23, num_encoder_layers=1, num_decoder_layers=1)
    data = dataclasses.replace(config.data, bucket_lengths=(16,), max_source_length=16)
    return with_train(dataclasses.replace(config, model=model, data=data, decode=decode), keep_best=2)


def random_params(config: Config, seed: int) -> PyTree:
    """Parameters so large that answers to several sources differ."""
    generator = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: np.float32(2 * x.shape[-1] ** -0.5 * generator.normal(size=x.shape)), abstract_saved_params(config)
    )


def save(folder: Path, config: Config, step: int, seed: int, loss: float | None = None) -> None:
    """Adds a checkpoint with parameters by chance to a run folder."""
    params = random_params(config, seed)
    metrics = None if loss is None else {"loss": loss}
    with open_checkpoints(config, RunFolder(folder), read_only=False) as checkpoints:
        checkpoints.save(step, {"params": params, "ema": params}, dataclasses.asdict(LoopState(data="")), metrics)


def write_random_run(path: Path) -> Path:
    """Writes a run of two checkpoints, the older one the better."""
    config = run_config()
    path.mkdir()
    write_config_file(path / "config.json", config)
    save_tokenizer(config.data.tokenizer.train(LINES, 23), path)  # type: ignore[union-attr]
    save(path, config, 3, seed=1, loss=2.5)
    save(path, config, 6, seed=5, loss=3.5)
    return path


DECODER = ModelConfig(
    vocab_size=263, d_model=6, num_heads=2, d_ff=5, num_encoder_layers=0, num_decoder_layers=1,
    positions=Learned(max_positions=40, stddev=1.0),
)  # fmt: skip


def write_random_decoder(path: Path, model: ModelConfig = DECODER) -> Path:
    """Writes a run that continues prompts and has a chat template, with random parameters."""
    config = Config(
        model=model,
        objective=CausalLM(),
        data=DataConfig(tokenizer=Bytes(), max_target_length=40),
        decode=DecodeConfig(max_new_tokens=12, finish_at_limit=True),
    )
    generator = np.random.default_rng(4)
    params = jax.tree.map(lambda x: np.float32(generator.normal(size=x.shape)), abstract_saved_params(config))
    tokenizer = Bytes().train([], 260)
    write_run(RunFolder(path), config, 0, params, "drawn by a test", tokenizers=Tokenizers(tokenizer, tokenizer))
    (path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}A")
    return path
