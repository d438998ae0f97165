"""Decoder-only families: the options that they read in `config.json`, and those that they write for models trained here.

Oracle: the options and defaults of the library's own configuration classes (version 5), written down here. test_hf.py compares
the numbers with the library's.
"""

import dataclasses
import functools
import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from flaxformer_lite.core.model import DotProduct, LayerNorm, RMSNorm, Transformer
from flaxformer_lite.core.model.config import POST_NORM, LanguageModelHead, ModelConfig, Residual, SlidingWindow
from flaxformer_lite.core.model.inputs import example_inputs
from flaxformer_lite.core.model.positions import (
    ALiBi,
    DynamicScaling,
    Learned,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rotary,
    Sinusoidal,
    YarnScaling,
)
from flaxformer_lite.core.reading.heads import Pooler
from flaxformer_lite.interop import FAMILIES, Options, read_folder
from flaxformer_lite.interop.differences import check_same
from flaxformer_lite.interop.exporting import export, first_fitting
from flaxformer_lite.interop.hf.decoding import decode_config
from flaxformer_lite.interop.hf.folder import read_tensors, write_folder
from flaxformer_lite.interop.hf.llama import layer_types
from flaxformer_lite.interop.hf.options import refuse_unread
from tests.support.hf_folders import DATA, copied, with_tensors
from tests.support.quick import quick

