"""A Hugging Face folder as a model of ours."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PyTree

from flaxformer_lite.inference import DecodeConfig
from flaxformer_lite.interop.hf.decoding import decode_config
from flaxformer_lite.interop.hf.families import FAMILIES, Families, family_of
from flaxformer_lite.interop.hf.family import Family
from flaxformer_lite.interop.hf.folder import check_links, read_config, read_json, read_tensors
from flaxformer_lite.interop.hf.options import HARMLESS, ONLY
from flaxformer_lite.interop.hf.sentence import read_embedding
from flaxformer_lite.interop.name_map import Arrays, WeightName, renamings, to_params
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


class Fitted(NamedTuple):
    """A folder's tensors under the names of a family, and the model that they make up."""

    model: ModelConfig
    architecture: str
    names: list[WeightName]
    tensors: dict[str, np.ndarray]
    """The tensors of the file that the model needs, and those that it does not know."""
    skipped: list[str]

    @property
    def misfits(self) -> set[str]:
        """The names that are missing or left over."""
        return self.tensors.keys() ^ {name for weight in self.names for name in weight.names}


def read_folder(folder: Path, families: Families = FAMILIES) -> Imported:
    """Returns the model in a folder. Raises: ValueError that names the option or the tensor that does not fit."""
    check_links(folder)
    config, rules = read_config(folder), folder / "generation_config.json"
    generation = read_json(rules) if rules.is_file() else None
    family = family_of(config.get("model_type"), families)
    found, renamed = fit_names(family, config, read_tensors(folder))
    model = dataclasses.replace(found.model, sentence_embedding=read_embedding(folder))
    decode, notes = decode_config(config, generation, model, family.special)
    try:
        params = to_params(found.tensors, found.names, model)
    except ValueError as error:
        raise (ValueError(f"{error} ({renamed})") if renamed else error) from None
    return Imported(
        model=model,
        decode=decode,
        params=params,
        family=family,
        architecture=found.architecture,
        config=config,
        generation=generation,
        names=found.names,
        max_length=max_length(folder, config, model),
        skipped=found.skipped,
        notes=[renamed, *notes] if renamed else notes,
    )


def fit_names(family: Family, config: Mapping[str, Any], stored: Arrays) -> tuple[Fitted, str]:
    """Returns the tensors under the first names that fit the model, else under those that fit best; a note says which they are.

    Raises: ValueError that names an option that does not fit.
    """
    best: tuple[Fitted, str] | None = None
    complaint: ValueError | None = None
    for tensors, note in renamings(stored):
        try:
            found = fitted(family, config, family.full_names(tensors))
        except ValueError as error:
            complaint = error if best is None and complaint is None else complaint
            continue
        if not found.misfits:
            return found, note
        if best is None or len(found.misfits) < len(best[0].misfits):
            best = found, note
    if complaint is not None:
        raise complaint
    assert best is not None  # the first names gave one of the two
    return best


def fitted(family: Family, config: Mapping[str, Any], tensors: Arrays) -> Fitted:
    """Returns the model that these tensors make up. Raises: ValueError that names an option that does not fit."""
    options = Options(config)
    model = family.model_config(options, tensors)
    options.finish(HARMLESS, ONLY)
    architecture = family.architecture(model, tensors.keys())
    names = family.name_map(model, architecture)
    needed, skipped = family.split_ignorable(tensors, {name for weight in names for name in weight.names}, model)
    return Fitted(model, architecture, names, needed, skipped)


def max_length(folder: Path, config: Mapping[str, Any], model: ModelConfig) -> int | None:
    """Returns the smallest limit of a text's length that the files state, in tokens; None without a limit."""
    found = [config.get(name) for name in ("max_position_embeddings", "n_positions")]
    found += [model.positions.max_positions]
    found += [read_json(folder / "tokenizer_config.json").get("model_max_length")]
    found += [read_json(folder / "sentence_bert_config.json").get("max_seq_length")]
    return min((length for length in found if isinstance(length, int) and 1 < length < NO_LIMIT), default=None)
