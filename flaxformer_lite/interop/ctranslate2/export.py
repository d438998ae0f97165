"""Writes a run as a folder for CTranslate2. There is no way back: CTranslate2 is for inference.

The search is CTranslate2's own; its settings are arguments of each call.

Reference: Klein et al. 2020, Proceedings of the Fourth Workshop on Neural Generation and Translation.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxtyping import PyTree

from flaxformer_lite.config import Config
from flaxformer_lite.inference import DecodeConfig
from flaxformer_lite.interop.ctranslate2.files import Specification, vocabulary_files, write_folder
from flaxformer_lite.interop.ctranslate2.variables import ACTIVATION_NUMBERS, is_multi_query, norm_places, variables
from flaxformer_lite.interop.differences import CannotExpress
from flaxformer_lite.interop.options import lookup
from flaxformer_lite.model import DotProduct, LanguageModelHead, LayerNorm, Learned, ModelConfig, RMSNorm, Rotary
from flaxformer_lite.model.masks import Exclude, Masking, Penalize, Replace
from flaxformer_lite.model.positions import (
    ALiBi,
    FixedTable,
    LinearScaling,
    Llama3Scaling,
    NoPositions,
    PositionScheme,
    RelativeBias,
    Sinusoidal,
)
from flaxformer_lite.text import Tokenizer, Tokenizers

ENCODER_DECODER, DECODER_ONLY = Specification("TransformerSpec", 7), Specification("TransformerDecoderSpec", 8)
MASKED_SCORE = -10_000.0
"""The largest score of a masked key that makes its weight 0, as in CTranslate2."""
MIN_POSITIONS = 1024
"""The smallest computed table of positions: CTranslate2's default limit of tokens."""


def export_run(config: Config, params: PyTree, tokenizers: Tokenizers | None, output: Path) -> tuple[int, list[str]]:
    """Writes the folder. Returns the number of arrays, and notes for the user.

    Raises: ValueError that lists the settings that CTranslate2 does not support.
    """
    model, data, decode = config.model, config.data, config.decode
    kind = specification(model)
    if not decode.eos_ids:
        raise ValueError(
            "decode.eos_ids is (), but CTranslate2 needs a token that ends an answer: set it to a token id"
        )
    room = max(MIN_POSITIONS, data.max_source_length, data.max_target_length, decode.max_length(data.max_source_length))
    source, target = (None, None) if tokenizers is None else (tokenizers.source, tokenizers.target)
    names = [token_names(tokenizer, size) for tokenizer, size in zip((source, target), model.vocab_sizes, strict=True)]
    if kind is ENCODER_DECODER:
        options = shared_options(model, decode, source, names[1]) | source_options(decode, source, names[1])
        vocabularies = vocabulary_files(*names)
    else:
        options, vocabularies = shared_options(model, decode, target, names[1]), vocabulary_files(names[1], None)
    found = variables(model, params, room)
    write_folder(output, kind, found, options, vocabularies)
    return sum(x.ndim > 0 for x in found.values()), notes(model, decode)


def shared_options(
    model: ModelConfig, decode: DecodeConfig, tokenizer: Tokenizer | None, names: Sequence[str]
) -> dict[str, Any]:
    """Returns the part of `config.json` that both kinds of models have; `names` are the target's tokens."""
    unk = decode.pad_id if tokenizer is None or tokenizer.unk_id is None else tokenizer.unk_id
    bos = decode.start_id if tokenizer is None or tokenizer.bos_id is None else tokenizer.bos_id
    return {
        "bos_token": names[bos],
        "eos_token": names[decode.eos_ids[0]],
        "layer_norm_epsilon": model.norm.epsilon,
        "multi_query_attention": is_multi_query(model),
        "unk_token": names[unk],
    }


