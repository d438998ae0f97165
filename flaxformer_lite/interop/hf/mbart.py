"""mBART, mBART-50, M2M-100, NLLB-200, Pegasus and Blenderbot: BART with norms before the sublayers, and one after each stack.

mBART has BART's learned positions and the norm on the embeddings; Blenderbot has the positions, counted from 0, without the norm.
Pegasus has neither: its positions are sinusoidal. M2M-100, which NLLB-200 is too, counts such positions from the padding id + 1,
and padding takes up none.

References: Liu et al. 2020, arXiv:2001.08210; Tang et al. 2020, arXiv:2008.00401; Fan et al. 2020, arXiv:2010.11125; NLLB Team
2022, arXiv:2207.04672; Zhang et al. 2019, arXiv:1912.08777; Roller et al. 2020, arXiv:2004.13637 (Blenderbot).
"""

import functools

import jax.numpy as jnp
import numpy as np

from flaxformer_lite.core.model import PRE_NORM, ModelConfig
from flaxformer_lite.core.model.positions import Learned, Sinusoidal, sinusoids
from flaxformer_lite.interop.hf import bart
from flaxformer_lite.interop.hf.family import Family, IgnorableTensor
from flaxformer_lite.interop.hf.options import UsualIds, padding_before
from flaxformer_lite.interop.name_map import Names, NumpyArrays
from flaxformer_lite.interop.options import Draft, Entry, Options, ignored, only, option, replaced

PRE_NORM_ONLY = only("normalize_before", True), only("add_final_layer_norm", True), bart.NO_BLENDERBOT
STACK_NAMES: Names = {name.replace("_post_norm", "_pre_norm"): theirs for name, theirs in bart.STACK_NAMES.items()} | {
    "encoder/final_norm": "model.encoder.layer_norm",
    "decoder/final_norm": "model.decoder.layer_norm",
}
SPECIAL = UsualIds(pad=1, bos=0, eos=2)
COMPUTED_TABLE = (
    option("vocab_size", "vocab_size"),
    *bart.STACKS,
    *PRE_NORM_ONLY,
    option("init_std", "initializer.stddev"),
    Entry(write=lambda model: {"tie_word_embeddings": model.share_source_target}),
    ignored("max_position_embeddings"),  # any length is allowed: positions are computed
    only("normalize_embedding", False),
    only("static_position_embeddings", True),
)
"""The options of a family whose positions are computed."""

# M2M-100 --------------------------------------------------------------------------------------------------------------


def read_positions(options: Options, draft: Draft) -> None:
    """Reads the padding id, which positions depend on."""
    pad_id = options.integer("pad_token_id", 1)
    draft["position_padding_id"], draft["positions.offset"] = pad_id, pad_id + 1


M2M_TABLE = (
    *COMPUTED_TABLE,
    Entry(read_positions, lambda model: {"pad_token_id": padding_before(model)}),
)


def is_computed(x: np.ndarray, tensors: NumpyArrays, model: ModelConfig) -> bool:
    """Returns whether a table of positions equals those that are computed here; the row of the padding is any."""
    if x.ndim != 2 or x.shape[1] != model.d_model:
        return False
    difference = np.abs(x - sinusoids(jnp.arange(len(x))[None], model.d_model, "fairseq")[0])
    return bool(np.delete(difference, model.positions.offset - 1, 0).max() < 1e-4)


# Pegasus --------------------------------------------------------------------------------------------------------------

PEGASUS = Family(
    model_type="pegasus",
    prefix="model.",
    base="PegasusModel",
    special=UsualIds(pad=0, eos=1, start=0),
    head_prefixes=(bart.HEAD_BIAS, "lm_head."),
    template=replaced(bart.STACKS_TEMPLATE, {"residual": PRE_NORM, "positions": Sinusoidal(layout="half_split")}),
    table=(*COMPUTED_TABLE, Entry(functools.partial(bart.read_padding, 0))),
    read_heads=functools.partial(bart.read_tables, "PegasusModel"),
    architecture=lambda model, names: "PegasusModel" if model.head is None else "PegasusForConditionalGeneration",
    names=lambda model, architecture: STACK_NAMES,
    buffers=("head/bias",),
    length="max_position_embeddings",
    ignorable=(*bart.TIED, bart.sinusoidal_table(bart.POSITIONS)),
)

# Blenderbot -----------------------------------------------------------------------------------------------------------

BLENDERBOT = Family(
    model_type="blenderbot",
    prefix="model.",
    base="BlenderbotModel",
    special=UsualIds(pad=0, bos=1, eos=2, start=1),
    head_prefixes=PEGASUS.head_prefixes,
    template=replaced(
        bart.STACKS_TEMPLATE,
        {
            "vocab_size": 8008,
            "d_model": 2560,
            "num_heads": 32,
            "d_ff": 10240,
            "num_encoder_layers": 2,
            "num_decoder_layers": 24,
            "residual": PRE_NORM,
            "positions": Learned(max_positions=128),
        },
    ),
    table=(
        *bart.TABLE,
        *PRE_NORM_ONLY[:2],
        Entry(functools.partial(bart.read_padding, 0)),
        ignored(
            "do_blenderbot_90_layernorm", "extra_layer_norm", "layernorm_variant"
        ),  # this form has one place of norms
    ),
    read_heads=functools.partial(bart.read_tables, "BlenderbotModel"),
    architecture=lambda model, names: "BlenderbotModel" if model.head is None else "BlenderbotForConditionalGeneration",
    names=lambda model, architecture: {
        **STACK_NAMES,
        **{ours: theirs for ours, theirs in bart.EMBEDDING_NAMES.items() if ours.endswith("/positions")},
    },
    buffers=("head/bias",),
    ignorable=bart.TIED,
)

FAMILIES = (
    Family(
        model_type="mbart",
        prefix="model.",
        base="MBartModel",
        special=SPECIAL,
        head_prefixes=(bart.HEAD_BIAS, "lm_head."),
        template=replaced(bart.BART_FAMILY.template, {"residual": PRE_NORM}),
        table=(*bart.TABLE, *PRE_NORM_ONLY),
        read_heads=functools.partial(bart.read_tables, "MBartModel"),
        architecture=lambda model, names: "MBartModel" if model.head is None else "MBartForConditionalGeneration",
        names=lambda model, architecture: {**STACK_NAMES, **bart.EMBEDDING_NAMES},
        buffers=("head/bias",),
        ignorable=bart.BART_FAMILY.ignorable,
    ),
    Family(
        model_type="m2m_100",
        prefix="model.",
        base="M2M100Model",
        special=SPECIAL._replace(start=2),
        head_prefixes=("lm_head.",),
        template=replaced(
            bart.STACKS_TEMPLATE,
            {
                "vocab_size": 128112,
                "residual": PRE_NORM,
                "activation": "relu",
                "scale_embeddings": True,
                "positions": Sinusoidal(layout="fairseq", offset=2),
                "position_padding_id": 1,
            },
        ),
        table=M2M_TABLE,
        read_heads=functools.partial(bart.read_tables, "M2M100Model"),
        architecture=lambda model, names: "M2M100Model" if model.head is None else "M2M100ForConditionalGeneration",
        names=lambda model, architecture: {n: theirs for n, theirs in STACK_NAMES.items() if n != "head/bias"},
        length="max_position_embeddings",
        ignorable=(
            *bart.TIED,
            IgnorableTensor(
                r"model\.(encoder|decoder)\.embed_positions\.weights?",
                "the sines, then the cosines, of each position",
                is_computed,
            ),
        ),
    ),
    PEGASUS,
    BLENDERBOT,
)
