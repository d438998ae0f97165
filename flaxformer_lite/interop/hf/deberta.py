"""DeBERTa-v2 and v3: a post-norm encoder with disentangled attention, whose layers share one table of relative positions.

A head for masked tokens has two sets of names, `cls.predictions` (`legacy` in the options) and `lm_predictions`, which compute the
same: the first is written. Files of v3 also have a discriminator, `mask_predictions`, which the library does not read.

References: He et al. 2020, arXiv:2006.03654; He et al. 2021, arXiv:2111.09543.
"""

from dataclasses import replace

from flaxformer_lite.core.model import LanguageModelHead, LayerNorm, ModelConfig, NoPositions, Pooler
from flaxformer_lite.core.model.attention import Disentangled
from flaxformer_lite.core.model.positions import Learned
from flaxformer_lite.interop.differences import CannotExpress
from flaxformer_lite.interop.hf import bert
from flaxformer_lite.interop.hf.family import ANSWERS, Family, classes_of, never_read, tied_copies
from flaxformer_lite.interop.hf.options import ACTIVATIONS, THEIR_ACTIVATIONS, UsualIds, num_labels
from flaxformer_lite.interop.name_map import Names, NumpyArrays
from flaxformer_lite.interop.options import Draft, Entry, Options, constant, ignored, option

CLASSES = classes_of("DebertaV2")
HEAD, OTHER_HEAD = "cls.predictions", "lm_predictions.lm_head"


def option_words(options: Options, name: str, known: tuple[str, ...]) -> list[str]:
    """Returns the words of an option, which is a list of words or one string with bars between them."""
    stated = options.raw(name)
    given = stated.lower().split("|") if isinstance(stated, str) else stated or []
    words = [word.strip() if isinstance(word, str) else word for word in given] if isinstance(given, list) else [given]
    if not all(word in known for word in words):
        raise options.wrong(name, f"it should be one or several of {', '.join(known)}")
    return words


