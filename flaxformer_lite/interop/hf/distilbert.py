"""DistilBERT: BERT's encoder without token types and pooler, under names of its own.

Reference: Sanh et al. 2019, arXiv:1910.01108.
"""

from collections.abc import Collection
from typing import Any

from flaxformer_lite.interop.hf.family import Family, copies, counting, linear, norm, stacked, table
from flaxformer_lite.interop.hf.settings import THEIR_ACTIVATIONS, Settings, SpecialIds
from flaxformer_lite.interop.name_map import Arrays, WeightName
from flaxformer_lite.model.config import LanguageModelHead, ModelConfig, Pooler
from flaxformer_lite.model.dropout import DropoutRates
from flaxformer_lite.model.initializers import Normal
from flaxformer_lite.model.norms import LayerNorm
from flaxformer_lite.model.positions import FixedTable, Learned
from flaxformer_lite.model.residual import POST_NORM


def model_config(settings: Settings, weights: Arrays) -> ModelConfig:
    """The model in our terms; the tensors say which heads there are."""
    settings.only("tie_weights_", True)
    activation = settings.activation("activation", "gelu")
    rate, stddev = settings.number("dropout", 0.1), settings.number("initializer_range", 0.02)
    rows = settings.integer("max_position_embeddings", 512)
    fixed = settings.flag("sinusoidal_pos_embds", False)
    return ModelConfig(
        vocab_size=settings.integer("vocab_size", 30522),
        d_model=settings.integer("dim", 768),
        num_heads=settings.integer("n_heads", 12),
        d_ff=settings.integer("hidden_dim", 3072),
        num_encoder_layers=settings.integer("n_layers", 6),
        num_decoder_layers=0,
        positions=FixedTable(max_positions=rows) if fixed else Learned(max_positions=rows, stddev=stddev),
        activation=activation,
        norm=LayerNorm(epsilon=1e-12),
        residual=POST_NORM,
        dropout=DropoutRates(
            embedding_rate=rate,
            attention_rate=settings.number("attention_dropout", 0.1),
            feed_forward_rate=0.0,
            residual_rate=rate,
        ),
        embedding_norm=True,
        scale_embeddings=False,
        share_target_output=settings.flag("tie_word_embeddings", True),
        head=LanguageModelHead(bias=True, transform=activation) if "vocab_transform.weight" in weights else None,
        pooler=Pooler(activation="relu", num_classes=settings.num_labels)
        if "pre_classifier.weight" in weights
        else None,
        initializer=Normal(stddev=stddev),
    )


def settings_of(model: ModelConfig) -> dict[str, Any]:
    """`config.json` for a model like that."""
    if not isinstance(model.positions, Learned | FixedTable):
        raise ValueError(f"model.positions is {type(model.positions).__name__} (there: Learned or FixedTable)")
    return {
        "vocab_size": model.vocab_size,
        "dim": model.d_model,
        "n_heads": model.num_heads,
        "hidden_dim": model.d_ff,
        "n_layers": model.num_encoder_layers,
        "max_position_embeddings": model.positions.max_positions,
        "sinusoidal_pos_embds": isinstance(model.positions, FixedTable),
        "activation": THEIR_ACTIVATIONS.get(model.activation, model.activation),
        "dropout": model.dropout.residual_rate,
        "attention_dropout": model.dropout.attention_rate,
        "initializer_range": getattr(model.positions, "stddev", 0.02),
        "tie_word_embeddings": model.share_target_output,
    }


def architecture(model: ModelConfig, names: Collection[str]) -> str:
    """The class with these heads."""
    if model.head is not None:
        return "DistilBertForMaskedLM"
    return "DistilBertModel" if model.pooler is None else "DistilBertForSequenceClassification"


def name_map(model: ModelConfig, architecture: str) -> list[WeightName]:
    """Every parameter under the library's names."""
    positions = "table" if isinstance(model.positions, FixedTable) else "embedding"
    weights = [
        *table("embedding", "distilbert.embeddings.word_embeddings"),
        WeightName(f"encoder/positions/{positions}", ("distilbert.embeddings.position_embeddings.weight",)),
        *norm("encoder/embedding_norm", "distilbert.embeddings.LayerNorm"),
        *stacked(layer(), model.num_encoder_layers),
    ]
    if model.head is not None:
        weights += linear("head/transform", "vocab_transform") + norm("head/norm", "vocab_layer_norm")
        tied = model.share_target_output
        weights += [WeightName("head/bias", ("vocab_projector.bias",))] if tied else linear("head", "vocab_projector")
    if model.pooler is not None:
        weights += linear("pooler/dense", "pre_classifier") + linear("pooler/classes", "classifier")
    return weights


def layer() -> list[WeightName]:
    here, there = "encoder/layers", "distilbert.transformer.layer.{i}"
    return [
        *linear(f"{here}/attention/query", f"{there}.attention.q_lin"),
        *linear(f"{here}/attention/key", f"{there}.attention.k_lin"),
        *linear(f"{here}/attention/value", f"{there}.attention.v_lin"),
        *linear(f"{here}/attention/out", f"{there}.attention.out_lin"),
        *norm(f"{here}/attention_post_norm", f"{there}.sa_layer_norm"),
        *linear(f"{here}/feed_forward/up", f"{there}.ffn.lin1"),
        *linear(f"{here}/feed_forward/down", f"{there}.ffn.lin2"),
        *norm(f"{here}/feed_forward_post_norm", f"{there}.output_layer_norm"),
    ]


FAMILIES = (
    Family(
        model_type="distilbert",
        prefix="distilbert.",
        base="DistilBertModel",
        special=SpecialIds(pad=0),
        heads=("vocab_", "pre_classifier.", "classifier."),
        model_config=model_config,
        architecture=architecture,
        name_map=name_map,
        needless=(
            *copies("distilbert.embeddings.word_embeddings.weight", "vocab_projector.weight"),
            counting(r"distilbert\.embeddings\.position_ids"),
        ),
        settings_of=settings_of,
    ),
)
