"""The dynamic-graph PaddlePaddle encoder with residual commands: a stack without embeddings.

`y = x W + b`, `W` stored `(in, out)` as here. Its commands are ours; its dropout on residuals scales in evaluation.
"""

from collections.abc import Mapping
from typing import Any

from flaxformer_lite.interop.name_map import WeightName, layers, setting
from flaxformer_lite.model.attention import DotProduct
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.dropout import DropoutRates
from flaxformer_lite.model.norms import LayerNorm
from flaxformer_lite.model.positions import NoPositions
from flaxformer_lite.model.residual import Residual

NUMBER = (int, float)


def model_config(settings: Mapping[str, Any]) -> ModelConfig:
    """The encoder in our terms: vectors in, vectors out."""
    if (activation := setting(settings, "hidden_act", str)) not in ("gelu", "relu", "tanh", "linear"):
        raise ValueError(f"the config's hidden_act is {activation!r}: choose gelu, relu, tanh or linear")
    setting({"name": "", **settings}, "name", str)
    pre = setting(settings, "preprocess_cmd", str)
    residual = setting(settings, "prepostprocess_dropout", NUMBER)
    return ModelConfig(
        vocab_size=0,
        d_model=setting(settings, "d_model"),
        num_heads=setting(settings, "n_head"),
        d_ff=setting(settings, "d_inner_hid"),
        num_encoder_layers=setting(settings, "n_layer"),
        num_decoder_layers=0,
        attention=DotProduct(d_key=setting(settings, "d_key"), d_value=setting(settings, "d_value")),
        positions=NoPositions(),
        activation=activation,
        norm=LayerNorm(epsilon=1e-5),
        residual=Residual(pre=pre, post=setting(settings, "postprocess_cmd", str), final=pre),
        dropout=DropoutRates(
            embedding_rate=0.0,
            attention_rate=float(setting(settings, "attention_dropout", NUMBER)),
            feed_forward_rate=float(setting(settings, "relu_dropout", NUMBER)),
            residual_rate=float(residual),
            residual_scaling="evaluation",
        ),
        scale_embeddings=False,
        head=None,
    )


def settings_of(model: ModelConfig) -> dict[str, Any]:
    """The system's config for a model like that; `model_config` backwards."""
    attention, residual, rates = model.attention, model.residual, model.dropout
    if not isinstance(attention, DotProduct):
        raise ValueError(f"model.attention is {type(attention).__name__} (there: DotProduct)")
    heads = attention.heads(model.d_model, model.num_heads)
    return {
        "name": "",
        "d_model": model.d_model,
        "n_head": model.num_heads,
        "d_key": heads.d_key,
        "d_value": heads.d_value,
        "d_inner_hid": model.d_ff,
        "n_layer": model.num_encoder_layers,
        "hidden_act": model.activation,
        "preprocess_cmd": residual.pre,
        "postprocess_cmd": residual.post,
        "attention_dropout": rates.attention_rate,
        "relu_dropout": rates.feed_forward_rate,
        "prepostprocess_dropout": rates.residual_rate,
    }


def name_map(settings: Mapping[str, Any]) -> list[WeightName]:
    """Every parameter of the encoder under the system's names."""
    pre, post = setting(settings, "preprocess_cmd", str), setting(settings, "postprocess_cmd", str)
    prefix, num_layers = f"{settings.get('name', '')}_layer_{{i}}_", setting(settings, "n_layer")
    linear = {
        "attention/query": "multi_head_att_query_fc",
        "attention/key": "multi_head_att_key_fc",
        "attention/value": "multi_head_att_value_fc",
        "attention/out": "multi_head_att_output_fc",
        "feed_forward/up": "ffn_fc_0",
        "feed_forward/down": "ffn_fc_1",
    }
    pairs = {f"{ours}/{leaf}": f"{theirs}{end}" for ours, theirs in linear.items() for leaf, end in LINEAR.items()}
    for sublayer, theirs in (("attention", "att"), ("feed_forward", "ffn")):
        for place, commands in (("pre", pre), ("post", post)):
            if "n" in commands:
                norm = f"{place}_{theirs}_layer_norm"
                pairs |= {f"{sublayer}_{place}_norm/{leaf}": f"{norm}_{leaf}" for leaf in ("scale", "bias")}
    names = [layers(f"encoder/layers/{ours}", prefix + theirs, num_layers) for ours, theirs in pairs.items()]
    if "n" in pre:
        names += [WeightName(f"encoder/final_norm/{x}", (f"post_encoder_layer_norm_{x}",)) for x in ("scale", "bias")]
    return names


LINEAR = {"kernel": ".w_0", "bias": ".b_0"}
