"""BART, MVP and Marian: post-norm encoder–decoders.

BART has learned positions, a norm on the embeddings, and a head for classes. MVP is a BART; its prompts are not implemented.
Marian, of translation models, has sinusoidal positions, no such norm, and one or two vocabularies.

References: Lewis et al. 2019, arXiv:1910.13461; Tang et al. 2022, arXiv:2206.12131; Junczys-Dowmunt et al. 2018, arXiv:1804.00344.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from flaxformer_lite.core.model import DropoutRates, LayerNorm, Learned, Normal, Sinusoidal
from flaxformer_lite.core.model.config import POST_NORM, DecoderSize, LanguageModelHead, ModelConfig
from flaxformer_lite.core.reading.heads import Pooler
from flaxformer_lite.interop.hf.family import (
    ClassNames,
    Family,
    IgnorableTensor,
    first_of,
    never_read,
    tensors_equal,
    tied_copies,
)
from flaxformer_lite.interop.hf.options import ACTIVATION, UsualIds, architecture_of, num_labels
from flaxformer_lite.interop.name_map import Layout, Names, NumpyArrays, Tensor, prefixed
from flaxformer_lite.interop.options import Draft, Entry, Options, ignored, only, option, replaced

SHARED, HEAD, HEAD_BIAS = "model.shared.weight", "lm_head.weight", "final_logits_bias"
TABLES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
CLASSES = "classification_head.dense.weight"

# The options and names that BART and Marian share ---------------------------------------------------------------------

STACKS_TEMPLATE = ModelConfig(
    vocab_size=50265,
    d_model=1024,
    num_heads=16,
    d_ff=4096,
    num_encoder_layers=12,
    num_decoder_layers=12,
    activation="gelu",
    norm=LayerNorm(epsilon=1e-5),
    residual=POST_NORM,
    dropout=DropoutRates(attention_rate=0.0, feed_forward_rate=0.0),
    scale_embeddings=False,
    initializer=Normal(),
)


def read_widths(options: Options, draft: Draft) -> None:
    """Reads the heads and inner widths of both stacks."""
    sizes = {}
    for path, name in (("num_heads", "attention_heads"), ("d_ff", "ffn_dim")):
        usual = draft[path]
        draft[path] = options.integer(f"encoder_{name}", usual)
        decoder = options.integer(f"decoder_{name}", usual)
        sizes[path] = None if decoder == draft[path] else decoder
    draft["decoder"] = None if sizes == dict.fromkeys(sizes) else DecoderSize(**sizes)


def widths(model: ModelConfig) -> dict[str, Any]:
    return {
        "encoder_attention_heads": model.num_heads,
        "decoder_attention_heads": model.for_decoder.num_heads,
        "encoder_ffn_dim": model.d_ff,
        "decoder_ffn_dim": model.for_decoder.d_ff,
    }


STACKS = (
    option("d_model", "d_model"),
    option("encoder_layers", "num_encoder_layers"),
    option("decoder_layers", "num_decoder_layers"),
    Entry(lambda options, draft: options.only("num_hidden_layers", draft["num_encoder_layers"])),
    Entry(read_widths, widths),
    option("activation_function", "activation", kind=ACTIVATION),
    option("dropout", "dropout.residual_rate", "dropout.embedding_rate"),
    option("attention_dropout", "dropout.attention_rate"),
    option("activation_dropout", "dropout.feed_forward_rate"),
    option("scale_embedding", "scale_embeddings"),
    only("add_bias_logits", False),
    ignored("force_bos_token_to_be_generated"),
    ignored("extra_pos_embeddings"),  # no release reads it: where there is a table, its shape has to fit
)
NO_BLENDERBOT = only("do_blenderbot_90_layernorm", False)
POST_NORM_ONLY = only("normalize_before", False), only("add_final_layer_norm", False), NO_BLENDERBOT


def read_tables(base: str, options: Options, draft: Draft, tensors: NumpyArrays) -> None:
    """Sets the head, and which of the encoder's, the decoder's and the head's tables are one.

    Tables that are stored separately stay separate if the config ties nothing, or if they differ.
    """
    tied = options.flag("tie_word_embeddings", True)
    encoder, decoder, head = (tensors.get(name) for name in (*TABLES, HEAD))
    apart = encoder is not None and decoder is not None and not (tied and tensors_equal(encoder, decoder))
    shared = options.flag("share_encoder_decoder_embeddings", True) and not apart
    target = first_of(tensors, SHARED, *TABLES[::-1]) if shared else decoder
    has_head = CLASSES not in tensors and (architecture_of(options) != base or head is not None or HEAD_BIAS in tensors)
    draft["share_source_target"] = shared
    draft["share_target_output"] = not has_head or (
        tied and (head is None or target is None or tensors_equal(head, target))
    )
    draft["head"] = LanguageModelHead(bias=HEAD_BIAS in tensors) if has_head else None


ROLES = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
LAYER = {
    **prefixed("attention/", "self_attn.", ROLES),
    "attention_post_norm": "self_attn_layer_norm",
    **prefixed("cross_attention/", "encoder_attn.", ROLES),
    "cross_attention_post_norm": "encoder_attn_layer_norm",
    "feed_forward/up": "fc1",
    "feed_forward/down": "fc2",
    "feed_forward_post_norm": "final_layer_norm",
}
STACK_NAMES: Names = {
    "embedding": "model.shared",
    "source_embedding": "model.encoder.embed_tokens",
    "target_embedding": "model.decoder.embed_tokens",
    **prefixed("encoder/layers/", "model.encoder.layers.{i}.", LAYER),
    **prefixed("decoder/layers/", "model.decoder.layers.{i}.", LAYER),
    "head/kernel": Tensor(HEAD),
    "head/bias": Tensor(HEAD_BIAS, Layout.LEADING_AXIS),
}

TIED = (
    *tied_copies(SHARED, *TABLES),
    IgnorableTensor(
        re.escape(HEAD),
        "equal to the decoder's embeddings, with which it is tied",
        lambda x, tensors, model: tensors_equal(x, tensors.get(SHARED if model.share_source_target else TABLES[1])),
        copy_of=(SHARED, TABLES[1]),
    ),
    never_read(re.escape(SHARED), "unused: encoder and decoder have tables of their own"),
)
"""Tables that are stored though another is read instead, in BART and Marian."""

# BART -----------------------------------------------------------------------------------------------------------------

TABLE = (
    option("vocab_size", "vocab_size"),
    *STACKS,
    option("max_position_embeddings", "positions.max_positions"),
    option("init_std", "positions.stddev", "initializer.stddev"),
    # Only separate tables need the option: a head of its own is known by its tensor.
    Entry(write=lambda model: {"tie_word_embeddings": model.share_source_target}),
    Entry(lambda options, draft: options.only("normalize_embedding", draft["embedding_norm"])),
    only("static_position_embeddings", False),
)


def read_heads(base: str, options: Options, draft: Draft, tensors: NumpyArrays) -> None:
    read_tables(base, options, draft, tensors)
    num_classes = num_labels(options) if CLASSES in tensors else 0
    draft["pooler"] = Pooler(token="last", num_classes=num_classes) if num_classes else None


EMBEDDING_NAMES: Names = {
    "encoder/positions": "model.encoder.embed_positions",
    "encoder/embedding_norm": "model.encoder.layernorm_embedding",
    "decoder/positions": "model.decoder.embed_positions",
    "decoder/embedding_norm": "model.decoder.layernorm_embedding",
}
NAMES: Names = {
    **STACK_NAMES,
    **EMBEDDING_NAMES,
    "pooler/dense": "classification_head.dense",
    "pooler/classes": "classification_head.out_proj",
}


def bart_family(model_type: str, name: str, template: ModelConfig, *entries: Entry) -> Family:
    """Returns a family of BART's shape and heads. `name` begins the names of its classes."""
    classes = ClassNames(f"{name}Model", f"{name}ForConditionalGeneration", f"{name}ForSequenceClassification")
    return Family(
        model_type=model_type,
        prefix="model.",
        base=classes.base,
        special=UsualIds(pad=1, bos=0, eos=2, start=2),
        head_prefixes=(HEAD_BIAS, "lm_head.", "classification_head."),
        template=template,
        table=(*TABLE, *POST_NORM_ONLY, *entries),
        read_heads=functools.partial(read_heads, classes.base),
        architecture=classes.of,
        names=lambda model, architecture: NAMES,
        buffers=("head/bias",),
        ignorable=(*TIED, never_read(r"model\.(encoder|decoder)\.version", "unused: a number of the release")),
    )