GPT2 = {"vocab_size": 41, "n_embd": 12, "n_head": 3, "n_layer": 4}
SIZES = {"vocab_size": 41, "hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 4, "intermediate_size": 7}
NEO = {"vocab_size": 41, "hidden_size": 12, "num_heads": 3, "num_layers": 4, "attention_types": [[["local"], 4]]}
OPT = {"vocab_size": 41, "hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 4, "ffn_dim": 7}
XGLM = {"vocab_size": 41, "d_model": 12, "attention_heads": 3, "num_layers": 4, "ffn_dim": 7}
NEOX = SIZES | {"rotary_pct": 0.5}
FALCON = {name: size for name, size in SIZES.items() if name != "intermediate_size"}
OTHER_WORDS = {"gpt2": GPT2, "gpt_neo": NEO, "opt": OPT, "xglm": XGLM, "gpt_neox": NEOX, "falcon": FALCON}
BLOOM = {"vocab_size": 41, "hidden_size": 12, "n_head": 3, "n_layer": 4}
OTHER_WORDS |= {"gptj": GPT2 | {"rotary_dim": 4}, "bloom": BLOOM}
DECODERS = (
    *(
        "gpt2",
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma",
        "gemma2",
        "gemma3_text",
        "hunyuan_v1_dense",
        "phi3",
        "glm",
    ),
    *("glm4", "starcoder2", "stablelm", "helium", "ernie4_5", "seed_oss", "ministral", "gpt_neo", "opt", "xglm"),
    "exaone4",
    "smollm3",
    "olmo3",
    "olmo2",
    "olmo",
    "granite",
    *("gpt_neox", "gptj", "phi", "falcon", "cohere", "bloom"),
)


def sizes(model_type: str) -> dict[str, Any]:
    return {"model_type": model_type} | OTHER_WORDS.get(model_type, SIZES | {"num_key_value_heads": 1})


def read(model_type: str, tensors: tuple[str, ...] = (), /, **options: Any) -> ModelConfig:
    """The model of a few sizes and these options."""
    return read_config(sizes(model_type) | options, tensors)


def read_config(config: dict[str, Any], tensors: tuple[str, ...] = ()) -> ModelConfig:
    options = Options(config)
    model = FAMILIES[config["model_type"]].model_config(options, dict.fromkeys(tensors, np.zeros(1)))
    refuse_unread(options, config["model_type"])
    return model


# Options --------------------------------------------------------------------------------------------------------------

SAY_NOTHING = {
    *("dtype", "torch_dtype", "transformers_version", "use_cache", "pretraining_tp", "cache_implementation"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id", "task_specific_params"),
    *("reorder_and_upcast_attn", "n_ctx", "_sliding_window_pattern", "eod_token_id"),
    *("cla_share_factor", "dense_list", "pool_type", "anyres_vit_max_image_size"),
    *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout"),
    *(
        "embd_pdrop",
        "auto_map",
        "hidden_dropout",
        "classifier_dropout",
        "layerdrop",
    ),
    *("decoder_start_token_id", "gradient_checkpointing", "rotary", "ff_factor"),
    *("slow_but_exact", "offset_alibi", "masked_softmax_fusion", "bias_dropout_fusion"),
}
"""Options that no number of the model depends on."""


def scales_by(config: dict[str, Any], *kinds: str) -> bool:
    return (config.get("rope_parameters") or {}).get("rope_type") in kinds


SAY_NOTHING_HERE = {
    # there is a table in GPT-2, which calls it n_positions, and in these two; the factor of Llama's longrope is stated
    "max_position_embeddings": lambda config: (
        not (
            config["model_type"] in ("gpt_neo", "opt")
            or (config["model_type"] == "llama" and scales_by(config, "dynamic"))
            or (config["model_type"] == "phi3" and scales_by(config, "longrope"))
        )
    ),
    "original_max_position_embeddings": lambda config: not scales_by(config, "longrope"),
    "attention_types": lambda config: "attention_layers" in config,
    "_remove_final_layer_norm": lambda config: not config["do_layer_norm_before"],
    # EXAONE 4's files state the types of their layers
    "sliding_window_pattern": lambda config: config["model_type"] == "exaone4",
    "no_rope_layer_interval": lambda config: config.get("no_rope_layers") is not None,
    "logits_scaling": lambda config: config["architectures"] == ["GraniteModel"],  # which has no head
    "max_window_layers": lambda config: "layer_types" in config or not config["use_sliding_window"],
    # 0 and 1 token on both sides together are the token alone
    "sliding_window": lambda config: not config.get("use_sliding_window", True) or config["sliding_window"] == 0,
    "use_sliding_window": lambda config: "sliding_attention" not in config.get("layer_types", ["sliding_attention"]),
    "attn_logit_softcapping": lambda config: config["model_type"] == "gemma3_text",
    **dict.fromkeys(("n_head", "n_layer", "attention_dropout"), lambda config: config["model_type"] == "falcon"),
    "n_positions": lambda config: config["model_type"] == "gptj",
    "hidden_size": lambda config: "n_embed" in config,
    "scale_attn_weights": lambda config: config["model_type"] == "gptj",
    "multi_query": lambda config: config["new_decoder_architecture"],
    "num_kv_heads": lambda config: config["multi_query"] and not config["new_decoder_architecture"],
    "num_ln_in_parallel_attn": lambda config: not config["parallel_attn"],
}
"""Options that say nothing in some configs."""


def configs() -> list[str]:
    files = [file for file in DATA.glob("*/*/config.json") if json.loads(file.read_text())["model_type"] in DECODERS]
    return sorted(str(file.parent.relative_to(DATA)) for file in files)


def another(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return 2 * value + 1
    if isinstance(value, dict):
        return value | {"mrope_section": [1]}  # a word that the library reads, and that is not implemented here
    return "unheard_of" if isinstance(value, str) else value[1:]


@pytest.mark.parametrize("label", configs())
def test_every_option_counts_or_is_refused(label: str) -> None:
    """An option with another value makes another model, or an error that names it: none is passed over."""
    config = json.loads((DATA / label / "config.json").read_text())
    model = model_or_error(config)
    if isinstance(model, str):
        assert label == "gpt2/layer_scaled", model
        return
    for name in config.keys() - {"model_type", "architectures"}:
        found = model_or_error(config | {name: another(config[name])})
        silent = name in SAY_NOTHING or SAY_NOTHING_HERE.get(name, lambda config: False)(config)
        if isinstance(found, str):
            assert name in found or "model." in found, (name, found)
        else:
            assert (found == model) == silent, name


def model_or_error(config: dict[str, Any]) -> ModelConfig | str:
    try:
        return read_config(config)
    except ValueError as error:
        return str(error)


# model_type: width of a head, key heads, tied, activation, base, window, its layers. The sizes say 3 heads of width 4, 1 key head.
DEFAULTS = {
    "llama": (4, 3, False, "swiglu", 1e4, None, None),
    "mistral": (4, 8, False, "swiglu", 1e4, 4096, None),
    "qwen2": (4, 32, False, "swiglu", 1e4, None, None),
    "qwen3": (128, 32, False, "swiglu", 1e4, None, None),
    "hunyuan_v1_dense": (4, 3, False, "swiglu", 1e4, None, None),
    "gemma": (256, 16, True, "geglu_tanh", 1e4, None, None),
    "gemma2": (256, 4, True, "geglu_tanh", 1e4, 4096, (0, 2)),
    "gemma3_text": (
        256,
        4,
        True,
        "geglu_tanh",
        1e4,
        4096,
        None,
    ),  # 4 layers, and the first without a window is the sixth
}


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_absent_options_have_the_defaults_of_the_library(model_type: str) -> None:
    num_heads = max(3, DEFAULTS[model_type][1])  # a multiple of the key heads
    config = SIZES | {"model_type": model_type, "num_attention_heads": num_heads, "hidden_size": 4 * num_heads}
    model = read_config(config)
    heads = model.attention.heads(model.d_model, model.num_heads)
    found = (heads.d_key, heads.num_kv_heads, model.share_target_output, model.activation)
    assert isinstance(model.positions, Rotary) and model.positions.scaling is None
    window = model.sliding_window
    sizes = (None, None) if window is None else (window.size, window.layers)
    assert (*found, model.positions.base, *sizes) == DEFAULTS[model_type]
    epsilon = 1e-5 if model_type == "hunyuan_v1_dense" else 1e-6
    assert model.norm == RMSNorm(epsilon=epsilon, offset=float(model_type.startswith("gemma")))
    assert model.attention.bias == (model_type == "qwen2") and model.attention.out_bias is False
    if model_type in ("gemma2", "gemma3_text"):
        assert model.attention.scale == 1 / 16


def test_absent_options_of_gpt2_have_the_defaults_of_the_library() -> None:
    model = read_config({"model_type": "gpt2"})
    assert (model.vocab_size, model.d_model, model.num_heads, model.num_decoder_layers) == (50257, 768, 12, 12)
    assert (model.d_ff, model.activation, model.share_target_output) == (3072, "gelu_tanh", True)
    assert model.positions == Learned(max_positions=1024) and model.norm == LayerNorm(epsilon=1e-5)


AMPLITUDE = (0.2 * math.log(4) + 1) / (0.1 * math.log(4) + 1)  # mscale 2, mscale_all_dim 1, factor 4
HALF_OF_50 = Rotary(base=50.0, fraction=0.5)
YARN = {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 8}
LONG = {"max_position_embeddings": 256}
FACTORS = {"short_factor": [1, 1.5], "long_factor": [2, 3]}
TWICE_THE_LOGARITHM = math.sqrt(2)  # 1 + log(256 / 16) / log(16) = 2
LONG_SCALING = LongRopeScaling(
    short_factors=(1.0, 1.5),
    long_factors=(2.0, 3.0),
    original_length=16,
    length=16,
    amplitude=TWICE_THE_LOGARITHM,
)
# older and newer words for the same, and a part of the model that they make
SPELLINGS: list[tuple[str, dict[str, Any], dict[str, Any], Any]] = [
    ("llama", {"rope_theta": 50, "rope_scaling": None}, {"rope_parameters": {"rope_theta": 50.0}}, Rotary(base=50.0)),
    (
        "mistral",
        {"rope_theta": 50, "rope_scaling": {"type": "linear", "factor": 2}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0}},
        Rotary(base=50.0, scaling=LinearScaling(factor=2.0)),
    ),
    (
        "llama",
        {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}}
        | {"max_position_embeddings": 64},
        {"rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}}
        | {"max_position_embeddings": 64},
        Rotary(scaling=Llama3Scaling(original_length=64)),
    ),
    (
        "qwen3",
        {"rope_theta": 50, "rope_scaling": YARN | {"type": "yarn", "mscale": 2.0, "mscale_all_dim": 1.0}},
        {
            "rope_parameters": YARN
            | {"rope_type": "yarn", "rope_theta": 50, "attention_factor": AMPLITUDE}
            | {"truncate": True}
        },
        Rotary(base=50.0, scaling=YarnScaling(fast_turns=8.0, original_length=16, amplitude=AMPLITUDE)),
    ),
    (
        "gemma3_text",
        {"rope_theta": 70, "rope_local_base_freq": 30, "rope_scaling": {"rope_type": "linear", "factor": 8}}
        | {"sliding_window_pattern": 3},
        {"layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]}
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 70, "factor": 8},
                "sliding_attention": {"rope_theta": 30},
            }
        },
        Rotary(base=70.0, scaling=LinearScaling(factor=8.0)),
    ),
    (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 3},
        {
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["full_attention"] * 3 + ["sliding_attention"],
        },
        Rotary(),
    ),
    ("qwen2", {"sliding_window": 5, "max_window_layers": 1}, {"use_sliding_window": False}, Rotary()),
    (
        "hunyuan_v1_dense",
        {"rope_theta": 50, "rope_scaling": {"type": "dynamic", "alpha": 1000, "factor": 1.0, "beta_fast": 32}},
        {"rope_parameters": {"rope_type": "dynamic", "alpha": 1000.0, "rope_theta": 50.0}},
        Rotary(base=50.0 * 1000.0**2),  # heads of width 4: 4 / (4 - 2)
    ),
    ("gemma", {"hidden_act": "gelu", "hidden_activation": None}, {"hidden_act": "gelu_pytorch_tanh"}, Rotary()),
    ("gemma2", {"hidden_act": "gelu", "hidden_activation": "gelu_new"}, {}, Rotary()),
    (
        "glm4",
        {"rope_theta": 50, "partial_rotary_factor": 0.25},
        {"rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 0.25}, "partial_rotary_factor": 0.75},
        Rotary(base=50.0, layout="interleaved", fraction=0.25),
    ),
    ("glm", {}, {"partial_rotary_factor": 0.5}, Rotary(layout="interleaved", fraction=0.5)),
    ("stablelm", {"partial_rotary_factor": None}, {"partial_rotary_factor": 1.0}, Rotary()),
    (
        "phi3",
        LONG | {"original_max_position_embeddings": 16, "rope_scaling": FACTORS | {"type": "su"}},
        LONG
        | {"original_max_position_embeddings": 16}
        | {"rope_parameters": FACTORS | {"rope_type": "longrope", "attention_factor": TWICE_THE_LOGARITHM}},
        Rotary(scaling=LONG_SCALING),
    ),
    (
        "llama",
        {"rope_scaling": FACTORS | {"type": "longrope", "original_max_position_embeddings": 16, "factor": 16}},
        LONG | {"rope_parameters": FACTORS | {"rope_type": "longrope", "original_max_position_embeddings": 16}},
        Rotary(scaling=LONG_SCALING),
    ),
    (
        "qwen2",
        {"max_position_embeddings": 64, "rope_scaling": {"type": "dynamic", "factor": 2}},
        {"max_position_embeddings": 64, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
        Rotary(scaling=DynamicScaling(factor=2.0, original_length=64, length=64)),
    ),
    ("phi3", {"rope_scaling": None, "rope_theta": 50}, {"rope_parameters": {"rope_theta": 50}}, Rotary(base=50.0)),
    (
        "gpt_neox",
        {"rotary_emb_base": 50},
        {"rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 0.5}},
        HALF_OF_50,
    ),
    ("gptj", {"rotary_dim": 2}, {"rotary_dim": 2, "n_inner": 48}, Rotary(layout="interleaved", fraction=0.5)),
    ("bloom", {"n_embed": 12, "hidden_size": 6, "num_attention_heads": 3}, {"slow_but_exact": True}, ALiBi()),
    ("falcon", {"rope_theta": 50}, {"rope_parameters": {"rope_theta": 50.0}}, Rotary(base=50.0)),
    ("cohere", {}, {"rope_theta": 5e5}, Rotary(base=5e5, layout="interleaved")),
    ("ministral", {"sliding_window": 4096}, {"layer_types": ["sliding_attention"] * 4}, Rotary()),
    (
        "gpt_neo",
        {"attention_types": [[["global", "local"], 2]]},
        {"attention_types": [], "attention_layers": ["global", "local"] * 2},
        Learned(max_positions=2048),
    ),
]


@pytest.mark.parametrize(("model_type", "older", "newer", "positions"), SPELLINGS)
def test_older_words_mean_the_same(
    model_type: str, older: dict[str, Any], newer: dict[str, Any], positions: Rotary
) -> None:
    before, after = read(model_type, **older), read(model_type, **newer)
    assert before == after and before.positions == positions


def test_the_layers_with_a_window() -> None:
    upper = {"use_sliding_window": True, "sliding_window": 5}
    assert layer_types(read("qwen2", **upper, max_window_layers=3)) == ["full_attention"] * 3 + ["sliding_attention"]
    assert read("qwen2", **upper, max_window_layers=0).sliding_window.layers is None
    assert read("qwen2", **upper, max_window_layers=4).sliding_window is None
    assert read("gemma3_text", sliding_window_pattern=2, sliding_window=5).sliding_window.layers == (0, 2)


def test_gemma3_has_one_position_scheme_where_all_layers_are_of_one_type() -> None:
    given = {"rope_theta": 70, "rope_local_base_freq": 30}
    for kind, base in (("full_attention", 70), ("sliding_attention", 30)):
        model = read("gemma3_text", **given, layer_types=[kind] * 4)
        assert model.positions == Rotary(base=base)
        assert model.sliding_window is None or model.sliding_window.positions is None
    mixed = read("gemma3_text", **given, layer_types=["full_attention"] * 3 + ["sliding_attention"])
    assert (mixed.positions, mixed.sliding_window.positions) == (Rotary(base=70), Rotary(base=30))


HALF = {"partial_rotary_factor": 0.5}
SHORT_ONES = {"rope_type": "longrope", "short_factor": [1, 1.5], "original_max_position_embeddings": 16}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"rope_scaling": {"type": "mrope"}}, r"rope_scaling\.type is \"mrope\": .*yarn, longrope, dynamic"),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2}}, "max_position_embeddings is missing"),
    ("llama", LONG | {"rope_parameters": SHORT_ONES}, r"rope_parameters\.long_factor is null: .*one for each pair"),
    ("hunyuan_v1_dense", {"rope_scaling": {"type": "dynamic", "factor": 2}}, r"rope_scaling\.alpha is missing"),
    ("hunyuan_v1_dense", {"rope_scaling": {"type": "dynamic", "alpha": 0}}, r"\.alpha is 0: it should be above 0"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "beta_fast": 3}}, r"\.beta_fast is 3: "),
    ("llama", {"rope_parameters": {"rope_type": "linear"}}, r"rope_parameters\.factor is missing"),
    ("llama", {"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_theta": 7}}, "rope_parameters"),
    ("gemma3_text", {"rope_parameters": {"rope_theta": 7}}, r"rope_parameters\.rope_theta is 7"),
    ("qwen2", {"layer_types": ["full_attention"] * 3 + ["linear"]}, "layer_types is .* num_hidden_layers 4 times"),
    ("gemma2", {"layer_types": ["full_attention"]}, "layer_types is .* num_hidden_layers 4 times"),
    ("qwen3", {"layer_types": ["sliding_attention"] * 4}, "layer 0 has a window, but .*use_sliding_window"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0: it should be above 0"),
    ("gemma2", {"rope_theta": 1e39}, r"base is 1e\+39: it must be a finite number of"),
    ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern is 0: .*at least 1"),
    ("llama", {"hidden_act": "tanh"}, 'hidden_act is "tanh": it should be one of gelu, .*silu, swish$'),
    ("gemma", {"hidden_activation": "silu"}, 'hidden_activation is "silu": .*differ'),
    ("gemma2", {"hidden_act": "relu"}, 'hidden_act is "relu": .*differ'),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
    ("mistral", {"layer_types": ["full_attention"] * 4}, "layer_types is "),
    ("llama", {"hidden_size": None}, "hidden_size is missing"),
    ("olmo", {"clip_qkv": 8.0}, r"clip_qkv is 8\.0: that is not implemented"),
    ("smollm3", {"no_rope_layers": [1, 0, 2, 1]}, "no_rope_layers is .*: it should be 0 or 1, num_hidden_layers 4"),
    ("smollm3", {"no_rope_layer_interval": 0}, "no_rope_layer_interval is 0: it should be at least 1"),
    ("exaone4", {"sliding_window_pattern": "LLLG"}, "sliding_window_pattern is .*, without layer_types"),
    ("granite", {"logits_scaling": 0}, "logits_scaling is 0: it should be above 0"),
    ("granite", {"residual_multiplier": -1.5}, r"residual_multiplier is -1\.5: it should be above 0"),
    ("llama", {"partial_rotary_factor": 0.5}, r"partial_rotary_factor is 0\.5: only 1\.0"),
    (
        "stablelm",
        {"partial_rotary_factor": 0.3},
        r"partial_rotary_factor is 0\.3: an even number of a head's 4 elements",
    ),
    ("stablelm", HALF | {"head_dim": 8}, "head_dim is 8: only 4"),
    ("gpt_neox", {"rotary_pct": 0.3}, r"rotary_pct is 0\.3: an even number of a head's 4 elements"),
    ("gptj", {"rotary_dim": 3}, "rotary_dim is 3: it should be even and at most the width of a head, .* = 4"),
    ("gptj", {"rotary_dim": None}, "rotary_dim is null: it should be even and at most the width of a head"),
    ("falcon", {"alibi": True}, "alibi is true: only false is implemented"),
    ("falcon", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn is 2: .*new_decoder_architecture"),
    (
        "falcon",
        {"new_decoder_architecture": True, "parallel_attn": False},
        "parallel_attn is false: .*new_decoder_architecture",
    ),
    (
        "falcon",
        {"multi_query": False, "num_kv_heads": 1},
        "num_kv_heads is 1: only 3 goes with this num_attention_heads",
    ),
    ("falcon", {"apply_residual_connection_post_layernorm": True}, "post_layernorm is true: only false"),
    ("phi3", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, r"\.rope_type is \"linear\": .*longrope"),
    ("ministral", {"sliding_window": None, "layer_types": ["sliding_attention"] * 4}, "layer 0 has a window, but"),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, "post_layernorm is true: only false"),
    (
        "gpt_neo",
        {"attention_layers": ["local"] * 3},
        "attention_layers is .*: it should be global or local, num_layers 4",
    ),
    ("gpt_neo", {"attention_types": [5]}, r"attention_types is \[5\]: .*in groups \[\[WORD, …\], NUMBER\]"),
    ("xglm", {"pad_token_id": 3}, "pad_token_id is 3: only ids below 2 .* at position 1 no position"),
    ("xglm", {"add_cross_attention": True}, "add_cross_attention is true: only false"),
]


