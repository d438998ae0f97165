"""Gemma, Gemma 2 and the text models of Gemma 3: Llama with norms around 1, scaled embeddings, and more from one to the next.

References: Gemma Team 2024, arXiv:2403.08295; 2024, arXiv:2408.00118; 2025, arXiv:2503.19786.
"""

import dataclasses
import functools
from typing import Any

from flaxformer_lite.interop.hf import llama
from flaxformer_lite.interop.hf.decoder_only import (
    FULL,
    LOCAL,
    Classes,
    Windows,
    gated_activation,
    layer_types,
    rope_parameters,
    scheme,
    windows,
)
from flaxformer_lite.interop.hf.llama import LlamaVariant, classes
from flaxformer_lite.interop.hf.settings import GATED, Settings, SpecialIds
from flaxformer_lite.interop.name_map import Arrays
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.feed_forward import Activation
from flaxformer_lite.model.norms import RMSNorm
from flaxformer_lite.model.positions import Rotary
from flaxformer_lite.model.residual import Residual

NORMS_AROUND = Residual(pre="n", post="nda", final="n")
"""A norm before every sublayer and one after it, before the residual joins."""

TANH = "gelu_pytorch_tanh"


def gemma(row: LlamaVariant, settings: Settings, tensors: Arrays) -> ModelConfig:
    """Gemma in our terms."""
    model = llama.model_config(row, settings, tensors)
    settings.only("use_bidirectional_attention", False)
    return dataclasses.replace(
        model,
        activation=activation(settings, row.activation[0]),
        norm=RMSNorm(epsilon=model.norm.epsilon, offset=1.0),
        scale_embeddings=True,
    )


def activation(settings: Settings, read: str) -> Activation:
    """Of two options the one that the library reads in this family; the other may not say something else.

    The first files have `hidden_act` "gelu" and mean the tanh form.
    """

    def meant(name: str, default: str) -> Activation:
        old = name == "hidden_act" and settings.values.get(name) == "gelu"
        return GATED["gelu_tanh"] if old else gated_activation(settings, name, default)

    found = meant(read, TANH)
    for name in ("hidden_act", "hidden_activation"):
        settings.ignore(name)
        if settings.has(name) and meant(name, TANH) != found:
            raise settings.wrong(name, "hidden_act and hidden_activation say different things, change one")
    return found


def gemma2(row: LlamaVariant, settings: Settings, tensors: Arrays) -> ModelConfig:
    """Gemma 2: norms after sublayers too, windows, a scale of the scores and caps on them."""
    model = gemma(row, settings, tensors)
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    attention_cap, final_cap = (settings.optional_number(name, usual) for name, usual in caps.items())
    return dataclasses.replace(
        model,
        attention=dataclasses.replace(model.attention, scale=scale(settings), soft_cap=attention_cap),
        residual=NORMS_AROUND,
        head=None if model.head is None else dataclasses.replace(model.head, soft_cap=final_cap),
    )


def gemma3(row: LlamaVariant, settings: Settings, tensors: Arrays) -> ModelConfig:
    """Gemma 3: head norms, no cap on attention, and other rotary positions in the layers with a window."""
    model = gemma(row, settings, tensors)
    settings.ignore("attn_logit_softcapping")  # the library has no such cap here, whatever the option says
    cap = settings.optional_number("final_logit_softcapping")
    local = local_rotary(settings)
    everywhere = model.attention_window is not None and model.window_layers is None
    return dataclasses.replace(
        model,
        attention=dataclasses.replace(model.attention, scale=scale(settings), qk_norm=model.norm),
        positions=local if everywhere else model.positions,
        window_positions=None if model.window_layers is None or local == model.positions else local,
        residual=NORMS_AROUND,
        head=None if model.head is None else dataclasses.replace(model.head, soft_cap=cap),
    )


def scale(settings: Settings) -> float:
    return settings.number("query_pre_attn_scalar", 256.0) ** -0.5


# Positions and windows ------------------------------------------------------------------------------------------------


