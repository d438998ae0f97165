"""What decoder-only families have in common: their heads, rotary positions, and windows layer by layer."""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from flaxformer_lite.interop.hf.family import linear, same
from flaxformer_lite.interop.hf.settings import GATED, THEIR_ACTIVATIONS, Settings
from flaxformer_lite.interop.name_map import Arrays, WeightName
from flaxformer_lite.model.config import LanguageModelHead, ModelConfig, Pooler
from flaxformer_lite.model.feed_forward import Activation
from flaxformer_lite.model.positions import Rotary
from flaxformer_lite.model.rotary_scaling import LinearScaling, Llama3Scaling, YarnScaling

# Heads ----------------------------------------------------------------------------------------------------------------


class Classes(NamedTuple):
    """The classes of a family."""

    base: str
    """Without a head."""
    language_model: str
    """`lm_head`, a matrix of its own or the embedding table."""
    classifier: str
    """`score` of the last token."""

    def heads(self, settings: Settings, tensors: Arrays, table: str, tied: bool) -> dict[str, Any]:
        """The settings of the heads; `table` is the embedding table, and `tied` whether it usually is the output matrix too.

        Two matrices that differ are two whatever the config says: so the library reads them. A tied language model has no tensor to
        tell it by; there the class does.
        """
        matrix = tensors.get("lm_head.weight")
        tied = settings.flag("tie_word_embeddings", tied) and (
            matrix is None or same(matrix, tensors.get(table, matrix))
        )
        if "score.weight" in tensors:
            classes = Pooler(token="last", activation=None, num_classes=settings.num_labels, class_bias=False)
            return {"head": None, "pooler": classes, "share_target_output": tied}
        headless = matrix is None and (settings.architecture == self.base or not (settings.architecture or tied))
        return {"head": None if headless else LanguageModelHead(), "share_target_output": tied}

    def of(self, model: ModelConfig, names: Collection[str]) -> str:
        """The class of a model with these heads."""
        return self.language_model if model.head is not None else self.classifier if model.pooler else self.base


HEADS = ("lm_head.", "score.")
"""What the names of their tensors begin with."""


def head_weights(model: ModelConfig) -> list[WeightName]:
    """The parameters of the heads."""
    tied = model.head is None or model.share_target_output
    language_model = [] if tied else linear("head", "lm_head", bias=False)
    return language_model + (linear("pooler/classes", "score", bias=False) if model.pooler is not None else [])


# Feed-forward ---------------------------------------------------------------------------------------------------------


def gated_activation(settings: Settings, name: str, default: str) -> Activation:
    """Our name of the gated feed-forward layer with this activation."""
    found = settings.activation(name, default)
    if found not in GATED:
        raise settings.wrong(name, f"of gated feed-forward layers there are only those with {', '.join(GATED)}")
    return GATED[found]


def their_gated_activation(activation: Activation) -> str:
    """The activation of a gated feed-forward layer as they call it. Raises: ValueError for a layer that is not gated."""
    found = {gated: plain for plain, gated in GATED.items()}.get(activation)
    if found is None:
        raise ValueError(f"model.activation is {activation} (there: {', '.join(GATED.values())})")
    return THEIR_ACTIVATIONS[found]


# Rotary positions -----------------------------------------------------------------------------------------------------


def rotary(settings: Settings) -> Rotary:
    """`rope_parameters` or, in older folders, `rope_theta` beside `rope_scaling`."""
    settings.only("partial_rotary_factor", 1.0)
    name = "rope_scaling" if settings.has("rope_scaling") else "rope_parameters"
    return scheme(settings, settings.group(name), settings.number("rope_theta", 10_000.0))


def scheme(settings: Settings, group: Settings, base: float) -> Rotary:
    """Rotary positions from one group of options; `base` where they do not say."""
    settings.ignore("max_position_embeddings", "max_sequence_length")  # there is no table, so no text is too long
    group.ignore("rope_type", "type")
    group.only("partial_rotary_factor", 1.0)
    kind = group.text("rope_type" if group.has("rope_type") else "type", "default", ("default", *SCALINGS))
    scaling = None if kind == "default" else SCALINGS[kind](settings, group)
    return Rotary(base=group.number("rope_theta", base), scaling=scaling)