@pytest.mark.parametrize(("model_type", "options", "message"), REFUSED)
def test_options_that_are_not_implemented_are_refused_by_name(
    model_type: str, options: dict[str, Any], message: str
) -> None:
    """Those that `test_every_option.py` does not give a value."""
    with pytest.raises(ValueError, match=message):
        read(model_type, **options)


def test_glm_ends_at_any_of_three_ids_by_default() -> None:
    model = read("glm4", vocab_size=151552)
    assert decode_config({}, None, model, FAMILIES["glm4"].special)[0].eos_ids == (151329, 151336, 151338)


# Heads ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensors", "options", "head", "pooler"),
    [
        ((), {"architectures": ["LlamaModel"]}, False, False),
        ((), {}, False, False),  # neither a class nor a tensor speaks of a head
        ((), {"tie_word_embeddings": True}, True, False),
        ((), {"architectures": ["LlamaForCausalLM"]}, True, False),  # then lm_head.weight is missing, by name
        (("lm_head.weight",), {"architectures": ["LlamaModel"]}, True, False),
        (
            ("score.weight",),
            {"architectures": ["LlamaForCausalLM"], "id2label": {"0": "a", "1": "b", "2": "c"}},
            False,
            True,
        ),
    ],
)
def test_the_tensors_decide_the_head(
    tensors: tuple[str, ...], options: dict[str, Any], head: bool, pooler: bool
) -> None:
    model = read("llama", tensors, **options)
    assert (model.head is not None, model.pooler is not None) == (head, pooler)
    if model.pooler is not None:
        assert model.pooler == Pooler(token="last", activation=None, num_classes=3, class_bias=False)