def full_rotary(settings: Settings) -> Rotary:
    """Gemma 3, layers without a window: an entry of `rope_parameters`, or `rope_theta` beside `rope_scaling`."""
    settings.only("partial_rotary_factor", 1.0)
    older = settings.has("rope_scaling")
    group = settings.group("rope_scaling") if older else settings.group("rope_parameters").group(FULL)
    return scheme(settings, group, settings.number("rope_theta", 1_000_000.0))


def local_rotary(settings: Settings) -> Rotary:
    """Gemma 3, layers with a window: another entry of `rope_parameters`, or `rope_local_base_freq`."""
    group = settings.group("rope_parameters").group(LOCAL)
    return scheme(settings, group, settings.number("rope_local_base_freq", 10_000.0))


def window_of_some(settings: Settings, num_layers: int, every: int) -> Windows:
    """Where `layer_types` says nothing, all layers have a window but the last of `every` so many."""
    usual = [LOCAL if (i + 1) % every else FULL for i in range(num_layers)]
    width = settings.optional_integer("sliding_window", 4096)
    settings.only("sliding_window_size", width)  # Gemma 2's first files say it twice
    return windows(settings, width, usual)


def window_of_pattern(settings: Settings, num_layers: int) -> Windows:
    """Gemma 3: the number is an option of older files. Newer ones repeat it with an underscore, and do not read it."""
    settings.ignore("_sliding_window_pattern")
    every = settings.integer("sliding_window_pattern", 6)
    if every < 1:
        raise settings.wrong("sliding_window_pattern", "it should be at least 1")
    return window_of_some(settings, num_layers, every)


# Backwards ------------------------------------------------------------------------------------------------------------


def window_settings(model: ModelConfig) -> dict[str, Any]:
    """The window, which the library wants to be a number in any case, and whose it is."""
    width = {} if model.attention_window is None else {"sliding_window": model.attention_window}
    return width | {"layer_types": layer_types(model)}


def position_settings(model: ModelConfig) -> dict[str, Any]:
    """Gemma 3: the positions of both types of layers."""
    local = model.positions if model.window_positions is None else model.window_positions
    return {"rope_parameters": {FULL: rope_parameters(model.positions), LOCAL: rope_parameters(local)}}


def settings_of(row: LlamaVariant, model: ModelConfig) -> dict[str, Any]:
    """`config.json` of Gemma 2 or 3 for a model like that."""
    attention = model.attention
    heads = attention.heads(model.d_model, model.num_heads)
    factor = heads.d_key**-0.5 if attention.scale is None else attention.scale
    return llama.settings_of(row, model) | {
        "query_pre_attn_scalar": max(round(factor**-2), 1),
        "attn_logit_softcapping": attention.soft_cap,
        "final_logit_softcapping": None if model.head is None else model.head.soft_cap,
    }


# The families ---------------------------------------------------------------------------------------------------------

SPECIAL = SpecialIds(pad=0, bos=2, eos=1)

GEMMA = LlamaVariant(
    model_type="gemma",
    classes=classes("Gemma"),
    special=SPECIAL,
    tied=True,
    num_kv_heads=16,
    d_key=256,
    bias="option",
    activation=("hidden_act", TANH),
)

GEMMA2 = LlamaVariant(
    model_type="gemma2",
    classes=classes("Gemma2"),
    special=SPECIAL,
    tied=True,
    num_kv_heads=4,
    d_key=256,
    heads_divide=True,
    bias="option",
    activation=("hidden_activation", TANH),
    windows=functools.partial(window_of_some, every=2),
    window_settings=window_settings,
)

GEMMA3 = dataclasses.replace(
    GEMMA2,
    model_type="gemma3_text",
    classes=Classes("Gemma3TextModel", "Gemma3ForCausalLM", "Gemma3TextForSequenceClassification"),
    positions=full_rotary,
    position_settings=position_settings,
    windows=window_of_pattern,
)

FAMILIES = (
    llama.family(GEMMA, gemma, llama.settings_of),
    llama.family(GEMMA2, gemma2, settings_of),
    llama.family(GEMMA3, gemma3, settings_of),
)
