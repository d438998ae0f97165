"""ALBERT: BERT with one layer that is used in the place of all, and embeddings narrower than this layer.

Its third head tells whether two parts of a text are in order: classes of a text, beside the head for masked tokens.

Reference: Lan et al. 2019, arXiv:1909.11942.
"""

from collections.abc import Collection
from dataclasses import replace

from flaxformer_lite.core.model import DropoutRates, EmbeddingProjection, LanguageModelHead, ModelConfig, Pooler
from flaxformer_lite.interop.hf import bert
from flaxformer_lite.interop.hf.family import ANSWERS, Family, classes_of, never_read, position_ids, tied_copies
from flaxformer_lite.interop.hf.options import UsualIds, architecture_of, embedding_width, num_labels
from flaxformer_lite.interop.name_map import Names, NumpyArrays, prefixed
from flaxformer_lite.interop.options import Draft, Options, ignored, only

CLASSES = classes_of("Albert")
PRETRAINS = "AlbertForPreTraining"
HEAD, ORDER = "predictions", "sop_classifier.classifier"


def read_embedding_width(options: Options, draft: Draft) -> None:
    """Reads the width of the embeddings; the projection is there also where both widths are equal."""
    draft["embedding_projection"] = EmbeddingProjection(width=options.integer("embedding_size", 128))


def read_heads(options: Options, draft: Draft, tensors: NumpyArrays) -> None:
    has_head, has_classes = f"{HEAD}.dense.weight" in tensors, "classifier.weight" in tensors
    has_pooler = "albert.pooler.weight" in tensors
    draft["head"] = LanguageModelHead(bias=True, transform=draft["activation"]) if has_head else None
    num_classes = num_labels(options) if has_classes or f"{ORDER}.weight" in tensors else 0
    draft["pooler"] = Pooler(num_classes=num_classes) if has_pooler else None
    stated = architecture_of(options) == CLASSES.of_tokens  # files may have a pooler that this class does not read
    if ANSWERS in tensors or (has_classes and (stated or not has_pooler)):
        draft["pooler"] = bert.labels_of_tokens(options)


def albert_class(model: ModelConfig, names: Collection[str]) -> str:
    usual = CLASSES.of(model, names)
    orders = usual == CLASSES.language_model and model.pooler is not None and model.pooler.num_classes
    return PRETRAINS if orders else usual


LAYER = {
    "attention/query": "attention.query",
    "attention/key": "attention.key",
    "attention/value": "attention.value",
    "attention/out": "attention.dense",
    "attention_post_norm": "attention.LayerNorm",
    "feed_forward/up": "ffn",
    "feed_forward/down": "ffn_output",
    "feed_forward_post_norm": "full_layer_layer_norm",
}
NAMES: Names = {
    **prefixed("", "albert.", bert.EMBEDDINGS),
    "encoder/embedding_projection": "albert.encoder.embedding_hidden_mapping_in",
    **prefixed("encoder/layers/", "albert.encoder.albert_layer_groups.0.albert_layers.0.", LAYER),
    "head/transform": f"{HEAD}.dense",
    "head/norm": f"{HEAD}.LayerNorm",
    "pooler/dense": "albert.pooler",
}


def albert_names(model: ModelConfig, architecture: str) -> Names:
    place = ORDER if architecture == PRETRAINS else "classifier"
    return {**NAMES, **bert.head_output(model, HEAD), **bert.classes_layer(architecture, place)}


ALBERT = Family(
    model_type="albert",
    prefix="albert.",
    base=CLASSES.base,
    special=UsualIds(pad=0, bos=2, eos=3),
    head_prefixes=(f"{HEAD}.", "sop_classifier.", "classifier.", "qa_outputs."),
    template=replace(
        bert.TEMPLATE,
        vocab_size=30000,
        d_model=4096,
        num_heads=64,
        d_ff=16384,
        activation="gelu_tanh",
        share_layers=True,
        head=LanguageModelHead(bias=True, transform="gelu_tanh"),
        embedding_projection=EmbeddingProjection(width=128),
        dropout=DropoutRates(embedding_rate=0.0, residual_rate=0.0, attention_rate=0.0, feed_forward_rate=0.0),
    ),
    table=(
        *bert.TABLE,
        embedding_width("embedding_size")._replace(read=read_embedding_width),
        only("num_hidden_groups", 1),
        only("inner_group_num", 1),
        ignored("classifier_dropout_prob"),
    ),
    read_heads=read_heads,
    architecture=albert_class,
    names=albert_names,
    ignorable=(
        *tied_copies("albert.embeddings.word_embeddings.weight", f"{HEAD}.decoder.weight"),
        *tied_copies(f"{HEAD}.bias", f"{HEAD}.decoder.bias"),
        never_read(r"predictions\.bias", "unused: an untied head has a bias of its own"),
        position_ids(r"albert\.embeddings\.position_ids"),
        never_read(r"albert\.pooler\.(weight|bias)", "unused: the classifier reads the last layer itself"),
    ),
)
FAMILIES = (ALBERT,)
