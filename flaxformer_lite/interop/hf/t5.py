"""T5, mT5 and umT5: encoder–decoder or only the encoder, RMS norm, no biases but a learned bias of the scores, no scale.

A classifier of texts has both stacks, and reads the decoder's last token; a classifier of tokens is an encoder.
Version 1.0 has relu, ties the head to the embeddings and multiplies the decoder's output by `d_model ** -0.5`; 1.1 has a gated gelu
(the tanh form), a head of its own and no factor. mT5 is 1.1 for many languages. In umT5 each layer has a bias of its own. ByT5 and
MADLAD-400 are T5s, of bytes and of many languages.

Reference: Raffel et al. 2019, arXiv:1910.10683; Shazeer 2020, arXiv:2002.05202 (1.1); Xue et al. 2020, arXiv:2010.11934 (mT5);
Chung et al. 2023, arXiv:2304.09151 (umT5).
"""

import functools
from collections.abc import Collection

from flaxformer_lite.core.model import DotProduct, LanguageModelHead, ModelConfig, Pooler, RelativeBias, RMSNorm
from flaxformer_lite.interop.hf.bert import labels_of_tokens
from flaxformer_lite.interop.hf.family import OF_TOKENS, Family, first_of, never_read, tensors_equal, tied_copies
from flaxformer_lite.interop.hf.options import (
    ACTIVATIONS,
    GATED,
    THEIR_ACTIVATIONS,
    UsualIds,
    architecture_of,
    num_labels,
)
from flaxformer_lite.interop.name_map import Names, NumpyArrays, prefixed
from flaxformer_lite.interop.options import Draft, Entry, Options, ignored, option, replaced

SHARED, HEAD = "shared.weight", "lm_head.weight"
TABLES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
FEED_FORWARD: dict[str, str] = (
    THEIR_ACTIVATIONS
    | {gated: f"gated-{THEIR_ACTIVATIONS[plain]}" for plain, gated in GATED.items()}
    | {"geglu_tanh": "gated-gelu", "geglu": "gated-gelu_python"}
)
"""`feed_forward_proj`, by our activation. In T5, gated-gelu means the tanh form."""

BODY = "transformer."
"""The start of the other tensors' names in a class with a head for classes."""
OF_TEXTS = "ForSequenceClassification"
CLASSES: dict[str, Names] = {
    OF_TEXTS: {"pooler/dense": "classification_head.dense", "pooler/classes": "classification_head.out_proj"},
    OF_TOKENS: {"pooler/classes": "classifier"},
}
"""The names of the heads for classes, by the end of the class."""

TEMPLATE = ModelConfig(
    vocab_size=32128,
    d_model=512,
    num_heads=8,
    d_ff=2048,
    num_encoder_layers=6,
    attention=DotProduct(d_key=64, bias=False, scale=1.0),
    positions=RelativeBias(num_buckets=32, max_distance=128),
    feed_forward_bias=False,
    norm=RMSNorm(epsilon=1e-6),
    scale_embeddings=False,
)


def read_activation(options: Options, draft: Draft) -> None:
    """Reads `feed_forward_proj`, as in gated-gelu; newer files also spell it out in two options, which take precedence."""
    *gate, name = options.text("feed_forward_proj", FEED_FORWARD[draft["activation"]]).split("-")
    if gate not in ([], ["gated"]):
        raise options.wrong("feed_forward_proj", "it should be an activation, or gated- and an activation")
    name = options.text("dense_act_fn", "gelu_new" if (gate, name) == (["gated"], "gelu") else name)
    source = "dense_act_fn" if options.has("dense_act_fn") else "feed_forward_proj"
    gated = options.flag("is_gated_act", bool(gate))
    known = {theirs: ours for theirs, ours in ACTIVATIONS.items() if not gated or ours in GATED}
    if name not in known:
        raise options.wrong(source, f"the activation should be one of {', '.join(known)}")
    draft["activation"] = GATED[known[name]] if gated else known[name]


def read_num_decoder_layers(options: Options, draft: Draft) -> None:
    draft["num_decoder_layers"] = options.integer("num_decoder_layers", draft["num_encoder_layers"])


def tie_option(model: ModelConfig) -> dict[str, object]:
    return {"tie_word_embeddings": model.share_target_output}


def output_options(model: ModelConfig) -> dict[str, object]:
    """Returns whether the decoder's output is scaled, and whether the head is tied; `read_heads` reads both."""
    scaled = model.head is None or model.head.scale != 1
    return {"scale_decoder_outputs": scaled, "tie_word_embeddings": scaled or model.share_target_output}


TABLE = (
    option("vocab_size", "vocab_size"),
    option("d_model", "d_model"),
    option("d_kv", "attention.d_key"),
    option("d_ff", "d_ff"),
    option("num_layers", "num_encoder_layers"),
    Entry(
        read_num_decoder_layers,
        lambda model: {"num_decoder_layers": model.num_decoder_layers or model.num_encoder_layers},
    ),
    option("num_heads", "num_heads"),
    option("relative_attention_num_buckets", "positions.num_buckets"),
    option("relative_attention_max_distance", "positions.max_distance"),
    option(
        "dropout_rate",
        *(f"dropout.{name}_rate" for name in ("residual", "embedding", "attention", "feed_forward")),
    ),
    option("layer_norm_epsilon", "norm.epsilon"),
    Entry(read_activation, lambda model: {"feed_forward_proj": FEED_FORWARD.get(model.activation, model.activation)}),
    ignored("n_positions"),  # the length of the texts of pretraining: relative positions have no end
)


