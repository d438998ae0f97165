"""Writes a run as a folder for CTranslate2. CTranslate2 is for inference: no import reads the folder.

The search is CTranslate2's own; its settings are arguments of each call. Every attribute is written, so that nothing depends on a
default of CTranslate2. Kernels `[in, out]` become weights `[out, in]`; queries, keys and values of self-attention are fused into
one matrix, keys and values of cross-attention into another. A table of positions replaces sinusoids, and the offset of an RMS norm
is added to its scale.

Reference: Klein et al. 2020, Proceedings of the Fourth Workshop on Neural Generation and Translation.
"""

import dataclasses
import functools
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from flaxformer_lite.config import Config
from flaxformer_lite.core.base.bounds import LARGEST
from flaxformer_lite.core.model import DotProduct, LanguageModelHead, LayerNorm, Learned, ModelConfig, RMSNorm, Rotary
from flaxformer_lite.core.model.layers import ACTIVATIONS
from flaxformer_lite.core.model.masks import Exclude, Masking, Penalize, Replace
from flaxformer_lite.core.model.positions import (
    ALiBi,
    DynamicScaling,
    FixedTable,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoPositions,
    PositionScheme,
    RelativeBias,
    Sinusoidal,
    sinusoids,
)
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.core.text import Tokenizer, Tokenizers
from flaxformer_lite.interop.differences import CannotExpress
from flaxformer_lite.interop.name_map import Leaves, Names, NumpyArrays, Tensors, from_params, name_map, prefixed
from flaxformer_lite.interop.options import lookup
from flaxformer_lite.interop.weight_files import new_folder

MASKED_SCORE = -10_000.0
"""The largest score of a masked key that makes its weight 0, as in CTranslate2."""
MIN_POSITIONS = 1024
"""The smallest computed table of positions: CTranslate2's default limit of tokens."""
MIN_PROMPT_POSITIONS = 8192
"""The smallest table of models without an encoder: prompts may be longer than those of the training."""
FORMAT_VERSION = 6
TYPE_NUMBERS = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "bfloat16": 5}
MAX_BYTES = 2**32 - 1
"""The largest array: its size is written in 32 bits."""


def export_run(
    config: Config,
    params: PyTree,
    tokenizers: Tokenizers | None,
    output: Path,
    dtype: str = "float32",
    changes: Mapping[str, object] = {},
    further: Mapping[str, str] = {},
) -> tuple[int, list[str]]:
    """Writes the folder. Returns the number of arrays, and notes for the user.

    dtype: the type of matrices and tables, see `stored_as`. changes: attributes in place of those of `options_of`. further: texts
    of more files, by name.

    Raises: ValueError that lists the settings that CTranslate2 does not support.
    """
    model, decode = config.model, config.decode
    wrong = unsupported_settings(model)
    if wrong:
        raise CannotExpress(
            "; ".join(f"{path} is {setting_in_words(x)}" for path, x in wrong.items()), wrong, "CTranslate2"
        )
    if model.num_decoder_layers and not decode.eos_ids:
        raise ValueError(
            "decode.eos_ids is (), but CTranslate2 needs a token that ends an answer: set it to a token id"
        )
    source, target = (None, None) if tokenizers is None else (tokenizers.source, tokenizers.target)
    names = [token_names(tokenizer, size) for tokenizer, size in zip((source, target), model.vocab_sizes, strict=True)]
    written = stored_as(dtype, variables(model, params, num_positions(config)))
    if model.has_two_stacks:
        kind, revision = "TransformerSpec", 7
        files = {"source_vocabulary": names[0], "target_vocabulary": names[1]}
        files = {"shared_vocabulary": names[0]} if names[0] == names[1] else files
    else:
        kind, revision = ("TransformerEncoderSpec", 1) if model.num_encoder_layers else ("TransformerDecoderSpec", 8)
        files = {"vocabulary": names[1]}
    options = {**options_of(model, decode, source if model.num_encoder_layers else target, names[1]), **changes}
    documents = {f"{name}.json": document for name, document in {"config": options, **files}.items()}
    documents |= further
    with new_folder(output, documents) as unfinished, open(unfinished / "model.bin", "wb") as file:
        write_model(file, kind, revision, written)
    return sum(x.ndim > 0 for x in written.values()), notes(model, decode)