@pytest.mark.parametrize(
    ("model_type", "tensors", "token"),
    [
        ("llama", ("score.weight", "score.bias"), "each"),
        ("gpt2", ("classifier.weight",), "each"),
        ("falcon", ("classifier.weight",), "each"),
        ("gptj", ("qa_outputs.weight",), "each"),
        ("gpt_neox", ("score.weight",), "last"),
        ("cohere", ("lm_head.weight", "score.weight"), None),
        ("opt", ("qa_outputs.weight",), "each"),
        (
            "opt",
            ("score.weight", "score.bias"),
            "last",
        ),  # the library has no class for tokens, so that a bias is left over
        ("ernie4_5", ("lm_head.weight", "score.weight"), None),  # nor has it one for texts here
    ],
)
def test_heads_are_those_of_the_familys_classes(model_type: str, tensors: tuple[str, ...], token: str | None) -> None:
    model = read(model_type, tensors)
    assert (model.pooler and model.pooler.token) == token and (model.head is None) == (token is not None)
    assert token != "each" or model.pooler == Pooler(token="each", activation=None, num_classes=2)


def test_tied_matrices_may_be_stored_twice_or_under_the_other_name(tmp_path: Path) -> None:
    label, name = "llama/gqa_llama3", "model.embed_tokens.weight"
    table = read_tensors(DATA / label)[name]
    for tensors in ({"lm_head.weight": table}, {"lm_head.weight": table, name: None}):
        found = read_folder(with_tensors(copied(label, tmp_path / str(len(tensors))), tensors))
        assert found.model.share_target_output
        np.testing.assert_array_equal(found.params["embedding"]["embedding"], table)


