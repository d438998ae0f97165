"""The text half of a model that also reads pictures: its config, and its tensors with the names of a model of texts."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from flaxformer_lite.base.console import counted
from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.interop.name_map import NumpyArrays, Tensors
from flaxformer_lite.interop.options import Options

TEXT = re.compile(r"^(model\.)?language_model\.")
PICTURES = re.compile(r"^(?:model\.)?(vision_tower|multi_modal_projector)\.")


class TextHalf(NamedTuple):
    """A family whose files have a family of texts inside."""

    model_type: str
    """The family of the half."""
    classes: Mapping[str, str]
    """The classes of the half, by those of the whole."""
    usual: Mapping[str, Any]
    """The options of the half that its files leave out, where the half's own family needs them."""
    unread: tuple[str, ...]
    """The options of the half that the library does not read in the whole."""
    of_pictures: tuple[str, ...]
    """The options of the whole that no text depends on."""


HALVES = {
    "gemma3": TextHalf(
        "gemma3_text",
        {
            "Gemma3Model": "Gemma3TextModel",
            "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
            "Gemma3ForSequenceClassification": "Gemma3TextForSequenceClassification",
        },
        {
            "vocab_size": 262208,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
        },
        ("tie_word_embeddings", "final_logit_softcapping"),
        (
            "vision_config",
            "mm_tokens_per_image",
            *("boi_token_index", "eoi_token_index", "image_token_index"),
            *("boi_token_id", "eoi_token_id", "image_token_id"),
        ),
    )
}
"""The families that are known, by `model_type`."""


def text_config(config: Mapping[str, object]) -> dict[str, Any]:
    """Returns the config of the text half; another family's unchanged.

    Special ids that both parts of the file state are those of the whole, as in the library.
    """
    half = HALVES.get(str(config.get("model_type")))
    if half is None:
        return dict(config)
    text = Options(config).mapping("text_config")
    whole = {name: x for name, x in config.items() if name not in (*half.of_pictures, "text_config") and x is not None}
    names = [half.classes.get(str(name), name) for name in Options(config).items("architectures")]
    stated = {name: x for name, x in text.items() if x is not None and name not in half.unread}
    return {**half.usual, **stated, **whole, "model_type": half.model_type, "architectures": names}


def text_names(tensors: NumpyArrays) -> Tensors:
    """Returns tensors under the names that they have in a model of the text half."""
    return {TEXT.sub(r"\1", name): x for name, x in tensors.items()}


def text_tensors(tensors: NumpyArrays) -> tuple[Tensors, str]:
    """Returns the tensors of the text half, and a note that names what was left out; empty if nothing was."""
    left_out: dict[str, list[str]] = {}
    for name in sorted(tensors):
        if match := PICTURES.match(name):
            left_out.setdefault(match[1], []).append(name)
    listed = [
        f"{tower} ({counted(len(names), 'tensor')}: {cut(', '.join(names))})" for tower, names in left_out.items()
    ]
    kept = {name: x for name, x in tensors.items() if not PICTURES.match(name)}
    return text_names(kept), f"only the text half is imported, without {' and '.join(listed)}" if listed else ""
