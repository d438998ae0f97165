"""Llama, and the families that differ from it in a detail: Mistral, Qwen2, Qwen3, Hunyuan; heads, rotary positions and windows.

RMSNorm before each sublayer, rotary positions that pair the halves of a head, gated feed-forward layers, shared key heads.

References: Touvron et al. 2023, arXiv:2302.13971; Zheng et al. 2025, arXiv:2509.05209 (Hunyuan-MT).
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from flaxformer_lite.core.model import (
    PRE_NORM,
    DotProduct,
    DropoutRates,
    LayerNorm,
    ModelConfig,
    Normal,
    Pooler,
    RMSNorm,
    Rotary,
    SlidingWindow,
)
from flaxformer_lite.core.model.positions import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    YarnScaling,
)
from flaxformer_lite.interop.differences import CannotExpress
from flaxformer_lite.interop.hf.bert import labels_of_tokens
from flaxformer_lite.interop.hf.family import (
    ANSWERING,
    ANSWERS,
    OF_TOKENS,
    ClassNames,
    Family,
    IgnorableTensor,
    classes_of,
    never_read,
    tensors_equal,
    tied_copies,
)
from flaxformer_lite.interop.hf.options import GATED_ACTIVATION, UsualIds, architecture_of, num_labels
from flaxformer_lite.interop.name_map import Names, NumpyArrays, Tensor, prefixed
from flaxformer_lite.interop.options import (
    OPTIONAL_INTEGER,
    Draft,
    Entry,
    Kind,
    Options,
    Table,
    ignored,
    option,
    read_table,
    replaced,
    required,
    write_table,
)

# Heads ----------------------------------------------------------------------------------------------------------------


HEAD_PREFIXES = ("lm_head.", "embed_out.", "score.", "classifier.", "qa_outputs.")


def read_head(base: str, embedding: str, head: str, options: Options, draft: Draft, tensors: NumpyArrays) -> None:
    """Sets the language-model head. `base`: the class without one; `embedding`, `head`: the names of the two matrices.

    Two matrices with different values are not tied, whatever the config states; the library does the same. A tied language model
    has no tensor of its own for the head; there the class decides.
    """
    matrix, architecture = tensors.get(head), architecture_of(options)
    if matrix is not None and not tensors_equal(matrix, tensors.get(embedding, matrix)):
        draft["share_target_output"] = False
    if matrix is None and (architecture == base or not (architecture or draft["share_target_output"])):
        draft["head"] = None


def read_heads(
    classes: ClassNames, embedding: str, head: str, options: Options, draft: Draft, tensors: NumpyArrays
) -> None:
    """Sets the heads. `embedding` and `head` are the names of the embedding table and of the language model's matrix."""
    read_head(classes.base, embedding, head, options, draft, tensors)
    of_tokens = {"score.weight", "score.bias"} <= tensors.keys() or "classifier.weight" in tensors
    if (classes.of_tokens and of_tokens) or (classes.of_answers and ANSWERS in tensors):
        draft["head"], draft["pooler"] = None, labels_of_tokens(options)
    elif classes.classifier and "score.weight" in tensors:
        classifier = Pooler(token="last", activation=None, num_classes=num_labels(options), class_bias=False)
        draft["head"], draft["pooler"] = None, classifier


def head_names(architecture: str, of_tokens: str = "score", head: str = "lm_head") -> Names:
    """Returns the names of the heads of a class; `of_tokens` scores the classes of tokens, `head` the vocabulary."""
    usual = of_tokens if architecture.endswith(OF_TOKENS) else "score"
    layer = ANSWERS.removesuffix(".weight") if architecture.endswith(ANSWERING) else usual
    classes = {"pooler/classes/kernel": Tensor(f"{layer}.weight"), "pooler/classes/bias": Tensor(f"{layer}.bias")}
    return {"head/kernel": Tensor(f"{head}.weight"), "head/bias": Tensor(f"{head}.bias"), **classes}


# Rotary positions -----------------------------------------------------------------------------------------------------


def read_rotary(options: Options, draft: Draft) -> None:
    """Reads `rope_parameters` or, in older folders, `rope_theta` beside `rope_scaling`."""
    options.only("partial_rotary_factor", 1.0)
    set_rotary(options, draft, 1.0)


def set_rotary(options: Options, draft: Draft, fraction: float, base: str = "rope_theta") -> None:
    """Sets rotary positions of a fraction of each head; the order of its elements is the template's, `base` an option."""
    usual = options.number(base, draft["positions.base"])
    scheme = read_scheme(options, rope_group(options), usual, fraction)
    draft["positions"] = dataclasses.replace(scheme, layout=draft["positions.layout"])


