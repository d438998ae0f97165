"""Families of Llama's shape with other parts: Phi-3 and Phi-4, GLM-4, StarCoder2, StableLM, Helium, ERNIE 4.5, Seed-OSS, Ministral.

References: Abdin et al. 2024, arXiv:2404.14219 (Phi-3); GLM Team 2024, arXiv:2406.12793; Lozhkov et al. 2024, arXiv:2402.19173
(StarCoder2); Bellagente et al. 2024, arXiv:2402.17834 (StableLM 2).
"""

from typing import Any

from flaxformer_lite.core.model import DotProduct, LayerNorm, ModelConfig, Rotary, SlidingWindow
from flaxformer_lite.core.model.positions import LongRopeScaling
from flaxformer_lite.interop.differences import CannotExpress
from flaxformer_lite.interop.hf import gemma, llama
from flaxformer_lite.interop.hf.family import ClassNames
from flaxformer_lite.interop.hf.llama import LOCAL, PARTIAL_ROTARY, ROTARY, family
from flaxformer_lite.interop.hf.options import ACTIVATION, UsualIds
from flaxformer_lite.interop.options import (
    OPTIONAL_INTEGER,
    Draft,
    Entry,
    Options,
    ignored,
    option,
    replaced,
    required,
)

FUSED = {"feed_forward/{gate,up}": "mlp.gate_up_proj", "feed_forward/down": "mlp.down_proj"}
"""The names of a gated feed-forward layer whose first two matrices are one."""

# Phi-3 and Phi-4 ------------------------------------------------------------------------------------------------------


PHI3_KINDS = {"default": "default", **dict.fromkeys(("longrope", "su", "yarn"), "longrope")}
"""The usual word of `rope_type` for each word of this family; the first files have other words for longrope."""


def read_phi3_rotary(options: Options, draft: Draft) -> None:
    """Reads a rotation without scaling, or by longrope, whose original length is an option beside the group."""
    base, fraction = options.number("rope_theta", draft["positions.base"]), llama.read_fraction(options, draft)
    original = options.integer(llama.ORIGINAL, 4096)
    group = llama.rope_group(options)
    group.ignore(llama.ORIGINAL)
    draft["positions"] = llama.read_scheme(options, group, base, fraction, kinds=PHI3_KINDS, original=original)


def phi3_rotary(model: ModelConfig) -> dict[str, Any]:
    scaling = model.positions.scaling if type(model.positions) is Rotary else None
    original = {llama.ORIGINAL: scaling.original_length} if type(scaling) is LongRopeScaling else {}
    return {"rope_parameters": llama.partial_parameters(model.positions), **original}


PHI3 = family(
    "phi3",
    "Phi3",
    UsualIds(pad=32000, bos=1, eos=32000),
    replaced(llama.TEMPLATE, {"norm.epsilon": 1e-5}),
    llama.ACTIVATION,
    Entry(read_phi3_rotary, phi3_rotary),
    llama.WINDOW,
    option("resid_pdrop", "dropout.residual_rate"),
    # No release reads the rate. The first files name code that the library has since.
    ignored("embd_pdrop", "auto_map"),
    layer=llama.NORMS_BEFORE
    | {"attention/{query,key,value}": "self_attn.qkv_proj", "attention/out": "self_attn.o_proj"}
    | FUSED,
)

# GLM-4: the chat models of 2024, and those of 2025 with norms around each sublayer -------------------------------------

GLM = replaced(
    llama.TEMPLATE,
    {
        "attention": DotProduct(bias=True, out_bias=False, d_key=128, num_kv_heads=2),
        "norm.epsilon": 1.5625e-7,
        "positions": Rotary(layout="interleaved", fraction=0.5),
    },
)
GLM_IDS = UsualIds(pad=151329, eos=(151329, 151336, 151338))
GLM_ENTRIES = (option("attention_bias", "attention.bias"), llama.ACTIVATION, PARTIAL_ROTARY)
GLM4_NORMS = {
    "attention_pre_norm": "input_layernorm",
    "attention_post_norm": "post_self_attn_layernorm",
    "feed_forward_pre_norm": "post_attention_layernorm",
    "feed_forward_post_norm": "post_mlp_layernorm",
}

# StarCoder2 and StableLM: layer norms ---------------------------------------------------------------------------------

