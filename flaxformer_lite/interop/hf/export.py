"""Writes a run as a Hugging Face folder."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from flaxformer_lite.config import Config
from flaxformer_lite.interop.differences import CannotExpress, check_same
from flaxformer_lite.interop.hf import sentence
from flaxformer_lite.interop.hf.card import About, model_card
from flaxformer_lite.interop.hf.decoding import export_notes, generation_config, special_ids
from flaxformer_lite.interop.hf.families import FAMILIES, Families, family_of
from flaxformer_lite.interop.hf.family import Family
from flaxformer_lite.interop.hf.folder import write_folder
from flaxformer_lite.interop.hf.options import SPECIAL_IDS
from flaxformer_lite.interop.name_map import WeightName, from_params, our_shapes
from flaxformer_lite.interop.options import Options
from flaxformer_lite.model import ModelConfig

KEPT = (*SPECIAL_IDS, "problem_type", "task_specific_params", "max_position_embeddings")
"""Options that are copied from the folder that a run was imported from, unless the model decides them."""


class Exported(NamedTuple):
    """A model in their terms."""

    config: dict[str, Any]
    """`config.json`, without special ids."""
    tensors: dict[str, np.ndarray]


def export_run(
    config: Config,
    params: PyTree,
    origin: Mapping[str, Any],
    files: Path,
    model_type: str | None,
    output: Path,
    about: About,
    families: Families = FAMILIES,
) -> tuple[int, list[str]]:
    """Writes the folder with a model card. Returns the number of tensors, and notes for the user.

    Args:
        config: The config of the run.
        params: Its parameters.
        origin: `imported.json` of a run that was imported from such a folder; empty for another run.
        files: A folder with the tokenizer's files, which are copied.
        model_type: The family; None: that of the origin, or the first that can express the model.
        output: The folder to write.
        about: What the model card says of the run.
        families: The families to choose from.

    Raises: ValueError that lists the settings that the family cannot express.
    """
    theirs = origin.get("config", {})
    if model_type is None and not theirs:
        exported = first_fitting(config.model, params, families)
    else:
        family = family_of(model_type or theirs["model_type"], families)
        same = family.model_type == theirs.get("model_type")
        exported = export(config.model, params, family, origin["architecture"] if same else None)
    kept = {name: theirs[name] for name in KEPT if name in theirs} | special_ids(config.decode, config.model)
    options = kept | exported.config | class_names(config, theirs)
    if config.objective.mask_id is not None:  # an id that the tokenizer's file does not know
        options["mask_token_id"] = config.objective.mask_id
    num_parameters = sum(x.size for x in jax.tree.leaves(params))
    card = model_card(about, config, origin, options, num_parameters, files)
    documents: dict[str, Any] = {"config.json": options, "README.md": card}
    if config.model.num_decoder_layers and config.model.head is not None:
        longest_source = config.data.max_source_length
        documents["generation_config.json"] = generation_config(config.decode, config.model, longest_source)
    if not (files / "modules.json").is_file():
        documents |= sentence.documents(config.model, config.data.max_source_length)
    write_folder(output, documents, exported.tensors, files)
    return len(exported.tensors), export_notes(config.decode) if "generation_config.json" in documents else []


def export(model: ModelConfig, params: PyTree, family: Family, architecture: str | None = None) -> Exported:
    """Returns the model in the terms of a family. `architecture` is the class that it was imported as, if it was.

    Raises: CannotExpress that lists the settings that the family cannot express.
    """
    architecture = architecture or family.architecture(model, ())
    try:
        config = {"model_type": family.model_type, "architectures": [architecture], "dtype": "float32"}
        config |= label_maps([f"LABEL_{i}" for i in range(model.pooler.num_classes if model.pooler else 0)])
        config |= family.options_for(model)
        names = family.name_map(model, architecture)
        try:
            tensors = from_params(params, names)
        except ValueError:
            check_same(model, family.model_config(Options(config), empty_tensors(names)))
            raise
        found = family.model_config(Options(config), tensors)
        check_same(model, dataclasses.replace(found, sentence_embedding=model.sentence_embedding))
    except ValueError as error:
        raise CannotExpress.of(family.model_type, error) from None
    return Exported(config, family.saved_names(tensors, architecture))


def first_fitting(model: ModelConfig, params: PyTree, families: Families = FAMILIES) -> Exported:
    """Returns the model as the first family that can express it has it. Raises: CannotExpress with the nearest family's reason."""
    errors: dict[str, CannotExpress] = {}
    for name, family in families.items():
        try:
            return export(model, params, family)
        except CannotExpress as error:
            errors[name] = error
    nearest = min(errors, key=lambda name: distance(model, families[name]))
    raise CannotExpress(
        f"no Hugging Face family has a model like this one; the nearest is {nearest}, but {errors[nearest].reason}. The families "
        "are in docs/systems/huggingface.md; another family, if you choose one, gives its own reason",
        errors[nearest].settings,
    )


def distance(model: ModelConfig, family: Family) -> int:
    """Returns the number of parameters that only the model, or only the family's model that is like it, has."""
    names = family.name_map(model, family.architecture(model, ()))
    try:
        there = family.model_config(Options(family.options_for(model)), empty_tensors(names))
    except ValueError:
        there = family.template
    return len(our_shapes(model).keys() ^ our_shapes(there).keys())


def empty_tensors(names: Sequence[WeightName]) -> dict[str, np.ndarray]:
    """Returns a tensor without a number for each name, for a family that reads which tensors there are."""
    return {name: np.zeros(0) for weight in names for name in weight.names}


def class_names(config: Config, theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the names of the classes: those of the objective, else the imported ones."""
    num_classes = 0 if config.model.pooler is None else config.model.pooler.num_classes
    if len(names := config.objective.class_names) == num_classes:
        return label_maps(names)
    maps = {name: theirs.get(name) for name in ("id2label", "label2id")}
    return {name: found for name, found in maps.items() if isinstance(found, dict) and len(found) == num_classes > 0}


def label_maps(names: Sequence[str]) -> dict[str, Any]:
    """Returns `id2label` and `label2id`, which also state the number of classes; empty without classes."""
    if not names:
        return {}
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