# The first two rows of the position table belong to no position.
BART_TEMPLATE = replaced(STACKS_TEMPLATE, {"positions": Learned(max_positions=1024, offset=2), "embedding_norm": True})
BART_FAMILY = bart_family("bart", "Bart", BART_TEMPLATE)
MVP = bart_family(
    "mvp",
    "Mvp",
    replaced(BART_TEMPLATE, {"vocab_size": 50267}),
    only("use_prompt", False),
    ignored("prompt_length", "prompt_mid_dim"),
)

# Marian ---------------------------------------------------------------------------------------------------------------


def read_target_size(options: Options, draft: Draft) -> None:
    """Reads the target's vocabulary size, which is another only where the tables are separate."""
    if options.flag("share_encoder_decoder_embeddings", True):
        options.only("decoder_vocab_size", draft["vocab_size"])
    else:
        draft["target_vocab_size"] = options.integer("decoder_vocab_size", draft["vocab_size"])


def read_padding(usual: int, options: Options, draft: Draft) -> None:
    """Reads the id whose embedding does not train; decoders start with it. `usual`: the id where the option is absent."""
    draft["padding_id"] = options.optional_integer("pad_token_id", usual)


MARIAN_TABLE = (
    option("vocab_size", "vocab_size"),
    Entry(read_target_size, lambda model: {"decoder_vocab_size": model.output_size}),
    *STACKS,
    *POST_NORM_ONLY,
    option("init_std", "initializer.stddev"),
    Entry(write=lambda model: {"share_encoder_decoder_embeddings": model.share_source_target}),
    Entry(write=lambda model: {"tie_word_embeddings": model.share_source_target or model.share_target_output}),
    ignored("max_position_embeddings"),  # any length is allowed: positions are computed
    only("normalize_embedding", False),
    only("static_position_embeddings", True),
    Entry(functools.partial(read_padding, 58100)),
)


