"""Gemma, Gemma 2 and the text models of Gemma 3: Llama with norms around 1, scaled embeddings, and more from one to the next.

References: Gemma Team 2024, arXiv:2403.08295; 2024, arXiv:2408.00118; 2025, arXiv:2503.19786.
"""

from typing import Any

from flaxformer_lite.core.model import LanguageModelHead, ModelConfig, Residual, RMSNorm
from flaxformer_lite.core.reading.heads import Activation
from flaxformer_lite.interop.hf import llama
from flaxformer_lite.interop.hf.family import ClassNames
from flaxformer_lite.interop.hf.llama import FULL, LOCAL, ROTARY
from flaxformer_lite.interop.hf.options import GATED, UsualIds, read_gated, their_gated
from flaxformer_lite.interop.options import (
    OPTIONAL_NUMBER,
    Draft,
    Entry,
    Kind,
    Options,
    ignored,
    only,
    option,
    replaced,
)

NORMS_AROUND = Residual(pre="n", post="nda", final="n")
"""A norm before every sublayer and one after it, before the residual joins."""

# Activations ----------------------------------------------------------------------------------------------------------

TANH = "gelu_pytorch_tanh"


def activation(name: str) -> Entry:
    """Returns the entry of the activation. The library reads `name` of two options; the other may not contradict it.

    The first files have `hidden_act` "gelu" and mean the tanh form.
    """

    def meant(options: Options, name: str) -> Activation:
        old = name == "hidden_act" and options.raw(name) == "gelu"
        return GATED["gelu_tanh"] if old else read_gated(options, name, TANH)

    def read(options: Options, draft: Draft) -> None:
        activation = meant(options, name)
        for other in ("hidden_act", "hidden_activation"):
            options.ignore(other)
            if options.has(other) and meant(options, other) != activation:
                raise options.wrong(other, "hidden_act and hidden_activation differ: change one")
        draft["activation"] = activation

    return Entry(read, lambda model: {name: their_gated(model.activation)})


# Windows and positions ------------------------------------------------------------------------------------------------