def read_partial_rotary(options: Options, draft: Draft) -> None:
    """Reads `read_rotary`'s options where a fraction of each head may rotate."""
    set_rotary(options, draft, read_fraction(options, draft))


def read_fraction(options: Options, draft: Draft, name: str = "partial_rotary_factor") -> float:
    """Returns the fraction of each head that rotates; that of the group of options comes first, then the option `name`.

    As in the library, a fraction that is null is 1, and one that is absent is the template's.
    """
    group = rope_group(options)
    usual = options.optional_number(name, draft["positions.fraction"])
    fraction = group.number("partial_rotary_factor", 1.0 if usual is None else usual)
    width = draft["attention.d_key"] or draft["d_model"] // draft["num_heads"]
    if int(width * fraction) % 2:
        stated, name = (group, "partial_rotary_factor") if group.has("partial_rotary_factor") else (options, name)
        rule = f"an even number of a head's {width} elements (head_dim, or hidden_size / num_attention_heads) has to rotate"
        raise stated.wrong(name, rule)
    return fraction


def rope_group(options: Options) -> Options:
    return options.group("rope_scaling" if options.has("rope_scaling") else "rope_parameters")


def read_stretched(options: Options, draft: Draft) -> None:
    """Reads Hunyuan's positions. With `alpha`, its type "dynamic" stretches the base, whatever the length of a text."""
    group = rope_group(options)
    kind = group.raw("rope_type") or group.raw("type")
    if kind != "dynamic":
        read_rotary(options, draft)
        return
    options.ignore("max_position_embeddings")
    group.ignore("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")  # the library reads none of them
    alpha, width = group.number("alpha"), draft["attention.d_key"] or draft["d_model"] // draft["num_heads"]
    if not (alpha > 0 and width > 2):
        raise group.wrong("alpha", f"it should be above 0, with heads wider than 2; head_dim is {width}")
    base = group.number("rope_theta", options.number("rope_theta", draft["positions.base"]))
    draft["positions"] = Rotary(base=base * alpha ** (width / (width - 2)))


def read_scheme(
    options: Options,
    group: Options,
    base: float,
    fraction: float = 1.0,
    *,
    kinds: Mapping[str, str] | None = None,
    original: int | None = None,
) -> Rotary:
    """Returns the rotary positions of one group of options; `base` where the group has none, and no other `fraction`.

    kinds: the usual word for each word that a family has; None: it has the usual words.
    original: the length of the texts of the original training, if an option beside the group decides it.
    """
    options.ignore("max_position_embeddings", "max_sequence_length")  # there is no table, so no text is too long
    group.ignore("rope_type", "type")
    group.only("partial_rotary_factor", fraction)
    words = {kind: kind for kind in ("default", *SCALINGS)} if kinds is None else kinds
    kind = words[group.text("rope_type" if group.has("rope_type") else "type", "default", words)]
    scaling = None
    if kind != "default":
        template, table = SCALINGS[kind]
        draft = read_table(table, group, template)
        if kind != "linear":
            length = None if group.has(ORIGINAL) and kind != "dynamic" else options.integer("max_position_embeddings")
            draft["original_length"] = original or length or group.integer(ORIGINAL)
        if kind == "longrope" and not group.has("attention_factor"):
            draft["amplitude"] = long_amplitude(options, group, draft["original_length"])
        if template.length is not None:  # for texts of that length and shorter ones the library has the same numbers
            draft["length"] = draft["original_length"]
        scaling = draft.build()
    return Rotary(base=group.number("rope_theta", base), fraction=fraction, scaling=scaling)


ORIGINAL = "original_max_position_embeddings"


def long_amplitude(options: Options, group: Options, original: int) -> float:
    """Returns the factor of rotated elements that follows from how much longer texts may be than those of the original training."""
    usual = None if group.has("factor") else options.integer("max_position_embeddings") / original
    factor = group.number("factor", usual)
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def read_amplitude(group: Options, draft: Draft) -> None:
    """Reads `attention_factor`; two weights of the logarithm may replace it."""
    amplitude = group.optional_number("attention_factor")
    above, below = group.optional_number("mscale"), group.optional_number("mscale_all_dim")
    if amplitude is None and above and below:
        factor = draft["factor"]
        amplitude = (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1)
    draft["amplitude"] = amplitude