def num_positions(config: Config) -> int:
    """Returns the number of positions of an export: the most tokens of a source, or of an answer; LARGEST without a table."""
    data, decode, positions = config.data, config.decode, config.model.positions
    if type(positions) not in (Sinusoidal, NoPositions):
        return positions.max_positions or LARGEST
    least = MIN_POSITIONS if config.model.num_encoder_layers else MIN_PROMPT_POSITIONS
    room = max(least, data.max_source_length, data.max_target_length, decode.max_length(data.max_source_length))
    return min(room, positions.max_positions or room)


def options_of(
    model: ModelConfig, decode: DecodeConfig, tokenizer: Tokenizer | None, names: Sequence[str]
) -> dict[str, object]:
    """Returns `config.json`; `tokenizer` is that of the texts that the model reads, `names` are the target's tokens.

    An encoder–decoder also gets the tokens that CTranslate2 adds to a source, without a tokenizer none, and starts an answer from.
    A model without a decoder has no use for tokens that begin and end, but CTranslate2 wants their names.
    """
    unk = decode.pad_id if tokenizer is None or tokenizer.unk_id is None else tokenizer.unk_id
    start = decode.start_id if model.num_decoder_layers else unk
    bos = start if tokenizer is None or tokenizer.bos_id is None else tokenizer.bos_id
    settings: dict[str, Any] = {
        "bos_token": names[bos],
        "eos_token": names[decode.eos_ids[0] if model.num_decoder_layers else unk],
        "layer_norm_epsilon": model.norm.epsilon,
        "multi_query_attention": is_multi_query(model),
        "unk_token": names[unk],
    }
    if model.has_two_stacks:
        added = [] if tokenizer is None else tokenizer.as_source([])
        settings |= {
            "add_source_bos": tokenizer is not None and added[:1] == [tokenizer.bos_id] and len(added) > 1,
            "add_source_eos": added[-1:] == [*decode.eos_ids[:1]],
            "decoder_start_token": names[decode.start_id],
        }
    return settings


def token_names(tokenizer: Tokenizer | None, size: int) -> list[str]:
    """Returns a unique name for each id: the tokenizer's piece, or the id itself without a tokenizer."""
    if tokenizer is None:
        return [str(i) for i in range(size)]
    names: dict[str, int] = {}
    for i in range(size):
        piece = tokenizer.piece(i)
        names[piece if piece and piece not in names else f"<id {i}>"] = i
    return [*names]


def notes(model: ModelConfig, decode: DecodeConfig) -> list[str]:
    """Returns notes for the user of the folder."""
    lines = []
    if not model.num_decoder_layers:
        lines.append(
            "the folder has only the encoder, which gives its last layer: a head, pooler or vector that reads it is left out"
        )
    if model.sliding_window is not None:
        lines.append(
            f"CTranslate2 applies model.sliding_window.size {model.sliding_window.size} while it writes. It reads longer prompts "
            "and texts to be scored in blocks, which see all of the block before or nothing: use shorter texts there"
        )
    for name, ids, argument in (
        ("eos_ids", decode.eos_ids[1:], "end_token, beside the first"),
        ("suppress_ids", decode.suppress_ids, "suppress_sequences, one token each"),
    ):
        if ids:
            lines.append(f"the folder cannot hold all of decode.{name}: pass {ids} to each call as {argument}")
    return lines