@pytest.mark.parametrize("label", ["llama/gqa_llama3", "gpt2/tied"])
def test_matrices_that_differ_are_not_tied(label: str, tmp_path: Path) -> None:
    """As in the library, whatever the value of `tie_word_embeddings`."""
    matrix = np.random.default_rng(3).normal(size=(41, 18 if label.startswith("llama") else 15)).astype(np.float32)
    found = read_folder(with_tensors(copied(label, tmp_path), {"lm_head.weight": matrix}))
    np.testing.assert_array_equal(found.params["head"]["kernel"], matrix.T)
    assert export(found.model, found.params, found.family).config["tie_word_embeddings"] is False


# Models that were trained here ----------------------------------------------------------------------------------------

PLAIN = ModelConfig(
    vocab_size=41, d_model=12, num_heads=6, d_ff=7, num_encoder_layers=0, num_decoder_layers=3, scale_embeddings=False
)
LIKE_GPT2 = dataclasses.replace(
    PLAIN, positions=Learned(max_positions=13), activation="gelu_tanh", norm=LayerNorm(epsilon=1e-5)
)
LIKE_LLAMA = dataclasses.replace(
    PLAIN,
    attention=DotProduct(num_kv_heads=2, bias=False),
    positions=Rotary(base=50.0),
    feed_forward_bias=False,
    activation="swiglu",
    norm=RMSNorm(),
)
LLAMA3_OF_ITS_OWN = Llama3Scaling(factor=3.0, low_frequency_factor=2.0, high_frequency_factor=5.0, original_length=16)
YARN_OF_ITS_OWN = YarnScaling(
    factor=3.0, fast_turns=8.0, slow_turns=2.0, original_length=16, whole_pairs=False, amplitude=1.5
)
NORMED_HEADS = DotProduct(num_kv_heads=2, bias=False, qk_norm=LayerNorm(bias=False), qk_norm_width="each_head")
AROUND_ONE = RMSNorm(epsilon=1e-3, offset=1.0)
LIKE_GEMMA = dataclasses.replace(LIKE_LLAMA, norm=AROUND_ONE, activation="geglu_tanh", scale_embeddings=True)
LIKE_GEMMA2 = dataclasses.replace(
    LIKE_GEMMA,
    residual=Residual(pre="n", post="nda", final="n"),
    attention=DotProduct(num_kv_heads=2, bias=False, d_key=8, scale=0.2, soft_cap=3.0),
    head=LanguageModelHead(soft_cap=5.0),
    sliding_window=SlidingWindow(size=4, layers=(1,)),
)
LIKE_GEMMA3 = dataclasses.replace(
    LIKE_GEMMA2,
    attention=DotProduct(num_kv_heads=2, bias=True, qk_norm=AROUND_ONE),
    sliding_window=SlidingWindow(size=4, layers=(1,), positions=Rotary(base=7.0, scaling=LinearScaling(factor=2.0))),
    head=LanguageModelHead(),
)
WINDOW = {"sliding_window": SlidingWindow(size=4)}
CLASSES = {"head": None, "pooler": Pooler(token="last", activation=None, num_classes=3, class_bias=False)}
OF_TOKENS = CLASSES | {"pooler": Pooler(token="each", activation=None, num_classes=3)}
HALF_TURNED = {"attention": DotProduct(bias=False), "positions": Rotary(fraction=0.5)}
LOWEST = SlidingWindow(size=4, layers=(0,))
ONE_NORM = Residual(branches="parallel_one_norm")
BIAS_OF_THREE = DotProduct(num_kv_heads=2, out_bias=False)

