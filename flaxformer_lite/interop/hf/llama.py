"""Llama, and the families that differ from it in a detail: Mistral, Qwen2, Qwen3.

RMSNorm before each sublayer, rotary positions that pair the halves of a head, gated feed-forward layers, shared key heads.

Reference: Touvron et al. 2023, arXiv:2302.13971.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from flaxformer_lite.interop.hf.decoder_only import (
    FULL,
    HEADS,
    LOCAL,
    Classes,
    Windows,
    gated_activation,
    head_weights,
    layer_types,
    rope_parameters,
    rotary,
    their_gated_activation,
    windows,
)
from flaxformer_lite.interop.hf.family import Family, IgnorableTensor, copies, linear, norm, stacked, table, unused
from flaxformer_lite.interop.hf.settings import Settings, SpecialIds
from flaxformer_lite.interop.name_map import Arrays, WeightName
from flaxformer_lite.model.attention import DotProduct
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.dropout import DropoutRates
from flaxformer_lite.model.initializers import Normal
from flaxformer_lite.model.norms import RMSNorm
from flaxformer_lite.model.positions import Rotary
from flaxformer_lite.model.residual import PRE_NORM


@dataclass(frozen=True, kw_only=True)
class LlamaVariant:
    """What tells a family of this shape from the others. Where `config.json` is silent, the library's own defaults hold."""

    model_type: str
    classes: Classes
    special: SpecialIds = SpecialIds()
    tied: bool = False
    """Whether the embedding table usually is the output matrix."""
    num_kv_heads: int | None = None
    """Key heads where nothing is said; None: as many as heads."""
    d_key: int | None = None
    """Width of a head where nothing is said; None: d_model / num_heads."""
    heads_divide: bool = False
    """Whether the library wants d_model to be a multiple of num_heads, also where heads have another width."""
    bias: Literal["option", "query_key_value", "none"] = "none"
    """Biases in attention: as `attention_bias` says, or on query, key and value, or none."""
    feed_forward_bias: bool = False
    """Whether there is an option for biases in the feed-forward layers."""
    qk_norm: bool = False
    """Whether queries and keys are normalised head by head."""
    activation: tuple[str, str] = ("hidden_act", "silu")
    """The option for the activation, and its default."""
    positions: Callable[[Settings], Rotary] = rotary
    """How positions are read."""
    position_settings: Callable[[ModelConfig], dict[str, Any]] = lambda model: {
        "rope_parameters": rope_parameters(model.positions)
    }
    """The same backwards."""
    windows: Callable[[Settings, int], Windows] = lambda settings, num_layers: Windows()
    """Which of that many layers have a window, and how wide it is."""
    window_settings: Callable[[ModelConfig], dict[str, Any]] = lambda model: {}
    """The same backwards."""


def model_config(row: LlamaVariant, settings: Settings, tensors: Arrays) -> ModelConfig:
    """The model in our terms; the tensors tell which head there is."""
    num_layers = settings.integer("num_hidden_layers")
    norm = RMSNorm(epsilon=settings.number("rms_norm_eps", 1e-6))
    bias = settings.flag("attention_bias", False) if row.bias == "option" else row.bias == "query_key_value"
    return ModelConfig(
        vocab_size=settings.integer("vocab_size"),
        d_model=settings.integer("hidden_size"),
        num_heads=settings.integer("num_attention_heads"),
        d_ff=settings.integer("intermediate_size"),
        num_encoder_layers=0,
        num_decoder_layers=num_layers,
        attention=DotProduct(
            d_key=settings.optional_integer("head_dim", row.d_key),
            num_kv_heads=settings.optional_integer("num_key_value_heads", row.num_kv_heads),
            bias=bias,
            out_bias=bias and row.bias == "option",
            qk_norm=norm if row.qk_norm else None,
        ),
        positions=row.positions(settings),
        **row.windows(settings, num_layers)._asdict(),
        feed_forward_bias=row.feed_forward_bias and settings.flag("mlp_bias", False),
        activation=gated_activation(settings, *row.activation),
        norm=norm,
        residual=PRE_NORM,
        dropout=DropoutRates(
            embedding_rate=0.0,
            attention_rate=settings.number("attention_dropout", 0.0),
            feed_forward_rate=0.0,
            residual_rate=0.0,
        ),
        scale_embeddings=False,
        **row.classes.heads(settings, tensors, "model.embed_tokens.weight", row.tied),
        initializer=Normal(stddev=settings.number("initializer_range", 0.02)),
    )


def settings_of(row: LlamaVariant, model: ModelConfig) -> dict[str, Any]:
    """`config.json` for a model like that."""
    if row.heads_divide and model.d_model % model.num_heads:
        raise ValueError(f"model.d_model {model.d_model} is not divisible by model.num_heads {model.num_heads}")
    heads = model.attention.heads(model.d_model, model.num_heads)
    return {
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": heads.num_kv_heads,
        "head_dim": heads.d_key,
        "intermediate_size": model.d_ff,
        "num_hidden_layers": model.num_decoder_layers,
        "rms_norm_eps": model.norm.epsilon,
        row.activation[0]: their_gated_activation(model.activation),
        "attention_dropout": model.dropout.attention_rate,
        "tie_word_embeddings": model.share_target_output,
        **({"attention_bias": model.attention.bias} if row.bias == "option" else {}),
        **({"mlp_bias": model.feed_forward_bias} if row.feed_forward_bias else {}),
        **row.position_settings(model),
        **row.window_settings(model),
    }