def read_factors(options: Options, name: str, default: None) -> tuple[float, ...]:
    """Returns a list of numbers, which must be there."""
    factors = options.items(name)
    if not factors or not all(type(factor) in (int, float) for factor in factors):
        raise options.wrong(name, "it should be a list of numbers, one for each pair of a head's elements that rotate")
    return tuple(map(float, factors))


RotaryScaling = LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling | DynamicScaling
FACTOR = required("factor", "factor")
LENGTH = Entry(write=lambda scaling: {ORIGINAL: scaling.original_length})
FACTORS = Kind(read_factors, list)
SCALINGS: dict[str, tuple[RotaryScaling, Table]] = {
    "linear": (LinearScaling(), (FACTOR,)),
    "llama3": (
        Llama3Scaling(),
        (
            FACTOR,
            LENGTH,
            required("low_freq_factor", "low_frequency_factor"),
            required("high_freq_factor", "high_frequency_factor"),
        ),
    ),
    "yarn": (
        YarnScaling(),
        (
            FACTOR,
            LENGTH,
            option("beta_fast", "fast_turns"),
            option("beta_slow", "slow_turns"),
            option("truncate", "whole_pairs"),
            Entry(
                read_amplitude,
                lambda scaling: {} if scaling.amplitude is None else {"attention_factor": scaling.amplitude},
            ),
        ),
    ),
    "longrope": (
        LongRopeScaling(),
        (
            required("short_factor", "short_factors", kind=FACTORS),
            required("long_factor", "long_factors", kind=FACTORS),
            LENGTH,
            option("attention_factor", "amplitude"),
            ignored("factor"),
        ),
    ),
    "dynamic": (DynamicScaling(), (FACTOR,)),
}
"""Template and table, by `rope_type`."""


def rope_parameters(positions: object) -> dict[str, Any]:
    """Returns the group of options for these positions; no options for positions that are not rotary."""
    if type(positions) is not Rotary:
        return {}
    for kind, (template, table) in SCALINGS.items():
        if type(positions.scaling) is type(template):
            return {"rope_type": kind, "rope_theta": positions.base, **write_table(table, positions.scaling)}
    return {"rope_type": "default", "rope_theta": positions.base}


def partial_parameters(positions: Any) -> dict[str, Any]:
    """Returns the group of options with the fraction of each head that rotates."""
    group = rope_parameters(positions)
    return group and {**group, "partial_rotary_factor": positions.fraction}


def length_of_dynamic(positions: object) -> dict[str, Any]:
    """Returns the length of the original training, which with dynamic scaling is the option of the longest text."""
    scaling = positions.scaling if type(positions) is Rotary else None
    return {"max_position_embeddings": scaling.original_length} if type(scaling) is DynamicScaling else {}


ROTARY = Entry(
    read_rotary,
    lambda model: {"rope_parameters": rope_parameters(model.positions), **length_of_dynamic(model.positions)},
)
PARTIAL_ROTARY = Entry(
    read_partial_rotary,
    lambda model: {"rope_parameters": partial_parameters(model.positions), **length_of_dynamic(model.positions)},
)
STRETCHED = ROTARY._replace(read=read_stretched)

# Windows --------------------------------------------------------------------------------------------------------------

LOCAL, FULL = "sliding_attention", "full_attention"
"""The two types of layers: with and without a window."""


def read_layer_types(options: Options, draft: Draft, window: int | None, usual: Sequence[str]) -> None:
    """Sets the window and its layers from `layer_types`; `usual` are the types if the option is absent."""
    types = options.items("layer_types") or list(usual)
    if len(types) != len(usual) or set(types) - {LOCAL, FULL}:
        raise options.wrong("layer_types", f"it should be {LOCAL} or {FULL}, num_hidden_layers {len(usual)} times")
    local = tuple(i for i, kind in enumerate(types) if kind == LOCAL)
    if local and window is None:
        rule = f"layer {local[0]} has a window, but sliding_window or use_sliding_window turns windows off"
        raise options.wrong("layer_types", rule)
    layers = None if len(local) == len(types) else local
    draft["sliding_window"] = SlidingWindow(size=window, layers=layers) if local and window is not None else None


def layer_types(model: ModelConfig) -> list[str]:
    """Returns the type of each layer of a model with one stack."""
    layers = range(max(model.num_layers.values()))
    window = model.sliding_window
    local = () if window is None else layers if window.layers is None else window.layers
    return [LOCAL if i in local else FULL for i in layers]


