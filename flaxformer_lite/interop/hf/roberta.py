"""RoBERTa: BERT's encoder with positions that count from the padding id on, and heads of its own.

Reference: Liu et al. 2019, arXiv:1907.11692.
"""

import dataclasses
from collections.abc import Collection
from typing import Any

from flaxformer_lite.interop.hf import bert
from flaxformer_lite.interop.hf.family import Family, copies, counting, linear, norm, stacked, unused
from flaxformer_lite.interop.hf.settings import Settings, SpecialIds
from flaxformer_lite.interop.name_map import Arrays, WeightName
from flaxformer_lite.model.config import LanguageModelHead, ModelConfig, Pooler
from flaxformer_lite.model.feed_forward import Activation
from flaxformer_lite.model.positions import Learned

HEAD_ACTIVATION: Activation = "gelu"
"""Whatever `hidden_act` says."""


def model_config(settings: Settings, weights: Arrays) -> ModelConfig:
    """The model in our terms; the tensors say which heads there are."""
    pad_id = settings.integer("pad_token_id", 1)
    model = bert.encoder(settings, vocab_size=50265)
    assert isinstance(model.positions, Learned)
    room = model.positions.max_positions - pad_id - 1
    if room < 1:
        raise settings.wrong(
            "max_position_embeddings", f"with pad_token_id {pad_id} it should be at least {pad_id + 2}"
        )
    pooler = Pooler() if "roberta.pooler.dense.weight" in weights else None
    if "classifier.out_proj.weight" in weights:
        pooler = Pooler(num_classes=settings.num_labels)
    has_head = "lm_head.dense.weight" in weights
    return dataclasses.replace(
        model,
        positions=dataclasses.replace(model.positions, max_positions=room, offset=pad_id + 1),
        position_padding_id=pad_id,
        head=LanguageModelHead(bias=True, transform=HEAD_ACTIVATION) if has_head else None,
        pooler=pooler,
    )


def settings_of(model: ModelConfig) -> dict[str, Any]:
    """`config.json` for a model like that."""
    if not isinstance(model.positions, Learned):
        raise ValueError(f"model.positions is {type(model.positions).__name__} (there: Learned)")
    if model.position_padding_id is None or model.positions.offset != model.position_padding_id + 1:
        raise ValueError(
            f"model.position_padding_id is {model.position_padding_id} and model.positions.offset {model.positions.offset} "
            "(there: the padding id, and one more)"
        )
    rows = model.positions.max_positions + model.positions.offset
    return bert.settings_of(model) | {"max_position_embeddings": rows, "pad_token_id": model.position_padding_id}


def architecture(model: ModelConfig, names: Collection[str]) -> str:
    """The class with these heads."""
    if model.head is not None:
        return "RobertaForMaskedLM"
    classes = model.pooler is not None and model.pooler.num_classes > 0
    return "RobertaForSequenceClassification" if classes else "RobertaModel"


def name_map(model: ModelConfig, architecture: str) -> list[WeightName]:
    """Every parameter under the library's names."""
    weights = bert.embeddings("roberta") + stacked(bert.layer("roberta.encoder.layer.{i}"), model.num_encoder_layers)
    if model.head is not None:
        weights += linear("head/transform", "lm_head.dense") + norm("head/norm", "lm_head.layer_norm")
        tied = model.share_target_output
        weights += [WeightName("head/bias", ("lm_head.bias",))] if tied else linear("head", "lm_head.decoder")
    if model.pooler is not None and model.pooler.num_classes:
        weights += linear("pooler/dense", "classifier.dense") + linear("pooler/classes", "classifier.out_proj")
    elif model.pooler is not None:
        weights += linear("pooler/dense", "roberta.pooler.dense")
    return weights


FAMILIES = (
    Family(
        model_type="roberta",
        prefix="roberta.",
        base="RobertaModel",
        special=SpecialIds(pad=1, bos=0, eos=2),
        heads=("lm_head.", "classifier."),
        model_config=model_config,
        architecture=architecture,
        name_map=name_map,
        needless=(
            *copies("roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
            *copies("lm_head.bias", "lm_head.decoder.bias"),
            unused(r"lm_head\.bias", "unused: an untied head has a bias of its own"),
            counting(r"roberta\.embeddings\.position_ids"),
        ),
        settings_of=settings_of,
    ),
)
