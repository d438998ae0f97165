"""The "matrix view" PyTorch Transformer: heads are cut first, then all projected by one small matrix.

`y = x W^T + b`, `W` stored `(out, in)`. Its score is masked before the scale, 1 / sqrt(width): the same as after it, since
any such large negative score has weight 0, and equal ones are uniform.
"""

from collections.abc import Mapping
from typing import Any

from flaxformer_lite.interop.name_map import Layout, WeightName, layers, setting
from flaxformer_lite.model.attention import SharedProjection
from flaxformer_lite.model.config import LanguageModelHead, ModelConfig
from flaxformer_lite.model.dropout import DropoutRates
from flaxformer_lite.model.masks import Replace
from flaxformer_lite.model.norms import LayerNorm
from flaxformer_lite.model.positions import Learned
from flaxformer_lite.model.residual import Residual
from flaxformer_lite.text.special_ids import PAD


def model_config(settings: Mapping[str, Any]) -> ModelConfig:
    """The whole model in our terms."""
    width, rate = setting(settings, "embed_size"), float(setting(settings, "dropout", (int, float)))
    return ModelConfig(
        vocab_size=setting(settings, "src_vocab_size"),
        target_vocab_size=setting(settings, "trg_vocab_size"),
        d_model=width,
        num_heads=setting(settings, "heads"),
        d_ff=width * setting(settings, "forward_expansion"),
        num_encoder_layers=setting(settings, "num_layers"),
        num_decoder_layers=setting(settings, "num_layers"),
        attention=SharedProjection(scale=width**-0.5, masking=Replace(value=-1e20)),
        positions=Learned(max_positions=setting(settings, "max_length"), stddev=1.0),
        activation="relu",
        norm=LayerNorm(epsilon=1e-5),
        residual=Residual(pre="", post="and", final=""),
        dropout=DropoutRates(embedding_rate=rate, attention_rate=0.0, feed_forward_rate=0.0, residual_rate=rate),
        scale_embeddings=False,
        share_source_target=False,
        share_target_output=False,
        head=LanguageModelHead(bias=True),
    )


def settings_of(model: ModelConfig) -> dict[str, Any]:
    """The system's config for a model like that; `model_config` backwards."""
    if not isinstance(model.positions, Learned):
        raise ValueError(f"model.positions is {type(model.positions).__name__} (there: Learned)")
    source_size, target_size = model.vocab_sizes
    return {
        "src_vocab_size": source_size,
        "trg_vocab_size": target_size,
        "embed_size": model.d_model,
        "heads": model.num_heads,
        "forward_expansion": model.d_ff // model.d_model,
        "num_layers": model.num_encoder_layers,
        "max_length": model.positions.max_positions,
        "dropout": model.dropout.residual_rate,
        "src_pad_idx": PAD,
        "trg_pad_idx": PAD,
    }


def name_map(settings: Mapping[str, Any]) -> list[WeightName]:
    """Every parameter under the system's names."""
    block = "transformer_block."
    names = [
        WeightName("head/kernel", ("decoder.fc_out.weight",), Layout.TRANSPOSED),
        WeightName("head/bias", ("decoder.fc_out.bias",)),
    ]
    for stack, side, pairs in (
        ("encoder", "source", sublayers("attention", "")),
        ("decoder", "target", attention("attention", "", "norm") | sublayers("cross_attention", block)),
    ):
        names += [
            WeightName(f"{side}_embedding/embedding", (f"{stack}.word_embedding.weight",)),
            WeightName(f"{stack}/positions/embedding", (f"{stack}.position_embedding.weight",)),
        ]
        names += [
            layers(f"{stack}/layers/{ours}", f"{stack}.layers.{{i}}.{theirs}", settings["num_layers"], layout)
            for ours, (theirs, layout) in pairs.items()
        ]
    return names


Pairs = dict[str, tuple[str, Layout]]


def sublayers(ours: str, block: str) -> Pairs:
    """A block of theirs: an attention, a feed-forward and their norms."""
    return (
        attention(ours, block, f"{block}norm1")
        | linear("feed_forward/up", f"{block}feed_forward.0")
        | linear("feed_forward/down", f"{block}feed_forward.2")
        | norm("feed_forward_post_norm", f"{block}norm2")
    )


def attention(ours: str, block: str, norm_name: str) -> Pairs:
    pairs = {
        f"{ours}/{role}/kernel": (f"{block}attention.{theirs}.weight", Layout.TRANSPOSED)
        for role, theirs in (("query", "queries"), ("key", "keys"), ("value", "values"))
    }
    return pairs | linear(f"{ours}/out", f"{block}attention.fc_out") | norm(f"{ours}_post_norm", norm_name)


def linear(ours: str, theirs: str) -> Pairs:
    return {f"{ours}/kernel": (f"{theirs}.weight", Layout.TRANSPOSED), f"{ours}/bias": (f"{theirs}.bias", Layout.SAME)}


def norm(ours: str, theirs: str) -> Pairs:
    return {f"{ours}/scale": (f"{theirs}.weight", Layout.SAME), f"{ours}/bias": (f"{theirs}.bias", Layout.SAME)}
