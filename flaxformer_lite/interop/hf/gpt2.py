"""GPT-2: learned positions, LayerNorm before each sublayer, and one matrix for query, key and value.

Its matrices are stored `(in, out)`, as here.

Reference: Radford et al. 2019, Language Models are Unsupervised Multitask Learners.
"""

import numpy as np

from flaxformer_lite.core.model import PRE_NORM, DropoutRates, LayerNorm, Learned, ModelConfig, Normal
from flaxformer_lite.interop.hf.family import IgnorableTensor, classes_of, never_read
from flaxformer_lite.interop.hf.llama import decoder_family
from flaxformer_lite.interop.hf.options import ACTIVATION, SUMMARY, UsualIds
from flaxformer_lite.interop.name_map import Layout, Leaves, Names, prefixed
from flaxformer_lite.interop.options import Draft, Entry, Options, ignored, only, option

CLASSES = classes_of("GPT2", "LMHeadModel")

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


def inner_width(name: str) -> Entry:
    """Returns the entry of the inner width of feed-forward layers: null stands for four times the model's."""

    def read(options: Options, draft: Draft) -> None:
        inner = options.optional_integer(name)
        draft["d_ff"] = 4 * draft["d_model"] if inner is None else inner

    return Entry(read, lambda model: {name: model.d_ff})


def read_scale(options: Options, draft: Draft) -> None:
    draft["attention.scale"] = None if options.flag("scale_attn_weights", True) else 1.0


def is_scaled(model: ModelConfig) -> bool:
    return model.attention.scale in (None, model.heads.d_key**-0.5)


SHARED = (
    option("vocab_size", "vocab_size"),
    option("n_embd", "d_model"),
    option("n_head", "num_heads"),
    option("n_layer", "num_decoder_layers"),
    inner_width("n_inner"),
    option("activation_function", "activation", kind=ACTIVATION),
    option("layer_norm_epsilon", "norm.epsilon"),
    option("embd_pdrop", "dropout.embedding_rate"),
    option("attn_pdrop", "dropout.attention_rate"),
    option("resid_pdrop", "dropout.residual_rate"),
    option("tie_word_embeddings", "share_target_output"),
    SUMMARY,
)
"""The options of this family that GPT-J has too."""
TABLE = (
    *SHARED,
    option("n_positions", "positions.max_positions"),
    Entry(read_scale, lambda model: {"scale_attn_weights": is_scaled(model)}),
    option("initializer_range", "positions.stddev", "initializer.stddev"),
    only("scale_attn_by_inverse_layer_idx", False),
    ignored("reorder_and_upcast_attn", "n_ctx"),  # the order of a computation, and another name of n_positions
)


def names_with(attention: dict[str, str]) -> Names:
    """Returns the names of GPT-2's tensors, those of the attention as given."""
    layer = {
        "attention_pre_norm": "ln_1",
        **attention,
        "feed_forward_pre_norm": "ln_2",
        "feed_forward/up": "mlp.c_fc",
        "feed_forward/down": "mlp.c_proj",
    }
    return {
        "embedding": "transformer.wte",
        "decoder/positions": "transformer.wpe",
        **prefixed("decoder/layers/", "transformer.h.{i}.", layer),
        "decoder/final_norm": "transformer.ln_f",
    }


ATTENTION = {"attention/{query,key,value}": "attn.c_attn", "attention/out": "attn.c_proj"}

FAMILIES = (
    decoder_family(
        "gpt2",
        CLASSES,
        UsualIds(bos=50256, eos=50256),
        TEMPLATE,
        TABLE,
        names_with(ATTENTION),
        IgnorableTensor(
            r"transformer\.h\.\d+\.attn\.bias",
            "a causal mask, 1 on and below the diagonal",
            lambda x, *_: x.ndim == 4 and bool((x[0, 0] == np.tri(*x.shape[2:])).all()),
        ),
        never_read(r"transformer\.h\.\d+\.attn\.masked_bias", "unused: the score of a masked key in old releases"),
        of_tokens="classifier",
        leaves=Leaves(layout=Layout.SAME),
    ),
)
