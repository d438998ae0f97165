"""Families whose attention and feed-forward layer are parallel branches: GPT-NeoX, GPT-J, Phi-1 and 2, Falcon, Cohere.

Both branches read the layer's input, through one norm or a norm each, and are added to it. In GPT-NeoX and Falcon one matrix holds
queries, keys and values by head.

References: Black et al. 2022, arXiv:2204.06745 (GPT-NeoX); Biderman et al. 2023, arXiv:2304.01373 (Pythia); Almazrouei et al. 2023,
arXiv:2311.16867 (Falcon).
"""

import dataclasses
import math
from typing import Any

from flaxformer_lite.core.model import DotProduct, LanguageModelHead, LayerNorm, ModelConfig, Rotary
from flaxformer_lite.interop.hf import bart, gpt2, llama
from flaxformer_lite.interop.hf.family import ClassNames, classes_of, never_read
from flaxformer_lite.interop.hf.llama import PARTIAL_ROTARY, ROTARY, decoder_family, family
from flaxformer_lite.interop.hf.llama_relatives import SIZES, USUAL_WIDTH
from flaxformer_lite.interop.hf.options import ACTIVATION, UsualIds
from flaxformer_lite.interop.name_map import Names, prefixed
from flaxformer_lite.interop.options import (
    OPTIONAL_INTEGER,
    Draft,
    Entry,
    Options,
    equal,
    ignored,
    only,
    option,
    replaced,
    required,
)

ONE_NORM = {"attention_pre_norm": "input_layernorm"}
FUSED = {
    "attention/{query|key|value}": "query_key_value",
    "attention/out": "dense",
}
FEED_FORWARD = {"feed_forward/up": "mlp.dense_h_to_4h", "feed_forward/down": "mlp.dense_4h_to_h"}
MASKS = r"\.(bias|masked_bias|rotary_emb\.inv_freq)"
UNUSED = "unused: masks and rotary positions follow from the config"
TEMPLATE = replaced(
    llama.TEMPLATE,
    {
        "attention": DotProduct(bias=True, out_bias=True),
        "feed_forward_bias": True,
        "activation": "gelu_tanh",
        "norm": LayerNorm(epsilon=1e-5),
        "residual.branches": "parallel_one_norm",
    },
)
"""The parts that most of these families have in common."""
KEY_HEADS = option("num_key_value_heads", "attention.num_kv_heads", kind=OPTIONAL_INTEGER)

# GPT-NeoX -------------------------------------------------------------------------------------------------------------

NEOX = replaced(TEMPLATE, {"activation": "gelu", "positions": Rotary(fraction=0.25), "residual.branches": "parallel"})


def read_neox_rotary(options: Options, draft: Draft) -> None:
    """Reads rotary positions under the words of this family, or in the group that all families have."""
    llama.set_rotary(options, draft, llama.read_fraction(options, draft, "rotary_pct"), "rotary_emb_base")


NEOX_LAYER = llama.NORMS_BEFORE | prefixed("", "attention.", FUSED) | FEED_FORWARD
NEOX_NAMES = {
    "embedding": "gpt_neox.embed_in",
    **prefixed("decoder/layers/", "gpt_neox.layers.{i}.", NEOX_LAYER),
    "decoder/final_norm": "gpt_neox.final_layer_norm",
}

# GPT-J ----------------------------------------------------------------------------------------------------------------

GPTJ = replaced(
    TEMPLATE,
    {
        "vocab_size": 50400,
        "d_model": 4096,
        "num_heads": 16,
        "num_decoder_layers": 28,
        "attention": DotProduct(bias=False, out_bias=False),
        "positions": Rotary(layout="interleaved", fraction=0.25),
        "head": LanguageModelHead(bias=True),
    },
)


def read_rotary_dim(options: Options, draft: Draft) -> None:
    """Reads the number of a head's elements that rotate. Null stands for the width of the model, which fits only a single head."""
    width, number = draft["d_model"] // draft["num_heads"], options.optional_integer("rotary_dim", 64)
    number = draft["d_model"] if number is None else number
    if number % 2 or not 0 < number <= width:
        raise options.wrong(
            "rotary_dim", f"it should be even and at most the width of a head, n_embd / n_head = {width}"
        )
    fraction = number / width
    draft["positions.fraction"] = fraction if int(width * fraction) == number else math.nextafter(fraction, 1)


def rotary_dim(model: ModelConfig) -> dict[str, Any]:
    return {"rotary_dim": int(model.heads.d_key * model.positions.fraction)} if type(model.positions) is Rotary else {}


