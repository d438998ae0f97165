"""The Hugging Face families that are known here."""

from collections.abc import Mapping
from typing import Any

from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.interop.hf import bart, bert, eurobert, gemma, gpt2, llama, mbart, modernbert, t5, t5gemma
from flaxformer_lite.interop.hf.family import Family

Families = Mapping[str, Family]
"""Families by `model_type`. Importing and exporting take one as an argument, so that a family may be added from outside."""

MODULES = (gpt2, llama, gemma, bert, t5, bart, mbart, t5gemma, modernbert, eurobert)
FAMILIES: Families = {family.model_type: family for module in MODULES for family in module.FAMILIES}
"""In the order in which they are tried when a model that was trained here is exported."""


def family_of(model_type: Any, families: Families = FAMILIES) -> Family:
    """Returns the family that `model_type` names. Raises: ValueError for an unknown one."""
    if model_type is None:
        raise ValueError(f"config.json has no model_type, which names the family: one of {', '.join(families)}")
    if not isinstance(model_type, str) or model_type not in families:
        raise ValueError(
            f"model_type {cut(repr(model_type))} is not a family that is known here: {', '.join(families)}"
        )
    return families[model_type]