def read_heads(classes: str, options: Options, draft: Draft, tensors: NumpyArrays) -> None:
    """Sets the stacks, the heads and their factor: the tensors decide which there are, and whether the head has its own matrix."""
    tensors = {name.removeprefix(BODY): x for name, x in tensors.items()}
    has_decoder = any(name.startswith("decoder.block.") for name in tensors)
    of_texts, of_tokens = "classification_head.dense.weight" in tensors, "classifier.weight" in tensors
    has_head = has_decoder and not of_texts and (HEAD in tensors or architecture_of(options) != f"{classes}Model")
    tie_option = options.flag("tie_word_embeddings", True)
    # `tie_word_embeddings` false has always meant: no factor. Newer files have another option for it, which takes precedence.
    scaled = classes != "MT5" and options.flag("scale_decoder_outputs", tie_option)
    table, head = first_of(tensors, SHARED, *TABLES), tensors.get(HEAD)
    alone = table is None or head is None  # `save_model` of safetensors stores one of two tied tensors
    if not has_decoder:
        draft["num_decoder_layers"] = 0
    draft["share_target_output"] = not has_head or (tie_option if alone else tensors_equal(head, table))
    draft["pooler"] = Pooler(token="last", num_classes=num_labels(options)) if of_texts else None
    if of_tokens:
        draft["pooler"] = labels_of_tokens(options)
    draft["head"] = LanguageModelHead(scale=draft["d_model"] ** -0.5 if scaled else 1.0) if has_head else None


def architecture(classes: str, model: ModelConfig, names: Collection[str]) -> str:
    if model.num_decoder_layers == 0:
        each = model.pooler is not None and model.pooler.token == "each"
        return f"{classes}{OF_TOKENS if each else 'EncoderModel'}"
    if model.head is None and model.pooler is not None:
        return f"{classes}{OF_TEXTS}"
    return f"{classes}Model" if model.head is None else f"{classes}ForConditionalGeneration"


ROLES = {"query": "q", "key": "k", "value": "v", "out": "o"}
ENCODER_LAYER = {
    "attention_pre_norm": "0.layer_norm",
    **prefixed("attention/", "0.SelfAttention.", ROLES),
    "feed_forward_pre_norm": "1.layer_norm",
}
DECODER_LAYER = {
    "attention_pre_norm": "0.layer_norm",
    **prefixed("attention/", "0.SelfAttention.", ROLES),
    "cross_attention_pre_norm": "1.layer_norm",
    **prefixed("cross_attention/", "1.EncDecAttention.", ROLES),
    "feed_forward_pre_norm": "2.layer_norm",
}


def names(model: ModelConfig, architecture: str) -> Names:
    gated = model.activation in GATED.values()
    kernels = {"gate": "wi_0", "up": "wi_1", "down": "wo"} if gated else {"up": "wi", "down": "wo"}
    encoder = ENCODER_LAYER | prefixed("feed_forward/", "1.DenseReluDense.", kernels)
    decoder = DECODER_LAYER | prefixed("feed_forward/", "2.DenseReluDense.", kernels)
    bias, place = (
        "SelfAttention.relative_attention_bias",
        ("layers/", "{i}") if model.positions.per_layer else ("", "0"),
    )
    whole = {
        "embedding": "shared",
        f"encoder/{place[0]}position_bias": f"encoder.block.{place[1]}.layer.0.{bias}",
        **prefixed("encoder/layers/", "encoder.block.{i}.layer.", encoder),
        "encoder/final_norm": "encoder.final_layer_norm",
        f"decoder/{place[0]}position_bias": f"decoder.block.{place[1]}.layer.0.{bias}",
        **prefixed("decoder/layers/", "decoder.block.{i}.layer.", decoder),
        "decoder/final_norm": "decoder.final_layer_norm",
        "head": "lm_head",
    }
    heads = next((names for end, names in CLASSES.items() if architecture.endswith(end)), None)
    return whole if heads is None else {**prefixed("", BODY, whole), **heads}


def family(model_type: str, classes: str, template: ModelConfig) -> Family:
    """Returns a family with these names of classes."""
    return Family(
        model_type=model_type,
        prefix="",
        base=f"{classes}Model",
        special=UsualIds(pad=0, eos=1, start=None if classes == "T5" else 0),
        template=template,
        table=(*TABLE, Entry(write=tie_option if classes == "MT5" else output_options)),
        read_heads=functools.partial(read_heads, classes),
        architecture=functools.partial(architecture, classes),
        names=names,
        ignorable=(
            *tied_copies(SHARED, *TABLES, HEAD),
            *tied_copies(f"{BODY}{SHARED}", *(f"{BODY}{table}" for table in TABLES)),
            never_read(
                r"(transformer\.)?decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
                "unused: the library has no bias on the scores of cross-attention",
            ),
        ),
    )


MT5 = {"vocab_size": 250112, "num_heads": 6, "d_ff": 1024, "activation": "geglu_tanh"}
MT5 |= {"num_encoder_layers": 8, "num_decoder_layers": 8}

FAMILIES = (
    family("t5", "T5", TEMPLATE),
    family("mt5", "MT5", replaced(TEMPLATE, MT5)),
    family("umt5", "UMT5", replaced(TEMPLATE, MT5 | {"positions.per_layer": True})),
)
