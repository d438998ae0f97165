"""`torch.nn.Transformer` of PyTorch: the two stacks alone, vectors in and vectors out, pre- or post-norm, a norm after each stack.

Its config is the arguments of the constructor. `y = x W^T + b`, `W` stored `(out, in)`; the projections of queries, keys and values
are one array, in this order.
"""

from collections.abc import Mapping
from typing import Any

from flaxformer_lite.interop.name_map import Layout, Part, WeightName, layers, setting
from flaxformer_lite.model.attention import DotProduct
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.dropout import DropoutRates
from flaxformer_lite.model.norms import LayerNorm
from flaxformer_lite.model.positions import NoPositions
from flaxformer_lite.model.residual import PRE_NORM, Residual

DEFAULTS: dict[str, Any] = {
    "d_model": 512,
    "nhead": 8,
    "num_encoder_layers": 6,
    "num_decoder_layers": 6,
    "dim_feedforward": 2048,
    "dropout": 0.1,
    "activation": "relu",
    "layer_norm_eps": 1e-5,
    "norm_first": False,
    "bias": True,
}
"""The constructor's own, for arguments that are not given."""
FREE = ("batch_first", "device", "dtype")
"""Arguments that change no number; here the batch is always first."""
POST_NORM = Residual(pre="", post="dan", final="n")


def model_config(settings: Mapping[str, Any]) -> ModelConfig:
    """The whole model in our terms."""
    settings = complete(settings)
    rate = float(setting(settings, "dropout", (int, float)))
    activation, bias = setting(settings, "activation", str), setting(settings, "bias", bool)
    if activation not in ("relu", "gelu"):
        raise ValueError(f"the config's activation is {activation!r}: choose relu or gelu")
    for stack in ("encoder", "decoder"):
        if (number := setting(settings, f"num_{stack}_layers")) < 1:
            raise ValueError(f"the config's num_{stack}_layers is {number}: a stack needs at least 1 layer here")
    return ModelConfig(
        vocab_size=0,
        d_model=setting(settings, "d_model"),
        num_heads=setting(settings, "nhead"),
        d_ff=setting(settings, "dim_feedforward"),
        num_encoder_layers=setting(settings, "num_encoder_layers"),
        num_decoder_layers=setting(settings, "num_decoder_layers"),
        attention=DotProduct(bias=bias),
        positions=NoPositions(),
        feed_forward_bias=bias,
        activation=activation,
        norm=LayerNorm(epsilon=float(setting(settings, "layer_norm_eps", (int, float))), bias=bias),
        residual=PRE_NORM if setting(settings, "norm_first", bool) else POST_NORM,
        dropout=DropoutRates(embedding_rate=0.0, attention_rate=rate, feed_forward_rate=rate, residual_rate=rate),
        scale_embeddings=False,
        head=None,
    )


def complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments. Raises: ValueError for one that the constructor does not have, or that stands for other code."""
    known = {*DEFAULTS, *FREE}
    if wrong := sorted(name for name in settings.keys() - known if settings[name] is not None):
        raise ValueError(
            f"the config has {wrong[0]} {settings[wrong[0]]!r}, which is not known here: it may have {', '.join(sorted(known))}"
        )
    return DEFAULTS | {name: value for name, value in settings.items() if name in DEFAULTS}


def settings_of(model: ModelConfig) -> dict[str, Any]:
    """The arguments for a model like that; `model_config` backwards."""
    return {
        "d_model": model.d_model,
        "nhead": model.num_heads,
        "num_encoder_layers": model.num_encoder_layers,
        "num_decoder_layers": model.num_decoder_layers,
        "dim_feedforward": model.d_ff,
        "dropout": model.dropout.residual_rate,
        "activation": model.activation,
        "layer_norm_eps": model.norm.epsilon,
        "norm_first": model.residual.pre == "n",
        "bias": model.feed_forward_bias,
        "batch_first": True,
    }


def name_map(settings: Mapping[str, Any]) -> list[WeightName]:
    """Every parameter under the names of the state dict."""
    settings = complete(settings)
    place = "pre" if setting(settings, "norm_first", bool) else "post"
    names = []
    for leaf in ("weight", "bias") if setting(settings, "bias", bool) else ("weight",):
        for stack, attentions in (
            ("encoder", {"attention": "self_attn"}),
            ("decoder", {"attention": "self_attn", "cross_attention": "multihead_attn"}),
        ):
            for weight in layer_names(leaf, attentions, place, setting(settings, "d_model")):
                there, number = f"{stack}.layers.{{i}}.{weight.names[0]}", setting(settings, f"num_{stack}_layers")
                names.append(
                    layers(f"{stack}/layers/{weight.path}", there, number)._replace(
                        layout=weight.layout, part=weight.part
                    )
                )
            names.append(WeightName(f"{stack}/final_norm/{NORM[leaf]}", (f"{stack}.norm.{leaf}",)))
    return names


NORM, LINEAR = {"weight": "scale", "bias": "bias"}, {"weight": "kernel", "bias": "bias"}
"""Their leaves and ours."""


def layer_names(leaf: str, attentions: Mapping[str, str], place: str, d_model: int) -> list[WeightName]:
    """All weights, or all biases, of one layer."""
    layout, ours = Layout.TRANSPOSED if leaf == "weight" else Layout.SAME, LINEAR[leaf]
    names = []
    for here, there in attentions.items():
        for number, role in enumerate(("query", "key", "value")):
            part = Part(0, number * d_model, (number + 1) * d_model)
            names.append(WeightName(f"{here}/{role}/{ours}", (f"{there}.in_proj_{leaf}",), layout, part))
        names.append(WeightName(f"{here}/out/{ours}", (f"{there}.out_proj.{leaf}",), layout))
    names += [
        WeightName(f"feed_forward/{here}/{ours}", (f"{there}.{leaf}",), layout)
        for here, there in (("up", "linear1"), ("down", "linear2"))
    ]
    for number, sublayer in enumerate([*attentions, "feed_forward"], start=1):
        names.append(WeightName(f"{sublayer}_{place}_norm/{NORM[leaf]}", (f"norm{number}.{leaf}",)))
    return names