def unsupported_settings(model: ModelConfig) -> dict[str, object]:
    """Returns the settings that CTranslate2 does not support, by path."""
    attention, window, both, reads = (
        model.attention,
        model.sliding_window,
        model.has_two_stacks,
        not model.num_decoder_layers,
    )
    place = norm_places(model)
    schemes = (Sinusoidal, Learned, FixedTable, NoPositions, RelativeBias, Rotary)
    answers = not reads and (type(model.head) is not LanguageModelHead or model.head.transform is not None)
    wrong = {
        "vocab_size": model.vocab_size == 0,
        "embedding_projection": model.num_encoder_layers > 0 and model.embedding_projection is not None,
        "embedding_projection.of": not model.num_encoder_layers and model.embedding_width != model.output_width,
        "share_layers": model.share_layers,
        "feed_forward_out_bias": model.feed_forward_out_bias not in (None, model.feed_forward_bias),
        "head": answers,
        "pooler": model.pooler is not None and not reads,
        "sentence_embedding": model.sentence_embedding is not None and not reads,
        "layer_mix": model.layer_mix is not None,
        "estimator": model.estimator is not None,
        "num_token_types": model.num_token_types > 0 and (not reads or model.embedding_factor != 1),
        "residual": place is None
        or (place == "both" and both)
        or (place.startswith("parallel") and model.num_encoder_layers > 0),
        "residual.scale": model.residual.scale != 1,
        "norm": type(model.norm) not in (LayerNorm, RMSNorm),
        "norm.scale": type(model.norm) is LayerNorm and not model.norm.scale,
        "activation": model.activation not in ACTIVATION_NUMBERS,
        "positions": type(model.positions) not in (schemes if model.num_encoder_layers else (*schemes, ALiBi)),
        "positions.per_layer": model.positions.per_layer,
        "positions.layers": model.positions.layers is not None
        and (model.num_encoder_layers > 0 or 0 not in model.positions.layers),
        "positions.relative": type(model.positions) is Learned and model.positions.relative is not None,
        "positions.scaling": type(model.positions) is Rotary and not is_known_rotary(model.positions),
        "sliding_window": window is not None
        and (reads or not (window.positions is None or is_known_rotary(window.positions))),
        "attention": type(attention) is not DotProduct,
        "attention.soft_cap": attention.soft_cap is not None,
        "attention.qk_norm": attention.qk_norm is not None and (both or attention.qk_norm != model.norm),
        "attention.qk_norm_width": attention.qk_norm_width != "head",
        "attention.qk_norm_place": attention.qk_norm_place != "before_rotation",
        "attention.masking": not has_zero_weights(attention.masking),
        "dropout.residual_scaling": model.dropout.residual_scaling == "evaluation" and model.dropout.residual_rate > 0,
    }
    if type(attention) is DotProduct:
        wrong["attention.d_value"] = model.heads.d_value != model.heads.d_key
    return {f"model.{name}": lookup(model, name) for name, is_wrong in wrong.items() if is_wrong}


def setting_in_words(value: object) -> str:
    """Returns the value of a setting as a message has it: of a group its kind, or else the settings that are not the usual ones."""
    if not dataclasses.is_dataclass(value):
        return str(value)
    values = {field: getattr(value, field.name) for field in dataclasses.fields(value)}
    unusual = ", ".join(f"{field.name} {x!r}" for field, x in values.items() if x != field.default)
    return str(getattr(value, "kind", unusual or type(value).__name__))


def is_known_rotary(scheme: PositionScheme) -> bool:
    """Returns whether a position scheme is rotary, with no scaling or one that CTranslate2 has too.

    Up to the length of the original training's texts, dynamic scaling changes nothing, and longrope needs only the short factors.
    """
    if type(scheme) is not Rotary:
        return False
    scaling = scheme.scaling
    if type(scaling) is DynamicScaling:
        return scaling.length <= scaling.original_length
    if type(scaling) is LongRopeScaling:
        return scaling.length <= scaling.original_length and amplitude_length(scaling) is not None
    return type(scaling) in (LinearScaling, Llama3Scaling, type(None))


def amplitude_length(scaling: LongRopeScaling) -> int | None:
    """Returns the length of texts from which CTranslate2 computes the amplitude of longrope; None: it has no such amplitude."""
    log = math.log(max(scaling.original_length, 2))
    exponent = min(scaling.amplitude**2 * log, math.log(LARGEST))
    length = round(math.exp(exponent))
    amplitude = math.sqrt(max(math.log(length) / log, 1))
    return length if abs(amplitude - scaling.amplitude) < 1e-6 else None


def has_zero_weights(masking: Masking) -> bool:
    """Returns whether masked keys have weight 0, as in CTranslate2."""
    return type(masking) in (Exclude, Penalize, Replace) and getattr(masking, "value", MASKED_SCORE) <= MASKED_SCORE


# The file -------------------------------------------------------------------------------------------------------------


def write_model(file: BinaryIO, kind: str, revision: int, variables: NumpyArrays) -> None:
    """Writes `model.bin`. Raises: ValueError for an array that is too large for it.

    It is little-endian: the version of the format, the name of the kind of model and the revision of its names, then every array
    with its name, and at last the aliases: further names of an array. A string is stored as its length, its bytes and a zero.
    """
    first: dict[int, str] = {}
    for name in sorted(variables):
        if variables[name].ndim:
            first.setdefault(id(variables[name]), name)
    stored = [name for name in sorted(variables) if first.get(id(variables[name]), name) == name]
    file.write(struct.pack("<I", FORMAT_VERSION))
    write_string(file, kind)
    file.write(struct.pack("<II", revision, len(stored)))
    for name in stored:
        write_array(file, name, variables[name])
    aliases = [name for name in sorted(variables) if name not in set(stored)]
    file.write(struct.pack("<I", len(aliases)))
    for name in aliases:
        write_string(file, name)
        write_string(file, first[id(variables[name])])