TRAINED: dict[str, tuple[str, ModelConfig, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", LIKE_GPT2, {}),
    "gpt2, relu, unscaled": (
        *("GPT2LMHeadModel", LIKE_GPT2),
        {"activation": "relu", "attention": DotProduct(scale=1.0), "share_target_output": False},
    ),
    "gpt2 for classes": ("GPT2ForSequenceClassification", LIKE_GPT2, CLASSES),
    "llama": ("LlamaForCausalLM", LIKE_LLAMA, {}),
    "llama without a head": ("LlamaModel", LIKE_LLAMA, {"head": None}),
    "llama, untied, biases, scaled": (
        *("LlamaForCausalLM", LIKE_LLAMA),
        {"attention": DotProduct(), "feed_forward_bias": True, "share_target_output": False}
        | {"positions": Rotary(scaling=LLAMA3_OF_ITS_OWN)},
    ),
    "llama, dynamic": (
        *("LlamaForCausalLM", LIKE_LLAMA),
        {"positions": Rotary(scaling=DynamicScaling(factor=3.0, original_length=16, length=16))},
    ),
    "phi3, longrope": (
        *("Phi3ForCausalLM", LIKE_LLAMA),
        {
            "attention": DotProduct(num_kv_heads=2, bias=False, d_key=8),
            "positions": Rotary(fraction=0.5, scaling=LONG_SCALING),
        },
    ),
    "llama, yarn": ("LlamaForCausalLM", LIKE_LLAMA, {"positions": Rotary(scaling=YARN_OF_ITS_OWN)}),
    "heads that do not divide": (
        *("MistralForCausalLM", LIKE_LLAMA),  # Llama's config class wants them to
        {"d_model": 11, "attention": DotProduct(d_key=4, bias=False)},
    ),
    "mistral": ("MistralForCausalLM", LIKE_LLAMA, WINDOW),
    "qwen2": ("Qwen2ForCausalLM", LIKE_LLAMA, {"attention": BIAS_OF_THREE}),
    "qwen2, lower window": (
        *("Qwen2ForCausalLM", LIKE_LLAMA),
        {"attention": BIAS_OF_THREE, "sliding_window": SlidingWindow(size=4, layers=(0, 2))},
    ),
    "qwen3": ("Qwen3ForCausalLM", LIKE_LLAMA, {"attention": DotProduct(bias=False, qk_norm=RMSNorm())}),
    "hunyuan": (
        *("HunYuanDenseV1ForCausalLM", LIKE_LLAMA),
        {"attention": DotProduct(qk_norm=RMSNorm(), qk_norm_place="after_rotation")},
    ),
    "llama for tokens": ("LlamaForTokenClassification", LIKE_LLAMA, OF_TOKENS),
    "gpt2 for tokens": ("GPT2ForTokenClassification", LIKE_GPT2, OF_TOKENS),
    "phi3, a part": (
        *("Phi3ForCausalLM", LIKE_LLAMA),
        {"attention": DotProduct(num_kv_heads=2, bias=False, d_key=8), "positions": Rotary(fraction=0.75)},
    ),
    "stablelm, a part": ("StableLmForCausalLM", LIKE_LLAMA, {"num_heads": 3, "norm": LayerNorm()} | HALF_TURNED),
    "starcoder2, a bias": ("Starcoder2ForCausalLM", LIKE_GPT2, {"positions": Rotary()}),
    "glm4, norms after": (
        *("Glm4ForCausalLM", LIKE_LLAMA),
        {"num_heads": 3, "attention": DotProduct(bias=False), "residual": LIKE_GEMMA2.residual}
        | HALF_TURNED
        | {"positions": Rotary(layout="interleaved", fraction=0.5)},
    ),
    "helium, neighbours": (
        "HeliumForCausalLM",
        LIKE_LLAMA,
        {"feed_forward_bias": True, "positions": Rotary(layout="interleaved")},
    ),
    "ministral, one window": ("MinistralForCausalLM", LIKE_LLAMA, {"sliding_window": LOWEST}),
    "gpt_neo, unscaled": (
        *("GPTNeoForCausalLM", LIKE_GPT2),
        {"attention": DotProduct(bias=False, out_bias=True, scale=1.0), "sliding_window": LOWEST},
    ),
    "olmo, norms alone": ("OlmoForCausalLM", LIKE_LLAMA, {"norm": LayerNorm(epsilon=1e-5, bias=False, scale=False)}),
    "olmo2, a norm of all heads": (
        *("Olmo2ForCausalLM", LIKE_LLAMA),
        {
            "attention": DotProduct(num_kv_heads=1, bias=False, qk_norm=RMSNorm(), qk_norm_width="all_heads"),
            "residual": Residual(pre="", post="nda", final="n"),
        },
    ),
    "olmo3, one window": (
        *("Olmo3ForCausalLM", LIKE_LLAMA),
        {
            "attention": DotProduct(num_kv_heads=1, bias=False, qk_norm=RMSNorm(), qk_norm_width="all_heads"),
            "residual": Residual(pre="", post="nda", final="n"),
            "sliding_window": LOWEST,
        },
    ),
    "smollm3, one layer": ("SmolLM3ForCausalLM", LIKE_LLAMA, {"positions": Rotary(layers=(1,))}),
    "exaone4, one layer": (
        *("Exaone4ForCausalLM", LIKE_LLAMA),
        {
            "attention": DotProduct(num_kv_heads=1, bias=False, qk_norm=RMSNorm()),
            "residual": Residual(pre="", post="nda", final="n"),
            "positions": Rotary(layers=(0,)),
            "sliding_window": LOWEST,
        },
    ),
    "granite, factors": (
        *("GraniteForCausalLM", LIKE_LLAMA),
        {
            "residual": Residual(scale=0.22),
            "embedding_scale": 12.0,
            "head": LanguageModelHead(scale=0.125),
            "attention": DotProduct(num_kv_heads=1, bias=False, scale=0.5),
        },
    ),
    "bloom, slopes": ("BloomForCausalLM", LIKE_GPT2, {"positions": ALiBi(), "embedding_norm": True, "d_ff": 48}),
    "opt, norms alone": (
        *("OPTForCausalLM", LIKE_GPT2),
        {"norm": LayerNorm(epsilon=1e-5, bias=False, scale=False), "positions": Learned(max_positions=13, offset=2)},
    ),
    "opt, norms after": (
        *("OPTForCausalLM", LIKE_GPT2),
        {"activation": "relu", "residual": POST_NORM, "positions": Learned(max_positions=13, offset=2)},
    ),
    "xglm, sines": (
        *("XGLMForCausalLM", LIKE_GPT2),
        {"scale_embeddings": True, "positions": Sinusoidal(layout="fairseq", offset=2)},
    ),
    "gpt_neox, parallel": (
        *("GPTNeoXForCausalLM", LIKE_GPT2),
        {"positions": HALF_OF_50, "residual": Residual(branches="parallel"), "num_heads": 3},
    ),
    "gptj, one norm": (
        *("GPTJForCausalLM", LIKE_GPT2),
        {"attention": DotProduct(bias=False), "residual": ONE_NORM, "head": LanguageModelHead(bias=True)}
        | {"positions": Rotary(layout="interleaved")},
    ),
    "phi, one norm": (
        *("PhiForCausalLM", LIKE_GPT2),
        {"attention": DotProduct(num_kv_heads=2), "residual": ONE_NORM, "head": LanguageModelHead(bias=True)}
        | {"positions": Rotary()},
    ),
    "falcon, groups": (
        *("FalconForCausalLM", LIKE_GPT2),
        {"attention": DotProduct(num_kv_heads=2), "residual": Residual(branches="parallel"), "positions": Rotary()},
    ),
    "falcon, groups with one norm": (
        *("FalconForCausalLM", LIKE_GPT2),
        {"attention": DotProduct(num_kv_heads=3), "residual": ONE_NORM, "positions": Rotary()},
    ),
    "cohere, one norm": (
        *("CohereForCausalLM", LIKE_LLAMA),
        {"norm": LayerNorm(bias=False), "residual": ONE_NORM, "head": LanguageModelHead(scale=0.3)}
        | {"positions": Rotary(layout="interleaved")},
    ),
    "cohere, norms of heads": (
        *("CohereForCausalLM", LIKE_LLAMA),
        {"norm": LayerNorm(bias=False), "residual": ONE_NORM, "attention": NORMED_HEADS}
        | {"positions": Rotary(layout="interleaved"), "share_target_output": False},
    ),
    "stablelm, norms of heads": ("StableLmForCausalLM", LIKE_LLAMA, {"norm": LayerNorm(), "attention": NORMED_HEADS}),
    "stablelm, one norm": ("StableLmForCausalLM", LIKE_LLAMA, {"norm": LayerNorm(), "residual": ONE_NORM}),
    "gemma": ("GemmaForCausalLM", LIKE_GEMMA, {}),
    "gemma2": ("Gemma2ForCausalLM", LIKE_GEMMA2, {"attention": DotProduct(scale=7**-0.5, soft_cap=3.0)}),
    "gemma2 without windows": ("Gemma2ForCausalLM", LIKE_GEMMA2, {"sliding_window": None}),
    "gemma3": ("Gemma3ForCausalLM", LIKE_GEMMA3, {}),
    "gemma3, windows everywhere": ("Gemma3ForCausalLM", LIKE_GEMMA3, WINDOW),
    "gemma3 for classes": ("Gemma3TextForSequenceClassification", LIKE_GEMMA3, CLASSES),
}
"""The class that a model becomes, a model, and what is another in it."""


def trained(name: str) -> tuple[str, ModelConfig]:
    architecture, model, changes = TRAINED[name]
    return architecture, dataclasses.replace(model, **changes)


@functools.cache
def parameters(model: ModelConfig) -> Any:
    """Random parameters of the model's shapes."""
    rng = np.random.default_rng(5)
    shapes = jax.eval_shape(Transformer(model).init, jax.random.key(0), example_inputs(model))["params"]
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)


