"""BART: post-norm encoder–decoder with learned positions and a norm on the embeddings, and a head for classes.

Reference: Lewis et al. 2019, arXiv:1910.13461.
"""

import re
from collections.abc import Collection
from typing import Any

from flaxformer_lite.interop.hf.family import (
    Family,
    IgnorableTensor,
    copies,
    linear,
    norm,
    same,
    stacked,
    table,
    unused,
)
from flaxformer_lite.interop.hf.settings import THEIR_ACTIVATIONS, Settings, SpecialIds
from flaxformer_lite.interop.name_map import Arrays, Layout, WeightName
from flaxformer_lite.model.config import LanguageModelHead, ModelConfig, Pooler
from flaxformer_lite.model.dropout import DropoutRates
from flaxformer_lite.model.initializers import Normal
from flaxformer_lite.model.norms import LayerNorm
from flaxformer_lite.model.positions import Learned
from flaxformer_lite.model.residual import POST_NORM

SHARED, HEAD, HEAD_BIAS = "model.shared.weight", "lm_head.weight", "final_logits_bias"
TABLES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
CLASSES = "classification_head.dense.weight"
OFFSET = 2
"""The table of positions begins with that many rows that no position has."""


def model_config(settings: Settings, weights: Arrays) -> ModelConfig:
    """The model in our terms. The tensors say which heads there are, and which tables are shared."""
    settings.only("normalize_before", False)
    settings.only("normalize_embedding", True)
    settings.only("static_position_embeddings", False)
    stddev = settings.number("init_std", 0.02)
    classes = 0
    if CLASSES in weights:
        classes = settings.num_labels
    return ModelConfig(
        vocab_size=settings.integer("vocab_size", 50265),
        **stacks(settings),
        **tables(settings, weights, "BartModel"),
        positions=Learned(
            max_positions=settings.integer("max_position_embeddings", 1024), stddev=stddev, offset=OFFSET
        ),
        embedding_norm=True,
        pooler=Pooler(token="last", num_classes=classes) if classes else None,
        initializer=Normal(stddev=stddev),
    )


def stacks(settings: Settings) -> dict[str, Any]:
    """What BART and Marian have in common: the shape of the stacks."""
    settings.only("add_final_layer_norm", False)
    settings.only("add_bias_logits", False)
    settings.only("do_blenderbot_90_layernorm", False)
    num_layers = settings.integer("encoder_layers", 12)
    settings.only("num_hidden_layers", num_layers)
    settings.ignore("force_bos_token_to_be_generated")
    settings.ignore("extra_pos_embeddings")  # no release reads it: where there is a table, its shape has to fit
    num_heads, d_ff = settings.integer("encoder_attention_heads", 16), settings.integer("encoder_ffn_dim", 4096)
    decoder_num_heads = settings.integer("decoder_attention_heads", 16)
    decoder_d_ff = settings.integer("decoder_ffn_dim", 4096)
    rate = settings.number("dropout", 0.1)
    return {
        "d_model": settings.integer("d_model", 1024),
        "num_heads": num_heads,
        "d_ff": d_ff,
        "num_encoder_layers": num_layers,
        "num_decoder_layers": settings.integer("decoder_layers", 12),
        "decoder_num_heads": None if decoder_num_heads == num_heads else decoder_num_heads,
        "decoder_d_ff": None if decoder_d_ff == d_ff else decoder_d_ff,
        "activation": settings.activation("activation_function", "gelu"),
        "norm": LayerNorm(epsilon=1e-5),
        "residual": POST_NORM,
        "dropout": DropoutRates(
            embedding_rate=rate,
            attention_rate=settings.number("attention_dropout", 0.0),
            feed_forward_rate=settings.number("activation_dropout", 0.0),
            residual_rate=rate,
        ),
        "scale_embeddings": settings.flag("scale_embedding", False),
    }


def tables(settings: Settings, weights: Arrays, base: str) -> dict[str, Any]:
    """The head, and which of the encoder's, the decoder's and the head's tables are one.

    What is stored apart is read apart where the config says that nothing is tied, or where it differs.
    """
    tied = settings.flag("tie_word_embeddings", True)
    encoder, decoder, head = (weights.get(name) for name in (*TABLES, HEAD))
    apart = encoder is not None and decoder is not None and not (tied and same(encoder, decoder))
    shared = settings.flag("share_encoder_decoder_embeddings", True) and not apart
    target = weights.get(SHARED, decoder) if shared else decoder
    has_head = CLASSES not in weights and (settings.architecture != base or head is not None or HEAD_BIAS in weights)
    return {
        "share_source_target": shared,
        "share_target_output": not has_head or (tied and (head is None or same(head, target))),
        "head": LanguageModelHead(bias=HEAD_BIAS in weights) if has_head else None,
    }


