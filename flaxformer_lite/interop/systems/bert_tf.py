"""BERT as published in TensorFlow: post-norm encoder, pooler, masked-language-model and next-sentence heads.

`y = x W + b`, `W` stored `(in, out)` as here, but for the next-sentence classes, stored `(out, in)`.
"""

import dataclasses

from flaxformer_lite.interop.hf import bert
from flaxformer_lite.interop.name_map import Layout, Leaves, WeightName, linear, norm, stacked
from flaxformer_lite.interop.option_table import choice, required
from flaxformer_lite.interop.options import Options
from flaxformer_lite.interop.systems.system import System
from flaxformer_lite.model import DotProduct, LanguageModelHead, ModelConfig, Pooler
from flaxformer_lite.model.bert_attention import BERT_ACTIVATIONS
from flaxformer_lite.model.masks import Penalize

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

DENSE, NORM = Leaves("/kernel", "/bias"), Leaves("/gamma", "/beta")


def names(model: ModelConfig, options: Options) -> list[WeightName]:
    """Returns every parameter under the published names."""
    embeddings, cls = "bert/embeddings", "cls/predictions"
    return [
        WeightName("embedding/embedding", (f"{embeddings}/word_embeddings",)),
        WeightName("token_type_embedding/embedding", (f"{embeddings}/token_type_embeddings",)),
        WeightName("encoder/positions/embedding", (f"{embeddings}/position_embeddings",)),
        *norm("encoder/embedding_norm", f"{embeddings}/LayerNorm", leaves=NORM),
        *stacked(layer("encoder/layers", "bert/encoder/layer_{i}"), model.num_encoder_layers),
        *dense("pooler/dense", "bert/pooler/dense"),
        *dense("head/transform", f"{cls}/transform/dense"),
        *norm("head/norm", f"{cls}/transform/LayerNorm", leaves=NORM),
        WeightName("head/bias", (f"{cls}/output_bias",)),
        WeightName("pooler/classes/kernel", ("cls/seq_relationship/output_weights",), Layout.TRANSPOSED),
        WeightName("pooler/classes/bias", ("cls/seq_relationship/output_bias",)),
    ]


def layer(here: str, there: str) -> list[WeightName]:
    return [
        *dense(f"{here}/attention/query", f"{there}/attention/self/query"),
        *dense(f"{here}/attention/key", f"{there}/attention/self/key"),
        *dense(f"{here}/attention/value", f"{there}/attention/self/value"),
        *dense(f"{here}/attention/out", f"{there}/attention/output/dense"),
        *norm(f"{here}/attention_post_norm", f"{there}/attention/output/LayerNorm", leaves=NORM),
        *dense(f"{here}/feed_forward/up", f"{there}/intermediate/dense"),
        *dense(f"{here}/feed_forward/down", f"{there}/output/dense"),
        *norm(f"{here}/feed_forward_post_norm", f"{there}/output/LayerNorm", leaves=NORM),
    ]


def dense(ours: str, theirs: str) -> list[WeightName]:
    return linear(ours, theirs, layout=Layout.SAME, leaves=DENSE)


SYSTEM = System(name="bert-tf", template=TEMPLATE, table=TABLE, names=names)
