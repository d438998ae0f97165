"""Folders that Hugging Face's library made, and tiny models of its families."""

import json
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import unflatten_dict
from safetensors.numpy import load_file, save_file

from flaxformer_lite.config import Config
from flaxformer_lite.core.model import DotProduct, LayerNorm, Learned, RMSNorm, Rotary
from flaxformer_lite.core.model.config import POST_NORM, LanguageModelHead, ModelConfig
from flaxformer_lite.core.reading.heads import Pooler, SentenceEmbedding
from flaxformer_lite.files.data import DataConfig
from flaxformer_lite.interop.hf.folder import WEIGHTS
from flaxformer_lite.interop.hf.import_folder import Imported, read_folder
from flaxformer_lite.interop.name_map import our_shapes
from tests.support.paths import FIXTURES

DATA = FIXTURES / "hf"


@cache
def imported(label: str) -> Imported:
    return read_folder(DATA / label)


@cache
def fixture(label: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns the arrays of io.npz, and their description."""
    with np.load(DATA / label / "io.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file.files if name != "meta"}, json.loads(str(file["meta"]))


def refused(label: str) -> bool:
    """Whether the fixture has an option that ordinary checkpoints do not have, and importing it is an error that names it."""
    try:
        imported(label)
    except ValueError as error:
        complaint = error
    else:
        return False
    assert fixture(label)[1]["exotic"], complaint
    option = str(complaint).partition("config.json: ")[2].partition(" is ")[0].partition(".")[0]
    assert option in json.loads((DATA / label / "config.json").read_text()), complaint
    return True


DECODER: dict[str, Any] = {
    "vocab_size": 37,
    "d_model": 12,
    "num_heads": 3,
    "d_ff": 23,
    "num_encoder_layers": 0,
    "num_decoder_layers": 2,
    "scale_embeddings": False,
}


def config_of(model: ModelConfig) -> Config:
    """A config of a run with this model that has no data."""
    return Config(model=model, data=DataConfig(tokenizer=None, max_source_length=8, max_target_length=8))


def random_params(model: ModelConfig) -> Any:
    generator = np.random.default_rng(0)
    flat = {path: generator.standard_normal(shape).astype(np.float32) for path, shape in our_shapes(model).items()}
    return unflatten_dict(flat, sep="/")


ENCODER: dict[str, Any] = {
    "vocab_size": 37,
    "d_model": 12,
    "num_heads": 3,
    "d_ff": 23,
    "num_encoder_layers": 2,
    "num_decoder_layers": 0,
    "positions": Learned(max_positions=19),
    "activation": "gelu",
    "norm": LayerNorm(epsilon=1e-12),
    "residual": POST_NORM,
    "embedding_norm": True,
    "scale_embeddings": False,
}
HEAD = LanguageModelHead(bias=True, transform="gelu")
TRAINED_HERE: dict[str, ModelConfig] = {
    "bert": ModelConfig(**ENCODER, num_token_types=2, head=HEAD, pooler=Pooler(num_classes=2)),
    "bert classes": ModelConfig(**ENCODER, num_token_types=2, head=None, pooler=Pooler(num_classes=3)),
    "bert sentences": ModelConfig(**ENCODER, num_token_types=1, head=None, sentence_embedding=SentenceEmbedding()),
    "distilbert": ModelConfig(**ENCODER, head=HEAD),
    "gpt2": ModelConfig(**DECODER, positions=Learned(max_positions=19), activation="gelu_tanh"),
    "llama": ModelConfig(
        **DECODER,
        positions=Rotary(),
        norm=RMSNorm(),
        activation="swiglu",
        attention=DotProduct(bias=False, d_key=4, num_kv_heads=1),
        feed_forward_bias=False,
        share_target_output=False,
    ),
}


def copied(label: str, folder: Path) -> Path:
    """A fixture's folder that may be changed."""
    return Path(shutil.copytree(DATA / label, folder / "model"))


def with_options(folder: Path, **options: Any) -> Path:
    """The folder with options added to its config.json."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | options))
    return folder


def with_tensors(folder: Path, changes: Mapping[str, np.ndarray | None], file: str = WEIGHTS) -> Path:
    """The folder with some tensors replaced, added or (None) removed."""
    tensors = {name: x for name, x in (load_file(folder / file) | {**changes}).items() if x is not None}
    save_file(tensors, folder / file, {"format": "pt"})
    return folder
