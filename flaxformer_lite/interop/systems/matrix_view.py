"""The "matrix view" PyTorch Transformer: heads are cut first, then all projected by one small matrix.

`y = x W^T + b`, `W` stored `(out, in)`. Its score is masked before the scale, 1 / sqrt(width). That is the same as after it, since
any such large negative score has weight 0, and equal scores are uniform.
"""

from typing import Any

from flaxformer_lite.core.model import DropoutRates, LanguageModelHead, LayerNorm, Learned, ModelConfig, Residual
from flaxformer_lite.core.model.attention import SharedProjection
from flaxformer_lite.core.model.masks import Replace
from flaxformer_lite.core.text.special_ids import PAD
from flaxformer_lite.interop.name_map import Names, prefixed
from flaxformer_lite.interop.options import Draft, Entry, Options, constant, required
from flaxformer_lite.interop.systems.system import System

TEMPLATE = ModelConfig(
    vocab_size=1,
    target_vocab_size=1,
    attention=SharedProjection(masking=Replace(value=-1e20)),
    positions=Learned(stddev=1.0),
    activation="relu",
    norm=LayerNorm(epsilon=1e-5),
    residual=Residual(pre="", post="and", final=""),
    dropout=DropoutRates(attention_rate=0.0, feed_forward_rate=0.0),
    scale_embeddings=False,
    share_source_target=False,
    share_target_output=False,
    head=LanguageModelHead(bias=True),
)


def read_widths(options: Options, draft: Draft) -> None:
    """Reads the width, which sets the scale of the scores, and the inner width as a multiple of it."""
    width = options.integer("embed_size")
    draft["d_model"], draft["attention.scale"] = width, width**-0.5
    draft["d_ff"] = width * options.integer("forward_expansion")


def widths(model: ModelConfig) -> dict[str, Any]:
    return {"embed_size": model.d_model, "forward_expansion": model.d_ff // model.d_model}


TABLE = (
    required("src_vocab_size", "vocab_size"),
    required("trg_vocab_size", "target_vocab_size", source="output_size"),
    Entry(read_widths, widths),
    required("heads", "num_heads"),
    required("num_layers", "num_encoder_layers", "num_decoder_layers"),
    required("max_length", "positions.max_positions"),
    required("dropout", "dropout.residual_rate", "dropout.embedding_rate"),
    constant("src_pad_idx", PAD),
    constant("trg_pad_idx", PAD),
)


ROLES = {"query": "queries", "key": "keys", "value": "values", "out": "fc_out"}
FEED_FORWARD = {
    "feed_forward/up": "feed_forward.0",
    "feed_forward/down": "feed_forward.2",
    "feed_forward_post_norm": "norm2",
}
ENCODER_LAYER = {**prefixed("attention/", "attention.", ROLES), "attention_post_norm": "norm1", **FEED_FORWARD}
DECODER_LAYER = {
    **prefixed("attention/", "attention.", ROLES),
    "attention_post_norm": "norm",
    **prefixed("cross_attention/", "transformer_block.attention.", ROLES),
    "cross_attention_post_norm": "transformer_block.norm1",
    **prefixed("", "transformer_block.", FEED_FORWARD),
}
NAMES: Names = {
    "source_embedding": "encoder.word_embedding",
    "encoder/positions": "encoder.position_embedding",
    **prefixed("encoder/layers/", "encoder.layers.{i}.", ENCODER_LAYER),
    "target_embedding": "decoder.word_embedding",
    "decoder/positions": "decoder.position_embedding",
    **prefixed("decoder/layers/", "decoder.layers.{i}.", DECODER_LAYER),
    "head": "decoder.fc_out",
}

SYSTEM = System(name="matrix-view", template=TEMPLATE, table=TABLE, names=lambda model, options: NAMES)
