"""The "matrix view" PyTorch Transformer: heads are cut first, then all projected by one small matrix.

`y = x W^T + b`, `W` stored `(out, in)`. Its score is masked before the scale, 1 / sqrt(width). That is the same as after it, since
any such large negative score has weight 0, and equal scores are uniform.
"""

from typing import Any

from flaxformer_lite.interop.name_map import WeightName, linear, norm, stacked, table
from flaxformer_lite.interop.option_table import Draft, Entry, constant, required
from flaxformer_lite.interop.options import Options
from flaxformer_lite.interop.systems.system import System
from flaxformer_lite.model import DropoutRates, LanguageModelHead, LayerNorm, Learned, ModelConfig
from flaxformer_lite.model.attention import SharedProjection
from flaxformer_lite.model.masks import Replace
from flaxformer_lite.model.residual import Residual
from flaxformer_lite.text.special_ids import PAD

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


def names(model: ModelConfig, options: Options) -> list[WeightName]:
    """Returns every parameter under the system's names."""
    block = "transformer_block."
    weights = linear("head", "decoder.fc_out")
    for stack, side, layer in (
        ("encoder", "source", sublayers("encoder/layers/", "encoder.layers.{i}.", "attention", "")),
        (
            "decoder",
            "target",
            attention("decoder/layers/attention", "decoder.layers.{i}.attention", "decoder.layers.{i}.norm")
            + sublayers("decoder/layers/", "decoder.layers.{i}.", "cross_attention", block),
        ),
    ):
        weights += table(f"{side}_embedding", f"{stack}.word_embedding")
        weights += table(f"{stack}/positions", f"{stack}.position_embedding")
        weights += stacked(layer, model.num_encoder_layers)
    return weights


def sublayers(here: str, there: str, ours: str, block: str) -> list[WeightName]:
    """Returns the names of one block of theirs: an attention, a feed-forward and their norms."""
    there += block
    return [
        *attention(f"{here}{ours}", f"{there}attention", f"{there}norm1"),
        *linear(f"{here}feed_forward/up", f"{there}feed_forward.0"),
        *linear(f"{here}feed_forward/down", f"{there}feed_forward.2"),
        *norm(f"{here}feed_forward_post_norm", f"{there}norm2"),
    ]


def attention(ours: str, theirs: str, norm_name: str) -> list[WeightName]:
    return [
        *linear(f"{ours}/query", f"{theirs}.queries", bias=False),
        *linear(f"{ours}/key", f"{theirs}.keys", bias=False),
        *linear(f"{ours}/value", f"{theirs}.values", bias=False),
        *linear(f"{ours}/out", f"{theirs}.fc_out"),
        *norm(f"{ours}_post_norm", norm_name),
    ]


SYSTEM = System(name="matrix-view", template=TEMPLATE, table=TABLE, names=names)
