"""RoBERTa: BERT's encoder with positions that count from the padding id on, and heads of its own.

Reference: Liu et al. 2019, arXiv:1907.11692.
"""

import dataclasses
from typing import Any

from flaxformer_lite.interop.differences import CannotExpress
from flaxformer_lite.interop.hf import bert
from flaxformer_lite.interop.hf.family import ClassNames, Family, never_read, position_ids, tied_copies
from flaxformer_lite.interop.hf.options import SpecialIds, num_labels
from flaxformer_lite.interop.name_map import Arrays, Names, prefixed
from flaxformer_lite.interop.options import Draft, Entry, Options
from flaxformer_lite.model import LanguageModelHead, Learned, ModelConfig, Pooler

CLASSES = ClassNames("RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification")
TEMPLATE = dataclasses.replace(bert.TEMPLATE, vocab_size=50265, position_padding_id=1, positions=Learned(offset=2))


def read_positions(options: Options, draft: Draft) -> None:
    """Reads the number of positions: the table also has the rows up to the padding id, which no position has."""
    pad_id, rows = options.integer("pad_token_id", 1), draft["positions.max_positions"]
    if rows - pad_id - 1 < 1:
        raise options.wrong("max_position_embeddings", f"with pad_token_id {pad_id} it should be at least {pad_id + 2}")
    draft["position_padding_id"] = pad_id
    draft["positions.offset"], draft["positions.max_positions"] = pad_id + 1, rows - pad_id - 1


def position_options(model: ModelConfig) -> dict[str, Any]:
    if type(model.positions) is not Learned:
        return {}
    if model.position_padding_id is None or model.positions.offset != model.position_padding_id + 1:
        raise CannotExpress(
            "it needs model.positions.offset to be model.position_padding_id + 1; they are "
            f"{model.positions.offset} and {model.position_padding_id}",
            ["model.position_padding_id", "model.positions.offset"],
        )
    rows = model.positions.max_positions + model.positions.offset
    return {"max_position_embeddings": rows, "pad_token_id": model.position_padding_id}


def read_heads(options: Options, draft: Draft, tensors: Arrays) -> None:
    has_head = "lm_head.dense.weight" in tensors  # its activation is gelu, whatever `hidden_act` is
    draft["head"] = LanguageModelHead(bias=True, transform="gelu") if has_head else None
    draft["pooler"] = Pooler() if "roberta.pooler.dense.weight" in tensors else None
    if "classifier.out_proj.weight" in tensors:
        draft["pooler"] = Pooler(num_classes=num_labels(options))


def names(model: ModelConfig, architecture: str) -> Names:
    has_classes = model.pooler is not None and model.pooler.num_classes > 0
    return {
        **prefixed("", "roberta.", bert.EMBEDDINGS),
        **prefixed("encoder/layers/", "roberta.encoder.layer.{i}.", bert.LAYER),
        "head/transform": "lm_head.dense",
        "head/norm": "lm_head.layer_norm",
        **bert.head_output(model, "lm_head"),
        "pooler/dense": "classifier.dense" if has_classes else "roberta.pooler.dense",
        "pooler/classes": "classifier.out_proj",
    }


FAMILIES = (
    Family(
        model_type="roberta",
        prefix="roberta.",
        base=CLASSES.base,
        special=SpecialIds(pad=1, bos=0, eos=2),
        head_prefixes=("lm_head.", "classifier."),
        template=TEMPLATE,
        table=(*bert.TABLE, Entry(read_positions, position_options)),
        read_heads=read_heads,
        architecture=CLASSES.of,
        names=names,
        ignorable=(
            *tied_copies("roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
            *tied_copies("lm_head.bias", "lm_head.decoder.bias"),
            never_read(r"lm_head\.bias", "unused: an untied head has a bias of its own"),
            position_ids(r"roberta\.embeddings\.position_ids"),
        ),
    ),
)
