"""Heads, rotary positions and layer-by-layer windows of decoder-only families."""

import math
from collections.abc import Sequence
from typing import Any

from flaxformer_lite.interop.hf.family import ClassNames, tensors_equal
from flaxformer_lite.interop.hf.options import architecture_of, num_labels
from flaxformer_lite.interop.name_map import Arrays, Tensor
from flaxformer_lite.interop.options import Draft, Entry, Options, Table, option, read_table, required, write_table
from flaxformer_lite.model import ModelConfig, Pooler, Rotary
from flaxformer_lite.model.config import SlidingWindow
from flaxformer_lite.model.positions import LinearScaling, Llama3Scaling, YarnScaling

# Heads ----------------------------------------------------------------------------------------------------------------


HEAD_PREFIXES = ("lm_head.", "score.")


def read_heads(classes: ClassNames, embedding: str, options: Options, draft: Draft, tensors: Arrays) -> None:
    """Sets the heads. `embedding` is the name of the embedding table.

    Two matrices with different values are not tied, whatever the config states; the library does the same. A tied language model
    has no tensor of its own for the head; there the class decides.
    """
    matrix, architecture = tensors.get("lm_head.weight"), architecture_of(options)
    if matrix is not None and not tensors_equal(matrix, tensors.get(embedding, matrix)):
        draft["share_target_output"] = False
    if "score.weight" in tensors:
        classifier = Pooler(token="last", activation=None, num_classes=num_labels(options), class_bias=False)
        draft["head"], draft["pooler"] = None, classifier
    elif matrix is None and (architecture == classes.base or not (architecture or draft["share_target_output"])):
        draft["head"] = None


HEADS = {"head/kernel": Tensor("lm_head.weight"), "pooler/classes/kernel": Tensor("score.weight")}
"""The names of the heads."""

# Rotary positions -----------------------------------------------------------------------------------------------------


def read_rotary(options: Options, draft: Draft) -> None:
    """Reads `rope_parameters` or, in older folders, `rope_theta` beside `rope_scaling`."""
    options.only("partial_rotary_factor", 1.0)
    name = "rope_scaling" if options.has("rope_scaling") else "rope_parameters"
    draft["positions"] = read_scheme(
        options, options.group(name), options.number("rope_theta", draft["positions.base"])
    )


def read_scheme(options: Options, group: Options, base: float) -> Rotary:
    """Returns the rotary positions of one group of options; `base` where the group has none."""
    options.ignore("max_position_embeddings", "max_sequence_length")  # there is no table, so no text is too long
    group.ignore("rope_type", "type")
    group.only("partial_rotary_factor", 1.0)
    kind = group.text("rope_type" if group.has("rope_type") else "type", "default", ("default", *SCALINGS))
    scaling = None
    if kind != "default":
        template, table = SCALINGS[kind]
        draft = read_table(table, group, template)
        if kind != "linear":
            name = "original_max_position_embeddings"
            length = None if group.has(name) else options.integer("max_position_embeddings")
            draft["original_length"] = group.integer(name, length)
        scaling = draft.build()
    return Rotary(base=group.number("rope_theta", base), scaling=scaling)


def read_amplitude(group: Options, draft: Draft) -> None:
    """Reads `attention_factor`; two weights of the logarithm may replace it."""
    amplitude = group.optional_number("attention_factor")
    above, below = group.optional_number("mscale"), group.optional_number("mscale_all_dim")
    if amplitude is None and above and below:
        factor = draft["factor"]
        amplitude = (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1)
    draft["amplitude"] = amplitude


Scaling = LinearScaling | Llama3Scaling | YarnScaling
FACTOR = required("factor", "factor")
LENGTH = Entry(write=lambda scaling: {"original_max_position_embeddings": scaling.original_length})
SCALINGS: dict[str, tuple[Scaling, Table]] = {
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
}
"""Template and table, by `rope_type`."""


def rope_parameters(positions: Any) -> dict[str, Any]:
    """Returns the group of options for these positions; no options for positions that are not rotary."""
    if type(positions) is not Rotary:
        return {}
    for kind, (template, table) in SCALINGS.items():
        if type(positions.scaling) is type(template):
            return {"rope_type": kind, "rope_theta": positions.base, **write_table(table, positions.scaling)}
    return {"rope_type": "default", "rope_theta": positions.base}


ROTARY = Entry(read_rotary, lambda model: {"rope_parameters": rope_parameters(model.positions)})

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
    """Returns the type of each layer."""
    layers = range(model.num_decoder_layers)
    window = model.sliding_window
    local = () if window is None else layers if window.layers is None else window.layers
    return [LOCAL if i in local else FULL for i in layers]
