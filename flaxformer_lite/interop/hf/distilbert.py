"""DistilBERT: BERT's encoder without token types and pooler, under names of its own.

Reference: Sanh et al. 2019, arXiv:1910.01108.
"""

import dataclasses
from typing import Any

from flaxformer_lite.interop.hf import bert
from flaxformer_lite.interop.hf.family import ClassNames, Family, position_ids, tied_copies
from flaxformer_lite.interop.hf.options import ACTIVATION, SpecialIds, num_labels
from flaxformer_lite.interop.name_map import Arrays, Names, prefixed
from flaxformer_lite.interop.options import Draft, Entry, Options, only, option
from flaxformer_lite.model import LanguageModelHead, ModelConfig, Pooler
from flaxformer_lite.model.positions import FixedTable

CLASSES = ClassNames("DistilBertModel", "DistilBertForMaskedLM", "DistilBertForSequenceClassification")
TEMPLATE = dataclasses.replace(bert.TEMPLATE, num_encoder_layers=6, num_token_types=0)


def read_positions(options: Options, draft: Draft) -> None:
    """Replaces the learned table where the config has sinusoids: they are stored as a fixed table."""
    if options.flag("sinusoidal_pos_embds", False):
        draft["positions"] = FixedTable()


def position_options(model: ModelConfig) -> dict[str, Any]:
    return {"sinusoidal_pos_embds": type(model.positions) is FixedTable}


def read_stddev(options: Options, draft: Draft) -> None:
    draft["initializer.stddev"] = options.number("initializer_range", 0.02)
    if type(draft["positions"]) is not FixedTable:
        draft["positions.stddev"] = draft["initializer.stddev"]


TABLE = (
    only("tie_weights_", True),
    option("vocab_size", "vocab_size"),
    option("dim", "d_model"),
    option("n_heads", "num_heads"),
    option("hidden_dim", "d_ff"),
    option("n_layers", "num_encoder_layers"),
    Entry(read_positions, position_options),
    option("max_position_embeddings", "positions.max_positions"),
    option("activation", "activation", kind=ACTIVATION),
    option("dropout", "dropout.residual_rate", "dropout.embedding_rate"),
    option("attention_dropout", "dropout.attention_rate"),
    Entry(read_stddev, lambda model: {"initializer_range": getattr(model.positions, "stddev", 0.02)}),
    option("tie_word_embeddings", "share_target_output"),
)


def read_heads(options: Options, draft: Draft, tensors: Arrays) -> None:
    has_head, has_classes = "vocab_transform.weight" in tensors, "pre_classifier.weight" in tensors
    draft["head"] = LanguageModelHead(bias=True, transform=draft["activation"]) if has_head else None
    draft["pooler"] = Pooler(activation="relu", num_classes=num_labels(options)) if has_classes else None


LAYER = {
    "attention/query": "attention.q_lin",
    "attention/key": "attention.k_lin",
    "attention/value": "attention.v_lin",
    "attention/out": "attention.out_lin",
    "attention_post_norm": "sa_layer_norm",
    "feed_forward/up": "ffn.lin1",
    "feed_forward/down": "ffn.lin2",
    "feed_forward_post_norm": "output_layer_norm",
}
NAMES: Names = {
    "embedding": "distilbert.embeddings.word_embeddings",
    "encoder/positions": "distilbert.embeddings.position_embeddings",
    "encoder/embedding_norm": "distilbert.embeddings.LayerNorm",
    **prefixed("encoder/layers/", "distilbert.transformer.layer.{i}.", LAYER),
    "head/transform": "vocab_transform",
    "head/norm": "vocab_layer_norm",
    "head": "vocab_projector",
    "pooler/dense": "pre_classifier",
    "pooler/classes": "classifier",
}

FAMILIES = (
    Family(
        model_type="distilbert",
        prefix="distilbert.",
        base=CLASSES.base,
        special=SpecialIds(pad=0),
        head_prefixes=("vocab_", "pre_classifier.", "classifier."),
        template=TEMPLATE,
        table=TABLE,
        read_heads=read_heads,
        architecture=CLASSES.of,
        names=lambda model, architecture: NAMES,
        ignorable=(
            *tied_copies("distilbert.embeddings.word_embeddings.weight", "vocab_projector.weight"),
            position_ids(r"distilbert\.embeddings\.position_ids"),
        ),
    ),
)