def window_options(model: ModelConfig) -> dict[str, Any]:
    """Returns the window, null where no layer has one, and the types of the layers."""
    return {
        "sliding_window": model.sliding_window and model.sliding_window.size,
        "layer_types": layer_types(model),
    }


def set_rotaries(draft: Draft, full: Rotary, local: Rotary) -> None:
    """Sets the positions of layers without and with a window, after the window."""
    window = draft["sliding_window"]
    some_local = window is not None and window.layers is not None
    draft["positions"] = local if window is not None and not some_local else full
    if some_local and local != full:
        draft["sliding_window"] = dataclasses.replace(window, positions=local)


def two_rotaries(model: ModelConfig) -> dict[str, Any]:
    """Returns the groups of options for layers without and with a window."""
    window = model.sliding_window
    local = model.positions if window is None or window.positions is None else window.positions
    return {"rope_parameters": {FULL: rope_parameters(model.positions), LOCAL: rope_parameters(local)}}


# Settings -------------------------------------------------------------------------------------------------------------

TEMPLATE = ModelConfig(
    vocab_size=32000,
    num_heads=32,
    num_encoder_layers=0,
    num_decoder_layers=1,
    attention=DotProduct(bias=False, out_bias=False),
    positions=Rotary(),
    feed_forward_bias=False,
    activation="swiglu",
    norm=RMSNorm(epsilon=1e-6),
    residual=PRE_NORM,
    dropout=DropoutRates(embedding_rate=0.0, attention_rate=0.0, feed_forward_rate=0.0, residual_rate=0.0),
    scale_embeddings=False,
    share_target_output=False,
    initializer=Normal(),
)
"""The constants of all relatives; the sizes are always in the file."""

SHARED = (
    required("vocab_size", "vocab_size"),
    required("hidden_size", "d_model"),
    required("num_attention_heads", "num_heads"),
    required("intermediate_size", "d_ff"),
    option("num_key_value_heads", "attention.num_kv_heads", kind=OPTIONAL_INTEGER),
    option("head_dim", "attention.d_key", kind=OPTIONAL_INTEGER),
    option("rms_norm_eps", "norm.epsilon", "attention.qk_norm.epsilon"),
    option("attention_dropout", "dropout.attention_rate"),
    option("initializer_range", "initializer.stddev"),
    option("tie_word_embeddings", "share_target_output"),
)
"""The options of all relatives, besides the number of layers of their stack."""
TABLE = (required("num_hidden_layers", "num_decoder_layers"), *SHARED)
ACTIVATION = option("hidden_act", "activation", kind=GATED_ACTIVATION)
ATTENTION_BIAS = option("attention_bias", "attention.bias", "attention.out_bias")


def parallel_residual(branches: str) -> Entry:
    """Returns the entry of an option that is true where a layer has such `residual.branches`, and false where it has none."""
    kind = Kind(
        lambda options, name, default: branches if options.flag(name, default) else "sequential",
        lambda ours: ours == branches,
    )
    return option("use_parallel_residual", "residual.branches", kind=kind)


def norms_of_heads(name: str) -> Entry:
    """Returns the entry of an option that is true where each head of queries and keys has a norm of its own."""

    def read(options: Options, draft: Draft) -> None:
        if options.flag(name, False):
            draft["attention.qk_norm"] = LayerNorm(epsilon=draft["norm.epsilon"], bias=False)
            draft["attention.qk_norm_width"] = "each_head"

    return Entry(read, lambda model: {name: model.attention.qk_norm is not None})


def head_options(model: ModelConfig) -> dict[str, Any]:
    if model.d_model % model.num_heads:
        raise CannotExpress(
            f"it needs model.d_model divisible by model.num_heads; they are {model.d_model} and {model.num_heads}",
            ["model.d_model", "model.num_heads"],
        )
    return {}


HEADS_DIVIDE = Entry(write=head_options)
"""The library's config class wants d_model to be a multiple of num_heads, also where heads have another width."""


def read_upper_windows(options: Options, draft: Draft) -> None:
    """Reads Qwen's windows: with `use_sliding_window` in the layers of `layer_types`, else in those from `max_window_layers` on."""
    options.only("use_mrope", False)
    num_layers = draft["num_decoder_layers"]
    window = options.optional_integer("sliding_window", 4096)
    window = window if options.flag("use_sliding_window", False) else None
    first = num_layers if window is None else options.integer("max_window_layers", 28)
    options.ignore("max_window_layers")
    read_layer_types(options, draft, window, [LOCAL if i >= first else FULL for i in range(num_layers)])


