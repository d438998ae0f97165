"""`torch.nn.Transformer` of PyTorch: the two stacks, vectors in and vectors out, pre- or post-norm, a norm after each stack.

Its config is the arguments of the constructor. `y = x W^T + b`, `W` stored `(out, in)`; the projections of queries, keys and values
are one fused array, in this order.
"""

from flaxformer_lite.core.model import PRE_NORM, DotProduct, DropoutRates, LayerNorm, ModelConfig, NoPositions, Residual
from flaxformer_lite.interop.name_map import Names, prefixed
from flaxformer_lite.interop.options import Draft, Entry, Kind, Options, choice, constant, option
from flaxformer_lite.interop.systems.system import System

POST_NORM_AND_LAST = Residual(pre="", post="dan", final="n")
"""A norm after each sublayer, and another after the stack."""
NORM_FIRST = Kind(
    lambda options, name, default: PRE_NORM if options.flag(name, default) else POST_NORM_AND_LAST,
    lambda residual: residual.pre == "n",
)

TEMPLATE = ModelConfig(
    vocab_size=0,
    d_model=512,
    num_heads=8,
    d_ff=2048,
    num_encoder_layers=6,
    num_decoder_layers=6,
    attention=DotProduct(),
    positions=NoPositions(),
    activation="relu",
    norm=LayerNorm(epsilon=1e-5),
    residual=POST_NORM_AND_LAST,
    dropout=DropoutRates(embedding_rate=0.0, attention_rate=0.1, feed_forward_rate=0.1, residual_rate=0.1),
    scale_embeddings=False,
    head=None,
)
"""The constructor's own defaults."""


def check_layers(options: Options, draft: Draft) -> None:
    for stack in ("encoder", "decoder"):
        if draft[f"num_{stack}_layers"] < 1:
            raise options.wrong(f"num_{stack}_layers", "a stack needs at least 1 layer here")


TABLE = (
    option("d_model", "d_model"),
    option("nhead", "num_heads"),
    option("num_encoder_layers", "num_encoder_layers"),
    option("num_decoder_layers", "num_decoder_layers"),
    Entry(read=check_layers),
    option("dim_feedforward", "d_ff"),
    option("dropout", "dropout.residual_rate", "dropout.attention_rate", "dropout.feed_forward_rate"),
    option("activation", "activation", kind=choice({"relu": "relu", "gelu": "gelu"})),
    option("layer_norm_eps", "norm.epsilon"),
    option("norm_first", "residual", kind=NORM_FIRST),
    option("bias", "feed_forward_bias", "attention.bias", "norm.bias"),
    constant("batch_first", True),  # the batch is always first here
    Entry(read=lambda options, draft: options.finish(harmless=("device", "dtype"))),
)

ENCODER_NORMS = {
    "attention_pre_norm": "norm1",
    "attention_post_norm": "norm1",
    "feed_forward_pre_norm": "norm2",
    "feed_forward_post_norm": "norm2",
}
"""A model has the norms of one of the two places."""
DECODER_NORMS = {
    "attention_pre_norm": "norm1",
    "attention_post_norm": "norm1",
    "cross_attention_pre_norm": "norm2",
    "cross_attention_post_norm": "norm2",
    "feed_forward_pre_norm": "norm3",
    "feed_forward_post_norm": "norm3",
}
ATTENTION = {
    "{query,key,value}/kernel": "in_proj_weight",
    "{query,key,value}/bias": "in_proj_bias",
    "out": "out_proj",
}
FEED_FORWARD = {"feed_forward/up": "linear1", "feed_forward/down": "linear2"}
ENCODER_LAYER = {**prefixed("attention/", "self_attn.", ATTENTION), **FEED_FORWARD, **ENCODER_NORMS}
DECODER_LAYER = {
    **prefixed("attention/", "self_attn.", ATTENTION),
    **prefixed("cross_attention/", "multihead_attn.", ATTENTION),
    **FEED_FORWARD,
    **DECODER_NORMS,
}
NAMES: Names = {
    **prefixed("encoder/layers/", "encoder.layers.{i}.", ENCODER_LAYER),
    "encoder/final_norm": "encoder.norm",
    **prefixed("decoder/layers/", "decoder.layers.{i}.", DECODER_LAYER),
    "decoder/final_norm": "decoder.norm",
}
"""The names of the state dict."""

SYSTEM = System(name="torch-transformer", template=TEMPLATE, table=TABLE, names=lambda model, options: NAMES)
