"""The PyTorch translation Transformer with `lm_head`: pre- or post-norm, a norm after each stack in both.

`y = x W^T + b`, `W` stored `(out, in)`. Positions are buffers `(1, positions, width)`, kept as a fixed table.
"""

from collections.abc import Mapping
from typing import Any

from flaxformer_lite.interop.name_map import Layout, WeightName, layers, setting
from flaxformer_lite.model.attention import DotProduct
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.dropout import DropoutRates
from flaxformer_lite.model.masks import Replace
from flaxformer_lite.model.norms import DeviationNorm
from flaxformer_lite.model.positions import FixedTable
from flaxformer_lite.model.residual import Residual
from flaxformer_lite.text.special_ids import BOS, EOS, PAD


def model_config(settings: Mapping[str, Any]) -> ModelConfig:
    """The whole model in our terms."""
    rate = float(setting(settings, "dropout", (int, float)))
    norm_first = setting(settings, "norm_first", bool)
    return ModelConfig(
        vocab_size=setting(settings, "source_vocab_size"),
        target_vocab_size=setting(settings, "target_vocab_size"),
        d_model=setting(settings, "d_model"),
        num_heads=setting(settings, "n_heads"),
        d_ff=setting(settings, "d_ff"),
        num_encoder_layers=setting(settings, "num_encoder_layers"),
        num_decoder_layers=setting(settings, "num_decoder_layers"),
        attention=DotProduct(bias=setting(settings, "attention_bias", bool), masking=Replace(value=-1e9)),
        positions=FixedTable(max_positions=setting(settings, "max_positions")),
        activation="relu",
        norm=DeviationNorm(epsilon=1e-6),
        residual=Residual(pre="n", post="da", final="n") if norm_first else Residual(pre="", post="dan", final="n"),
        dropout=DropoutRates(embedding_rate=rate, attention_rate=rate, feed_forward_rate=rate, residual_rate=rate),
        share_source_target=False,
        share_target_output=False,
    )


def settings_of(model: ModelConfig) -> dict[str, Any]:
    """The system's config for a model like that; `model_config` backwards."""
    if not isinstance(model.positions, FixedTable):
        raise ValueError(f"model.positions is {type(model.positions).__name__} (there: FixedTable)")
    source_size, target_size = model.vocab_sizes
    return {
        "source_vocab_size": source_size,
        "target_vocab_size": target_size,
        "d_model": model.d_model,
        "n_heads": model.num_heads,
        "d_ff": model.d_ff,
        "num_encoder_layers": model.num_encoder_layers,
        "num_decoder_layers": model.num_decoder_layers,
        "attention_bias": model.attention.bias,
        "max_positions": model.positions.max_positions,
        "norm_first": model.residual.pre == "n",
        "dropout": model.dropout.residual_rate,
        "pad_idx": PAD,
        "bos_idx": BOS,
        "eos_idx": EOS,
    }


def name_map(settings: Mapping[str, Any]) -> list[WeightName]:
    """Every parameter and buffer under the system's names."""
    place = "pre" if setting(settings, "norm_first", bool) else "post"
    biased = setting(settings, "attention_bias", bool)
    names = [
        WeightName("source_embedding/embedding", ("transformer.src_embedding.embed.weight",)),
        WeightName("target_embedding/embedding", ("transformer.tgt_embedding.embed.weight",)),
        WeightName("head/kernel", ("lm_head.weight",), Layout.TRANSPOSED),
    ]
    for stack, short, sublayers in (
        ("encoder", "enc", {"attention": "attention"}),
        ("decoder", "dec", {"attention": "masked_attention", "cross_attention": "cross_attention"}),
    ):
        pairs: dict[str, tuple[str, Layout]] = {}
        for ours, theirs in sublayers.items():
            for role, letter in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "concat")):
                pairs |= linear(f"{ours}/{role}", f"{theirs}.{letter}", biased)
        pairs |= linear("feed_forward/up", "ff.ff1", True) | linear("feed_forward/down", "ff.ff2", True)
        for number, ours in enumerate([*sublayers, "feed_forward"], start=1):
            pairs |= norm(f"{ours}_{place}_norm", f"norm{number}")
        root = f"transformer.{stack}"
        names += [
            layers(f"{stack}/layers/{ours}", f"{root}.layers.{{i}}.{theirs}", settings[f"num_{stack}_layers"], layout)
            for ours, (theirs, layout) in pairs.items()
        ]
        names += [
            WeightName(f"{stack}/{ours}", (f"{root}.{theirs}",))
            for ours, (theirs, _) in norm("final_norm", "norm").items()
        ]
        names.append(WeightName(f"{stack}/positions/table", (f"transformer.{short}_pos.pe",), Layout.ROW))
    return names


def linear(ours: str, theirs: str, biased: bool) -> dict[str, tuple[str, Layout]]:
    kernel = {f"{ours}/kernel": (f"{theirs}.weight", Layout.TRANSPOSED)}
    return kernel | ({f"{ours}/bias": (f"{theirs}.bias", Layout.SAME)} if biased else {})


def norm(ours: str, theirs: str) -> dict[str, tuple[str, Layout]]:
    return {f"{ours}/scale": (f"{theirs}.gamma", Layout.SAME), f"{ours}/bias": (f"{theirs}.beta", Layout.SAME)}
