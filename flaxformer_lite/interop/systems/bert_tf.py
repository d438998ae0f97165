"""BERT as published in TensorFlow: post-norm encoder, pooler, masked-language-model and next-sentence heads.

`y = x W + b`, `W` stored `(in, out)` as here, but for the next-sentence classes, stored `(out, in)`.
"""

import dataclasses

from flaxformer_lite.core.model import DotProduct, LanguageModelHead, Pooler
from flaxformer_lite.core.model.masks import Penalize
from flaxformer_lite.interop.hf import bert
from flaxformer_lite.interop.name_map import Layout, Leaves, Names, Tensor, prefixed
from flaxformer_lite.interop.options import choice, required
from flaxformer_lite.interop.systems.bert_attention import BERT_ACTIVATIONS
from flaxformer_lite.interop.systems.system import System

TEMPLATE = dataclasses.replace(
    bert.TEMPLATE,
    attention=DotProduct(masking=Penalize(value=-10_000.0)),
    activation="gelu_tanh",
    head=LanguageModelHead(bias=True, transform="gelu_tanh"),
    pooler=Pooler(activation="tanh", num_classes=2),
)

TABLE = (
    required("vocab_size", "vocab_size"),
    required("hidden_size", "d_model"),
    required("num_attention_heads", "num_heads"),
    required("intermediate_size", "d_ff"),
    required("num_hidden_layers", "num_encoder_layers"),
    required("type_vocab_size", "num_token_types"),
    required("max_position_embeddings", "positions.max_positions"),
    required("hidden_act", "activation", "head.transform", kind=choice(BERT_ACTIVATIONS)),
    required("hidden_dropout_prob", "dropout.residual_rate", "dropout.embedding_rate"),
    required("attention_probs_dropout_prob", "dropout.attention_rate"),
    required("initializer_range", "positions.stddev", "initializer.stddev"),
)

SAME_NAMES = {
    **prefixed("", "bert.", bert.EMBEDDINGS),
    **prefixed("encoder/layers/", "bert.encoder.layer_{i}.", bert.LAYER),
    **bert.HEADS,
    "pooler/dense": "bert.pooler.dense",
}
"""Names that Hugging Face has too, but for the separator."""
NAMES: Names = {
    **{ours: theirs.replace(".", "/") for ours, theirs in SAME_NAMES.items()},
    "head/bias": "cls/predictions/output_bias",
    "pooler/classes/kernel": Tensor("cls/seq_relationship/output_weights"),
    "pooler/classes/bias": "cls/seq_relationship/output_bias",
}

SYSTEM = System(
    name="bert-tf",
    template=TEMPLATE,
    table=TABLE,
    names=lambda model, options: NAMES,
    leaves=Leaves("/kernel", "/bias", "/gamma", "/beta", "", Layout.SAME),
)
