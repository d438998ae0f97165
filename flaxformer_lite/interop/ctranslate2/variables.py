"""Our parameters under CTranslate2's names and in its shapes, and the attributes that describe the model.

Every attribute is written, so that nothing depends on a default of CTranslate2. Kernels `[in, out]` become weights `[out, in]`;
queries, keys and values of self-attention are fused into one matrix, keys and values of cross-attention into another. A table of
positions replaces sinusoids, and the offset of an RMS norm is added to its scale.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from flaxformer_lite.interop.name_map import Arrays, Leaves, Names, from_params, name_map, prefixed
from flaxformer_lite.model import Learned, ModelConfig, RMSNorm, Rotary
from flaxformer_lite.model.layers import ACTIVATIONS
from flaxformer_lite.model.positions import (
    ALiBi,
    LinearScaling,
    Llama3Scaling,
    NoPositions,
    RelativeBias,
    Sinusoidal,
    sinusoids,
)

int8, int16, int32, float32 = (
    functools.partial(np.asarray, dtype=dtype) for dtype in (np.int8, np.int16, np.int32, np.float32)
)
"""Make attributes of the model."""

ACTIVATION_NUMBERS = {
    "relu": 0,
    "gelu_tanh": 1,
    "silu": 2,
    "gelu": 3,
    "tanh": 5,
    "reglu": 0,
    "geglu_tanh": 1,
    "swiglu": 2,
    "geglu": 3,
}
"""CTranslate2's number of an activation, gated or not."""


LEAVES = Leaves("/weight", "/bias", "/gamma", "/beta", "/weight")
STACK = {
    "positions/embedding": "position_encodings/encodings",
    "positions/table": "position_encodings/encodings",
    "position_bias/embedding": "position_bias",
    "embedding_norm": "layernorm_embedding",
    "final_norm": "layer_norm",
}
LAYER = {
    "attention/{query,key,value}": "self_attention/linear_0",
    "attention/out": "self_attention/linear_1",
    "attention/query_norm": "self_attention/q_norm",
    "attention/key_norm": "self_attention/k_norm",
    "cross_attention/query": "attention/linear_0",
    "cross_attention/{key,value}": "attention/linear_1",
    "cross_attention/out": "attention/linear_2",
    "cross_attention/query_norm": "attention/q_norm",
    "cross_attention/key_norm": "attention/k_norm",
    "feed_forward/down": "ffn/linear_1",
}
GATED = {"feed_forward/gate": "ffn/linear_0", "feed_forward/up": "ffn/linear_0_noact"}
NOT_GATED = {"feed_forward/up": "ffn/linear_0"}


def norm_places(model: ModelConfig) -> str | None:
    """Returns the position of a sublayer's norms: before it (pre), after the residual (post), or around it (both); else None."""
    pre, post = (commands.replace("d", "") for commands in (model.residual.pre, model.residual.post))
    return {("n", "a"): "pre", ("", "an"): "post", ("n", "na"): "both"}.get((pre, post))


def variables(model: ModelConfig, params: PyTree, room: int) -> dict[str, np.ndarray]:
    """Returns every array and attribute by its name there; a computed table of positions has `room` rows.

    Raises: ValueError that lists the parameters that CTranslate2 has no name for.
    """
    in_float32 = jax.tree.map(lambda x: np.asarray(x, np.float32), params)
    found = from_params(in_float32, name_map(names(model), model, LEAVES))
    if model.share_target_output:
        found["decoder/projection/weight"] = found["decoder/embeddings/weight"]
    table = computed_positions(model, room)
    found |= norm_weights(model, found) | decoder_attributes(model) | stack("decoder", model.for_decoder, found, table)
    if model.num_encoder_layers:
        if model.one_table:
            found["encoder/embeddings_0/weight"] = found["decoder/embeddings/weight"]
        found |= {"encoder/embeddings_merge": int8(0), "encoder/multi_query_attention": int8(is_multi_query(model))}
        found |= stack("encoder", model, found, table)
    return {name: x for name, x in found.items() if not name.endswith("/position_bias")}


def names(model: ModelConfig) -> Names:
    """Returns CTranslate2's names of our modules. The bias of relative positions is that of a stack, as ours is."""
    tables = {"embedding": "decoder/embeddings", "target_embedding": "decoder/embeddings"}
    found = {**tables, "source_embedding": "encoder/embeddings_0", "head": "decoder/projection"}
    gated = ACTIVATIONS[model.activation][1]
    layer = {**LAYER, **(GATED if gated else NOT_GATED), **norm_names(model)}
    for side in ("encoder", "decoder"):
        found |= prefixed(f"{side}/", f"{side}/", STACK) | prefixed(f"{side}/layers/", f"{side}/layer_{{i}}/", layer)
    return found


def norm_weights(model: ModelConfig, found: Arrays) -> dict[str, np.ndarray]:
    """Returns the scales of RMS norms with their offset. CTranslate2 reads a norm without `beta` as an RMS norm: others get one."""
    changed = {}
    for name in (name.removesuffix("gamma") for name in found if name.endswith("/gamma")):
        norm = model.attention.qk_norm if name.endswith(("/q_norm/", "/k_norm/")) else model.norm
        scale = found[f"{name}gamma"]
        if type(norm) is RMSNorm:
            changed[f"{name}gamma"] = np.float32(norm.offset) + scale
        else:
            changed[f"{name}beta"] = found.get(f"{name}beta", np.zeros_like(scale))
    return changed