def upper_window_options(model: ModelConfig) -> dict[str, Any]:
    types = layer_types(model)
    return {
        "use_sliding_window": LOCAL in types,
        "sliding_window": model.sliding_window and model.sliding_window.size,
        # older releases know no `layer_types`
        "max_window_layers": types.index(LOCAL) if LOCAL in types else len(types),
        "layer_types": types,
    }


UPPER_WINDOWS = Entry(read_upper_windows, upper_window_options)

# Weights --------------------------------------------------------------------------------------------------------------


NORMS_BEFORE = {"attention_pre_norm": "input_layernorm", "feed_forward_pre_norm": "post_attention_layernorm"}
ATTENTION = {
    "attention/query": "self_attn.q_proj",
    "attention/query_norm": "self_attn.q_norm",
    "attention/key": "self_attn.k_proj",
    "attention/key_norm": "self_attn.k_norm",
    "attention/value": "self_attn.v_proj",
    "attention/out": "self_attn.o_proj",
}
GATED = {
    "feed_forward/gate": "mlp.gate_proj",
    "feed_forward/up": "mlp.up_proj",
    "feed_forward/down": "mlp.down_proj",
}
LAYER = NORMS_BEFORE | ATTENTION | GATED
NORMS_AROUND = {
    "attention_post_norm": "post_attention_layernorm",
    "feed_forward_pre_norm": "pre_feedforward_layernorm",
    "feed_forward_post_norm": "post_feedforward_layernorm",
}
"""The names of norms in layers that have one after each sublayer too."""
NORMS_AFTER_ROTATION = {
    "attention/query_norm": "self_attn.query_layernorm",
    "attention/key_norm": "self_attn.key_layernorm",
}


def stack_names(layer: Mapping[str, str]) -> Names:
    """Returns the names of a model of Llama's shape, an encoder's or a decoder's, whose layers have the names of `layer`."""
    names: dict[str, str] = {"embedding": "model.embed_tokens"}
    for stack in ("encoder", "decoder"):
        names |= prefixed(f"{stack}/layers/", "model.layers.{i}.", layer) | {f"{stack}/final_norm": "model.norm"}
    return names


# The families ---------------------------------------------------------------------------------------------------------


def decoder_family(
    model_type: str,
    classes: ClassNames,
    special: UsualIds,
    template: ModelConfig,
    table: Table,
    names: Names,
    *ignorable: IgnorableTensor,
    of_tokens: str = "score",
    head: str = "lm_head",
    **more: Any,
) -> Family:
    """Returns a family of decoders with the library's usual heads; `of_tokens` and `head` as for `head_names`."""
    embedding = f"{names['embedding']}.weight"
    return Family(
        model_type=model_type,
        prefix=embedding.partition(".")[0] + ".",
        base=classes.base,
        special=special,
        head_prefixes=HEAD_PREFIXES,
        template=template,
        table=table,
        read_heads=functools.partial(read_heads, classes, embedding, f"{head}.weight"),
        architecture=classes.of,
        names=lambda model, architecture: {**names, **head_names(architecture, of_tokens, head)},
        ignorable=(*tied_copies(embedding, f"{head}.weight"), *ignorable),
        **more,
    )


def family(
    model_type: str,
    classes: str | ClassNames,
    special: UsualIds,
    template: ModelConfig,
    *entries: Entry,
    table: Table = TABLE,
    layer: Mapping[str, str] = LAYER,
    answers: str = "",
) -> Family:
    """Returns a family of Llama's shape. Nearly all name their classes alike, so that the start of the names is enough.

    `table` has the options before `entries`, `layer` the names within a layer, `answers` the prefix of the class that finds
    answers; empty: the library has no such class.
    """
    if isinstance(classes, str):
        classes = classes_of(classes, "ForCausalLM")
        classes = classes if answers else classes._replace(of_answers="")
    unused = never_read(
        r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq", "unused: rotary positions follow from the config"
    )
    return decoder_family(
        model_type,
        classes,
        special,
        template,
        (*table, *entries),
        stack_names(layer),
        unused,
        length="max_position_embeddings",
        answers_prefix=answers,
    )


def read_window(options: Options, name: str, default: int | None) -> SlidingWindow | None:
    """Returns Mistral's window of all layers; null: none."""
    size = options.optional_integer(name, default)
    return None if size is None else SlidingWindow(size=size)


