"""BERT: post-norm encoder, pooler, and the heads for masked tokens, next sentences and classes.

Reference: Devlin et al. 2018, arXiv:1810.04805.
"""

import dataclasses
from collections.abc import Collection
from typing import Any

from flaxformer_lite.interop.hf.family import Family, copies, counting, linear, norm, stacked, table, unused
from flaxformer_lite.interop.hf.settings import THEIR_ACTIVATIONS, Settings, SpecialIds
from flaxformer_lite.interop.name_map import Arrays, WeightName
from flaxformer_lite.model.config import LanguageModelHead, ModelConfig, Pooler
from flaxformer_lite.model.dropout import DropoutRates
from flaxformer_lite.model.initializers import Normal
from flaxformer_lite.model.norms import LayerNorm
from flaxformer_lite.model.positions import Learned
from flaxformer_lite.model.residual import POST_NORM


def model_config(settings: Settings, weights: Arrays) -> ModelConfig:
    """The model in our terms; the tensors say which heads there are."""
    model = encoder(settings, vocab_size=30522)
    classes = 2 if "cls.seq_relationship.weight" in weights else 0
    if "classifier.weight" in weights:
        classes = settings.num_labels
    has_head = "cls.predictions.transform.dense.weight" in weights
    return dataclasses.replace(
        model,
        head=LanguageModelHead(bias=True, transform=model.activation) if has_head else None,
        pooler=Pooler(num_classes=classes) if "bert.pooler.dense.weight" in weights else None,
    )


def encoder(settings: Settings, vocab_size: int) -> ModelConfig:
    """The encoder, without heads, as RoBERTa has it too; `vocab_size` is the default of the library."""
    rate, stddev = settings.number("hidden_dropout_prob", 0.1), settings.number("initializer_range", 0.02)
    return ModelConfig(
        vocab_size=settings.integer("vocab_size", vocab_size),
        d_model=settings.integer("hidden_size", 768),
        num_heads=settings.integer("num_attention_heads", 12),
        d_ff=settings.integer("intermediate_size", 3072),
        num_encoder_layers=settings.integer("num_hidden_layers", 12),
        num_decoder_layers=0,
        num_token_types=settings.integer("type_vocab_size", 2),
        positions=Learned(max_positions=settings.integer("max_position_embeddings", 512), stddev=stddev),
        activation=settings.activation("hidden_act", "gelu"),
        norm=LayerNorm(epsilon=settings.number("layer_norm_eps", 1e-12)),
        residual=POST_NORM,
        dropout=DropoutRates(
            embedding_rate=rate,
            attention_rate=settings.number("attention_probs_dropout_prob", 0.1),
            feed_forward_rate=0.0,
            residual_rate=rate,
        ),
        embedding_norm=True,
        scale_embeddings=False,
        share_target_output=settings.flag("tie_word_embeddings", True),
        head=None,
        initializer=Normal(stddev=stddev),
    )


def settings_of(model: ModelConfig) -> dict[str, Any]:
    """`config.json` for a model like that."""
    if not isinstance(model.positions, Learned):
        raise ValueError(f"model.positions is {type(model.positions).__name__} (there: Learned)")
    if model.num_token_types == 0:
        raise ValueError("model.num_token_types is 0 (there: at least 1)")
    return {
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "num_attention_heads": model.num_heads,
        "intermediate_size": model.d_ff,
        "num_hidden_layers": model.num_encoder_layers,
        "type_vocab_size": model.num_token_types,
        "max_position_embeddings": model.positions.max_positions,
        "hidden_act": THEIR_ACTIVATIONS.get(model.activation, model.activation),
        "layer_norm_eps": model.norm.epsilon,
        "hidden_dropout_prob": model.dropout.residual_rate,
        "attention_probs_dropout_prob": model.dropout.attention_rate,
        "initializer_range": model.positions.stddev,
        "tie_word_embeddings": model.share_target_output,
    }


def architecture(model: ModelConfig, names: Collection[str]) -> str:
    """The class with these heads."""
    classes = model.pooler is not None and model.pooler.num_classes > 0
    if model.head is not None:
        return "BertForPreTraining" if classes else "BertForMaskedLM"
    if classes:
        next_sentence = "cls.seq_relationship.weight" in names
        return "BertForNextSentencePrediction" if next_sentence else "BertForSequenceClassification"
    return "BertModel"


def name_map(model: ModelConfig, architecture: str) -> list[WeightName]:
    """Every parameter under the library's names."""
    classes = "classifier" if architecture == "BertForSequenceClassification" else "cls.seq_relationship"
    weights = [*embeddings("bert"), *stacked(layer("bert.encoder.layer.{i}"), model.num_encoder_layers)]
    if model.head is not None:
        head = "cls.predictions"
        weights += linear("head/transform", f"{head}.transform.dense") + norm(
            "head/norm", f"{head}.transform.LayerNorm"
        )
        tied = model.share_target_output
        weights += [WeightName("head/bias", (f"{head}.bias",))] if tied else linear("head", f"{head}.decoder")
    if model.pooler is not None:
        weights += linear("pooler/dense", "bert.pooler.dense")
        weights += linear("pooler/classes", classes) if model.pooler.num_classes else []
    return weights


def embeddings(base: str) -> list[WeightName]:
    """The three tables and the norm of their sum, as RoBERTa has them too."""
    return [
        *table("embedding", f"{base}.embeddings.word_embeddings"),
        *table("token_type_embedding", f"{base}.embeddings.token_type_embeddings"),
        *table("encoder/positions", f"{base}.embeddings.position_embeddings"),
        *norm("encoder/embedding_norm", f"{base}.embeddings.LayerNorm"),
    ]


def layer(there: str) -> list[WeightName]:
    """One layer, as RoBERTa has it too."""
    here = "encoder/layers"
    return [
        *linear(f"{here}/attention/query", f"{there}.attention.self.query"),
        *linear(f"{here}/attention/key", f"{there}.attention.self.key"),
        *linear(f"{here}/attention/value", f"{there}.attention.self.value"),
        *linear(f"{here}/attention/out", f"{there}.attention.output.dense"),
        *norm(f"{here}/attention_post_norm", f"{there}.attention.output.LayerNorm"),
        *linear(f"{here}/feed_forward/up", f"{there}.intermediate.dense"),
        *linear(f"{here}/feed_forward/down", f"{there}.output.dense"),
        *norm(f"{here}/feed_forward_post_norm", f"{there}.output.LayerNorm"),
    ]


NEEDLESS = (
    *copies("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
    *copies("cls.predictions.bias", "cls.predictions.decoder.bias"),
    unused(r"cls\.predictions\.bias", "unused: an untied head has a bias of its own"),
    counting(r"bert\.embeddings\.position_ids"),
)
"""The tied output matrix and bias stored again, the bias that an untied head does not read, and position ids."""

FAMILIES = (
    Family(
        model_type="bert",
        prefix="bert.",
        base="BertModel",
        special=SpecialIds(pad=0),
        heads=("cls.", "classifier."),
        model_config=model_config,
        architecture=architecture,
        name_map=name_map,
        needless=NEEDLESS,
        settings_of=settings_of,
    ),
)
