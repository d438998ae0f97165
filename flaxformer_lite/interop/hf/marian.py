"""Marian: translation models with the layers of BART, sinusoidal positions, no norm on the embeddings, one or two vocabularies.

Reference: Junczys-Dowmunt et al. 2018, arXiv:1804.00344.
"""

import functools

import numpy as np

from flaxformer_lite.interop.hf.bart import HEAD_BIAS, STACK_NAMES, STACKS, STACKS_TEMPLATE, TIED, read_tables
from flaxformer_lite.interop.hf.family import Family, IgnorableTensor
from flaxformer_lite.interop.hf.options import SpecialIds
from flaxformer_lite.interop.name_map import Arrays
from flaxformer_lite.interop.options import Draft, Entry, Options, ignored, only, option, replaced
from flaxformer_lite.model import ModelConfig
from flaxformer_lite.model.positions import Sinusoidal


def read_target_size(options: Options, draft: Draft) -> None:
    """Reads the target's vocabulary size, which is another only where the tables are separate."""
    if options.flag("share_encoder_decoder_embeddings", True):
        options.only("decoder_vocab_size", draft["vocab_size"])
    else:
        draft["target_vocab_size"] = options.integer("decoder_vocab_size", draft["vocab_size"])


TABLE = (
    option("vocab_size", "vocab_size"),
    Entry(read_target_size, lambda model: {"decoder_vocab_size": model.output_size}),
    *STACKS,
    option("init_std", "initializer.stddev"),
    Entry(write=lambda model: {"share_encoder_decoder_embeddings": model.share_source_target}),
    Entry(write=lambda model: {"tie_word_embeddings": model.share_source_target or model.share_target_output}),
    ignored("max_position_embeddings"),  # any length is allowed: positions are computed
    only("normalize_embedding", False),
    only("static_position_embeddings", True),
)


def is_sinusoidal(x: np.ndarray, weights: Arrays, model: ModelConfig) -> bool:
    """Returns whether a table of positions equals the sinusoids that are computed here."""
    if x.ndim != 2 or x.shape[1] != model.d_model:
        return False
    rates = 10_000.0 ** (-np.arange(0, model.d_model, 2) / model.d_model)
    angles = np.arange(len(x))[:, None] * rates
    expected = np.concatenate([np.sin(angles), np.cos(angles)], 1)[:, : model.d_model]
    return bool(np.abs(x - expected).max() < 1e-4)


FAMILIES = (
    Family(
        model_type="marian",
        prefix="model.",
        base="MarianModel",
        special=SpecialIds(pad=58100, eos=0, start=58100),
        head_prefixes=(HEAD_BIAS, "lm_head."),
        template=replaced(STACKS_TEMPLATE, {"vocab_size": 58101, "positions": Sinusoidal(layout="half_split")}),
        table=TABLE,
        read_heads=functools.partial(read_tables, "MarianModel"),
        architecture=lambda model, names: "MarianModel" if model.head is None else "MarianMTModel",
        names=lambda model, architecture: STACK_NAMES,
        ignorable=(
            *TIED,
            IgnorableTensor(
                r"model\.(encoder|decoder)\.embed_positions\.weight",
                "the sines, then the cosines, of each position",
                is_sinusoidal,
            ),
        ),
    ),
)
