"""Compares a written folder with the model, where the transformers library and PyTorch are installed."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, PyTree

from flaxformer_lite.inference import DecodeConfig
from flaxformer_lite.inference.forward import arguments, forward
from flaxformer_lite.interop.ctranslate2.check import texts
from flaxformer_lite.model import ModelConfig, Transformer

TOLERANCE = 0.01
"""Largest difference of two outputs, as a part of the largest one: far above rounding, far below what a lost parameter changes."""
OUTPUTS = ("logits", "prediction_logits", "last_hidden_state")
"""Their names of what is compared, the first that a class has."""


def check_folder(folder: Path, model: ModelConfig, decode: DecodeConfig, params: PyTree) -> bool:
    """Compares the outputs for a few random texts; returns False if the libraries are not installed, the installed release does
    not know the architecture, or the model reads no tokens.

    Raises: ValueError if they differ, or the library cannot read the folder.
    """
    if not model.vocab_size:
        return False
    try:
        import torch
        import transformers
    except ImportError:
        return False
    architecture = json.loads((folder / "config.json").read_bytes())["architectures"][0]
    if not hasattr(transformers, architecture):
        return False
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    inputs = inputs_of(model, decode)
    try:
        reader = getattr(transformers, architecture).from_pretrained(str(folder)).float().eval()
        with torch.no_grad():
            found = reader(**{name: torch.tensor(rows) for name, rows in inputs.items()})
    except Exception as error:
        raise ValueError(
            f"transformers {transformers.__version__} cannot use this folder ({str(error).partition(chr(10))[0]}). Nothing was "
            "written; please report the model's settings"
        ) from None
    name = next(name for name in OUTPUTS if getattr(found, name, None) is not None)
    theirs, ours = getattr(found, name).numpy(), outputs_of(model, decode, params, inputs, name)
    if theirs.shape != ours.shape or not np.abs(theirs - ours).max() <= TOLERANCE * np.abs(ours).max():
        raise ValueError(
            f"transformers {transformers.__version__} answers otherwise with this model, by its {name}. Nothing was written; "
            "please report the model's settings"
        )
    return True


def inputs_of(model: ModelConfig, decode: DecodeConfig) -> dict[str, list[list[int]]]:
    """Returns random token ids for each side of the model; sources end with EOS, where some classifiers read."""
    source, target = model.vocab_sizes
    ends = list(decode.eos_ids[:1])
    rows = {"input_ids": [[*row, *ends] for row in texts(model, decode, source or target)]}
    if arguments(model).get("decoder_input_ids"):
        rows["decoder_input_ids"] = [[decode.start_id, *row] for row in texts(model, decode, target)]
    return rows


def outputs_of(
    model: ModelConfig, decode: DecodeConfig, params: PyTree, inputs: dict[str, Any], name: str
) -> Float[np.ndarray, "..."]:
    """Returns the model's outputs of that name, computed in float32."""
    reader = Transformer(dataclasses.replace(model.for_use, dtype="float32"))
    found = forward(reader, {"params": params}, decode, **inputs)
    ours = found.last_hidden_state if name == "last_hidden_state" else found.logits
    assert ours is not None
    return ours
