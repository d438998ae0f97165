"""Our parameters under CTranslate2's names and in its shapes, and the attributes that describe the model.

Every attribute is written, so that nothing depends on a default of CTranslate2. Kernels `[in, out]` become weights `[out, in]`;
queries, keys and values of self-attention are fused into one matrix, keys and values of cross-attention into another. A table of
positions replaces sinusoids, and the offset of an RMS norm is added to its scale.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jaxtyping import PyTree

from flaxformer_lite.interop.name_map import Arrays, listed
from flaxformer_lite.model import Learned, ModelConfig, RMSNorm, Rotary
from flaxformer_lite.model.feed_forward import ACTIVATIONS
from flaxformer_lite.model.norms import BaseNorm
from flaxformer_lite.model.positions import ALiBi, FixedTable, NoPositions, RelativeBias, Sinusoidal, sinusoids
from flaxformer_lite.model.rotary_scaling import LinearScaling, Llama3Scaling

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


class Parameters(Mapping[str, np.ndarray]):
    """Parameters by path, of a model or of one layer, which notes those that were read."""

    def __init__(
        self, arrays: Arrays, unread: set[str] | None = None, prefix: str = "", layer: int | None = None
    ) -> None:
        self._arrays, self._prefix, self._layer = arrays, prefix, layer
        self.unread = set(arrays) if unread is None else unread
        """The paths that nothing has read yet, of the whole model."""

    def __getitem__(self, path: str) -> np.ndarray:
        x = self._arrays[self._prefix + path]
        self.unread.discard(self._prefix + path)
        return x if self._layer is None else x[self._layer]

    def __contains__(self, path: object) -> bool:
        return f"{self._prefix}{path}" in self._arrays

    def __iter__(self) -> Iterator[str]:
        return (path.removeprefix(self._prefix) for path in self._arrays if path.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def of_layer(self, prefix: str, layer: int) -> "Parameters":
        """Returns the parameters of one layer of the stack at `prefix`."""
        return Parameters(self._arrays, self.unread, prefix, layer)


def norm_places(model: ModelConfig) -> str | None:
    """Returns the position of a sublayer's norms: before it (pre), after the residual (post), or around it (both); else None."""
    pre, post = (commands.replace("d", "") for commands in (model.residual.pre, model.residual.post))
    return {("n", "a"): "pre", ("", "an"): "post", ("n", "na"): "both"}.get((pre, post))


def variables(model: ModelConfig, params: PyTree, room: int) -> dict[str, np.ndarray]:
    """Returns every array and attribute by its name there; a computed table of positions has `room` rows.

    Raises: ValueError that lists the parameters that CTranslate2 has no name for.
    """
    flat = Parameters({path: np.asarray(x, np.float32) for path, x in flatten_dict(params, sep="/").items()})
    table = computed_positions(model, room)
    found = decoder_attributes(model)
    if model.num_encoder_layers:
        found |= {"encoder/embeddings_merge": int8(0), "encoder/multi_query_attention": int8(is_multi_query(model))}
        found |= stack("encoder", model, flat, table)
        found["encoder/embeddings_0/weight"] = flat[f"{'' if model.one_table else 'source_'}embedding/embedding"]
    target = flat[f"{'' if model.one_table else 'target_'}embedding/embedding"]
    found |= stack("decoder", model.for_decoder, flat, table) | {"decoder/embeddings/weight": target}
    found["decoder/projection/weight"] = target if model.share_target_output else flat["head/kernel"].T
    if model.head is not None and model.head.bias:
        found["decoder/projection/bias"] = flat["head/bias"]
    if complaint := listed("without a name there", flat.unread):
        raise ValueError(f"{complaint}: CTranslate2 cannot hold this model")
    return found


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


