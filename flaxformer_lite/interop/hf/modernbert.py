"""ModernBERT: a pre-norm encoder with gated feed-forward layers, rotary positions, and windows on both sides in most layers.

The embeddings have a norm, so the first layer has none before its attention. All heads begin alike, with a dense layer, an
activation and a norm; the vocabulary or the classes follow.

Reference: Warner et al. 2024, arXiv:2412.13663.
"""

from typing import Any

from flaxformer_lite.core.model import (
    DotProduct,
    DropoutRates,
    LanguageModelHead,
    LayerNorm,
    ModelConfig,
    Normal,
    Pooler,
    Residual,
    Rotary,
)
from flaxformer_lite.interop.hf import llama
from flaxformer_lite.interop.hf.family import Family, classes_of, tensors_equal, tied_copies
from flaxformer_lite.interop.hf.llama import FULL, LOCAL
from flaxformer_lite.interop.hf.options import ACTIVATION, GATED_ACTIVATION, UsualIds, architecture_of, num_labels
from flaxformer_lite.interop.name_map import Names, NumpyArrays, prefixed
from flaxformer_lite.interop.options import Draft, Entry, Options, ignored, option

CLASSES = classes_of("ModernBert")
TABLE_NAME = "model.embeddings.tok_embeddings.weight"

# Windows and positions ------------------------------------------------------------------------------------------------


