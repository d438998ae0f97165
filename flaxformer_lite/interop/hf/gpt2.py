"""GPT-2: learned positions, LayerNorm before each sublayer, and one matrix for query, key and value.

Its matrices are stored `(in, out)`, as here.

Reference: Radford et al. 2019, Language Models are Unsupervised Multitask Learners.
"""

from typing import Any

import numpy as np

from flaxformer_lite.interop.hf.decoder_only import HEADS, Classes, head_weights
from flaxformer_lite.interop.hf.family import Family, IgnorableTensor, copies, norm, stacked, unused
from flaxformer_lite.interop.hf.settings import THEIR_ACTIVATIONS, Settings, SpecialIds
from flaxformer_lite.interop.name_map import Arrays, Part, WeightName
from flaxformer_lite.model.attention import DotProduct
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.dropout import DropoutRates
from flaxformer_lite.model.initializers import Normal
from flaxformer_lite.model.norms import LayerNorm
from flaxformer_lite.model.positions import Learned
from flaxformer_lite.model.residual import PRE_NORM

CLASSES = Classes("GPT2Model", "GPT2LMHeadModel", "GPT2ForSequenceClassification")


def model_config(settings: Settings, tensors: Arrays) -> ModelConfig:
    """The model in our terms."""
    settings.only("scale_attn_by_inverse_layer_idx", False)
    settings.ignore("reorder_and_upcast_attn", "n_ctx")  # the order of a computation, and another name of n_positions
    settings.ignore(*(f"summary_{name}" for name in SUMMARY))
    stddev = settings.number("initializer_range", 0.02)
    width, inner = settings.integer("n_embd", 768), settings.optional_integer("n_inner")
    return ModelConfig(
        vocab_size=settings.integer("vocab_size", 50257),
        d_model=width,
        num_heads=settings.integer("n_head", 12),
        d_ff=4 * width if inner is None else inner,
        num_encoder_layers=0,
        num_decoder_layers=settings.integer("n_layer", 12),
        attention=DotProduct(scale=None if settings.flag("scale_attn_weights", True) else 1.0),
        positions=Learned(max_positions=settings.integer("n_positions", 1024), stddev=stddev),
        activation=settings.activation("activation_function", "gelu_new"),
        norm=LayerNorm(epsilon=settings.number("layer_norm_epsilon", 1e-5)),
        residual=PRE_NORM,
        dropout=DropoutRates(
            embedding_rate=settings.number("embd_pdrop", 0.1),
            attention_rate=settings.number("attn_pdrop", 0.1),
            feed_forward_rate=0.0,
            residual_rate=settings.number("resid_pdrop", 0.1),
        ),
        scale_embeddings=False,
        **CLASSES.heads(settings, tensors, "transformer.wte.weight", tied=True),
        initializer=Normal(stddev=stddev),
    )


SUMMARY = ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")
"""Options of a head that is not read here: the second one of GPT2DoubleHeadsModel, whose tensors would be left over."""


def settings_of(model: ModelConfig) -> dict[str, Any]:
    """`config.json` for a model like that."""
    if not isinstance(model.positions, Learned):
        raise ValueError(f"model.positions is {type(model.positions).__name__} (there: Learned)")
    heads = model.attention.heads(model.d_model, model.num_heads)
    return {
        "vocab_size": model.vocab_size,
        "n_embd": model.d_model,
        "n_head": model.num_heads,
        "n_inner": model.d_ff,
        "n_layer": model.num_decoder_layers,
        "n_positions": model.positions.max_positions,
        "activation_function": THEIR_ACTIVATIONS.get(model.activation, model.activation),
        "layer_norm_epsilon": model.norm.epsilon,
        "scale_attn_weights": model.attention.scale in (None, heads.d_key**-0.5),
        "embd_pdrop": model.dropout.embedding_rate,
        "attn_pdrop": model.dropout.attention_rate,
        "resid_pdrop": model.dropout.residual_rate,
        "initializer_range": model.positions.stddev,
        "tie_word_embeddings": model.share_target_output,
    }


def name_map(model: ModelConfig, architecture: str) -> list[WeightName]:
    """Every parameter under the library's names."""
    base, here, there = "transformer", "decoder/layers", "transformer.h.{i}"
    layer = [
        *norm(f"{here}/attention_pre_norm", f"{there}.ln_1"),
        *fused(f"{here}/attention", f"{there}.attn.c_attn", model.d_model),
        *matrix(f"{here}/attention/out", f"{there}.attn.c_proj"),
        *norm(f"{here}/feed_forward_pre_norm", f"{there}.ln_2"),
        *matrix(f"{here}/feed_forward/up", f"{there}.mlp.c_fc"),
        *matrix(f"{here}/feed_forward/down", f"{there}.mlp.c_proj"),
    ]
    return [
        WeightName("embedding/embedding", (f"{base}.wte.weight",)),
        WeightName("decoder/positions/embedding", (f"{base}.wpe.weight",)),
        *stacked(layer, model.num_decoder_layers),
        *norm("decoder/final_norm", f"{base}.ln_f"),
        *head_weights(model),
    ]


def matrix(ours: str, theirs: str) -> list[WeightName]:
    """A dense layer whose `weight` is `[in, out]`."""
    return [WeightName(f"{ours}/kernel", (f"{theirs}.weight",)), WeightName(f"{ours}/bias", (f"{theirs}.bias",))]


def fused(ours: str, theirs: str, width: int) -> list[WeightName]:
    """Query, key and value side by side in one such layer."""
    return [
        weight._replace(part=Part(axis=-1, start=i * width, stop=(i + 1) * width))
        for i, name in enumerate(("query", "key", "value"))
        for weight in matrix(f"{ours}/{name}", theirs)
    ]


NEEDLESS = (
    *copies("transformer.wte.weight", "lm_head.weight"),
    IgnorableTensor(
        r"transformer\.h\.\d+\.attn\.bias",
        "a causal mask, 1 on and below the diagonal",
        lambda x, *_: x.ndim == 4 and bool((x[0, 0] == np.tri(*x.shape[2:])).all()),
    ),
    unused(r"transformer\.h\.\d+\.attn\.masked_bias", "unused: what masked scores once were"),
)
"""The tied output matrix stored again, and the masks that old files have in every layer."""

FAMILIES = (
    Family(
        model_type="gpt2",
        prefix="transformer.",
        base=CLASSES.base,
        special=SpecialIds(bos=50256, eos=50256),
        heads=HEADS,
        model_config=model_config,
        architecture=CLASSES.of,
        name_map=name_map,
        needless=NEEDLESS,
        settings_of=settings_of,
    ),
)
