"""The systems that a model can be exported to."""

import contextlib

import jax
import numpy as np

from flaxformer_lite.inference.config import PromptAttention
from flaxformer_lite.interop.ctranslate2.export import unsupported_settings
from flaxformer_lite.interop.hf.export import first_fitting
from flaxformer_lite.interop.name_map import from_params
from flaxformer_lite.interop.systems import SYSTEMS
from flaxformer_lite.model import ModelConfig
from flaxformer_lite.model.transformer import parameter_shapes


def fitting_systems(model: ModelConfig, prompt_attention: PromptAttention) -> list[str]:
    """Returns the systems that a model can be exported to, as `export` calls them; for hf with the family.

    `prompt_attention` is the objective's.
    """
    found = []
    # Only shapes matter: one byte a number, for models of a billion of them.
    zeros = jax.tree.map(lambda x: np.broadcast_to(np.int8(0), x.shape), parameter_shapes(model))
    if prompt_attention == "causal":
        with contextlib.suppress(ValueError):
            found.append(f"hf ({first_fitting(model, zeros).config['model_type']})")
        if not unsupported_settings(model):
            found.append("ctranslate2")
    for name, system in SYSTEMS.items():
        with contextlib.suppress(ValueError):
            from_params(zeros, system.name_map(system.config_for(model)))
            found.append(name)
    return found