def settings_of(model: ModelConfig) -> dict[str, Any]:
    """`config.json` for a model like that."""
    if not isinstance(model.positions, Learned):
        raise ValueError(f"model.positions is {type(model.positions).__name__} (there: Learned)")
    return stack_settings(model) | {
        "max_position_embeddings": model.positions.max_positions,
        "init_std": model.positions.stddev,
        # Only separate tables need the word: a head of its own is known by its tensor.
        "tie_word_embeddings": model.share_source_target,
    }


def stack_settings(model: ModelConfig) -> dict[str, Any]:
    """What BART and Marian have in common."""
    decoder = model.for_decoder
    return {
        "vocab_size": model.vocab_size,
        "d_model": model.d_model,
        "encoder_layers": model.num_encoder_layers,
        "decoder_layers": model.num_decoder_layers,
        "encoder_attention_heads": model.num_heads,
        "decoder_attention_heads": decoder.num_heads,
        "encoder_ffn_dim": model.d_ff,
        "decoder_ffn_dim": decoder.d_ff,
        "activation_function": THEIR_ACTIVATIONS.get(model.activation, model.activation),
        "dropout": model.dropout.residual_rate,
        "attention_dropout": model.dropout.attention_rate,
        "activation_dropout": model.dropout.feed_forward_rate,
        "scale_embedding": model.scale_embeddings,
    }


def architecture(model: ModelConfig, names: Collection[str]) -> str:
    """The class with these heads."""
    if model.pooler is not None:
        return "BartForSequenceClassification"
    return "BartModel" if model.head is None else "BartForConditionalGeneration"


def name_map(model: ModelConfig, architecture: str) -> list[WeightName]:
    """Every parameter under the library's names."""
    weights = stack_names(model)
    for side in ("encoder", "decoder"):
        weights += table(f"{side}/positions", f"model.{side}.embed_positions")
        weights += norm(f"{side}/embedding_norm", f"model.{side}.layernorm_embedding")
    if model.pooler is not None:
        weights += linear("pooler/dense", "classification_head.dense")
        weights += linear("pooler/classes", "classification_head.out_proj")
    return weights


def stack_names(model: ModelConfig) -> list[WeightName]:
    """What BART and Marian have in common: tables, layers and the head."""
    weights = table("embedding", "model.shared")
    if not model.share_source_target:
        weights = [
            WeightName("source_embedding/embedding", TABLES[:1]),
            WeightName("target_embedding/embedding", TABLES[1:]),
        ]
    weights += stacked(layer("encoder"), model.num_encoder_layers)
    weights += stacked(layer("decoder"), model.num_decoder_layers)
    if model.head is not None and not model.share_target_output:
        weights += linear("head", "lm_head", bias=False)
    if model.head is not None and model.head.bias:
        weights.append(WeightName("head/bias", (HEAD_BIAS,), Layout.ROW))
    return weights


def layer(side: str) -> list[WeightName]:
    """One layer of a stack."""
    here, there = f"{side}/layers", f"model.{side}.layers.{{i}}"
    attentions = {"attention": "self_attn"} | ({"cross_attention": "encoder_attn"} if side == "decoder" else {})
    weights = []
    for ours, theirs in attentions.items():
        for role, name in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("out", "out_proj")):
            weights += linear(f"{here}/{ours}/{role}", f"{there}.{theirs}.{name}")
        weights += norm(f"{here}/{ours}_post_norm", f"{there}.{theirs}_layer_norm")
    weights += linear(f"{here}/feed_forward/up", f"{there}.fc1") + linear(f"{here}/feed_forward/down", f"{there}.fc2")
    return weights + norm(f"{here}/feed_forward_post_norm", f"{there}.final_layer_norm")


TIED = (
    *copies(SHARED, *TABLES),
    IgnorableTensor(
        re.escape(HEAD),
        "equal to the decoder's embeddings, with which it is tied",
        lambda x, weights, model: same(x, weights.get(SHARED if model.share_source_target else TABLES[1])),
    ),
    unused(re.escape(SHARED), "a table that no side reads"),
)
"""Tables that are stored though another is read in their place, in BART and Marian."""

FAMILIES = (
    Family(
        model_type="bart",
        prefix="model.",
        base="BartModel",
        special=SpecialIds(pad=1, bos=0, eos=2, start=2),
        heads=(HEAD_BIAS, "lm_head.", "classification_head."),
        model_config=model_config,
        architecture=architecture,
        name_map=name_map,
        needless=(*TIED, unused(r"model\.(encoder|decoder)\.version", "a number that tells releases apart")),
        settings_of=settings_of,
    ),
)