GPTJ_LAYER = {
    "attention_pre_norm": "ln_1",
    **prefixed("attention/", "attn.", bart.ROLES),
    "feed_forward/up": "mlp.fc_in",
    "feed_forward/down": "mlp.fc_out",
}
GPTJ_NAMES = {
    "embedding": "transformer.wte",
    **prefixed("decoder/layers/", "transformer.h.{i}.", GPTJ_LAYER),
    "decoder/final_norm": "transformer.ln_f",
}

# Phi-1 and 2 ----------------------------------------------------------------------------------------------------------

PHI = replaced(TEMPLATE, {"positions": Rotary(fraction=0.5), "head": LanguageModelHead(bias=True)})


def read_head_norms(options: Options, draft: Draft) -> None:
    """Reads norms of queries and keys, after the epsilon of all norms."""
    if options.flag("qk_layernorm", False):
        draft["attention.qk_norm"] = LayerNorm(epsilon=draft["norm.epsilon"])


PHI_LAYER = {
    **ONE_NORM,
    **llama.ATTENTION,
    "attention/query_norm": "self_attn.q_layernorm",
    "attention/key_norm": "self_attn.k_layernorm",
    "attention/out": "self_attn.dense",
    "feed_forward/up": "mlp.fc1",
    "feed_forward/down": "mlp.fc2",
}

# Falcon ---------------------------------------------------------------------------------------------------------------

FALCON = replaced(
    TEMPLATE,
    {
        "attention": DotProduct(bias=False, out_bias=False),
        "feed_forward_bias": False,
        "activation": "gelu",
        "share_target_output": True,
    },
)


def check_goes(options: Options, name: str, value: object, place: str) -> None:
    """Raises: ValueError where an option has another value than the one that the class computes there."""
    if options.has(name) and not equal(options.raw(name), value):
        raise options.wrong(name, f"only {str(value).lower()} goes {place}")
    options.ignore(name)


def read_layers(options: Options, draft: Draft) -> None:
    """Reads the form of a layer: one key head or a key head for each query head, or groups of heads (40b)."""
    num_heads, branches = draft["num_heads"], "parallel_one_norm"
    if options.flag("new_decoder_architecture", False):
        check_goes(options, "parallel_attn", True, "with new_decoder_architecture")
        options.ignore("multi_query")
        branches = "parallel" if options.one_of("num_ln_in_parallel_attn", (1, 2), 2) == 2 else branches
        draft["attention.num_kv_heads"] = options.integer("num_kv_heads", num_heads)
    else:
        if options.flag("parallel_attn", True):
            check_goes(options, "num_ln_in_parallel_attn", 1, "without new_decoder_architecture")
        else:
            options.ignore("num_ln_in_parallel_attn")
            branches = "sequential"
        if options.flag("multi_query", True):
            options.ignore("num_kv_heads")
            draft["attention.num_kv_heads"] = 1
        else:
            check_goes(options, "num_kv_heads", num_heads, "with this num_attention_heads, without multi_query")
            draft["attention.num_kv_heads"] = num_heads
    draft["residual.branches"] = branches


def layer_options(model: ModelConfig) -> dict[str, Any]:
    branches, number = model.residual.branches, model.heads.num_kv_heads
    is_new = branches == "parallel" or (branches != "sequential" and number not in (1, model.num_heads))
    of_new = {"num_kv_heads": number, "num_ln_in_parallel_attn": 2 if branches == "parallel" else 1}
    others = of_new if is_new else {"multi_query": number == 1, "parallel_attn": branches != "sequential"}
    return {"new_decoder_architecture": is_new, "alibi": False, **others}


def falcon_names(model: ModelConfig, architecture: str) -> Names:
    two_norms = {"attention_pre_norm": "ln_attn", "feed_forward_pre_norm": "ln_mlp"}
    norms = two_norms if model.residual.branches == "parallel" else llama.NORMS_BEFORE
    layer = norms | prefixed("", "self_attention.", FUSED) | FEED_FORWARD
    heads = llama.head_names(architecture, "classifier")
    return {**FALCON_NAMES, **prefixed("decoder/layers/", "transformer.h.{i}.", layer), **heads}


