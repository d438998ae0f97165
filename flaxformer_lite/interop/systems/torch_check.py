"""Compares weights with `torch.nn.Transformer` itself, where PyTorch is installed."""

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import PyTree

from flaxformer_lite.inference import DecodeConfig
from flaxformer_lite.inference.forward import forward
from flaxformer_lite.model import ModelConfig, Transformer

TOLERANCE = 0.01
"""Largest difference of two outputs, as a part of the largest one: far above rounding, far below what a lost parameter changes."""


def check_weights(
    config: Mapping[str, Any], arrays: Mapping[str, np.ndarray], model: ModelConfig, params: PyTree
) -> bool:
    """Compares the outputs for a few random vectors; returns False if PyTorch is not installed.

    Raises: ValueError if they differ, or PyTorch cannot read the weights.
    """
    try:
        import torch
    except ImportError:
        return False
    generator = np.random.default_rng(0)
    source, target = (generator.normal(size=(2, length, model.d_model)).astype(np.float32) for length in (5, 4))
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad():  # of a faster path that some options have not
            reader = torch.nn.Transformer(**{**config, "batch_first": True}).eval()
            reader.load_state_dict({name: torch.tensor(x) for name, x in arrays.items()})
            causal = reader.generate_square_subsequent_mask(target.shape[1])
            theirs = reader(torch.tensor(source), torch.tensor(target), tgt_mask=causal).numpy()
    except Exception as error:
        raise ValueError(
            f"PyTorch {torch.__version__} cannot use these weights ({str(error).partition(chr(10))[0]}). Nothing was written; "
            "please report the model's settings"
        ) from None
    reading = Transformer(dataclasses.replace(model.for_use, dtype="float32"))
    inputs: dict[str, Any] = {"inputs_embeds": source, "decoder_inputs_embeds": target}
    ours = forward(reading, {"params": params}, DecodeConfig(), **inputs).last_hidden_state
    if not np.abs(theirs - ours).max() <= TOLERANCE * np.abs(ours).max():
        raise ValueError(
            f"PyTorch {torch.__version__} answers otherwise with these weights. Nothing was written; please report the model's "
            "settings"
        )
    return True
