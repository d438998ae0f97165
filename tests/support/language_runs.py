"""Runs of several languages: one that is trained, and folders of a Hugging Face model with a tokenizer of languages."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.core.text import Languages
from flaxformer_lite.files.data import TSV, Mixture
from flaxformer_lite.files.tokenizers import SentencePiece
from tests.support.experiments import tiniest_config
from tests.support.hf_folders import DATA
from tests.support.paths import FIXTURES

LANGUAGE_FILES = FIXTURES / "tokenizers_languages"
NUMBERS = {"en": ["one", "two", "six"], "de": ["eins", "zwei", "sechs"], "fr": ["un", "deux", "six"]}


def language_config(folder: Path, **languages: Any) -> Config:
    """Numbers in words, from two languages into two."""
    sources, generator = [], np.random.default_rng(0)
    for source, target in (("de", "en"), ("fr", "de")):
        path = folder / f"{source}-{target}.tsv"
        words = generator.integers(0, 3, (60, 4))
        lines = [" ".join(NUMBERS[a][i] for i in row) for row in words for a in (source, target)]
        path.write_text("".join(f"{a}\t{b}\n" for a, b in zip(lines[::2], lines[1::2], strict=True)))
        sources.append(TSV(path=str(path), languages=(source, target)))
    data = Mixture(sources=tuple(sources), names=("de-en", "fr-de"), temperature=2.0)
    tiny = tiniest_config()
    return dataclasses.replace(
        tiny,
        model=dataclasses.replace(tiny.model, vocab_size=48),
        data=dataclasses.replace(
            tiny.data,
            train=data,
            eval=data,
            tokenizer=SentencePiece(),
            languages=Languages(codes=("de", "en", "fr"), token="<{}>", **languages),
            max_target_length=40,
        ),
        train=dataclasses.replace(tiny.train, steps=2, eval_every=2, checkpoint_every=2),
    )


def folder_with(label: str, name: str, output: Path) -> Path:
    """A tiny model's folder with the files of a tokenizer, its table as large as those need."""
    shutil.copytree(DATA / label, output)
    for file in (LANGUAGE_FILES / name).iterdir():
        shutil.copyfile(file, output / file.name)
    tensors, config = load_file(output / "model.safetensors"), json.loads((output / "config.json").read_text())
    size, more = 150, np.random.default_rng(0).standard_normal((150, config["d_model"])).astype(np.float32)
    tensors["model.shared.weight"] = np.concatenate([tensors["model.shared.weight"], more])[:size]
    if "final_logits_bias" in tensors:
        tensors["final_logits_bias"] = np.zeros((1, size), np.float32)
    save_file(tensors, output / "model.safetensors", {"format": "pt"})
    (output / "config.json").write_text(json.dumps(config | {"vocab_size": size}))
    return output
