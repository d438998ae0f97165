"""GPT-2: learned positions, LayerNorm before each sublayer, and one matrix for query, key and value.

Its matrices are stored `(in, out)`, as here.

Reference: Radford et al. 2019, Language Models are Unsupervised Multitask Learners.
"""

import functools

import numpy as np

from flaxformer_lite.interop.hf.decoder_only import HEAD_PREFIXES, head_names, read_heads
from flaxformer_lite.interop.hf.family import ClassNames, Family, IgnorableTensor, never_read, tied_copies
from flaxformer_lite.interop.hf.options import ACTIVATION, SpecialIds
from flaxformer_lite.interop.name_map import FusedSlice, Layout, WeightName, linear, norm, stacked, table
from flaxformer_lite.interop.option_table import Draft, Entry, ignored, only, option
from flaxformer_lite.interop.options import Options
from flaxformer_lite.model import PRE_NORM, DropoutRates, LayerNorm, Learned, ModelConfig, Normal

CLASSES = ClassNames("GPT2Model", "GPT2LMHeadModel", "GPT2ForSequenceClassification")

TEMPLATE = ModelConfig(
    vocab_size=50257,
    d_model=768,
    num_heads=12,
    num_encoder_layers=0,
    num_decoder_layers=12,
    positions=Learned(max_positions=1024),
    activation="gelu_tanh",
    norm=LayerNorm(epsilon=1e-5),
    residual=PRE_NORM,
    dropout=DropoutRates(feed_forward_rate=0.0),
    scale_embeddings=False,
    initializer=Normal(),
)


def read_inner_width(options: Options, draft: Draft) -> None:
    inner = options.optional_integer("n_inner")
    draft["d_ff"] = 4 * draft["d_model"] if inner is None else inner


def read_scale(options: Options, draft: Draft) -> None:
    draft["attention.scale"] = None if options.flag("scale_attn_weights", True) else 1.0


def is_scaled(model: ModelConfig) -> bool:
    heads = model.attention.heads(model.d_model, model.num_heads)
    return model.attention.scale in (None, heads.d_key**-0.5)


TABLE = (
    option("vocab_size", "vocab_size"),
    option("n_embd", "d_model"),
    option("n_head", "num_heads"),
    option("n_layer", "num_decoder_layers"),
    Entry(read_inner_width, lambda model: {"n_inner": model.d_ff}),
    option("n_positions", "positions.max_positions"),
    option("activation_function", "activation", kind=ACTIVATION),
    option("layer_norm_epsilon", "norm.epsilon"),
    Entry(read_scale, lambda model: {"scale_attn_weights": is_scaled(model)}),
    option("embd_pdrop", "dropout.embedding_rate"),
    option("attn_pdrop", "dropout.attention_rate"),
    option("resid_pdrop", "dropout.residual_rate"),
    option("initializer_range", "positions.stddev", "initializer.stddev"),
    option("tie_word_embeddings", "share_target_output"),
    only("scale_attn_by_inverse_layer_idx", False),
    ignored("reorder_and_upcast_attn", "n_ctx"),  # the order of a computation, and another name of n_positions
    # The second head of GPT2DoubleHeadsModel, which is not read: its tensors would be left over.
    ignored(*(f"summary_{name}" for name in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout"))),
)


def names(model: ModelConfig, architecture: str) -> list[WeightName]:
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
        *table("embedding", f"{base}.wte"),
        *table("decoder/positions", f"{base}.wpe"),
        *stacked(layer, model.num_decoder_layers),
        *norm("decoder/final_norm", f"{base}.ln_f"),
        *head_names(model),
    ]


matrix = functools.partial(linear, layout=Layout.SAME)


def fused(ours: str, theirs: str, width: int) -> list[WeightName]:
    """Returns query, key and value, which are columns of one matrix there."""
    return [
        weight._replace(part=FusedSlice(axis=-1, start=i * width, stop=(i + 1) * width))
        for i, name in enumerate(("query", "key", "value"))
        for weight in matrix(f"{ours}/{name}", theirs)
    ]


FAMILIES = (
    Family(
        model_type="gpt2",
        prefix="transformer.",
        base=CLASSES.base,
        special=SpecialIds(bos=50256, eos=50256),
        head_prefixes=HEAD_PREFIXES,
        template=TEMPLATE,
        table=TABLE,
        read_heads=functools.partial(read_heads, CLASSES, "transformer.wte.weight"),
        architecture=CLASSES.of,
        names=names,
        ignorable=(
            *tied_copies("transformer.wte.weight", "lm_head.weight"),
            IgnorableTensor(
                r"transformer\.h\.\d+\.attn\.bias",
                "a causal mask, 1 on and below the diagonal",
                lambda x, *_: x.ndim == 4 and bool((x[0, 0] == np.tri(*x.shape[2:])).all()),
            ),
            never_read(r"transformer\.h\.\d+\.attn\.masked_bias", "unused: the score of a masked key in old releases"),
        ),
    ),
)