def read_alternating(options: Options, draft: Draft, every: int, both: bool = False) -> None:
    """Reads the windows. Without `layer_types` all layers have one except the last of each `every` layers.

    both: `sliding_window` counts the tokens on both sides.
    """
    usual = [LOCAL if (i + 1) % every else FULL for i in range(draft["num_decoder_layers"])]
    width = options.optional_integer("sliding_window", 4096)
    options.only("sliding_window_size", width)  # Gemma 2's first files say it twice
    llama.read_layer_types(options, draft, width // 2 + 1 if both and width is not None else width, usual)


def read_pattern(options: Options, draft: Draft) -> None:
    """Reads Gemma 3's windows. Older files have the number; newer ones repeat it with an underscore, and do not read it."""
    options.ignore("_sliding_window_pattern")
    every = options.integer("sliding_window_pattern", 6)
    if every < 1:
        raise options.wrong("sliding_window_pattern", "it should be at least 1")
    read_alternating(options, draft, every, both=options.flag("use_bidirectional_attention", False))


def window_options(model: ModelConfig) -> dict[str, Any]:
    """Returns the window, which the library wants to be a number in any case, and the types of the layers."""
    width = {} if model.sliding_window is None else {"sliding_window": model.sliding_window.size}
    return width | {"layer_types": llama.layer_types(model)}


def read_two_rotaries(options: Options, draft: Draft) -> None:
    """Reads Gemma 3's positions, of layers without and with a window: groups of `rope_parameters`, or older options."""
    options.only("partial_rotary_factor", 1.0)
    older, groups = options.has("rope_scaling"), options.group("rope_parameters")
    group = options.group("rope_scaling") if older else groups.group(FULL)
    full = llama.read_scheme(options, group, options.number("rope_theta", 1_000_000.0))
    local = llama.read_scheme(options, groups.group(LOCAL), options.number("rope_local_base_freq", 10_000.0))
    llama.set_rotaries(draft, full, local)


def read_both_directions(options: Options, draft: Draft) -> None:
    """Makes an encoder of the decoder that was read, if attention has both directions."""
    if options.flag("use_bidirectional_attention", False):
        draft["num_encoder_layers"], draft["num_decoder_layers"] = draft["num_decoder_layers"], 0


def both_directions(model: ModelConfig) -> dict[str, Any]:
    """Returns what an encoder has otherwise; nothing for a decoder."""
    if not model.num_encoder_layers:
        return {}
    width = {} if model.sliding_window is None else {"sliding_window": 2 * (model.sliding_window.size - 1)}
    return width | {"use_bidirectional_attention": True, "num_hidden_layers": model.num_encoder_layers}


def scale_of(options: Options, name: str, default: float | None) -> float:
    """Returns the scale of scores, by the width that it is for."""
    width = options.number(name, default)
    if width <= 0:
        raise options.wrong(name, "it should be above 0")
    return width**-0.5


# The families ---------------------------------------------------------------------------------------------------------

SPECIAL = UsualIds(pad=0, bos=2, eos=1)
NO_BOTH_DIRECTIONS = only("use_bidirectional_attention", False)
FINAL_CAP = option("final_logit_softcapping", "head.soft_cap", kind=OPTIONAL_NUMBER)
SCALE = option(
    "query_pre_attn_scalar",
    "attention.scale",
    kind=Kind(
        scale_of,
        lambda scale: None if scale is None else max(round(scale**-2), 1),
    ),
)
"""The scores' scale is 1 / sqrt of the option, a whole number."""

GEMMA = replaced(
    llama.TEMPLATE,
    {
        "attention.num_kv_heads": 16,
        "attention.d_key": 256,
        "activation": "geglu_tanh",
        "norm": RMSNorm(epsilon=1e-6, offset=1.0),
        "scale_embeddings": True,
        "share_target_output": True,
    },
)
GEMMA2 = replaced(
    GEMMA,
    {
        "attention.num_kv_heads": 4,
        "attention.scale": 256**-0.5,
        "attention.soft_cap": 50.0,
        "residual": NORMS_AROUND,
        "head": LanguageModelHead(soft_cap=30.0),
    },
)
GEMMA3 = replaced(GEMMA2, {"attention.soft_cap": None, "attention.qk_norm": GEMMA.norm, "head.soft_cap": None})

GEMMA2_ENTRIES = (
    *(llama.ATTENTION_BIAS, llama.HEADS_DIVIDE, activation("hidden_activation"), ROTARY),
    Entry(lambda options, draft: read_alternating(options, draft, every=2), window_options),
    *(SCALE, FINAL_CAP, option("attn_logit_softcapping", "attention.soft_cap", kind=OPTIONAL_NUMBER)),
)
"""The options of Gemma 2 besides those of Llama."""

FAMILIES = (
    llama.family(
        "gemma",
        "Gemma",
        SPECIAL,
        GEMMA,
        llama.ATTENTION_BIAS,
        activation("hidden_act"),
        NO_BOTH_DIRECTIONS,
        ROTARY,
    ),
    llama.family(
        "gemma2",
        "Gemma2",
        SPECIAL,
        GEMMA2,
        NO_BOTH_DIRECTIONS,
        *GEMMA2_ENTRIES,
        layer=llama.LAYER | llama.NORMS_AROUND,
    ),
    llama.family(
        "gemma3_text",
        ClassNames("Gemma3TextModel", "Gemma3ForCausalLM", "Gemma3TextForSequenceClassification"),
        SPECIAL,
        GEMMA3,
        llama.ATTENTION_BIAS,
        llama.HEADS_DIVIDE,
        activation("hidden_activation"),
        Entry(read_pattern, window_options),
        Entry(read_two_rotaries, llama.two_rotaries),
        Entry(read_both_directions, both_directions),
        SCALE,
        FINAL_CAP,
        ignored("attn_logit_softcapping"),  # the library has no such cap in this family
        layer=llama.LAYER | llama.NORMS_AROUND,
    ),
)