def original_length(settings: Settings, group: Settings) -> int:
    if group.has("original_max_position_embeddings"):
        return group.integer("original_max_position_embeddings")
    return settings.integer("max_position_embeddings")


def linear_scaling(settings: Settings, group: Settings) -> LinearScaling:
    return LinearScaling(factor=group.number("factor"))


def llama3_scaling(settings: Settings, group: Settings) -> Llama3Scaling:
    return Llama3Scaling(
        factor=group.number("factor"),
        low_frequency_factor=group.number("low_freq_factor"),
        high_frequency_factor=group.number("high_freq_factor"),
        original_length=original_length(settings, group),
    )


def yarn_scaling(settings: Settings, group: Settings) -> YarnScaling:
    """YaRN; two weights of the logarithm may stand for the amplitude."""
    factor, amplitude = group.number("factor"), group.optional_number("attention_factor")
    above, below = group.optional_number("mscale"), group.optional_number("mscale_all_dim")
    if amplitude is None and above and below:
        amplitude = (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1)
    return YarnScaling(
        factor=factor,
        fast_turns=group.number("beta_fast", 32.0),
        slow_turns=group.number("beta_slow", 1.0),
        original_length=original_length(settings, group),
        whole_pairs=group.flag("truncate", True),
        amplitude=amplitude,
    )


Scaling = LinearScaling | Llama3Scaling | YarnScaling
SCALINGS: dict[str, Callable[[Settings, Settings], Scaling]] = {
    "linear": linear_scaling,
    "llama3": llama3_scaling,
    "yarn": yarn_scaling,
}
"""By `rope_type`."""


def rope_parameters(positions: Any) -> dict[str, Any]:
    """The group of options for these positions. Raises: ValueError where they are not rotary."""
    if not isinstance(positions, Rotary):
        raise ValueError(f"model.positions is {type(positions).__name__} (there: Rotary)")
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": positions.base}
    match positions.scaling:
        case LinearScaling(factor=factor):
            found |= {"rope_type": "linear", "factor": factor}
        case Llama3Scaling() as s:
            found |= {"rope_type": "llama3", "factor": s.factor, "original_max_position_embeddings": s.original_length}
            found |= {"low_freq_factor": s.low_frequency_factor, "high_freq_factor": s.high_frequency_factor}
        case YarnScaling() as s:
            found |= {"rope_type": "yarn", "factor": s.factor, "original_max_position_embeddings": s.original_length}
            found |= {"beta_fast": s.fast_turns, "beta_slow": s.slow_turns, "truncate": s.whole_pairs}
            found |= {} if s.amplitude is None else {"attention_factor": s.amplitude}
    return found


# Windows --------------------------------------------------------------------------------------------------------------

LOCAL, FULL = "sliding_attention", "full_attention"
"""The two types of layers."""


class Windows(NamedTuple):
    """`attention_window` and `window_layers` of the model."""

    attention_window: int | None = None
    window_layers: tuple[int, ...] | None = None


def windows(settings: Settings, window: int | None, usual: Sequence[str]) -> Windows:
    """The window of the layers that `layer_types` says have one; `usual` are the types where it says nothing."""
    types = settings.items("layer_types") or list(usual)
    if len(types) != len(usual) or set(types) - {LOCAL, FULL}:
        raise settings.wrong("layer_types", f"it should be {LOCAL} or {FULL}, num_hidden_layers {len(usual)} times")
    local = tuple(i for i, kind in enumerate(types) if kind == LOCAL)
    if not local:
        return Windows()
    if window is None:
        rule = f"layer {local[0]} has a window, but sliding_window or use_sliding_window says that there is none"
        raise settings.wrong("layer_types", rule)
    return Windows(window, None if len(local) == len(types) else local)


def layer_types(model: ModelConfig) -> list[str]:
    """The type of each layer."""
    layers = range(model.num_decoder_layers)
    local = () if model.attention_window is None else layers if model.window_layers is None else model.window_layers
    return [LOCAL if i in local else FULL for i in layers]
