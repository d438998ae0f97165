"""ELECTRA and RoFormer: BERT's encoder with other heads; RoFormer has rotary positions.

ELECTRA's discriminator scores each token, by how likely it was replaced; its generator fills in masked tokens. The embeddings of a
small ELECTRA are narrower than its layers.

References: Clark et al. 2020, arXiv:2003.10555; Su et al. 2021, arXiv:2104.09864.
"""

import functools
from collections.abc import Collection
from dataclasses import replace

from flaxformer_lite.core.model import LanguageModelHead, ModelConfig, Pooler, Rotary
from flaxformer_lite.core.reading.heads import Activation
from flaxformer_lite.interop.hf import bert
from flaxformer_lite.interop.hf.bart import sinusoidal_table
from flaxformer_lite.interop.hf.family import ANSWERS, Family, classes_of, position_ids, tied_copies
from flaxformer_lite.interop.hf.options import SUMMARY, UsualIds, embedding_width, num_labels
from flaxformer_lite.interop.name_map import Names, NumpyArrays
from flaxformer_lite.interop.options import Draft, Options, ignored, only

# Heads ----------------------------------------------------------------------------------------------------------------


def read_heads(
    masked: str, activation: Activation | None, options: Options, draft: Draft, tensors: NumpyArrays
) -> None:
    """Sets the heads. `masked` is the head for masked tokens; `activation` is that of the heads, None: that of the layers."""
    activation = activation or draft["activation"]
    draft["head"] = LanguageModelHead(bias=True, transform=activation) if f"{masked}.dense.weight" in tensors else None
    draft["pooler"] = None
    if "classifier.out_proj.weight" in tensors:
        draft["pooler"] = Pooler(activation=activation, num_classes=num_labels(options))
    elif "classifier.weight" in tensors or ANSWERS in tensors:
        draft["pooler"] = bert.labels_of_tokens(options)


def reads_each(model: ModelConfig) -> bool:
    return model.pooler is not None and model.pooler.token == "each"


def class_layer_names(model: ModelConfig, architecture: str) -> Names:
    """Returns the names of the layers of classes: of a text behind a dense layer, of tokens without that layer."""
    place = "classifier" if reads_each(model) else "classifier.out_proj"
    return {"pooler/dense": "classifier.dense", **bert.classes_layer(architecture, place)}


# ELECTRA --------------------------------------------------------------------------------------------------------------

DISCRIMINATOR, GENERATOR = "discriminator_predictions", "generator_predictions"
DISCRIMINATES = "ElectraForPreTraining"
CLASSES = classes_of("Electra")


def read_electra_heads(options: Options, draft: Draft, tensors: NumpyArrays) -> None:
    read_heads(GENERATOR, "gelu", options, draft, tensors)
    if f"{DISCRIMINATOR}.dense.weight" in tensors:
        draft["pooler"] = Pooler(token="each", activation=draft["activation"], num_classes=1)


def electra_class(model: ModelConfig, names: Collection[str]) -> str:
    pooler = model.pooler if model.head is None else None
    scores_tokens = pooler is not None and pooler.token == "each" and pooler.activation is not None
    return DISCRIMINATES if scores_tokens else CLASSES.of(model, names)


def electra_names(model: ModelConfig, architecture: str) -> Names:
    discriminator = {"pooler/dense": f"{DISCRIMINATOR}.dense", "pooler/classes": f"{DISCRIMINATOR}.dense_prediction"}
    return {
        **bert.base_names("electra"),
        "encoder/embedding_projection": "electra.embeddings_project",
        "head/transform": f"{GENERATOR}.dense",
        "head/norm": f"{GENERATOR}.LayerNorm",
        "head": "generator_lm_head",
        **(discriminator if architecture == DISCRIMINATES else class_layer_names(model, architecture)),
    }


ELECTRA = Family(
    model_type="electra",
    prefix="electra.",
    base=CLASSES.base,
    special=UsualIds(pad=0),
    head_prefixes=("generator_", f"{DISCRIMINATOR}.", "classifier.", "qa_outputs."),
    template=replace(bert.TEMPLATE, d_model=256, num_heads=4, d_ff=1024),
    table=(
        *bert.TABLE,
        embedding_width("embedding_size", 128),
        # The head of multiple choice, which is not read: its tensors would be left over.
        SUMMARY,
        ignored("summary_last_dropout"),
    ),
    read_heads=read_electra_heads,
    architecture=electra_class,
    names=electra_names,
    ignorable=(
        *tied_copies("electra.embeddings.word_embeddings.weight", "generator_lm_head.weight"),
        position_ids(r"electra\.embeddings\.position_ids"),
    ),
)

# RoFormer -------------------------------------------------------------------------------------------------------------


def roformer_names(model: ModelConfig, architecture: str) -> Names:
    output = bert.head_output(model, "cls.predictions")
    base = {**bert.base_names("roformer"), "encoder/embedding_projection": "roformer.embeddings_project"}
    return {**base, **bert.HEADS, **output, **class_layer_names(model, architecture)}


ROFORMER = Family(
    model_type="roformer",
    prefix="roformer.",
    base="RoFormerModel",
    special=UsualIds(pad=0),
    head_prefixes=("cls.", "classifier.", "qa_outputs."),
    template=replace(bert.TEMPLATE, vocab_size=50000, positions=Rotary(layout="interleaved")),
    table=(
        *bert.SIZES,
        bert.HIDDEN_ACT,
        bert.STDDEV,
        embedding_width("embedding_size"),
        only("rotary_value", False),
        ignored("max_position_embeddings"),  # any length is allowed: positions are computed
    ),
    read_heads=functools.partial(read_heads, "cls.predictions.transform", None),
    architecture=classes_of("RoFormer").of,
    names=roformer_names,
    length="max_position_embeddings",
    ignorable=(
        *bert.unread("roformer", "cls.predictions"),
        sinusoidal_table(r"roformer\.encoder\.embed_positions\.weight", lambda model: model.heads.d_key),
    ),
)
FAMILIES = (ELECTRA, ROFORMER)