POSITIONS = r"model\.(encoder|decoder)\.embed_positions\.weight"


def sinusoidal_table(
    pattern: str, width: Callable[[ModelConfig], int] = lambda model: model.d_model
) -> IgnorableTensor:
    """Returns a table of positions that equals the sinusoids that are computed here. `width`: that of its rows."""

    def fits(x: np.ndarray, tensors: NumpyArrays, model: ModelConfig) -> bool:
        if x.ndim != 2 or x.shape[1] != width(model):
            return False
        rates = 10_000.0 ** (-np.arange(0, x.shape[1], 2) / x.shape[1])
        angles = np.arange(len(x))[:, None] * rates
        expected = np.concatenate([np.sin(angles), np.cos(angles)], 1)[:, : x.shape[1]]
        return bool(np.abs(x - expected).max() < 1e-4)

    return IgnorableTensor(pattern, "the sines, then the cosines, of each position", fits)


FAMILIES = (
    BART_FAMILY,
    MVP,
    Family(
        model_type="marian",
        prefix="model.",
        base="MarianModel",
        special=UsualIds(pad=58100, eos=0, start=58100),
        head_prefixes=(HEAD_BIAS, "lm_head."),
        template=replaced(STACKS_TEMPLATE, {"vocab_size": 58101, "positions": Sinusoidal(layout="half_split")}),
        table=MARIAN_TABLE,
        read_heads=functools.partial(read_tables, "MarianModel"),
        architecture=lambda model, names: "MarianModel" if model.head is None else "MarianMTModel",
        names=lambda model, architecture: STACK_NAMES,
        buffers=("head/bias",),
        length="max_position_embeddings",
        ignorable=(
            *TIED,
            sinusoidal_table(POSITIONS),
        ),
    ),
)
