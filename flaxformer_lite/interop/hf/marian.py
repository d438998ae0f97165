"""Marian: translation models with the layers of BART, sinusoidal positions, no norm on the embeddings, perhaps a vocabulary a side.

Reference: Junczys-Dowmunt et al. 2018, arXiv:1804.00344.
"""

from collections.abc import Collection
from typing import Any

import numpy as np

from flaxformer_lite.interop.hf.bart import HEAD_BIAS, TIED, stack_names, stack_settings, stacks, tables
from flaxformer_lite.interop.hf.family import Family, IgnorableTensor
from flaxformer_lite.interop.hf.settings import Settings, SpecialIds
from flaxformer_lite.interop.name_map import Arrays, WeightName
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.initializers import Normal
from flaxformer_lite.model.positions import Sinusoidal


def model_config(settings: Settings, weights: Arrays) -> ModelConfig:
    """The model in our terms. The tensors say which heads there are, and which tables are shared."""
    settings.only("normalize_before", False)
    settings.only("normalize_embedding", False)
    settings.only("static_position_embeddings", True)
    settings.integer("max_position_embeddings", 1024)  # any length is one: positions are computed
    separate = not settings.flag("share_encoder_decoder_embeddings", True)
    vocab_size = settings.integer("vocab_size", 58101)
    target_vocab_size = settings.integer("decoder_vocab_size", vocab_size)
    if not separate:
        settings.only("decoder_vocab_size", vocab_size)
    return ModelConfig(
        vocab_size=vocab_size,
        target_vocab_size=target_vocab_size if separate else None,
        **stacks(settings),
        **tables(settings, weights, "MarianModel"),
        positions=Sinusoidal(layout="half_split"),
        initializer=Normal(stddev=settings.number("init_std", 0.02)),
    )


def settings_of(model: ModelConfig) -> dict[str, Any]:
    """`config.json` for a model like that."""
    if not isinstance(model.positions, Sinusoidal):
        raise ValueError(f"model.positions is {type(model.positions).__name__} (there: Sinusoidal)")
    return stack_settings(model) | {
        "decoder_vocab_size": model.output_size,
        "max_position_embeddings": 1024,
        "share_encoder_decoder_embeddings": model.share_source_target,
        "tie_word_embeddings": model.share_source_target or model.share_target_output,
    }


def architecture(model: ModelConfig, names: Collection[str]) -> str:
    """The class with these heads."""
    return "MarianModel" if model.head is None else "MarianMTModel"


def name_map(model: ModelConfig, architecture: str) -> list[WeightName]:
    """Every parameter under the library's names."""
    return stack_names(model)


def is_sinusoidal(x: np.ndarray, weights: Arrays, model: ModelConfig) -> bool:
    """Whether a table of positions is the one that is computed here."""
    if x.ndim != 2 or x.shape[1] != model.d_model:
        return False
    rates = 10_000.0 ** (-np.arange(0, model.d_model, 2) / model.d_model)
    angles = np.arange(len(x))[:, None] * rates
    expected = np.concatenate([np.sin(angles), np.cos(angles)], 1)[:, : model.d_model]
    return bool(np.abs(x - expected).max() < 1e-4)


POSITIONS = IgnorableTensor(
    r"model\.(encoder|decoder)\.embed_positions\.weight", "the sines, then the cosines, of each position", is_sinusoidal
)

FAMILIES = (
    Family(
        model_type="marian",
        prefix="model.",
        base="MarianModel",
        special=SpecialIds(pad=58100, eos=0, start=58100),
        heads=(HEAD_BIAS, "lm_head."),
        model_config=model_config,
        architecture=architecture,
        name_map=name_map,
        needless=(*TIED, POSITIONS),
        settings_of=settings_of,
    ),
)