@pytest.mark.parametrize("name", quick(TRAINED, str.isalnum))
def test_a_model_trained_here_finds_its_family(name: str) -> None:
    architecture, model = trained(name)
    assert first_fitting(model, parameters(model)).config["architectures"] == [architecture]


@pytest.mark.parametrize("name", ["gpt2 for classes", "gemma3"])
def test_a_model_trained_here_is_read_again(name: str, tmp_path: Path) -> None:
    architecture, model = trained(name)
    exported = first_fitting(model, parameters(model))
    write_folder(tmp_path / "out", {"config.json": exported.config}, exported.tensors, tmp_path)
    again = read_folder(tmp_path / "out")
    check_same(again.model, model)
    assert again.architecture == architecture
    found, expected = (jax.tree.leaves_with_path(params) for params in (again.params, parameters(model)))
    assert all(a == b and x.tobytes() == y.tobytes() for (a, x), (b, y) in zip(found, expected, strict=True))


ODD = {"d_model": 11, "attention": DotProduct(d_key=4)}
# name: (family, a model of its shape, what is another, the message)
UNLIKE = {
    "rotary": ("gpt2", LIKE_GPT2, {"positions": Rotary()}, r"model\.positions is Rotary.*, not Learned"),
    "no bias": ("gpt2", LIKE_GPT2, {"feed_forward_bias": False}, r"model\.feed_forward_bias is False, not True"),
    "gated": ("gpt2", LIKE_GPT2, {"activation": "swiglu"}, 'activation_function is "swiglu"'),
    "scale": ("gpt2", LIKE_GPT2, {"attention": DotProduct(scale=0.3)}, r"model\.attention\.scale is 0\.3"),
    "learned": ("llama", LIKE_LLAMA, {"positions": Learned()}, r"model\.positions is Learned.*Rotary"),
    "ALiBi": ("mistral", LIKE_LLAMA, {"positions": ALiBi()}, r"model\.positions is ALiBi.*Rotary"),
    "interleaved": (
        "llama",
        LIKE_LLAMA,
        {"positions": Rotary(layout="interleaved")},
        r"layout is 'interleaved', not 'half_split'",
    ),
    "not gated": ("llama", LIKE_LLAMA, {"activation": "gelu"}, r"model\.activation is gelu, not .*swiglu"),
    "another norm": ("llama", LIKE_LLAMA, {"norm": LayerNorm()}, r"model\.norm is LayerNorm"),
    "a window": ("llama", LIKE_LLAMA, WINDOW, r"model\.sliding_window is SlidingWindow, not None"),
    "some layers": (
        "mistral",
        LIKE_LLAMA,
        {"sliding_window": LOWEST},
        r"model\.sliding_window\.layers is \(0,\), not None",
    ),
    "a cap": ("llama", LIKE_LLAMA, {"head": LanguageModelHead(soft_cap=3.0)}, r"model\.head\.soft_cap is 3\.0"),
    "heads": ("llama", LIKE_LLAMA, ODD, r"needs model\.d_model divisible by model\.num_heads; they are 11 and \d$"),
    "wide heads": (
        "helium",
        LIKE_LLAMA,
        {"attention": DotProduct(d_key=4, bias=False), "positions": Rotary(layout="interleaved")},
        r"needs model\.num_heads times model\.attention\.d_key to be model\.d_model, 12; it is 24$",
    ),
    "one norm": (
        *("gpt_neox", LIKE_GPT2),
        {"positions": Rotary(), "residual": ONE_NORM},
        r"model\.residual\.branches is 'parallel_one_norm', not 'sequential'",
    ),
    "grouped and sequential": (
        *("falcon", LIKE_GPT2),
        {"positions": Rotary(), "attention": DotProduct(num_kv_heads=2)},
        r"model\.attention\.num_kv_heads is 2, not 6",
    ),
    "an encoder": ("llama", LIKE_LLAMA, {"num_encoder_layers": 1}, r"model\.num_encoder_layers is 1, not 0"),
    "a scale of no whole number": (
        "gemma2",
        LIKE_GEMMA2,
        {"attention": DotProduct(scale=0.3)},
        r"model\.attention\.scale is 0\.3",
    ),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_settings_that_a_family_cannot_express_are_named(name: str) -> None:
    family, model, changes, message = UNLIKE[name]
    with pytest.raises(ValueError, match=f"^{family} has no model like this one: .*{message}"):
        export(dataclasses.replace(model, **changes), parameters(model), FAMILIES[family])
