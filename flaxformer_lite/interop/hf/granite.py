"""Granite: Llama with four factors, of embeddings, of what each sublayer adds, of scores and of logits.

Reference: Granite Team 2024, "Granite 3.0 Language Models", section 2.
"""

from typing import Any

from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.interop.hf import llama
from flaxformer_lite.interop.hf.family import ClassNames
from flaxformer_lite.interop.options import Draft, Entry, Options, option


def positive(options: Options, name: str) -> float:
    """Returns a number above 0, 1 where the option is absent."""
    number = options.number(name, 1.0)
    if number <= 0:
        raise options.wrong(name, "it should be above 0")
    return number


def read_factors(options: Options, draft: Draft) -> None:
    """Reads the factors; logits are divided by theirs."""
    draft["embedding_scale"] = positive(options, "embedding_multiplier")
    draft["residual.scale"] = positive(options, "residual_multiplier")
    draft["attention.scale"] = positive(options, "attention_multiplier")
    draft["head.scale"] = 1 / positive(options, "logits_scaling")


def factors(model: ModelConfig) -> dict[str, Any]:
    """Returns the factors; of logits only where the model has a head."""
    return {
        "embedding_multiplier": model.embedding_scale,
        "residual_multiplier": model.residual.scale,
        "attention_multiplier": model.attention.scale,
    } | ({} if model.head is None else {"logits_scaling": 1 / model.head.scale})


FAMILIES = (
    llama.family(
        "granite",
        ClassNames("GraniteModel", "GraniteForCausalLM", ""),
        llama.ENDS,
        llama.TEMPLATE,
        llama.ATTENTION_BIAS,
        option("mlp_bias", "feed_forward_bias"),
        llama.ACTIVATION,
        llama.ROTARY,
        llama.HEADS_DIVIDE,
        Entry(read_factors, factors),
    ),
)