SIZES = (
    required("num_hidden_layers", "num_decoder_layers"),
    required("vocab_size", "vocab_size"),
    required("hidden_size", "d_model"),
    required("num_attention_heads", "num_heads"),
    required("intermediate_size", "d_ff"),
    option("attention_dropout", "dropout.attention_rate"),
    option("initializer_range", "initializer.stddev"),
    option("tie_word_embeddings", "share_target_output"),
)
USUAL_WIDTH = Entry(lambda options, draft: options.only("head_dim", draft["d_model"] // draft["num_heads"]))
"""The entry of a width of heads that follows from others."""
STARCODER2 = replaced(
    llama.TEMPLATE,
    {
        "attention": DotProduct(num_kv_heads=2),
        "feed_forward_bias": True,
        "activation": "gelu_tanh",
        "norm": LayerNorm(epsilon=1e-5),
        "share_target_output": True,
        "initializer.stddev": 0.018042,
    },
)
STABLELM = replaced(
    llama.TEMPLATE,
    {
        "attention.num_kv_heads": 32,
        "norm": LayerNorm(epsilon=1e-5),
        "positions.fraction": 0.25,
    },
)

# Helium and Ministral -------------------------------------------------------------------------------------------------


def check_heads_fill(model: ModelConfig) -> dict[str, Any]:
    """Raises: CannotExpress where all heads together are not as wide as the model, as the library wants them in Helium."""
    width = model.num_heads * model.heads.d_key
    if width != model.d_model:
        raise CannotExpress(
            f"it needs model.num_heads times model.attention.d_key to be model.d_model, {model.d_model}; it is {width}",
            ["model.d_model", "model.num_heads", "model.attention.d_key"],
        )
    return {}


def read_ministral_windows(options: Options, draft: Draft) -> None:
    """Reads the windows: in the layers of `layer_types`, else in all."""
    window = options.optional_integer("sliding_window", 4096)
    usual = llama.FULL if window is None else LOCAL
    llama.read_layer_types(options, draft, window, [usual] * draft["num_decoder_layers"])


# The families ---------------------------------------------------------------------------------------------------------

FAMILIES = (
    PHI3,
    family("glm", "Glm", GLM_IDS, GLM, *GLM_ENTRIES, layer=llama.NORMS_BEFORE | llama.ATTENTION | FUSED),
    family(
        "glm4",
        "Glm4",
        GLM_IDS,
        replaced(GLM, {"residual": gemma.NORMS_AROUND}),
        *GLM_ENTRIES,
        layer=GLM4_NORMS | llama.ATTENTION | FUSED,
    ),
    family(
        "starcoder2",
        "Starcoder2",
        UsualIds(bos=50256, eos=50256),
        STARCODER2,
        option("num_key_value_heads", "attention.num_kv_heads"),
        option("head_dim", "attention.d_key", kind=OPTIONAL_INTEGER),
        option("hidden_act", "activation", kind=ACTIVATION),
        option("norm_epsilon", "norm.epsilon"),
        option("use_bias", "attention.bias", "attention.out_bias", "feed_forward_bias"),
        ROTARY,
        llama.WINDOW,
        option("embedding_dropout", "dropout.embedding_rate"),
        option("residual_dropout", "dropout.residual_rate"),
        table=SIZES,
        layer=llama.NORMS_BEFORE | llama.ATTENTION | {"feed_forward/up": "mlp.c_fc", "feed_forward/down": "mlp.c_proj"},
    ),
    family(
        "stablelm",
        "StableLm",
        UsualIds(bos=0, eos=0),
        STABLELM,
        option("num_key_value_heads", "attention.num_kv_heads"),
        llama.ACTIVATION,
        option("layer_norm_eps", "norm.epsilon"),
        option("use_qkv_bias", "attention.bias"),
        PARTIAL_ROTARY,
        USUAL_WIDTH,
        llama.parallel_residual("parallel_one_norm"),
        llama.norms_of_heads("qk_layernorm"),
        ignored("hidden_dropout", "auto_map"),  # the rate is that of feed-forward layers only
        table=SIZES,
        layer=llama.LAYER
        | {
            "attention/query_norm": "self_attn.q_layernorm.norms.{n}",
            "attention/key_norm": "self_attn.k_layernorm.norms.{n}",
        },
    ),
    family(
        "helium",
        "Helium",
        UsualIds(pad=3, bos=1, eos=2),
        replaced(
            llama.TEMPLATE,
            {
                "num_heads": 20,
                "attention.num_kv_heads": 20,
                "attention.d_key": 128,
                "norm.epsilon": 1e-8,
                "positions": Rotary(base=100_000.0, layout="interleaved"),
            },
        ),
        option("attention_bias", "attention.bias"),
        option("mlp_bias", "feed_forward_bias"),
        llama.ACTIVATION,
        ROTARY,
        Entry(write=check_heads_fill),
    ),
    family(
        "ernie4_5",
        ClassNames("Ernie4_5Model", "Ernie4_5ForCausalLM", ""),
        UsualIds(pad=0, bos=1, eos=2),
        replaced(
            llama.TEMPLATE,
            {
                "attention.num_kv_heads": 2,
                "attention.d_key": 128,
                "norm.epsilon": 1e-5,
                "positions": Rotary(base=500_000.0, layout="interleaved"),
                "share_target_output": True,
            },
        ),
        option("use_bias", "attention.bias", "attention.out_bias", "feed_forward_bias"),
        llama.ACTIVATION,
        ROTARY,
        ignored("auto_map"),
    ),
    family(
        "seed_oss",
        "SeedOss",
        UsualIds(pad=1, bos=0, eos=2),
        replaced(
            llama.TEMPLATE,
            {
                "attention": DotProduct(bias=True, out_bias=False, d_key=128, num_kv_heads=8),
                "dropout.attention_rate": 0.1,
                "dropout.residual_rate": 0.1,
            },
        ),
        option("attention_bias", "attention.bias"),
        option("attention_out_bias", "attention.out_bias"),
        option("mlp_bias", "feed_forward_bias"),
        option("residual_dropout", "dropout.residual_rate"),
        llama.ACTIVATION,
        ROTARY,
        answers=llama.OLDER_PREFIX,
    ),
    family(
        "ministral",
        "Ministral",
        llama.ENDS,
        replaced(llama.TEMPLATE, {"attention.num_kv_heads": 8, "sliding_window": SlidingWindow(size=4096)}),
        llama.ACTIVATION,
        ROTARY,
        Entry(read_ministral_windows, llama.window_options),
        answers=llama.OLDER_PREFIX,
    ),
)