FALCON_NAMES = {"embedding": "transformer.word_embeddings", "decoder/final_norm": "transformer.ln_f"}
FALCON_FAMILY = decoder_family(
    "falcon",
    classes_of("Falcon", "ForCausalLM"),
    UsualIds(bos=11, eos=11),
    FALCON,
    (
        required("num_hidden_layers", "num_decoder_layers"),
        required("vocab_size", "vocab_size"),
        required("hidden_size", "d_model"),
        required("num_attention_heads", "num_heads"),
        gpt2.inner_width("ffn_hidden_size"),
        option("activation", "activation", kind=ACTIVATION),
        option("bias", "attention.bias", "attention.out_bias", "feed_forward_bias"),
        option("layer_norm_epsilon", "norm.epsilon"),
        option("hidden_dropout", "dropout.residual_rate"),
        option("initializer_range", "initializer.stddev"),
        option("tie_word_embeddings", "share_target_output"),
        USUAL_WIDTH,
        ROTARY,
        Entry(read_layers, layer_options),
        only("alibi", False),
        only("apply_residual_connection_post_layernorm", False),
        ignored("attention_dropout", "auto_map"),  # with rotary positions the library drops no weight of attention
    ),
    FALCON_NAMES,
    length="max_position_embeddings",
)

# Cohere ---------------------------------------------------------------------------------------------------------------

COHERE = replaced(
    llama.TEMPLATE,
    {
        "norm": LayerNorm(epsilon=1e-5, bias=False),
        "positions": Rotary(base=500_000.0, layout="interleaved"),
        "residual.branches": "parallel_one_norm",
        "share_target_output": True,
        "head.scale": 0.0625,
    },
)

# The families ---------------------------------------------------------------------------------------------------------

FAMILIES = (
    decoder_family(
        "gpt_neox",
        classes_of("GPTNeoX", "ForCausalLM"),
        UsualIds(bos=0, eos=2),
        NEOX,
        (
            *SIZES,
            option("hidden_act", "activation", kind=ACTIVATION),
            option("hidden_dropout", "dropout.embedding_rate", "dropout.residual_rate"),
            option("layer_norm_eps", "norm.epsilon"),
            llama.ATTENTION_BIAS,
            USUAL_WIDTH,
            PARTIAL_ROTARY._replace(read=read_neox_rotary),
            llama.parallel_residual("parallel"),
        ),
        NEOX_NAMES,
        never_read(rf"gpt_neox\.layers\.\d+\.attention{MASKS}", UNUSED),
        of_tokens="classifier",
        head="embed_out",
        length="max_position_embeddings",
    ),
    decoder_family(
        "gptj",
        classes_of("GPTJ", "ForCausalLM")._replace(of_tokens=""),
        UsualIds(bos=50256, eos=50256),
        GPTJ,
        (
            *gpt2.SHARED,
            option("initializer_range", "initializer.stddev"),
            Entry(read_rotary_dim, rotary_dim),
            ignored("n_positions"),  # there is no table here, so no text is too long
        ),
        GPTJ_NAMES,
        never_read(rf"transformer\.h\.\d+\.attn{MASKS}", UNUSED),
        length="n_positions",
    ),
    decoder_family(
        "phi",
        classes_of("Phi", "ForCausalLM")._replace(of_answers=""),
        UsualIds(bos=1, eos=2),
        PHI,
        (
            *SIZES,
            KEY_HEADS,
            option("hidden_act", "activation", kind=ACTIVATION),
            option("layer_norm_eps", "norm.epsilon"),
            Entry(read_head_norms, lambda model: {"qk_layernorm": model.attention.qk_norm is not None}),
            USUAL_WIDTH,
            PARTIAL_ROTARY,
            option("embd_pdrop", "dropout.embedding_rate"),
            option("resid_pdrop", "dropout.residual_rate"),
            ignored("auto_map"),
        ),
        {**llama.stack_names(PHI_LAYER), "decoder/final_norm": "model.final_layernorm"},
        length="max_position_embeddings",
    ),
    dataclasses.replace(FALCON_FAMILY, names=falcon_names),
    family(
        "cohere",
        ClassNames("CohereModel", "CohereForCausalLM", ""),
        UsualIds(pad=0, bos=5, eos=255001),
        COHERE,
        KEY_HEADS,
        llama.ACTIVATION,
        option("layer_norm_eps", "norm.epsilon"),
        llama.ATTENTION_BIAS,
        option("logit_scale", "head.scale"),
        USUAL_WIDTH,
        ROTARY,
        llama.norms_of_heads("use_qk_norm"),
        table=SIZES,
        layer=ONE_NORM | llama.ATTENTION | llama.GATED,
    ),
)
