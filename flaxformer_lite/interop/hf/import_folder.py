"""A Hugging Face folder as a model of ours."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import PyTree

from flaxformer_lite.inference import DecodeConfig
from flaxformer_lite.interop.hf.decoding import decode_config
from flaxformer_lite.interop.hf.families import FAMILIES, Families, family_of
from flaxformer_lite.interop.hf.family import Family
from flaxformer_lite.interop.hf.folder import check_links, read_config, read_json, read_tensors
from flaxformer_lite.interop.hf.options import HARMLESS, ONLY
from flaxformer_lite.interop.hf.sentence import read_embedding
from flaxformer_lite.interop.name_map import WeightName, to_params
from flaxformer_lite.interop.options import Options
from flaxformer_lite.model import ModelConfig

NO_LIMIT = 1_000_000_000
"""A longest text from this many tokens on means no limit: the library writes 10^30 for a tokenizer without one."""


class Imported(NamedTuple):
    """The contents of a folder, in our terms."""

    model: ModelConfig
    decode: DecodeConfig
    params: PyTree
    family: Family
    architecture: str
    """The class that the tensors make up."""
    config: dict[str, Any]
    """`config.json`."""
    generation: dict[str, Any] | None
    """`generation_config.json`; None: there is none."""
    names: list[WeightName]
    max_length: int | None
    """The longest text that the model reads, in tokens; None: the folder states no limit."""
    skipped: list[str]
    """Tensors in the file that the model does not need."""
    notes: list[str]
    """Settings of generation in the folder that `decode` lacks."""


def read_folder(folder: Path, families: Families = FAMILIES) -> Imported:
    """Returns the model in a folder. Raises: ValueError that names the option or the tensor that does not fit."""
    check_links(folder)
    config, rules = read_config(folder), folder / "generation_config.json"
    generation = read_json(rules) if rules.is_file() else None
    family = family_of(config.get("model_type"), families)
    tensors = family.full_names(read_tensors(folder))
    options = Options(config)
    model = dataclasses.replace(family.model_config(options, tensors), sentence_embedding=read_embedding(folder))
    options.finish(HARMLESS, ONLY)
    decode, notes = decode_config(config, generation, model, family.special)
    architecture = family.architecture(model, tensors.keys())
    names = family.name_map(model, architecture)
    needed, skipped = family.split_ignorable(tensors, {name for weight in names for name in weight.names}, model)
    return Imported(
        model=model,
        decode=decode,
        params=to_params(needed, names, model),
        family=family,
        architecture=architecture,
        config=config,
        generation=generation,
        names=names,
        max_length=max_length(folder, config, model),
        skipped=skipped,
        notes=notes,
    )


def max_length(folder: Path, config: Mapping[str, Any], model: ModelConfig) -> int | None:
    """Returns the smallest limit of a text's length that the files state, in tokens; None without a limit."""
    found = [config.get(name) for name in ("max_position_embeddings", "n_positions")]
    found += [model.positions.max_positions]
    found += [read_json(folder / "tokenizer_config.json").get("model_max_length")]
    found += [read_json(folder / "sentence_bert_config.json").get("max_seq_length")]
    return min((length for length in found if isinstance(length, int) and 1 < length < NO_LIMIT), default=None)