WINDOW = option("sliding_window", "sliding_window", kind=Kind(read_window, lambda window: window and window.size))
ENDS = UsualIds(bos=1, eos=2)
OLDER_PREFIX = "transformer."
"""The prefix of most classes that find answers: the library keeps the one of its first releases."""
HUNYUAN = replaced(
    TEMPLATE,
    {
        "norm": RMSNorm(epsilon=1e-5),
        "attention.qk_norm": RMSNorm(epsilon=1e-5),
        "attention.qk_norm_place": "after_rotation",
    },
)


def read_hunyuan_sisters(options: Options, draft: Draft) -> None:
    """Reads the options that its files share with sister models: experts, shared layers, pictures. None of these may be on."""
    for name in ("use_qk_norm", "use_rotary_pos_emb"):
        options.only(name, True)
    for name in ("mlp_bias", "use_cla", "use_mla", "use_mixed_mlp_moe", "mamba", "position_embedding_xdrope"):
        options.only(name, False)
    options.only("num_experts", 1)
    options.only("norm_type", "rms")
    options.only("xdrope_section")
    options.only("add_classification_head", False)
    options.only("attention_head_dim", draft["attention.d_key"] or draft["d_model"] // draft["num_heads"])
    options.ignore(*OF_SISTERS)


OF_SISTERS = (
    # without experts, shared layers, latent attention or Mamba
    *("moe_intermediate_size", "num_shared_expert", "moe_topk", "moe_drop_tokens", "moe_layer_num_skipped"),
    *("moe_random_routing_dropped_token", "norm_topk_prob", "routed_scaling_factor", "group_limited_greedy"),
    *("n_group", "topk_group", "cla_share_factor", "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim"),
    *("v_head_dim", "qk_nope_head_dim", "hybrid_override_pattern", "mamba_ssm_ngroups", "mamba_d_state"),
    *("mamba_d_conv", "mamba_expand", "mamba_head_dim", "mamba_use_seq_idx", "dense_list"),
    # without pictures, video or classes
    *("vit_path", "vit_type", "vit_input_resolution", "vit_token", "vit_patch", "vit_mapping_type", "vit_norm_type"),
    *("vit_used_rms_norm", "vit_remove_prenorm", "vit_add_patchemb_bias", "num_media_embeds", "skip_cls_token"),
    *("anyres_vit_max_image_size", "anyres_pooling_size", "anyres_vit_two_views", "class_num", "pool_type"),
    *("im_start_id", "im_end_id", "im_newline_id", "image_token_id", "video_start_id", "video_end_id"),
    "auto_map",  # to the code that the library has since
    # ids of texts that the tokenizer states, and training
    *("text_start_id", "text_end_id", "mask_init_id", "pad_id", "eod_token_id", "org_vocab_size", "hidden_dropout"),
)

FAMILIES = (
    family(
        "llama",
        "Llama",
        ENDS,
        TEMPLATE,
        ATTENTION_BIAS,
        option("mlp_bias", "feed_forward_bias"),
        ACTIVATION,
        ROTARY,
        HEADS_DIVIDE,
        answers=OLDER_PREFIX,
    ),
    family(
        "mistral",
        "Mistral",
        ENDS,
        replaced(TEMPLATE, {"attention.num_kv_heads": 8, "sliding_window": SlidingWindow(size=4096)}),
        ACTIVATION,
        ROTARY,
        WINDOW,
        answers="model.",
    ),
    family(
        "qwen2",
        "Qwen2",
        UsualIds(),
        replaced(TEMPLATE, {"attention.num_kv_heads": 32, "attention.bias": True}),
        ACTIVATION,
        ROTARY,
        UPPER_WINDOWS,
        answers=OLDER_PREFIX,
    ),
    family(
        "qwen3",
        "Qwen3",
        UsualIds(),
        replaced(
            TEMPLATE, {"attention.num_kv_heads": 32, "attention.d_key": 128, "attention.qk_norm": RMSNorm(epsilon=1e-6)}
        ),
        ATTENTION_BIAS,
        ACTIVATION,
        ROTARY,
        UPPER_WINDOWS,
        answers=OLDER_PREFIX,
    ),
    family(
        "hunyuan_v1_dense",
        classes_of("HunYuanDenseV1", "ForCausalLM")._replace(of_tokens="", of_answers=""),
        UsualIds(pad=0, bos=1, eos=2),
        HUNYUAN,
        ATTENTION_BIAS,
        ACTIVATION,
        STRETCHED,
        Entry(read_hunyuan_sisters),
        layer=LAYER | NORMS_AFTER_ROTATION,
    ),
)
