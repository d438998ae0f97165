"""OLMo 1 to 3: norms without parameters, then a norm over all heads of queries and keys, and norms after each sublayer.

References: Groeneveld et al. 2024, arXiv:2402.00838; OLMo Team 2025, arXiv:2501.00656 (OLMo 2).
"""

from flaxformer_lite.core.model import LayerNorm, Residual, RMSNorm, Rotary, SlidingWindow
from flaxformer_lite.interop.hf import gemma, llama
from flaxformer_lite.interop.hf.family import ClassNames, classes_of
from flaxformer_lite.interop.hf.llama import FULL, LOCAL
from flaxformer_lite.interop.hf.llama_relatives import SIZES
from flaxformer_lite.interop.hf.options import UsualIds
from flaxformer_lite.interop.options import OPTIONAL_INTEGER, Draft, Entry, Options, only, option, replaced

SPECIAL = UsualIds(pad=1, eos=50279)
NORMS_AFTER = {
    "attention_post_norm": "post_attention_layernorm",
    "feed_forward_post_norm": "post_feedforward_layernorm",
}
AFTER_SUBLAYERS = Residual(pre="", post="nda", final="n")
"""A norm after every sublayer, before the residual joins, and one after the last layer."""
OLMO2 = replaced(
    llama.TEMPLATE,
    {
        "norm": RMSNorm(epsilon=1e-5),
        "attention.qk_norm": RMSNorm(epsilon=1e-5),
        "attention.qk_norm_width": "all_heads",
        "residual": AFTER_SUBLAYERS,
    },
)
OLMO3 = replaced(OLMO2, {"positions": Rotary(base=500_000.0), "sliding_window": SlidingWindow(size=4096)})


def read_two_rotaries(options: Options, draft: Draft) -> None:
    """Reads OLMo 3's positions: in older files the scaling and the base of layers without a window, others have the usual ones."""
    older, groups = options.has("rope_scaling"), options.group("rope_parameters")
    usual = draft["positions.base"]
    group = options.group("rope_scaling") if older else groups.group(FULL)
    full = llama.read_scheme(options, group, options.number("rope_theta", usual))
    llama.set_rotaries(draft, full, llama.read_scheme(options, groups.group(LOCAL), usual))


def classes(name: str) -> ClassNames:
    return classes_of(name, "ForCausalLM")._replace(of_tokens="", of_answers="")


FAMILIES = (
    llama.family(
        "olmo",
        classes("Olmo"),
        SPECIAL,
        replaced(llama.TEMPLATE, {"norm": LayerNorm(epsilon=1e-5, bias=False, scale=False)}),
        option("num_key_value_heads", "attention.num_kv_heads", kind=OPTIONAL_INTEGER),
        option("head_dim", "attention.d_key", kind=OPTIONAL_INTEGER),
        llama.ATTENTION_BIAS,
        llama.ACTIVATION,
        llama.ROTARY,
        only("clip_qkv"),
        llama.HEADS_DIVIDE,
        table=SIZES,
        layer=llama.ATTENTION | llama.GATED,
    ),
    llama.family(
        "olmo2",
        classes("Olmo2"),
        SPECIAL,
        OLMO2,
        llama.ATTENTION_BIAS,
        llama.ACTIVATION,
        llama.ROTARY,
        llama.HEADS_DIVIDE,
        layer=NORMS_AFTER | llama.ATTENTION | llama.GATED,
    ),
    llama.family(
        "olmo3",
        classes("Olmo3"),
        SPECIAL,
        OLMO3,
        llama.ATTENTION_BIAS,
        llama.ACTIVATION,
        Entry(lambda options, draft: gemma.read_alternating(options, draft, every=4), gemma.window_options),
        Entry(read_two_rotaries, llama.two_rotaries),
        llama.HEADS_DIVIDE,
        layer=NORMS_AFTER | llama.ATTENTION | llama.GATED,
    ),
)
