"""`torch.nn.Transformer` of PyTorch: the two stacks alone, vectors in and vectors out, pre- or post-norm, a norm after each stack.

Its config is the arguments of the constructor. `y = x W^T + b`, `W` stored `(out, in)`; the projections of queries, keys and values
are one fused array, in this order.
"""

from collections.abc import Mapping

from flaxformer_lite.interop.name_map import FusedSlice, Leaves, WeightName, linear, norm, stacked
from flaxformer_lite.interop.option_table import Draft, Entry, Kind, choice, constant, option
from flaxformer_lite.interop.options import Options
from flaxformer_lite.interop.systems.system import System
from flaxformer_lite.interop.systems.torch_check import check_weights
from flaxformer_lite.model import PRE_NORM, DotProduct, DropoutRates, LayerNorm, ModelConfig
from flaxformer_lite.model.positions import NoPositions
from flaxformer_lite.model.residual import Residual

POST_NORM = Residual(pre="", post="dan", final="n")
"""A norm after each sublayer, and another after the stack."""
NORM_FIRST = Kind(
    lambda options, name, default: PRE_NORM if options.flag(name, default) else POST_NORM,
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
    residual=POST_NORM,
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

STACKS = {
    "encoder": {"attention": "self_attn"},
    "decoder": {"attention": "self_attn", "cross_attention": "multihead_attn"},
}
"""The attentions of each stack: ours, and theirs."""
IN_PROJ = Leaves("_weight", "_bias")


def names(model: ModelConfig, options: Options) -> list[WeightName]:
    """Returns every parameter under the names of the state dict."""
    weights: list[WeightName] = []
    for stack, attentions in STACKS.items():
        num_layers = model.num_encoder_layers if stack == "encoder" else model.num_decoder_layers
        weights += stacked(layer(f"{stack}/layers", f"{stack}.layers.{{i}}", attentions, model), num_layers)
        weights += norm(f"{stack}/final_norm", f"{stack}.norm", bias=model.feed_forward_bias)
    return weights


def layer(here: str, there: str, attentions: Mapping[str, str], model: ModelConfig) -> list[WeightName]:
    bias, place = model.feed_forward_bias, "pre" if model.residual == PRE_NORM else "post"
    weights = linear(f"{here}/feed_forward/up", f"{there}.linear1", bias=bias)
    weights += linear(f"{here}/feed_forward/down", f"{there}.linear2", bias=bias)
    for ours, theirs in attentions.items():
        for number, role in enumerate(("query", "key", "value")):
            part = FusedSlice(0, number * model.d_model, (number + 1) * model.d_model)
            fused = linear(f"{here}/{ours}/{role}", f"{there}.{theirs}.in_proj", bias=bias, leaves=IN_PROJ)
            weights += [weight._replace(part=part) for weight in fused]
        weights += linear(f"{here}/{ours}/out", f"{there}.{theirs}.out_proj", bias=bias)
    for number, sublayer in enumerate([*attentions, "feed_forward"], start=1):
        weights += norm(f"{here}/{sublayer}_{place}_norm", f"{there}.norm{number}", bias=bias)
    return weights


SYSTEM = System(name="torch-transformer", template=TEMPLATE, table=TABLE, names=names, check=check_weights)