def write_array(file: BinaryIO, name: str, array: np.ndarray) -> None:
    """Writes name, rank, sizes, type, size in bytes, and content."""
    if array.nbytes > MAX_BYTES:
        raise ValueError(
            f"{name} has {array.nbytes:,} bytes, and CTranslate2 stores at most {MAX_BYTES:,} in one array: "
            "make the vocabulary or the model smaller"
        )
    write_string(file, name)
    file.write(struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape))
    file.write(struct.pack("<BI", TYPE_NUMBERS[array.dtype.name], array.nbytes))
    file.write(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes())


def write_string(file: BinaryIO, text: str) -> None:
    encoded = text.encode()
    file.write(struct.pack("<H", len(encoded) + 1) + encoded + b"\0")


def stored_as(dtype: str, variables: NumpyArrays) -> Tensors:
    """Returns the variables with matrices and tables in another type: bfloat16, or int8 with a scale for each output.

    Arrays of several names stay one array.
    """
    if dtype == "float32":
        return dict(variables)
    changed: dict[int, tuple[np.ndarray, ...]] = {}
    stored = dict(variables)
    for name, x in variables.items():
        if not (name.endswith("/weight") and x.ndim == 2):
            continue
        if id(x) not in changed:
            changed[id(x)] = (x.astype(jnp.bfloat16),) if dtype == "bfloat16" else in_eight_bits(x)
        stored |= dict(zip((name, f"{name}_scale"), changed[id(x)], strict=False))
    return stored


