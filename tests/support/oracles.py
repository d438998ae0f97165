"""Files with whole models of the four seed systems."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.paths import FIXTURES

ORACLES = FIXTURES / "oracles"
WHOLE = {
    "paddle": "000_encoder_n_da_gelu",
    "nlp-in-action": "001_forward_postnorm_bias",
    "bert-tf": "002_bert_gelu",
    "matrix-view": "003_forward_padded",
}
"""One file with a whole model for each system."""


def load_case(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the config and the weights of a file."""
    with np.load(ORACLES / f"{name}.npz") as archive:
        arrays = dict(archive)
    config = json.loads(str(arrays["config"]))
    return config, {key.removeprefix("param/"): x for key, x in arrays.items() if key.startswith("param/")}


def whole_models() -> list[str]:
    kinds = ("EncoderLayer", "TranslationHead.forward", "BertModel and pretraining heads", "Transformer.forward")

    def kind(file: Path) -> str:
        with np.load(file) as archive:  # reads one entry: the weights of all files would take seconds of every test run
            return json.loads(str(archive["config"]))["kind"]

    return [file.stem for file in sorted(ORACLES.glob("*.npz")) if kind(file) in kinds]