def stack(side: str, model: ModelConfig, flat: Parameters, table: np.ndarray | None) -> dict[str, np.ndarray]:
    """Returns one side: its positions, its norms and its layers."""
    found = {
        "num_heads": int16(model.num_heads),
        "pre_norm": int8(norm_places(model) != "post"),
        "activation": int8(ACTIVATION_NUMBERS[model.activation]),
        "scale_embeddings": float32(model.d_model**0.5 if model.scale_embeddings else 1),
    }
    if type(model.positions) is Learned:
        table = flat[f"{side}/positions/embedding"][model.positions.offset :]
    elif type(model.positions) is FixedTable:
        table = flat[f"{side}/positions/table"]
    if table is not None:
        found["position_encodings/encodings"] = table
    if "n" in model.residual.final:
        found |= normalization("layer_norm", flat, f"{side}/final_norm", model.norm)
    if model.embedding_norm:
        found |= normalization("layernorm_embedding", flat, f"{side}/embedding_norm", model.norm)
    bias = flat.get(f"{side}/position_bias/embedding")
    for i in range(model.num_encoder_layers if side == "encoder" else model.num_decoder_layers):
        here = flat.of_layer(f"{side}/layers/", i)
        attributes = (
            position_attributes(model, i, bias) if side == "decoder" else position_attributes(model, None, bias)
        )
        found |= under(f"layer_{i}", layer(model, here) | under("self_attention", attributes))
    return under(side, found)


def layer(model: ModelConfig, here: Arrays) -> dict[str, np.ndarray]:
    """Returns one layer, from its parameters by their paths within the layer."""
    found = attention("self_attention", model, here, "attention", [("query", "key", "value")])
    if "cross_attention/query/kernel" in here:
        found |= attention("attention", model, here, "cross_attention", [("query",), ("key", "value")])
    gated = ACTIVATIONS[model.activation][1]
    found |= linear("ffn/linear_0", here, f"feed_forward/{'gate' if gated else 'up'}")
    found |= linear("ffn/linear_1", here, "feed_forward/down")
    if gated:
        found |= linear("ffn/linear_0_noact", here, "feed_forward/up")
    for path, name in norm_names(model).items():
        if f"{path}/scale" in here:
            found |= normalization(name, here, path, model.norm)
    return found


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


def attention(
    name: str, model: ModelConfig, here: Arrays, path: str, roles: Sequence[tuple[str, ...]]
) -> dict[str, np.ndarray]:
    """Returns an attention with one matrix for each group of `roles`, and one for the output."""
    variant = model.attention
    heads = variant.heads(model.d_model, model.num_heads)
    found = {
        f"{name}/queries_scale": float32(heads.d_key**-0.5 if variant.scale is None else variant.scale),
        f"{name}/head_dim": int32(heads.d_key),
    }
    if heads.num_kv_heads != model.num_heads:
        found[f"{name}/num_heads_kv"] = int32(heads.num_kv_heads)
    for number, group in enumerate([*roles, ("out",)]):
        found |= linear(f"{name}/linear_{number}", here, *(f"{path}/{role}" for role in group))
    if variant.qk_norm is not None:
        for role in ("query", "key"):
            found |= normalization(f"{name}/{role[0]}_norm", here, f"{path}/{role}_norm", variant.qk_norm)
    return found


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


def linear(name: str, here: Arrays, *paths: str) -> dict[str, np.ndarray]:
    """Returns dense layers fused into one: `weight` `[out, in]`, and `bias` if they have one."""
    found = {f"{name}/weight": np.concatenate([here[f"{path}/kernel"].T for path in paths])}
    if f"{paths[0]}/bias" in here:
        found[f"{name}/bias"] = np.concatenate([here[f"{path}/bias"] for path in paths])
    return found


def normalization(name: str, here: Arrays, path: str, norm: BaseNorm) -> dict[str, np.ndarray]:
    """Returns a norm. CTranslate2 reads a norm without `beta` as an RMS norm."""
    scale = here[f"{path}/scale"]
    if type(norm) is RMSNorm:
        return {f"{name}/gamma": np.float32(norm.offset) + scale}
    return {f"{name}/gamma": scale, f"{name}/beta": here.get(f"{path}/bias", np.zeros_like(scale))}


def under(prefix: str, found: Arrays) -> dict[str, np.ndarray]:
    return {f"{prefix}/{name}": x for name, x in found.items()}
