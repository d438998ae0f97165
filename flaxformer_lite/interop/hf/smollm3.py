"""SmolLM3 and EXAONE 4: layers whose queries and keys know no positions, among layers of Llama's shape or of OLMo 2's.

References: Yang et al. 2025, arXiv:2501.18795 (layers without positions); LG AI Research 2025, arXiv:2507.11407 (EXAONE 4).
"""

import dataclasses
from typing import Any

from flaxformer_lite.core.model import ModelConfig, RMSNorm, Rotary, SlidingWindow
from flaxformer_lite.interop.hf import llama, olmo
from flaxformer_lite.interop.hf.llama import FULL, LOCAL
from flaxformer_lite.interop.hf.options import UsualIds
from flaxformer_lite.interop.options import Draft, Entry, Options, option, replaced


def rotate_only(draft: Draft, layers: list[int]) -> None:
    """Sets the layers that rotate."""
    every = len(layers) == draft["num_decoder_layers"]
    draft["positions"] = dataclasses.replace(draft["positions"], layers=None if every else tuple(layers))


def read_layers(options: Options, draft: Draft) -> None:
    """Reads SmolLM3's layers: a 1 in `no_rope_layers` is a layer that rotates; others may have the window."""
    number, every = draft["num_decoder_layers"], options.integer("no_rope_layer_interval", 4)
    if every < 1:
        raise options.wrong("no_rope_layer_interval", "it should be at least 1")
    turns = options.items("no_rope_layers") or [int((i + 1) % every != 0) for i in range(number)]
    if len(turns) < number or any(turn not in (0, 1) for turn in turns):
        raise options.wrong("no_rope_layers", f"it should be 0 or 1, num_hidden_layers {number} times")
    rotate_only(draft, [i for i, turn in enumerate(turns[:number]) if turn])
    window = options.optional_integer("sliding_window")
    window = window if options.flag("use_sliding_window", False) else None
    usual = [LOCAL if window is not None and not turn else FULL for turn in turns[:number]]
    llama.read_layer_types(options, draft, window, usual)


def layer_options(model: ModelConfig) -> dict[str, Any]:
    layers = model.positions.layers
    return {
        "no_rope_layers": [int(layers is None or i in layers) for i in range(model.num_decoder_layers)],
        "use_sliding_window": model.sliding_window is not None,
        **llama.window_options(model),
    }


def read_hybrid(options: Options, draft: Draft) -> None:
    """Reads EXAONE 4's layers: where the model has a window, only layers with it rotate."""
    number, window = draft["num_decoder_layers"], options.optional_integer("sliding_window", 4096)
    pattern = options.raw("sliding_window_pattern", 4)
    usual = [FULL] * number
    if window is not None and not options.items("layer_types"):
        if not isinstance(pattern, int) or pattern < 1:
            raise options.wrong("sliding_window_pattern", "it should be a whole number above 0, without layer_types")
        usual = [LOCAL if (i + 1) % pattern else FULL for i in range(number)]
    llama.read_layer_types(options, draft, window, usual)
    if window is not None:
        types = options.items("layer_types") or usual
        rotate_only(draft, [i for i, kind in enumerate(types) if kind == LOCAL])


FAMILIES = (
    llama.family(
        "smollm3",
        "SmolLM3",
        UsualIds(pad=128004, bos=128000, eos=128001),
        replaced(
            llama.TEMPLATE,
            {"attention.num_kv_heads": 4, "positions": Rotary(base=2_000_000.0), "share_target_output": True},
        ),
        llama.ATTENTION_BIAS,
        option("mlp_bias", "feed_forward_bias"),
        llama.ACTIVATION,
        llama.ROTARY,
        Entry(read_layers, layer_options),
        llama.HEADS_DIVIDE,
        answers=llama.OLDER_PREFIX,
    ),
    llama.family(
        "exaone4",
        "Exaone4",
        UsualIds(bos=0, eos=2),
        replaced(
            olmo.OLMO2,
            {
                "attention.num_kv_heads": 32,
                "attention.qk_norm": RMSNorm(epsilon=1e-5),
                "attention.qk_norm_width": "head",
                "sliding_window": SlidingWindow(size=4096),
            },
        ),
        llama.ACTIVATION,
        llama.ROTARY,
        Entry(read_hybrid, llama.window_options),
        llama.HEADS_DIVIDE,
        layer=olmo.NORMS_AFTER | llama.ATTENTION | llama.GATED,
        answers=llama.OLDER_PREFIX,
    ),
)