def decoder_attributes(model: ModelConfig) -> dict[str, np.ndarray]:
    """Returns the attributes that only a decoder has."""
    assert model.head is not None
    found = {
        "alignment_layer": int16(-1),
        "alignment_heads": int16(1),
        "start_from_zero_embedding": int8(0),
        "alibi": int8(type(model.positions) is ALiBi),
        "alibi_use_positive_positions": int8(0),
        "scale_alibi": int8(0),
    }
    if model.head.scale != 1:
        found["scale_outputs"] = float32(model.head.scale)
    if model.head.soft_cap is not None:
        found["final_logit_softcapping"] = float32(model.head.soft_cap)
    if model.sliding_window is not None:
        found["sliding_window"] = int32(model.sliding_window.size)
    return under("decoder", found)


def stack(side: str, model: ModelConfig, weights: Arrays, table: np.ndarray | None) -> dict[str, np.ndarray]:
    """Returns the attributes of one side and of its layers, and its positions."""
    found = {
        "num_heads": int16(model.num_heads),
        "pre_norm": int8(norm_places(model) != "post"),
        "activation": int8(ACTIVATION_NUMBERS[model.activation]),
        "scale_embeddings": float32(model.d_model**0.5 if model.scale_embeddings else 1),
    }
    if type(model.positions) is Learned:
        table = weights[f"{side}/position_encodings/encodings"][model.positions.offset :]
    if table is not None:
        found["position_encodings/encodings"] = table
    bias = weights.get(f"{side}/position_bias")
    crosses = side == "decoder" and model.num_encoder_layers > 0
    for i in range(model.num_encoder_layers if side == "encoder" else model.num_decoder_layers):
        own = attention_attributes(model) | position_attributes(model, i if side == "decoder" else None, bias)
        found |= under(f"layer_{i}/self_attention", own)
        found |= under(f"layer_{i}/attention", attention_attributes(model) if crosses else {})
    return under(side, found)


def attention_attributes(model: ModelConfig) -> dict[str, np.ndarray]:
    """Returns the attributes of an attention."""
    variant = model.attention
    heads = variant.heads(model.d_model, model.num_heads)
    found = {
        "queries_scale": float32(heads.d_key**-0.5 if variant.scale is None else variant.scale),
        "head_dim": int32(heads.d_key),
    }
    return found | ({"num_heads_kv": int32(heads.num_kv_heads)} if is_multi_query(model) else {})


def norm_names(model: ModelConfig) -> dict[str, str]:
    """Returns the names of the norms within a layer, by ours."""
    place = norm_places(model)
    if place == "both":
        return {
            "attention_pre_norm": "input_layer_norm",
            "attention_post_norm": "post_attention_layer_norm",
            "feed_forward_pre_norm": "pre_feedforward_layer_norm",
            "feed_forward_post_norm": "post_feedforward_layer_norm",
        }
    sublayers = {"attention": "self_attention", "cross_attention": "attention", "feed_forward": "ffn"}
    return {f"{ours}_{place}_norm": f"{theirs}/layer_norm" for ours, theirs in sublayers.items()}


def position_attributes(model: ModelConfig, number: int | None, bias: np.ndarray | None) -> dict[str, np.ndarray]:
    """Returns the position attributes of self-attention in decoder layer `number`; None: in an encoder layer."""
    found: dict[str, np.ndarray] = {}
    scheme, window = model.positions, model.sliding_window
    if window is not None and number is not None:
        is_local = window.layers is None or number in window.layers
        found["sliding_window"] = int32(window.size if is_local else 0)
        scheme = window.positions if is_local and window.positions is not None else scheme
    if type(scheme) is RelativeBias:
        assert bias is not None
        found |= {"relative_attention_bias": bias, "relative_attention_max_distance": int32(scheme.max_distance)}
    if type(scheme) is Rotary:
        width = model.attention.heads(model.d_model, model.num_heads).d_key
        found |= {
            "rotary_dim": int32(2 * (int(width * scheme.fraction) // 2)),
            "rotary_interleave": int8(scheme.layout == "interleaved"),
            "rotary_base": float32(scheme.base),
        }
        if type(scheme.scaling) is LinearScaling:
            found |= {"rotary_scaling_type": int8(0), "rotary_scaling_factor": float32(scheme.scaling.factor)}
        elif type(scheme.scaling) is Llama3Scaling:
            found |= {
                "rotary_scaling_type": int8(2),
                "rotary_scaling_factor": float32(scheme.scaling.factor),
                "rotary_low_freq_factor": float32(scheme.scaling.low_frequency_factor),
                "rotary_high_freq_factor": float32(scheme.scaling.high_frequency_factor),
                "original_max_position_embeddings": int32(scheme.scaling.original_length),
            }
    return found


def computed_positions(model: ModelConfig, room: int) -> np.ndarray | None:
    """Returns a table of sinusoids, or of zeros for a model without positions; None for other schemes."""
    if type(model.positions) is Sinusoidal:
        return np.asarray(sinusoids(jnp.arange(room)[None], model.d_model, model.positions.layout)[0], np.float32)
    return np.zeros((room, model.d_model), np.float32) if type(model.positions) is NoPositions else None


def is_multi_query(model: ModelConfig) -> bool:
    heads = model.attention.heads(model.d_model, model.num_heads)
    return heads.num_kv_heads != model.num_heads


def under(prefix: str, found: Arrays) -> dict[str, np.ndarray]:
    return {f"{prefix}/{name}": x for name, x in found.items()}
