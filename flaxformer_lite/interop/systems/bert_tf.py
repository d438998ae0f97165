"""BERT as published in TensorFlow: post-norm encoder, pooler, masked-language-model and next-sentence heads.

`y = x W + b`, `W` stored `(in, out)` as here, but for the next-sentence classes, stored `(out, in)`.
"""

from collections.abc import Mapping
from typing import Any

from flaxformer_lite.interop.name_map import Layout, WeightName, layers, setting
from flaxformer_lite.model.attention import DotProduct
from flaxformer_lite.model.bert_attention import BERT_ACTIVATIONS
from flaxformer_lite.model.config import LanguageModelHead, ModelConfig, Pooler
from flaxformer_lite.model.dropout import DropoutRates
from flaxformer_lite.model.initializers import Normal
from flaxformer_lite.model.masks import Penalize
from flaxformer_lite.model.norms import LayerNorm
from flaxformer_lite.model.positions import Learned
from flaxformer_lite.model.residual import POST_NORM


def model_config(settings: Mapping[str, Any]) -> ModelConfig:
    """The whole model in our terms, from what `bert_config.json` holds."""
    activation = setting(settings, "hidden_act", str)
    if activation not in BERT_ACTIVATIONS:
        raise ValueError(f"the config's hidden_act is {activation!r}: choose one of {', '.join(BERT_ACTIVATIONS)}")
    hidden_rate = float(setting(settings, "hidden_dropout_prob", (int, float)))
    stddev = float(setting(settings, "initializer_range", (int, float)))
    return ModelConfig(
        vocab_size=setting(settings, "vocab_size"),
        d_model=setting(settings, "hidden_size"),
        num_heads=setting(settings, "num_attention_heads"),
        d_ff=setting(settings, "intermediate_size"),
        num_encoder_layers=setting(settings, "num_hidden_layers"),
        num_decoder_layers=0,
        num_token_types=setting(settings, "type_vocab_size"),
        attention=DotProduct(masking=Penalize(value=-10_000.0)),
        positions=Learned(max_positions=setting(settings, "max_position_embeddings"), stddev=stddev),
        activation=BERT_ACTIVATIONS[activation],  # type: ignore[arg-type]
        norm=LayerNorm(epsilon=1e-12),
        residual=POST_NORM,
        dropout=DropoutRates(
            embedding_rate=hidden_rate,
            attention_rate=float(setting(settings, "attention_probs_dropout_prob", (int, float))),
            feed_forward_rate=0.0,
            residual_rate=hidden_rate,
        ),
        embedding_norm=True,
        scale_embeddings=False,
        head=LanguageModelHead(bias=True, transform=BERT_ACTIVATIONS[activation]),  # type: ignore[arg-type]
        pooler=Pooler(activation="tanh", num_classes=2),
        initializer=Normal(stddev=stddev),
    )


def settings_of(model: ModelConfig) -> dict[str, Any]:
    """What `bert_config.json` holds for a model like that; `model_config` backwards."""
    if not isinstance(model.positions, Learned):
        raise ValueError(f"model.positions is {type(model.positions).__name__} (there: Learned)")
    activations = {ours: theirs for theirs, ours in BERT_ACTIVATIONS.items()}
    return {
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "num_attention_heads": model.num_heads,
        "intermediate_size": model.d_ff,
        "num_hidden_layers": model.num_encoder_layers,
        "type_vocab_size": model.num_token_types,
        "max_position_embeddings": model.positions.max_positions,
        "hidden_act": activations.get(model.activation, model.activation),
        "hidden_dropout_prob": model.dropout.residual_rate,
        "attention_probs_dropout_prob": model.dropout.attention_rate,
        "initializer_range": model.positions.stddev,
    }


def name_map(settings: Mapping[str, Any]) -> list[WeightName]:
    """Every parameter under the published names."""
    embeddings, cls = "bert/embeddings", "cls/predictions"
    flat = {
        "embedding/embedding": f"{embeddings}/word_embeddings",
        "token_type_embedding/embedding": f"{embeddings}/token_type_embeddings",
        "encoder/positions/embedding": f"{embeddings}/position_embeddings",
        **norm("encoder/embedding_norm", f"{embeddings}/LayerNorm"),
        **linear("pooler/dense", "bert/pooler/dense"),
        **linear("head/transform", f"{cls}/transform/dense"),
        **norm("head/norm", f"{cls}/transform/LayerNorm"),
        "head/bias": f"{cls}/output_bias",
        "pooler/classes/bias": "cls/seq_relationship/output_bias",
    }
    stacked = {
        **linear("attention/query", "attention/self/query"),
        **linear("attention/key", "attention/self/key"),
        **linear("attention/value", "attention/self/value"),
        **linear("attention/out", "attention/output/dense"),
        **norm("attention_post_norm", "attention/output/LayerNorm"),
        **linear("feed_forward/up", "intermediate/dense"),
        **linear("feed_forward/down", "output/dense"),
        **norm("feed_forward_post_norm", "output/LayerNorm"),
    }
    root, num_layers = "bert/encoder/layer_{i}", setting(settings, "num_hidden_layers")
    return [
        *(WeightName(ours, (theirs,)) for ours, theirs in flat.items()),
        WeightName("pooler/classes/kernel", ("cls/seq_relationship/output_weights",), Layout.TRANSPOSED),
        *(layers(f"encoder/layers/{ours}", f"{root}/{theirs}", num_layers) for ours, theirs in stacked.items()),
    ]


def linear(ours: str, theirs: str) -> dict[str, str]:
    return {f"{ours}/{leaf}": f"{theirs}/{leaf}" for leaf in ("kernel", "bias")}


def norm(ours: str, theirs: str) -> dict[str, str]:
    return {f"{ours}/scale": f"{theirs}/gamma", f"{ours}/bias": f"{theirs}/beta"}