def source_options(decode: DecodeConfig, tokenizer: Tokenizer | None, names: Sequence[str]) -> dict[str, Any]:
    """Returns the tokens that CTranslate2 adds to a source and starts an answer from. Without a tokenizer it adds none."""
    added = [] if tokenizer is None else tokenizer.as_source([])
    return {
        "add_source_bos": tokenizer is not None and added[:1] == [tokenizer.bos_id] and len(added) > 1,
        "add_source_eos": added[-1:] == [*decode.eos_ids[:1]],
        "decoder_start_token": names[decode.start_id],
    }


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
    found = []
    if model.sliding_window is not None:
        found.append(
            f"CTranslate2 applies model.sliding_window.size {model.sliding_window.size} while it writes. It reads longer prompts "
            "and texts to be scored in blocks, which see all of the block before or nothing: use shorter texts there"
        )
    for name, ids, argument in (
        ("eos_ids", decode.eos_ids[1:], "end_token, beside the first"),
        ("suppress_ids", decode.suppress_ids, "suppress_sequences, one token each"),
    ):
        if ids:
            found.append(f"the folder cannot hold all of decode.{name}: pass {ids} to each call as {argument}")
    return found


def specification(model: ModelConfig) -> Specification:
    """Returns CTranslate2's kind of model. Raises: CannotExpress that lists the settings that CTranslate2 does not support."""
    if wrong := unsupported_settings(model):
        raise CannotExpress("; ".join(f"{path} is {value}" for path, value in wrong.items()), wrong, "CTranslate2")
    return ENCODER_DECODER if model.num_encoder_layers else DECODER_ONLY


def unsupported_settings(model: ModelConfig) -> dict[str, Any]:
    """Returns the settings that CTranslate2 does not support, by path."""
    attention, window, both = model.attention, model.sliding_window, model.num_encoder_layers > 0
    schemes = (Sinusoidal, Learned, FixedTable, NoPositions, RelativeBias, Rotary)
    wrong = {
        "num_decoder_layers": model.num_decoder_layers == 0,
        "vocab_size": model.vocab_size == 0,
        "head": type(model.head) is not LanguageModelHead or model.head.transform is not None,
        "pooler": model.pooler is not None,
        "sentence_embedding": model.sentence_embedding is not None,
        "num_token_types": model.num_token_types > 0,
        "position_padding_id": model.position_padding_id is not None,
        "residual": norm_places(model) is None or (norm_places(model) == "both" and both),
        "norm": type(model.norm) not in (LayerNorm, RMSNorm),
        "activation": model.activation not in ACTIVATION_NUMBERS,
        "positions": type(model.positions) not in (schemes if both else (*schemes, ALiBi)),
        "positions.scaling": type(model.positions) is Rotary and not is_known_rotary(model.positions),
        "sliding_window": not (window is None or window.positions is None or is_known_rotary(window.positions)),
        "attention": type(attention) is not DotProduct,
        "attention.soft_cap": attention.soft_cap is not None,
        "attention.qk_norm": attention.qk_norm is not None and (both or attention.qk_norm != model.norm),
        "attention.masking": not has_zero_weights(attention.masking),
        "dropout.residual_scaling": model.dropout.residual_scaling == "evaluation" and model.dropout.residual_rate > 0,
    }
    if type(attention) is DotProduct:
        heads = attention.heads(model.d_model, model.num_heads)
        wrong["attention.d_value"] = heads.d_value != heads.d_key
    return {f"model.{name}": lookup(model, name) for name, is_wrong in wrong.items() if is_wrong}


def is_known_rotary(scheme: PositionScheme) -> bool:
    """Returns whether a position scheme is rotary, with no scaling or one that CTranslate2 has too."""
    return type(scheme) is Rotary and type(scheme.scaling) in (LinearScaling, Llama3Scaling, type(None))


def has_zero_weights(masking: Masking) -> bool:
    """Returns whether masked keys have weight 0, as in CTranslate2."""
    return type(masking) in (Exclude, Penalize, Replace) and getattr(masking, "value", MASKED_SCORE) <= MASKED_SCORE