def in_eight_bits(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns a matrix [out, in] in eight bits, and for each output the number that multiplied it."""
    largest = np.abs(matrix).max(axis=1)
    scale = np.float32(127) / np.where(largest == 0, np.float32(127), largest)
    return np.rint(matrix * scale[:, None]).astype(np.int8), scale


# Names and attributes --------------------------------------------------------------------------------------------------

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


HEAD_PARAMETERS = ("head", "pooler", "sentence_embedding", "log_scale")
"""The parameters of a model without a decoder that read its last layer."""
LEAVES = Leaves("/weight", "/bias", "/gamma", "/beta", "/weight")
STACK = {
    "positions/embedding": "position_encodings/encodings",
    "positions/table": "position_encodings/encodings",
    "position_bias/embedding": "position_bias",
    "embedding_norm": "layernorm_embedding",
    "final_norm": "layer_norm",
    "embedding_projection": "project_in",
    "output_projection": "project_out",
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
GATED_LAYER = {"feed_forward/gate": "ffn/linear_0", "feed_forward/up": "ffn/linear_0_noact"}
NOT_GATED = {"feed_forward/up": "ffn/linear_0"}


def norm_places(model: ModelConfig) -> str | None:
    """Returns the position of a sublayer's norms: before it (pre), after the residual (post), or around it (both); else None.

    Norms before parallel branches have the name of these.
    """
    if model.residual.first is not None:
        return None
    pre, post = (commands.replace("d", "") for commands in (model.residual.pre, model.residual.post))
    place = {("n", "a"): "pre", ("", "an"): "post", ("n", "na"): "both"}.get((pre, post))
    branches = model.residual.branches
    if branches == "sequential":
        return place
    return branches if place == "pre" else None


def variables(model: ModelConfig, params: PyTree, room: int) -> Tensors:
    """Returns every array and attribute by its name in CTranslate2; a computed table of positions has `room` rows.

    Raises: ValueError that lists the parameters that CTranslate2 has no name for.
    """
    in_float32 = jax.tree.map(lambda x: np.asarray(x, np.float32), params)
    if not model.num_decoder_layers:
        in_float32 = {name: tree for name, tree in in_float32.items() if name not in HEAD_PARAMETERS}
    weights = from_params(in_float32, name_map(names(model), model, LEAVES))
    table = computed_positions(model, room)
    weights |= norm_weights(model, weights)
    if model.num_decoder_layers:
        if model.share_target_output:
            weights["decoder/projection/weight"] = weights["decoder/embeddings/weight"]
        weights |= decoder_attributes(model) | stack("decoder", model.for_decoder, weights, table)
    if model.num_encoder_layers:
        if model.has_two_stacks and model.one_table:
            weights["encoder/embeddings_0/weight"] = weights["decoder/embeddings/weight"]
        merge = 1 if model.num_token_types else 0  # 1: the embeddings of tokens and of their types are added
        weights |= {
            "encoder/embeddings_merge": int8(merge),
            "encoder/multi_query_attention": int8(is_multi_query(model)),
        }
        weights |= stack("encoder", model, weights, table)
    return {name: x for name, x in weights.items() if not name.endswith("/position_bias")}


def names(model: ModelConfig) -> Names:
    """Returns CTranslate2's names of our modules. The bias of relative positions is that of a stack, as ours is."""
    table = "decoder/embeddings" if model.num_decoder_layers else "encoder/embeddings_0"
    tables = {
        "embedding": table,
        "target_embedding": "decoder/embeddings",
        "token_type_embedding": "encoder/embeddings_1",
    }
    module_names = {**tables, "source_embedding": "encoder/embeddings_0"}
    if model.num_decoder_layers:  # the heads of an encoder are left out
        module_names["head"] = "decoder/projection"
    gated = ACTIVATIONS[model.activation][1]
    layer = {**LAYER, **(GATED_LAYER if gated else NOT_GATED), **norm_names(model)}
    for side in ("encoder", "decoder"):
        module_names |= prefixed(f"{side}/", f"{side}/", STACK) | prefixed(
            f"{side}/layers/", f"{side}/layer_{{i}}/", layer
        )
    return module_names


def norm_weights(model: ModelConfig, weights: NumpyArrays) -> Tensors:
    """Returns the scales of RMS norms with their offset. CTranslate2 reads a norm without `beta` as an RMS norm: others get one."""
    changed = {}
    for name in (name.removesuffix("gamma") for name in weights if name.endswith("/gamma")):
        norm = model.attention.qk_norm if name.endswith(("/q_norm/", "/k_norm/")) else model.norm
        scale = weights[f"{name}gamma"]
        if type(norm) is RMSNorm:
            changed[f"{name}gamma"] = np.float32(norm.offset) + scale
        else:
            changed[f"{name}beta"] = weights.get(f"{name}beta", np.zeros_like(scale))
    return changed


def decoder_attributes(model: ModelConfig) -> Tensors:
    """Returns the attributes that only a decoder has."""
    assert model.head is not None
    attributes = {
        "alignment_layer": int16(-1),
        "alignment_heads": int16(1),
        "start_from_zero_embedding": int8(0),
        "alibi": int8(type(model.positions) is ALiBi),
        "alibi_use_positive_positions": int8(0),
        "scale_alibi": int8(0),
    }
    if model.head.scale != 1:
        attributes["scale_outputs"] = float32(model.head.scale)
    if model.head.soft_cap is not None:
        attributes["final_logit_softcapping"] = float32(model.head.soft_cap)
    if model.sliding_window is not None:
        attributes["sliding_window"] = int32(model.sliding_window.size)
    return under("decoder", attributes)


def stack(side: str, model: ModelConfig, weights: NumpyArrays, table: np.ndarray | None) -> Tensors:
    """Returns the attributes of one side and of its layers, and its positions."""
    attributes = {
        "num_heads": int16(model.num_heads),
        "pre_norm": int8(norm_places(model) != "post"),
        "activation": int8(ACTIVATION_NUMBERS[model.activation]),
        "scale_embeddings": float32(model.embedding_factor),
    }
    if type(model.positions) is Learned:
        table = weights[f"{side}/position_encodings/encodings"][model.positions.offset :]
    if table is not None:
        attributes["position_encodings/encodings"] = table
    bias = weights.get(f"{side}/position_bias")
    crosses = side == "decoder" and model.num_encoder_layers > 0
    for i in range(model.num_encoder_layers if side == "encoder" else model.num_decoder_layers):
        of_attention = attention_attributes(model) | position_attributes(model, i if side == "decoder" else None, bias)
        attributes |= under(f"layer_{i}/self_attention", of_attention)
        attributes |= under(f"layer_{i}/attention", attention_attributes(model) if crosses else {})
    return under(side, attributes)


def attention_attributes(model: ModelConfig) -> Tensors:
    scale, heads = model.attention.scale, model.heads
    attributes = {
        "queries_scale": float32(heads.d_key**-0.5 if scale is None else scale),
        "head_dim": int32(heads.d_key),
    }
    return attributes | ({"num_heads_kv": int32(heads.num_kv_heads)} if is_multi_query(model) else {})


OF_LAYER = {
    "both": {
        "attention_pre_norm": "input_layer_norm",
        "attention_post_norm": "post_attention_layer_norm",
        "feed_forward_pre_norm": "pre_feedforward_layer_norm",
        "feed_forward_post_norm": "post_feedforward_layer_norm",
    },
    "parallel": {
        "attention_pre_norm": "input_layer_norm",
        "feed_forward_pre_norm": "post_attention_layer_norm",
    },
    "parallel_one_norm": {"attention_pre_norm": "shared_layer_norm"},
}
"""The names of norms that belong to the layer and not to a sublayer, by the value of `norm_places`."""


def norm_names(model: ModelConfig) -> dict[str, str]:
    """Returns the names of the norms within a layer, by ours."""
    place = norm_places(model)
    if place in OF_LAYER:
        return OF_LAYER[place]
    sublayers = {"attention": "self_attention", "cross_attention": "attention", "feed_forward": "ffn"}
    return {f"{ours}_{place}_norm": f"{theirs}/layer_norm" for ours, theirs in sublayers.items()}


def position_attributes(model: ModelConfig, number: int | None, bias: np.ndarray | None) -> Tensors:
    """Returns the position attributes of self-attention in decoder layer `number`; None: in an encoder layer."""
    attributes: Tensors = {}
    scheme, window = model.positions, model.sliding_window
    if window is not None and number is not None:
        is_local = window.layers is None or number in window.layers
        attributes["sliding_window"] = int32(window.size if is_local else 0)
        scheme = window.positions if is_local and window.positions is not None else scheme
    if type(scheme) is RelativeBias:
        assert bias is not None
        attributes |= {"relative_attention_bias": bias, "relative_attention_max_distance": int32(scheme.max_distance)}
    if type(scheme) is Rotary and (scheme.layers is None or number in scheme.layers):
        width = model.heads.d_key
        attributes |= {
            "rotary_dim": int32(2 * (int(width * scheme.fraction) // 2)),
            "rotary_interleave": int8(scheme.layout == "interleaved"),
            "rotary_base": float32(scheme.base),
        }
        if type(scheme.scaling) is LinearScaling:
            attributes |= {"rotary_scaling_type": int8(0), "rotary_scaling_factor": float32(scheme.scaling.factor)}
        elif type(scheme.scaling) is Llama3Scaling:
            attributes |= {
                "rotary_scaling_type": int8(2),
                "rotary_scaling_factor": float32(scheme.scaling.factor),
                "rotary_low_freq_factor": float32(scheme.scaling.low_frequency_factor),
                "rotary_high_freq_factor": float32(scheme.scaling.high_frequency_factor),
                "original_max_position_embeddings": int32(scheme.scaling.original_length),
            }
        elif type(scheme.scaling) is LongRopeScaling:
            attributes |= {
                "rotary_scaling_type": int8(1),
                "rotary_scaling_short_factor": np.asarray(scheme.scaling.short_factors, np.float32),
                "rotary_scaling_long_factor": np.asarray(scheme.scaling.long_factors, np.float32),
                "original_max_position_embeddings": int32(scheme.scaling.original_length),
                "max_position_embeddings": int32(amplitude_length(scheme.scaling)),
            }
    return attributes


def computed_positions(model: ModelConfig, room: int) -> np.ndarray | None:
    """Returns a table of sinusoids, or of zeros for a model without positions; None for other schemes."""
    if type(model.positions) is Sinusoidal:
        numbers = model.positions.offset + jnp.arange(room)[None]
        return np.asarray(sinusoids(numbers, model.d_model, model.positions.layout)[0], np.float32)
    return np.zeros((room, model.d_model), np.float32) if type(model.positions) is NoPositions else None


def is_multi_query(model: ModelConfig) -> bool:
    return model.heads.num_kv_heads != model.num_heads


def under(prefix: str, arrays: NumpyArrays) -> Tensors:
    return {f"{prefix}/{name}": x for name, x in arrays.items()}