def read_attention(options: Options, draft: Draft) -> None:
    """Reads the terms of the scores, and the table of relative positions."""
    options.one_of("relative_attention", (True,), False)
    terms = option_words(options, "pos_att_type", ("c2p", "p2c"))
    if not terms:
        raise options.wrong("pos_att_type", "it should be c2p, p2c or both: without it no layer reads positions")
    distance, buckets = options.integer("max_relative_positions", -1), options.integer("position_buckets", -1)
    draft["attention"] = Disentangled(
        max_distance=distance if distance > 0 else options.integer("max_position_embeddings", 512),
        num_buckets=buckets if buckets > 0 else None,
        content_to_position="c2p" in terms,
        position_to_content="p2c" in terms,
        share_projections=options.flag("share_att_key", False),
        table_norm=LayerNorm(epsilon=draft["norm.epsilon"])
        if "layer_norm" in option_words(options, "norm_rel_ebd", ("none", "layer_norm"))
        else None,
    )
    draft["attention.scale"] = draft["attention"].score_scale(draft["d_model"] // draft["num_heads"])


def attention_options(model: ModelConfig) -> dict[str, object]:
    attention = model.attention
    if not isinstance(attention, Disentangled):
        raise CannotExpress(f"model.attention is a {type(attention).__name__}, not Disentangled", ["model.attention"])
    terms = {"p2c": attention.position_to_content, "c2p": attention.content_to_position}
    return {
        "relative_attention": True,
        "pos_att_type": [word for word, is_term in terms.items() if is_term],
        "max_relative_positions": attention.max_distance,
        "position_buckets": attention.num_buckets or -1,
        "share_att_key": attention.share_projections,
        "norm_rel_ebd": "none" if attention.table_norm is None else "layer_norm",
    }


def read_positions(options: Options, draft: Draft) -> None:
    if options.flag("position_biased_input", True):
        stddev, longest = draft["initializer.stddev"], options.integer("max_position_embeddings", 512)
        draft["positions"] = Learned(max_positions=longest, stddev=stddev)
    options.ignore("max_position_embeddings")


def position_options(model: ModelConfig) -> dict[str, object]:
    longest = model.positions.max_positions or getattr(model.attention, "max_distance", 512)
    return {"position_biased_input": type(model.positions) is Learned, "max_position_embeddings": longest}


def read_widths(options: Options, draft: Draft) -> None:
    """Refuses widths that differ from that of the layers, and the convolution of the larger v2."""
    for name in ("embedding_size", "pooler_hidden_size"):
        options.only(name, draft["d_model"])
    options.only("attention_head_size", draft["d_model"] // draft["num_heads"])
    options.only("conv_kernel_size", 0)


def read_heads(options: Options, draft: Draft, tensors: NumpyArrays) -> None:
    heads = [head for head in (f"{HEAD}.transform", OTHER_HEAD) if f"{head}.dense.weight" in tensors]
    draft["head"] = LanguageModelHead(bias=True, transform=draft["activation"]) if heads else None
    if OTHER_HEAD in heads:  # its kernel is the table, whatever `tie_word_embeddings` is
        draft["share_target_output"] = True
    activation = ACTIVATIONS[options.text("pooler_hidden_act", "gelu", ACTIVATIONS)]
    draft["pooler"] = None
    if "pooler.dense.weight" in tensors:
        draft["pooler"] = Pooler(activation=activation, num_classes=num_labels(options))
    elif "classifier.weight" in tensors or ANSWERS in tensors:
        draft["pooler"] = bert.labels_of_tokens(options)


def pooler_options(model: ModelConfig) -> dict[str, object]:
    activation = None if model.pooler is None else model.pooler.activation
    return {"pooler_hidden_act": THEIR_ACTIVATIONS[activation]} if activation else {}


def names(model: ModelConfig, architecture: str) -> Names:
    layer = {f"attention/{role}": f"attention.self.{role}_proj" for role in ("query", "key", "value")}
    layer |= {f"attention/relative_{role}": f"attention.self.pos_{role}_proj" for role in ("query", "key")}
    return {
        **bert.base_names("deberta", bert.LAYER | layer),
        "encoder/relative_positions": "deberta.encoder.rel_embeddings",
        "encoder/relative_positions/norm": "deberta.encoder.LayerNorm",
        **bert.HEADS,
        **bert.head_output(model, HEAD),
        "pooler/dense": "pooler.dense",
        **bert.classes_layer(architecture, "classifier"),
    }


COPIES = {f"{OTHER_HEAD}.bias": f"{HEAD}.bias"} | {
    f"{OTHER_HEAD}.{name}": f"{HEAD}.transform.{name}"
    for name in ("dense.weight", "dense.bias", "LayerNorm.weight", "LayerNorm.bias")
}
"""The names of a head for masked tokens, by its other ones."""
DEBERTA_V2 = Family(
    model_type="deberta-v2",
    prefix="deberta.",
    base=CLASSES.base,
    special=UsualIds(pad=0),
    head_prefixes=("cls.", "lm_predictions.", "mask_predictions.", "pooler.", "classifier.", "qa_outputs."),
    template=replace(
        bert.TEMPLATE,
        vocab_size=128100,
        d_model=1536,
        num_heads=24,
        d_ff=6144,
        num_encoder_layers=24,
        num_token_types=0,
        attention=Disentangled(table_norm=LayerNorm(epsilon=1e-7)),
        positions=NoPositions(),
        norm=LayerNorm(epsilon=1e-7),
    ),
    table=(
        *bert.WIDTHS,
        option("type_vocab_size", "num_token_types"),
        bert.HIDDEN_ACT,
        bert.STDDEV,
        Entry(read_attention, attention_options),
        Entry(read_positions, position_options),
        Entry(read_widths, lambda model: {}),
        Entry(write=pooler_options),
        constant("legacy", True),
        ignored("conv_act", "conv_groups"),  # of the convolution, which is refused
        ignored("pooler_dropout", "cls_dropout"),
    ),
    read_heads=read_heads,
    architecture=CLASSES.of,
    names=names,
    ignorable=(
        *bert.unread("deberta", HEAD),
        *(copy for name, original in COPIES.items() for copy in tied_copies(original, name)),
        never_read(r"mask_predictions\..*", "unused: the discriminator of the pretraining"),
        never_read(r"deberta\.embeddings\.position_embeddings\.weight", "unused: position_biased_input is false"),
    ),
)
FAMILIES = (DEBERTA_V2,)
