"""The Hugging Face families that are known here."""

from collections.abc import Mapping

from flaxformer_lite.config.outside import IMPORTED
from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.interop.hf import (
    albert,
    bart,
    bert,
    bloom,
    deberta,
    electra,
    eurobert,
    gemma,
    gpt2,
    gpt_neo,
    granite,
    gte,
    llama,
    llama_relatives,
    mbart,
    modernbert,
    mpnet,
    nomic_bert,
    olmo,
    opt,
    parallel_branches,
    smollm3,
    t5,
    t5gemma,
)
from flaxformer_lite.interop.hf.family import Family

Families = Mapping[str, Family]
"""Families by `model_type`. Importing and exporting take one as an argument, so that a family may be added from outside."""

MODULES = (
    gpt2,
    llama,
    gemma,
    llama_relatives,
    granite,
    olmo,
    smollm3,
    gpt_neo,
    opt,
    parallel_branches,
    bloom,
    bert,
    t5,
    bart,
    mbart,
    t5gemma,
    modernbert,
    eurobert,
    electra,
    deberta,
    nomic_bert,
    gte,
    mpnet,
    albert,
)
FAMILIES: Families = {family.model_type: family for module in MODULES for family in module.FAMILIES}
"""In the order in which they are tried when a model that was trained here is exported."""
OTHERS = {
    "deberta": "of DeBERTa, versions 2 and 3 are known",
    "esm": "ModelConfig has no embeddings that are scaled by the share of masked tokens, which ESM needs",
    "blenderbot-small": "ModelConfig has no norm of embeddings before learned positions, which Blenderbot Small needs",
}
"""The reason that two tables are not enough for a family, by its `model_type`."""


def known_families(first: str | None = None) -> Families:
    """Returns the families that are known here, and each that is a variable of a file or module which was imported by its name.

    first: the `model_type` of the family that comes before the others; None, or an unknown one: none does.
    """
    known = dict(FAMILIES)
    for _, module in IMPORTED.values():
        known |= {value.model_type: value for value in vars(module).values() if isinstance(value, Family)}
    return known if first not in known else {first: known[first], **known}


def family_of(model_type: object, families: Families | None = None) -> Family:
    """Returns the family that `model_type` names; None stands for all known families. Raises: ValueError for an unknown one."""
    families = known_families() if families is None else families
    known = ", ".join(sorted(families))
    if model_type is None:
        raise ValueError(f"config.json has no model_type, which names the family: one of {known}")
    if not isinstance(model_type, str) or model_type not in families:
        way = (
            "another whose parts ModelConfig has is two tables, as docs/extending.md has them, in a file that --import FILE.py "
            "names"
        )
        why = OTHERS.get(model_type, way) if isinstance(model_type, str) else way
        raise ValueError(f"model_type {cut(repr(model_type))} is not a family that is known here: {known}; {why}")
    return families[model_type]
