"""The dynamic-graph PaddlePaddle encoder with residual commands: a stack without embeddings.

`y = x W + b`, `W` stored `(in, out)` as here. Its commands are ours; its dropout on residuals scales in evaluation.
"""

from flaxformer_lite.core.model import PRE_NORM, DotProduct, DropoutRates, LayerNorm, ModelConfig, NoPositions
from flaxformer_lite.interop.name_map import Layout, Leaves, Names, prefixed
from flaxformer_lite.interop.options import Entry, Options, choice, required
from flaxformer_lite.interop.systems.system import System

TEMPLATE = ModelConfig(
    vocab_size=0,
    num_decoder_layers=0,
    attention=DotProduct(d_key=64, d_value=64),
    positions=NoPositions(),
    norm=LayerNorm(epsilon=1e-5),
    residual=PRE_NORM,
    dropout=DropoutRates(embedding_rate=0.0, residual_scaling="evaluation"),
    scale_embeddings=False,
    head=None,
)

TABLE = (
    Entry(lambda options, draft: options.ignore("name"), lambda model: {"name": ""}),  # the prefix of all names
    required("preprocess_cmd", "residual.pre", "residual.final"),
    required("postprocess_cmd", "residual.post"),
    required("d_model", "d_model"),
    required("n_head", "num_heads"),
    required("d_key", "attention.d_key"),
    required("d_value", "attention.d_value"),
    required("d_inner_hid", "d_ff"),
    required("n_layer", "num_encoder_layers"),
    required("hidden_act", "activation", kind=choice({name: name for name in ("gelu", "relu", "tanh", "linear")})),
    required("attention_dropout", "dropout.attention_rate"),
    required("relu_dropout", "dropout.feed_forward_rate"),
    required("prepostprocess_dropout", "dropout.residual_rate"),
)

LAYER = {
    "attention_pre_norm": "pre_att_layer_norm",
    "attention/query": "multi_head_att_query_fc",
    "attention/key": "multi_head_att_key_fc",
    "attention/value": "multi_head_att_value_fc",
    "attention/out": "multi_head_att_output_fc",
    "attention_post_norm": "post_att_layer_norm",
    "feed_forward_pre_norm": "pre_ffn_layer_norm",
    "feed_forward/up": "ffn_fc_0",
    "feed_forward/down": "ffn_fc_1",
    "feed_forward_post_norm": "post_ffn_layer_norm",
}


def names(model: ModelConfig, options: Options) -> Names:
    layer = prefixed("encoder/layers/", f"{options.text('name', '')}_layer_{{i}}_", LAYER)
    return {**layer, "encoder/final_norm": "post_encoder_layer_norm"}


SYSTEM = System(
    name="paddle",
    template=TEMPLATE,
    table=TABLE,
    names=names,
    leaves=Leaves(".w_0", ".b_0", "_scale", "_bias", layout=Layout.SAME),
)
