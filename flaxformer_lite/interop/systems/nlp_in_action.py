"""The PyTorch translation Transformer with `lm_head`: pre- or post-norm, a norm after each stack in both.

`y = x W^T + b`, `W` stored `(out, in)`. Positions are buffers `(1, positions, width)`, stored as a fixed table.
"""

from flaxformer_lite.interop.name_map import Layout, Leaves, WeightName, linear, norm, stacked, table
from flaxformer_lite.interop.option_table import constant, required
from flaxformer_lite.interop.options import Options
from flaxformer_lite.interop.systems.system import System
from flaxformer_lite.interop.systems.torch_transformer import NORM_FIRST
from flaxformer_lite.model import DotProduct, DropoutRates, ModelConfig
from flaxformer_lite.model.masks import Replace
from flaxformer_lite.model.norms import DeviationNorm
from flaxformer_lite.model.positions import FixedTable
from flaxformer_lite.text.special_ids import BOS, EOS, PAD

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

NORM = Leaves(".gamma", ".beta")
SUBLAYERS = {
    "encoder": {"attention": "attention"},
    "decoder": {"attention": "masked_attention", "cross_attention": "cross_attention"},
}
ROLES = {"query": "q", "key": "k", "value": "v", "out": "concat"}


def names(model: ModelConfig, options: Options) -> list[WeightName]:
    """Returns every parameter and buffer under the system's names."""
    place = "pre" if model.residual.pre else "post"
    weights = [
        *table("source_embedding", "transformer.src_embedding.embed"),
        *table("target_embedding", "transformer.tgt_embedding.embed"),
        *linear("head", "lm_head", bias=False),
    ]
    for stack, attentions in SUBLAYERS.items():
        here, there = f"{stack}/layers", f"transformer.{stack}.layers.{{i}}"
        layer = linear(f"{here}/feed_forward/up", f"{there}.ff.ff1")
        layer += linear(f"{here}/feed_forward/down", f"{there}.ff.ff2")
        for ours, theirs in attentions.items():
            for role, name in ROLES.items():
                layer += linear(f"{here}/{ours}/{role}", f"{there}.{theirs}.{name}", bias=model.attention.bias)
        for number, ours in enumerate([*attentions, "feed_forward"], start=1):
            layer += norm(f"{here}/{ours}_{place}_norm", f"{there}.norm{number}", leaves=NORM)
        num_layers = model.num_encoder_layers if stack == "encoder" else model.num_decoder_layers
        positions = f"transformer.{'enc' if stack == 'encoder' else 'dec'}_pos.pe"
        weights += [
            *stacked(layer, num_layers),
            *norm(f"{stack}/final_norm", f"transformer.{stack}.norm", leaves=NORM),
            WeightName(f"{stack}/positions/table", (positions,), Layout.LEADING_AXIS),
        ]
    return weights


SYSTEM = System(name="nlp-in-action", template=TEMPLATE, table=TABLE, names=names)
