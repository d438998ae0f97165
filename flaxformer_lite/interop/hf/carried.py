"""Options of the folder that a run was imported from, in the folder that it is exported to.

    what the model decides        as the family's table writes it, where the run's model says something else than the old folder
    all else that is still true   as the old folder has it

Untrue afterwards, or another's to state: the number type, the program and its release, the folder's name.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.interop.differences import check_same
from flaxformer_lite.interop.hf.decoding import HARMLESS as GENERATION_HARMLESS
from flaxformer_lite.interop.hf.decoding import NEUTRAL, SKIPPED
from flaxformer_lite.interop.hf.family import Family
from flaxformer_lite.interop.hf.options import GENERATION, SPECIAL_IDS
from flaxformer_lite.interop.name_map import NumpyArrays
from flaxformer_lite.interop.options import Options

PROGRAM = (
    "transformers_version",
    "_name_or_path",
    "name_or_path",
    "_commit_hash",
    "auto_map",
    "_from_model_config",
    "unsloth_fixed",
    "unsloth_version",
    "_model_name_or_path",
)
"""Options that name the folder, and the program that wrote it."""
NUMBER_TYPES = ("torch_dtype", "dtype", "use_bfloat16")
"""Options that name the number type: an export has float32."""
OF_CLASSES = ("architectures", "id2label", "label2id", "num_labels", "_num_labels", "problem_type")
"""Options of the class and its classes, which the model and the objective decide."""
RENEWED = (
    *PROGRAM,
    *NUMBER_TYPES,
    *OF_CLASSES,
    *GENERATION,  # in `generation_config.json`
)
FORCED = ("forced_bos_token_id", "forced_eos_token_id")
OF_TRAINING = ("datasets", "finetuning_task")
"""Options that tell what a model was trained on: untrue after further training."""
OF_TOKENIZER = ("tokenizer_class", "bos_token_id", "sep_token_id", "cls_token_id", "unk_token_id", "mask_token_id")
"""Options that are untrue beside another tokenizer."""
SEVERAL_LABELS = "multi_label_classification"
PROBLEMS = {"classification": "single_label_classification", "regression": "regression"}
"""Their `problem_type`, by the kind of the objective, where a text does not have several labels."""


def carried(
    theirs: Mapping[str, object],
    written: Mapping[str, object],
    family: Family,
    model: ModelConfig,
    tensors: NumpyArrays,
    dropped: Collection[str],
) -> dict[str, Any]:
    """Returns `config.json` of an exported model: what the table has `written`, and of `theirs` what is still true.

    For a model that says what the old folder said, its options stay, in their spelling. For another, each option that the table
    writes otherwise is replaced, and older spellings are left out.
    """
    options = Options(theirs)
    full = family.full_names(tensors)
    try:
        before = family.options_for(family.model_config(options, full))
    except ValueError:
        before = {}
    kept = {name: value for name, value in without_renewed(theirs).items() if name not in dropped}
    if before == family.options_for(model):
        merged = kept | {name: value for name, value in written.items() if name in RENEWED}
    else:
        spelled_otherwise = options.read - written.keys() - {*SPECIAL_IDS}
        merged = merge({name: x for name, x in kept.items() if name not in spelled_otherwise}, before, written)
    try:
        rebuilt = family.model_config(Options(merged), full)
        check_same(model, dataclasses.replace(rebuilt, sentence_embedding=model.sentence_embedding))
    except ValueError:  # an old value contradicts the model
        return {name: value for name, value in kept.items() if name in SPECIAL_IDS} | dict(written)
    return merged


def without_renewed(options: Mapping[str, object]) -> dict[str, object]:
    """Returns the options that an export does not state anew; of groups also without number types.

    A null of `FORCED` stays: the classes of some families force a token where nothing is said.
    """
    kept = {name: x for name, x in options.items() if name not in RENEWED or (name in FORCED and x is None)}
    for name, value in kept.items():
        if isinstance(value, dict):
            kept[name] = {inner: x for inner, x in value.items() if inner not in NUMBER_TYPES}
    return kept


def merge(kept: Mapping[str, Any], before: Mapping[str, object], written: Mapping[str, object]) -> dict[str, object]:
    """Returns kept options and written ones: of one that was written so before too, the kept value."""
    merged = dict(kept)
    for name, value in written.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict) and isinstance(kept.get(name), dict):
            merged[name] = merge(kept[name], old, value)
        elif name not in kept or old != value:
            merged[name] = value
    return merged


def carried_generation(
    origin: Mapping[str, Any], written: Mapping[str, Any], dropped: Collection[str], *, alone: bool
) -> dict[str, Any]:
    """Returns `generation_config.json`: what is `written`, and of the old file what this package does not decide.

    `origin`: `imported.json`. `alone`: a decoder without an encoder, whose `max_length` counts the prompt and so stays.
    """
    theirs = origin.get("generation")
    if theirs is None:
        theirs = {name: x for name, x in origin.get("config", {}).items() if name in GENERATION}
    names = {*NEUTRAL, SKIPPED, *GENERATION_HARMLESS, *SPECIAL_IDS} - {*PROGRAM, *dropped}
    if alone and "max_new_tokens" not in written:
        names.add("max_length")
    return {name: value for name, value in theirs.items() if name in names} | dict(written)
