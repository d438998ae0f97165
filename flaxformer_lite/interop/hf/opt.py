"""OPT and XGLM: decoders with LayerNorm before each sublayer, and positions that are counted from 2.

OPT's are learned, XGLM's are sinusoids. The library has a second form of OPT, with norms after each residual sum. The model of 350
million parameters has that form, and embeddings narrower than its layers.

References: Zhang et al. 2022, arXiv:2205.01068; Lin et al. 2021, arXiv:2112.10668 (XGLM).
"""

from typing import Any

from flaxformer_lite.core.model import (
    POST_NORM,
    DropoutRates,
    LayerNorm,
    Learned,
    ModelConfig,
    Normal,
    Residual,
)
from flaxformer_lite.core.model.positions import Sinusoidal
from flaxformer_lite.interop.hf import bart
from flaxformer_lite.interop.hf.family import ClassNames, classes_of, never_read
from flaxformer_lite.interop.hf.llama import decoder_family
from flaxformer_lite.interop.hf.options import ACTIVATION, UsualIds, embedding_width
from flaxformer_lite.interop.name_map import Names, prefixed
from flaxformer_lite.interop.options import Draft, Entry, Options, ignored, option, replaced

OPT = classes_of("OPT", "ForCausalLM")._replace(of_tokens="")
XGLM = ClassNames("XGLMModel", "XGLMForCausalLM", "")

SHARED = (
    option("vocab_size", "vocab_size"),
    option("ffn_dim", "d_ff"),
    option("activation_function", "activation", kind=ACTIVATION),
    option("attention_dropout", "dropout.attention_rate"),
    option("tie_word_embeddings", "share_target_output"),
)
"""The options of both."""

TEMPLATE = ModelConfig(
    vocab_size=50272,
    d_model=768,
    num_heads=12,
    d_ff=3072,
    num_encoder_layers=0,
    num_decoder_layers=12,
    positions=Learned(max_positions=2048, offset=2),
    norm=LayerNorm(epsilon=1e-5),
    dropout=DropoutRates(embedding_rate=0.0, attention_rate=0.0, feed_forward_rate=0.0),
    scale_embeddings=False,
    initializer=Normal(),
)


def read_norms(options: Options, draft: Draft) -> None:
    """Reads the places of the norms. Models that were tuned with a release before 4.20 have none after the last layer."""
    is_before = options.flag("do_layer_norm_before", True)
    has_no_final = options.flag("_remove_final_layer_norm", False)
    draft["residual"] = Residual(final="" if has_no_final else "n") if is_before else POST_NORM


def norm_options(model: ModelConfig) -> dict[str, Any]:
    is_before = model.residual.pre == "n"
    return {
        "do_layer_norm_before": is_before,
        "_remove_final_layer_norm": is_before and not model.residual.final,
    }


TABLE = (
    *SHARED,
    option("hidden_size", "d_model"),
    option("num_hidden_layers", "num_decoder_layers"),
    option("num_attention_heads", "num_heads"),
    option("max_position_embeddings", "positions.max_positions"),
    option("dropout", "dropout.residual_rate"),
    option("init_std", "positions.stddev", "initializer.stddev"),
    option("enable_bias", "attention.bias", "attention.out_bias", "feed_forward_bias"),
    Entry(read_norms, norm_options),
    option("layer_norm_elementwise_affine", "norm.scale", "norm.bias"),
    embedding_width("word_embed_proj_dim", of="tokens"),
)


def check_padding(options: Options, draft: Draft) -> None:
    """Checks XGLM's padding id: the library's sinusoids are 0 in the row of that number, and texts begin at row 2."""
    pad_id = options.optional_integer("pad_token_id", 1)
    if pad_id is not None and pad_id >= draft["positions.offset"]:
        rule = (
            f"only ids below 2 are implemented: the library gives the tokens at position {pad_id - 2} no position then"
        )
        raise options.wrong("pad_token_id", rule)


XGLM_TEMPLATE = replaced(
    TEMPLATE,
    {
        "vocab_size": 256008,
        "d_model": 1024,
        "num_heads": 16,
        "d_ff": 4096,
        "num_decoder_layers": 24,
        "positions": Sinusoidal(layout="fairseq", offset=2),
        "activation": "gelu",
        "scale_embeddings": True,
        "dropout": DropoutRates(feed_forward_rate=0.0),
    },
)
XGLM_TABLE = (
    *SHARED,
    option("d_model", "d_model"),
    option("num_layers", "num_decoder_layers"),
    option("attention_heads", "num_heads"),
    option("dropout", "dropout.residual_rate", "dropout.embedding_rate"),
    option("activation_dropout", "dropout.feed_forward_rate"),
    option("init_std", "initializer.stddev"),
    option("scale_embedding", "scale_embeddings"),
    ignored("max_position_embeddings"),  # any length is allowed: positions are computed
    Entry(check_padding),
)

LAYER = bart.LAYER | {"attention_pre_norm": "self_attn_layer_norm", "feed_forward_pre_norm": "final_layer_norm"}
NAMES: Names = {
    "embedding": "model.decoder.embed_tokens",
    "decoder/positions": "model.decoder.embed_positions",
    **prefixed("decoder/layers/", "model.decoder.layers.{i}.", LAYER),
    "decoder/final_norm": "model.decoder.final_layer_norm",
    "decoder/embedding_projection": "model.decoder.project_in",
    "decoder/output_projection": "model.decoder.project_out",
}
XGLM_NAMES: Names = {
    "embedding": "model.embed_tokens",
    **prefixed("decoder/layers/", "model.layers.{i}.", LAYER),
    "decoder/final_norm": "model.layer_norm",
}

FAMILIES = (
    decoder_family("opt", OPT, UsualIds(pad=1, bos=2, eos=2), TEMPLATE, TABLE, NAMES),
    decoder_family(
        "xglm",
        XGLM,
        UsualIds(pad=1, bos=0, eos=2),
        XGLM_TEMPLATE,
        XGLM_TABLE,
        XGLM_NAMES,
        never_read(r"model\.embed_positions\.weights", "unused: sinusoids are computed"),
        length="max_position_embeddings",
    ),
)