def name_map(model: ModelConfig, architecture: str) -> list[WeightName]:
    """Every parameter under the library's names."""
    return [
        *table("embedding", "model.embed_tokens"),
        *stacked(layer(model), model.num_decoder_layers),
        *norm("decoder/final_norm", "model.norm", bias=False),
        *head_weights(model),
    ]


def layer(model: ModelConfig) -> list[WeightName]:
    """One layer, with as many norms as the model has."""
    here, there = "decoder/layers", "model.layers.{i}"
    attention = model.attention
    biases = dict.fromkeys(("query", "key", "value"), attention.bias)
    biases["out"] = attention.bias if attention.out_bias is None else attention.out_bias
    norms = {"attention_pre_norm": "input_layernorm", "feed_forward_pre_norm": "post_attention_layernorm"}
    if "n" in model.residual.post:
        norms |= {"attention_post_norm": "post_attention_layernorm"}
        norms |= {f"feed_forward_{place}_norm": f"{place}_feedforward_layernorm" for place in ("pre", "post")}
    if attention.qk_norm is not None:
        norms |= {f"attention/{name}_norm": f"self_attn.{name[0]}_norm" for name in ("query", "key")}
    return [
        *(
            weight
            for name, bias in biases.items()
            for weight in linear(f"{here}/attention/{name}", f"{there}.self_attn.{name[0]}_proj", bias=bias)
        ),
        *(
            weight
            for name in ("gate", "up", "down")
            for weight in linear(
                f"{here}/feed_forward/{name}", f"{there}.mlp.{name}_proj", bias=model.feed_forward_bias
            )
        ),
        *(
            weight
            for ours, theirs in norms.items()
            for weight in norm(f"{here}/{ours}", f"{there}.{theirs}", bias=False)
        ),
    ]


NEEDLESS: tuple[IgnorableTensor, ...] = (
    *copies("model.embed_tokens.weight", "lm_head.weight"),
    unused(
        r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq", "unused: rotary positions follow from the config"
    ),
)
"""The tied output matrix stored again, and the table of waves of old files."""


def family(
    row: LlamaVariant,
    model_config: Callable[[LlamaVariant, Settings, Arrays], ModelConfig] = model_config,
    settings_of: Callable[[LlamaVariant, ModelConfig], dict[str, Any]] = settings_of,
) -> Family:
    """The family of one row."""
    return Family(
        model_type=row.model_type,
        prefix="model.",
        base=row.classes.base,
        special=row.special,
        heads=HEADS,
        model_config=functools.partial(model_config, row),
        architecture=row.classes.of,
        name_map=name_map,
        needless=NEEDLESS,
        settings_of=functools.partial(settings_of, row),
    )


# The relatives --------------------------------------------------------------------------------------------------------


def classes(name: str) -> Classes:
    """The classes as nearly all families call them."""
    return Classes(f"{name}Model", f"{name}ForCausalLM", f"{name}ForSequenceClassification")


def window_of_all(settings: Settings, num_layers: int) -> Windows:
    """Mistral: `sliding_window` is for all layers; null means that there is none."""
    return Windows(settings.optional_integer("sliding_window", 4096))


def window_of_upper(settings: Settings, num_layers: int) -> Windows:
    """Qwen: where `use_sliding_window` says so, the layers that `layer_types` names, else those from `max_window_layers` on."""
    settings.only("use_mrope", False)
    window = settings.optional_integer("sliding_window", 4096)
    window = window if settings.flag("use_sliding_window", False) else None
    first = num_layers if window is None else settings.integer("max_window_layers", 28)
    settings.ignore("max_window_layers")
    return windows(settings, window, [LOCAL if i >= first else FULL for i in range(num_layers)])


def upper_window_settings(model: ModelConfig) -> dict[str, Any]:
    """The same backwards; `max_window_layers` is for older releases, which know no `layer_types`."""
    types = layer_types(model)
    return {
        "use_sliding_window": LOCAL in types,
        "sliding_window": model.attention_window,
        "max_window_layers": types.index(LOCAL) if LOCAL in types else len(types),
        "layer_types": types,
    }


RELATIVES = (
    LlamaVariant(
        model_type="llama",
        classes=classes("Llama"),
        special=SpecialIds(bos=1, eos=2),
        heads_divide=True,
        bias="option",
        feed_forward_bias=True,
    ),
    LlamaVariant(
        model_type="mistral",
        classes=classes("Mistral"),
        special=SpecialIds(bos=1, eos=2),
        num_kv_heads=8,
        windows=window_of_all,
        window_settings=lambda model: {"sliding_window": model.attention_window},
    ),
    LlamaVariant(
        model_type="qwen2",
        classes=classes("Qwen2"),
        num_kv_heads=32,
        bias="query_key_value",
        windows=window_of_upper,
        window_settings=upper_window_settings,
    ),
    LlamaVariant(
        model_type="qwen3",
        classes=classes("Qwen3"),
        num_kv_heads=32,
        d_key=128,
        bias="option",
        qk_norm=True,
        windows=window_of_upper,
        window_settings=upper_window_settings,
    ),
)

FAMILIES = tuple(family(row) for row in RELATIVES)
