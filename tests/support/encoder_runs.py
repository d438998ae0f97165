"""Run folders of encoders alone, with random parameters."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.model.config import PRE_NORM, Residual
from flaxformer_lite.core.model.norms import RMSNorm
from flaxformer_lite.core.model.positions import Learned, NoPositions, RelativeBias, Rotary, Sinusoidal
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.engine import exports
from flaxformer_lite.engine.exports import RunWeights
from flaxformer_lite.files.data import DataSource
from flaxformer_lite.files.tokenizers.kinds import save_tokenizer
from flaxformer_lite.interop import engine_export
from tests.support.engine_runs import save
from tests.support.experiments import write_config_file
from tests.support.text_runs import LETTERS, MODEL, text_run

BERT = dataclasses.replace(
    MODEL,
    residual=Residual(pre="", post="dan", final=""),
    activation="gelu",
    embedding_norm=True,
    scale_embeddings=False,
    num_encoder_layers=2,
)
ENCODERS: dict[str, ModelConfig] = {
    "BERT": BERT,
    "RoBERTa": dataclasses.replace(
        BERT, positions=Learned(max_positions=23, offset=2), position_padding_id=1, num_token_types=1
    ),
    "pre-norm": dataclasses.replace(
        BERT, residual=PRE_NORM, num_token_types=0, positions=Sinusoidal(), activation="relu"
    ),
    "T5": dataclasses.replace(
        BERT,
        residual=PRE_NORM,
        positions=RelativeBias(),
        norm=RMSNorm(),
        num_token_types=0,
        embedding_norm=False,
        activation="geglu_tanh",
        feed_forward_bias=False,
    ),
    "rotary": dataclasses.replace(
        BERT, positions=Rotary(), activation="swiglu", num_token_types=0, scale_embeddings=True
    ),
    "no positions": dataclasses.replace(BERT, positions=NoPositions(), activation="silu"),
}
"""The kinds of encoders that CTranslate2 computes, one of each part."""


def write_encoder(
    path: Path, model: ModelConfig = BERT, letters: str = LETTERS, train: DataSource | None = None, **parts: Any
) -> Path:
    """Writes a run of an encoder, as if it had been trained on a source."""
    tokenizer = CharacterTokenizer(letters)
    run = text_run(model, tokenizer, **parts)
    data = dataclasses.replace(run.config.data, train=train)
    config: Config = dataclasses.replace(run.config, data=data)
    path.mkdir()
    write_config_file(path / "config.json", config)
    save_tokenizer(tokenizer, path)
    save(path, config, 3, seed=1)
    return path


@pytest.fixture
def exports_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports are made in this process."""

    def export(wanted: RunWeights, state: str, output: Path, lock: int | None) -> tuple[int, str]:
        import json

        told: list[str] = []
        monkeypatch.setattr(engine_export, "write_line", told.append)
        status = engine_export.main([json.dumps([wanted, state, str(output)])])
        return status, told[-1].removeprefix("error: ") if told else ""

    monkeypatch.setattr(exports, "run_exporter", export)
