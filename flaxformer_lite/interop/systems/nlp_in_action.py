"""The PyTorch translation Transformer with `lm_head`: pre- or post-norm, a norm after each stack in both.

`y = x W^T + b`, `W` stored `(out, in)`. Positions are buffers `(1, positions, width)`, stored as a fixed table.
"""

from flaxformer_lite.core.model import DotProduct, DropoutRates, ModelConfig
from flaxformer_lite.core.model.masks import Replace
from flaxformer_lite.core.model.norms import DeviationNorm
from flaxformer_lite.core.model.positions import FixedTable
from flaxformer_lite.core.text.special_ids import BOS, EOS, PAD
from flaxformer_lite.interop.name_map import Layout, Leaves, Names, Tensor, prefixed
from flaxformer_lite.interop.options import constant, required
from flaxformer_lite.interop.systems.system import System
from flaxformer_lite.interop.systems.torch_transformer import DECODER_NORMS, ENCODER_NORMS, NORM_FIRST

TEMPLATE = ModelConfig(
    vocab_size=1,
    target_vocab_size=1,
    attention=DotProduct(masking=Replace(value=-1e9)),
    positions=FixedTable(),
    activation="relu",
    norm=DeviationNorm(epsilon=1e-6),
    dropout=DropoutRates(),
    share_source_target=False,
    share_target_output=False,
)

TABLE = (
    required("source_vocab_size", "vocab_size"),
    required("target_vocab_size", "target_vocab_size", source="output_size"),
    required("d_model", "d_model"),
    required("n_heads", "num_heads"),
    required("d_ff", "d_ff"),
    required("num_encoder_layers", "num_encoder_layers"),
    required("num_decoder_layers", "num_decoder_layers"),
    required("attention_bias", "attention.bias"),
    required("max_positions", "positions.max_positions"),
    required("norm_first", "residual", kind=NORM_FIRST),
    required(
        "dropout",
        *(f"dropout.{name}_rate" for name in ("residual", "embedding", "attention", "feed_forward")),
    ),
    constant("pad_idx", PAD),
    constant("bos_idx", BOS),
    constant("eos_idx", EOS),
)

ROLES = {"query": "q", "key": "k", "value": "v", "out": "concat"}
FEED_FORWARD = {"feed_forward/up": "ff.ff1", "feed_forward/down": "ff.ff2"}
ENCODER_LAYER = {
    **prefixed("attention/", "attention.", ROLES),
    **FEED_FORWARD,
    **ENCODER_NORMS,
}
DECODER_LAYER = {
    **prefixed("attention/", "masked_attention.", ROLES),
    **prefixed("cross_attention/", "cross_attention.", ROLES),
    **FEED_FORWARD,
    **DECODER_NORMS,
}
NAMES: Names = {
    "source_embedding": "transformer.src_embedding.embed",
    "encoder/positions/table": Tensor("transformer.enc_pos.pe", Layout.LEADING_AXIS),
    **prefixed("encoder/layers/", "transformer.encoder.layers.{i}.", ENCODER_LAYER),
    "encoder/final_norm": "transformer.encoder.norm",
    "target_embedding": "transformer.tgt_embedding.embed",
    "decoder/positions/table": Tensor("transformer.dec_pos.pe", Layout.LEADING_AXIS),
    **prefixed("decoder/layers/", "transformer.decoder.layers.{i}.", DECODER_LAYER),
    "decoder/final_norm": "transformer.decoder.norm",
    "head": "lm_head",
}

SYSTEM = System(
    name="nlp-in-action",
    template=TEMPLATE,
    table=TABLE,
    names=lambda model, options: NAMES,
    leaves=Leaves(scale=".gamma", norm_bias=".beta"),
)
