"""Folders of Hugging Face: a family a file, and what all families share."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import PyTree

from flaxformer_lite.inference.config import DecodeConfig
from flaxformer_lite.interop.hf import bart, bert, distilbert, gemma, gpt2, llama, marian, roberta, t5
from flaxformer_lite.interop.hf.decoding import decode_config, notes
from flaxformer_lite.interop.hf.family import Family
from flaxformer_lite.interop.hf.folder import read_config, read_json, read_tensors
from flaxformer_lite.interop.hf.sentence import read_embedding
from flaxformer_lite.interop.hf.settings import Settings
from flaxformer_lite.interop.name_map import WeightName, to_params
from flaxformer_lite.model.config import ModelConfig

MODULES = (gpt2, llama, gemma, bert, roberta, distilbert, t5, bart, marian)
FAMILIES: dict[str, Family] = {family.model_type: family for module in MODULES for family in module.FAMILIES}
"""By `model_type`, in the order in which they are tried where a model trained here is exported."""


NO_LIMIT = 1_000_000_000
"""A longest text of so many tokens stands for none: the library writes 10^30 where a tokenizer knows no limit."""


class Imported(NamedTuple):
    """What a folder holds, in our terms."""

    model: ModelConfig
    decode: DecodeConfig
    params: PyTree
    family: Family
    architecture: str
    """The class that the tensors make up."""
    config: dict[str, Any]
    """`config.json`."""
    generation: dict[str, Any]
    """`generation_config.json`, empty where there is none."""
    names: list[WeightName]
    max_length: int | None
    """How many tokens of a text the folder says that the model reads."""
    left_out: list[str]
    """Tensors in the file that the model does not need."""
    notes: list[str]
    """What the folder says of generation that `decode` does not."""


def max_length(folder: Path, config: Mapping[str, Any], model: ModelConfig) -> int | None:
    """The least of what the files say of the longest text; None where they say nothing."""
    found = [config.get(name) for name in ("max_position_embeddings", "n_positions")]
    found += [getattr(model.positions, "max_positions", None)]
    found += [read_json(folder / "tokenizer_config.json").get("model_max_length")]
    found += [read_json(folder / "sentence_bert_config.json").get("max_seq_length")]
    return min((length for length in found if isinstance(length, int) and 1 < length < NO_LIMIT), default=None)


def read_folder(folder: Path) -> Imported:
    """The model in a folder. Raises: ValueError that names the option or the tensor that does not fit, and what was expected."""
    config, generation = read_config(folder), read_json(folder / "generation_config.json")
    family = family_of(config.get("model_type"))
    tensors = family.full_names(read_tensors(folder))
    settings = Settings(config)
    model = dataclasses.replace(family.model_config(settings, tensors), sentence_embedding=read_embedding(folder))
    settings.finish()
    decode = decode_config(config, generation, model, family.special)
    architecture = family.architecture(model, tensors.keys())
    names = family.name_map(model, architecture)
    needed, left_out = family.pick(tensors, {name for weight in names for name in weight.names}, model)
    params = to_params(needed, names, model)
    longest = max_length(folder, config, model)
    told = notes(config, generation, model)
    return Imported(model, decode, params, family, architecture, config, generation, names, longest, left_out, told)


def family_of(model_type: Any) -> Family:
    """The family that `model_type` names. Raises: ValueError for one that is not known here."""
    if model_type is None:
        raise ValueError(f"config.json has no model_type, which names the family: here {', '.join(FAMILIES)} are known")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(
            f"model_type {model_type!r} is none of the families that are known here: {', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]