def read_windows(options: Options, draft: Draft) -> None:
    """Reads the layers with a window, and its size: `local_attention` is the number of tokens on both sides together."""
    every, width = options.integer("global_attn_every_n_layers", 3), options.integer("local_attention", 128)
    if every < 1:
        raise options.wrong("global_attn_every_n_layers", "it should be at least 1")
    if width < 0:
        raise options.wrong("local_attention", "it should be at least 0")
    usual = [LOCAL if i % every else FULL for i in range(draft["num_encoder_layers"])]
    llama.read_layer_types(options, draft, width // 2 + 1, usual)


def window_options(model: ModelConfig) -> dict[str, Any]:
    width = {} if model.sliding_window is None else {"local_attention": 2 * (model.sliding_window.size - 1)}
    return width | {"layer_types": llama.layer_types(model)}


def read_rotaries(options: Options, draft: Draft) -> None:
    """Reads the positions of layers without and with a window: groups of `rope_parameters`, or older options."""
    groups = options.group("rope_parameters")
    names, usual = {FULL: "global_rope_theta", LOCAL: "local_rope_theta"}, {FULL: 160_000.0, LOCAL: 10_000.0}
    full, local = (
        llama.read_scheme(
            options,
            options.group("rope_scaling") if options.has("rope_scaling") else groups.group(kind),
            options.number(names[kind], usual[kind]),
        )
        for kind in (FULL, LOCAL)
    )
    llama.set_rotaries(draft, full, local)


# Heads ----------------------------------------------------------------------------------------------------------------

POOLINGS = {"cls": "first", "mean": "mean"}
"""Our token of a pooler, by `classifier_pooling`."""


def read_head_options(options: Options, draft: Draft) -> None:
    """Reads the form of all heads into both; `read_heads` keeps the heads that exist."""
    activation = ACTIVATION.read(options, "classifier_activation", "gelu")
    draft["head.transform"] = draft["pooler.activation"] = activation
    draft["head.transform_bias"] = draft["pooler.dense_bias"] = options.flag("classifier_bias", False)
    draft["head.bias"] = options.flag("decoder_bias", True)
    draft["pooler.token"] = POOLINGS[options.text("classifier_pooling", "cls", POOLINGS)]


def head_options(model: ModelConfig) -> dict[str, Any]:
    written: dict[str, Any] = {}
    form: tuple[Any, bool] | None = None
    if (head := model.head) is not None:
        written, form = {"decoder_bias": head.bias}, (head.transform, head.transform_bias)
    if (pooler := model.pooler) is not None:
        form = (pooler.activation, pooler.dense_bias)
        pooling = next((theirs for theirs, ours in POOLINGS.items() if ours == pooler.token), "cls")
        written |= {"classifier_pooling": pooling}
    if form is not None and form[0] is not None:
        written |= {"classifier_activation": ACTIVATION.write(form[0]), "classifier_bias": form[1]}
    return written


def read_heads(options: Options, draft: Draft, tensors: NumpyArrays) -> None:
    """Sets the heads. Classifiers of texts, of tokens and of the places of answers have the same tensors: the class decides."""
    matrix, table = tensors.get("decoder.weight"), tensors.get(TABLE_NAME)
    if matrix is not None and not tensors_equal(matrix, table):
        draft["share_target_output"] = False
    has_form, has_classes = "head.dense.weight" in tensors, "classifier.weight" in tensors
    if not has_form or has_classes:
        draft["head"] = None
    if not has_classes:
        draft["pooler"] = None
        return
    draft["pooler.num_classes"] = num_labels(options)
    architecture = architecture_of(options) or CLASSES.classifier
    if architecture not in CLASSES[2:]:
        rule = f"of the classes with a classifier only {', '.join(CLASSES[2:])} are implemented"
        raise options.wrong("architectures", rule)
    if architecture != CLASSES.classifier:
        draft["pooler.token"] = "each"


# The family -----------------------------------------------------------------------------------------------------------

TEMPLATE = ModelConfig(
    vocab_size=50368,
    d_model=768,
    num_heads=12,
    d_ff=1152,
    num_encoder_layers=22,
    num_decoder_layers=0,
    attention=DotProduct(bias=False, out_bias=False),
    positions=Rotary(base=160_000.0),
    feed_forward_bias=False,
    activation="geglu",
    norm=LayerNorm(epsilon=1e-5, bias=False),
    residual=Residual(pre="n", post="da", final="n", first=""),
    dropout=DropoutRates(embedding_rate=0.0, attention_rate=0.0, feed_forward_rate=0.0, residual_rate=0.0),
    embedding_norm=True,
    scale_embeddings=False,
    head=LanguageModelHead(bias=True, transform="gelu", transform_bias=False),
    pooler=Pooler(activation="gelu", dense_bias=False, norm=True),
    initializer=Normal(),
)

TABLE = (
    option("vocab_size", "vocab_size"),
    option("hidden_size", "d_model"),
    option("num_attention_heads", "num_heads"),
    option("intermediate_size", "d_ff"),
    option("num_hidden_layers", "num_encoder_layers"),
    option("hidden_activation", "activation", kind=GATED_ACTIVATION),
    option("norm_eps", "norm.epsilon"),
    option("norm_bias", "norm.bias"),
    option("attention_bias", "attention.bias", "attention.out_bias"),
    option("mlp_bias", "feed_forward_bias"),
    option("attention_dropout", "dropout.attention_rate"),
    option("embedding_dropout", "dropout.embedding_rate"),
    option("mlp_dropout", "dropout.feed_forward_rate"),
    option("initializer_range", "initializer.stddev"),
    option("tie_word_embeddings", "share_target_output"),
    Entry(read_windows, window_options),
    Entry(read_rotaries, llama.two_rotaries),
    Entry(read_head_options, head_options),
    # The way of computing, of training, and the same number a second time under another name, which the library does not read.
    ignored("deterministic_flash_attn", "reference_compile", "repad_logits_with_grad", "initializer_cutoff_factor"),
    ignored("sparse_prediction", "sparse_pred_ignore_index", "layer_norm_eps"),
)

LAYER = {
    "attention_pre_norm": "attn_norm",
    "attention/{query,key,value}": "attn.Wqkv",
    "attention/out": "attn.Wo",
    "feed_forward_pre_norm": "mlp_norm",
    "feed_forward/{gate,up}": "mlp.Wi",
    "feed_forward/down": "mlp.Wo",
}


def names(model: ModelConfig, architecture: str) -> Names:
    return {
        "embedding": "model.embeddings.tok_embeddings",
        "encoder/embedding_norm": "model.embeddings.norm",
        **prefixed("encoder/layers/", "model.layers.{i}.", LAYER),
        "encoder/final_norm": "model.final_norm",
        "head/transform": "head.dense",
        "head/norm": "head.norm",
        "head": "decoder",
        "pooler/dense": "head.dense",
        "pooler/norm": "head.norm",
        "pooler/classes": "classifier",
    }


FAMILIES = (
    Family(
        model_type="modernbert",
        prefix="model.",
        base=CLASSES.base,
        special=UsualIds(pad=50283, bos=50281, eos=50282),
        head_prefixes=("head.", "decoder.", "classifier."),
        template=TEMPLATE,
        table=TABLE,
        read_heads=read_heads,
        architecture=CLASSES.of,
        names=names,
        length="max_position_embeddings",
        ignorable=(*tied_copies(TABLE_NAME, "decoder.weight"),),
        unused_norm="model.layers.0.attn_norm",
        like_unused="model.final_norm",
    ),
)
