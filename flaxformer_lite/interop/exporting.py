"""A run to a folder or a file of another system: `export_hf`, `export_ctranslate2`, `export_file`; which systems a model fits."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from flaxformer_lite.base.atomic_files import require_absent
from flaxformer_lite.base.console import Progress, note, warn
from flaxformer_lite.config import Config
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.model.lora import ADAPTERS, merged
from flaxformer_lite.core.parallel import MeshConfig
from flaxformer_lite.core.text import LanguageTokenizers
from flaxformer_lite.files.tokenizers.kinds import SENTENCE_FILES, FromRun, copy_files, copy_hub_files
from flaxformer_lite.interop import check, ctranslate2
from flaxformer_lite.interop.differences import CannotExpress, check_same
from flaxformer_lite.interop.hf import peft, sentence
from flaxformer_lite.interop.hf.card import CARD, About, model_card, taught_by
from flaxformer_lite.interop.hf.carried import (
    OF_TOKENIZER,
    OF_TRAINING,
    PROBLEMS,
    SEVERAL_LABELS,
    carried,
    carried_generation,
)
from flaxformer_lite.interop.hf.decoding import export_notes, generation_config, written_special_ids
from flaxformer_lite.interop.hf.families import Families, family_of, known_families
from flaxformer_lite.interop.hf.family import ANSWERS, Family
from flaxformer_lite.interop.hf.folder import ADAPTER_WEIGHTS, read_json, save_tensors, write_folder
from flaxformer_lite.interop.hf.options import SPECIAL_IDS
from flaxformer_lite.interop.hf.tokenizer_export import write_tokenizers
from flaxformer_lite.interop.name_map import Tensors, WeightName, from_params, our_shapes, placeholders
from flaxformer_lite.interop.options import Options
from flaxformer_lite.interop.systems import SYSTEMS
from flaxformer_lite.interop.weight_files import new_folder, read_json_object, write_weights
from flaxformer_lite.run import Run, load
from flaxformer_lite.workdir import open_run
from flaxformer_lite.workdir.manifest import TOKENIZER_FILES

SYSTEM_NAMES = {"hf": "Hugging Face", "ctranslate2": "CTranslate2"}


def export_hf(
    run: str | Path,
    output: str | Path,
    *,
    weights: str | None = None,
    family: str | None = None,
    license: str | None = None,
    push: bool = False,
    private: bool = False,
    adapters: bool = False,
) -> None:
    """Writes the run in a folder as a new Hugging Face folder; with `push` as one commit of the hub's model `output`.

    Adapters of `model.lora` are merged into the weights; with `adapters` only they are written, as a folder of PEFT.

    `weights`: last, best, ema or average:N; None: the config's. `family`: the model type; None: the one that the run
    was imported from, or the first that fits. `license`: what the model card states. `private`: create a private model on the hub.
    Notes on stderr tell what the other system cannot express. The files of an imported tokenizer are copied.

    Example: `export_hf("runs/quickstart", "exported")`.

    Raises: ValueError if no family can express the model, or `output` exists already.
    """
    from flaxformer_lite.interop import hub  # with the library for it

    if adapters and (push or license):
        raise ValueError("adapters is set, with push or license: these are for a whole model; leave out one")
    if push:
        hub.check_target(str(output))
    elif private:
        raise ValueError("private is set without push: set both or none")
    else:
        require_absent(Path(output), "folder")
    if family not in (None, *known_families()):
        raise ValueError(f"family is {family}: choose one of {', '.join(known_families())}")
    if adapters:
        export_adapters(run, Path(output), weights, family)
        return
    with exporting(run, weights, "hf") as (loaded, origin), tempfile.TemporaryDirectory() as made:
        check_prompts_are_causal(loaded, "hf")
        config = loaded.config
        results = loaded.folder.results(loaded.step, weights or config.weights)
        folder = Path(made, "model") if push else Path(output)
        files = Path(made, "tokenizer")
        files.mkdir()
        copy_files(loaded.folder.path / "huggingface", files, SENTENCE_FILES)
        notes = write_tokenizer_files(loaded, origin, files)
        changes = loaded.folder.imported
        licence = license or origin.get("license")
        name = str(output) if push else folder.name
        about = About(
            name,
            loaded.step,
            results,
            licence,
            loaded.folder.teachers,
            changes.get("added_languages", ()),
            changes.get("trimmed_from"),
        )
        count, more = write_hf(config, loaded.params, origin, files, family, folder, about)
        with kept_if_good(folder):
            check.check_hf(folder, config.model, config.decode, loaded.params)
        if push:
            hub.push(folder, str(output), private=private, keep_card=license is None)
    report_export(notes + more, count, loaded, output)


def write_tokenizer_files(loaded: Run, origin: Mapping[str, object], files: Path) -> list[str]:
    """Copies the files of an imported run's tokenizer, or writes those of another's, with the chat template. Returns notes."""
    copied = copy_hub_files(loaded.folder.path, files)
    only_templates = all(name.endswith(".jinja") for name in copied)
    if not only_templates or (origin and loaded.tokenizers is None):
        return []
    return write_tokenizers(files, loaded.tokenizers, loaded.config.model, loaded.config.data.max_source_length)


def export_adapters(run: str | Path, output: Path, weights: str | None, family: str | None) -> None:
    """Writes the adapters of a run as a folder of PEFT, with the tokenizer.

    Raises: ValueError if it has no adapters, or trains more than them.
    """
    with Progress() as progress:
        progress.update("exporting")
        loaded = load(run, weights=weights, mesh=MeshConfig())
        config = loaded.config
        lora = config.model.lora
        if lora is None:
            raise ValueError(f"{run} has no adapters (model.lora is None): export it without adapters")
        trained = [pattern for pattern in config.trainable if not pattern.startswith("!")]
        more = [pattern for pattern in trained if pattern not in ADAPTERS]
        if more:
            raise ValueError(
                f"train.trainable names {more[0]!r} besides the adapters: export the merged model, without adapters"
            )
        start = config.train.init_from
        base = loaded.folder if start is None else open_run(start)
        origin = read_json(base.path / "imported.json")
        if origin.get("system") != "hf" or origin.get("trained"):
            origin = {}
        model = replace(config.model, lora=None)
        merged_params = merged(loaded.params, lora)
        chosen = family or origin.get("config", {}).get("model_type")
        theirs = export_like({}, model, merged_params, chosen, heads_of(config))
        kind = family_of(theirs.config["model_type"])
        (architecture,) = theirs.config["architectures"]
        names = kind.name_map(model, architecture)
        documents, tensors = peft.adapter_documents(lora, loaded.params, names, model, origin.get("weights"))
        saved = {f"{peft.START}{name}": x for name, x in kind.saved_names(tensors, architecture).items()}
        with new_folder(output, {peft.ADAPTER_CONFIG: documents}) as unfinished:
            save_tensors(saved, unfinished / ADAPTER_WEIGHTS, like=unfinished / peft.ADAPTER_CONFIG)
            notes = write_tokenizer_files(loaded, origin, unfinished)
    if not origin:
        notes.append(f"{peft.ADAPTER_CONFIG} names no base: export it by `export hf`, and name it there")
    report_export(notes, len(saved), loaded, output)


def export_ctranslate2(
    run: str | Path, output: str | Path, *, weights: str | None = None, weights_dtype: str = "float32"
) -> None:
    """Writes the run in a folder as a new folder for CTranslate2. `weights`: see `export_hf`.

    `weights_dtype`: the type in which matrices are stored: float32, bfloat16, or int8, a quarter of the bytes.

    Raises: ValueError for a setting that CTranslate2 does not have, or if `output` exists already.
    """
    folder = Path(output)
    require_absent(folder, "folder")
    with exporting(run, weights, "ctranslate2") as (loaded, _):
        check_prompts_are_causal(loaded, "ctranslate2")
        tokenizers = loaded.tokenizers
        if isinstance(tokenizers, LanguageTokenizers):
            tokenizers = tokenizers.plain  # in CTranslate2 the tokens of languages are part of a text
        teachers = loaded.folder.teachers
        card = {CARD: taught_by(teachers) + "\n"} if teachers else {}
        count, notes = ctranslate2.export_run(
            loaded.config, loaded.params, tokenizers, folder, weights_dtype, further=card
        )
        with kept_if_good(folder):
            if weights_dtype == "float32":  # others round
                check.check_ctranslate2(folder, loaded.config, loaded.params, tokenizers)
            copy_hub_files(loaded.folder.path, folder)
            copy_files(loaded.folder.path, folder, TOKENIZER_FILES)
    report_export(notes, count, loaded, output)


def export_file(
    run: str | Path, system: str, output: str | Path, *, config: str | None = None, weights: str | None = None
) -> None:
    """Writes the parameters of a run as a file of an older system (docs/systems). `config`: that system's own config file, if
    names of its arrays depend on it. `weights`: see `export_hf`.

    Raises: ValueError if the system cannot express the model, or `output` exists already.
    """
    require_absent(Path(output), "file")
    with exporting(run, weights, system) as (loaded, origin):
        theirs = SYSTEMS[system]
        model = loaded.config.model
        chosen = origin.get("config", {}) if config is None else read_json_object(config)
        settings = theirs.config_for(model) | chosen
        arrays = from_params(loaded.params, theirs.name_map(settings))
        if system == "torch-transformer":
            check.check_torch(settings, arrays, model, loaded.params)
        write_weights(str(output), arrays)
    report_export([], len(arrays), loaded, output)


def as_used(model: ModelConfig) -> ModelConfig:
    """Returns the model without what only its training or its start had.

    These are adapters, a learned temperature, and the vectors of a classifier.
    """
    embedding = model.sentence_embedding
    if embedding is not None:
        classifies = model.pooler is not None and model.pooler.num_classes
        embedding = None if classifies else replace(embedding, learned_temperature=False)
    return replace(model, lora=None, sentence_embedding=embedding)


@contextlib.contextmanager
def exporting(run: str | Path, weights: str | None, system: str) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Shows that a run is being exported; yields it, loaded, with its adapters merged, and its `imported.json`.

    {} stands for an `imported.json` of another system.
    """
    with Progress() as progress:
        progress.update("exporting")
        loaded = load(run, weights=weights, mesh=MeshConfig())
        lora = loaded.config.model.lora
        model = as_used(loaded.config.model)
        params = dict(loaded.params if lora is None else merged(loaded.params, lora))
        params.pop("log_scale", None)
        if model.sentence_embedding is None:
            params.pop("sentence_embedding", None)
        loaded = replace(loaded, config=replace(loaded.config, model=model), params=params)
        tokenizers = loaded.tokenizers
        if isinstance(tokenizers, LanguageTokenizers) and tokenizers.own:
            codes = ", ".join(tokenizers.own)
            raise ValueError(
                f"{run} has a tokenizer of its own for {codes}, and {system} has one for all languages: extend the run "
                f"without --tokenizer own, or use it here, by `translate` or `serve`"
            )
        origin = read_json(loaded.folder.path / "imported.json")
        yield loaded, origin if origin.get("system") == system else {}


def report_export(notes: list[str], count: int, loaded: Run, output: str | Path) -> None:
    for line in notes:
        warn(line)
    note(f"{count} arrays of step {loaded.step} are in {output}")


def check_prompts_are_causal(loaded: Run, system: str) -> None:
    """Raises: ValueError if the objective reads prompts in a way that the system does not have."""
    objective = loaded.config.objective
    if objective.prompt_attention != "causal":
        raise ValueError(
            f"objective.kind {objective.kind!r} reads prompts with {objective.prompt_attention} attention, but {system} "
            "reads every prompt causally: use the run with generate"
        )


@contextlib.contextmanager
def kept_if_good(folder: Path) -> Iterator[None]:
    """Deletes the folder if what is done within it fails."""
    try:
        yield
    except BaseException:
        shutil.rmtree(folder)
        raise


# A Hugging Face folder ------------------------------------------------------------------------------------------------


class Exported(NamedTuple):
    """A model in their terms: `config.json` without special ids, and the tensors."""

    config: dict[str, Any]
    tensors: Tensors


def write_hf(
    config: Config,
    params: PyTree,
    origin: Mapping[str, Any],
    files: Path,
    model_type: str | None,
    output: Path,
    about: About,
) -> tuple[int, list[str]]:
    """Writes a run as the new folder `output`, with a model card. Returns the number of tensors, and notes for the user.

    `origin` is `imported.json` of a run that was imported from such a folder, empty for another. `files` has the tokenizer's files.
    `model_type` is the family; None: that of the origin, or the first that can express the model.

    Raises: ValueError that lists the settings that the family cannot express.
    """
    model = config.model
    exported = export_like(origin, model, params, model_type, heads_of(config))
    dropped = list(OF_TRAINING) if origin.get("trained") else []
    if config.data.tokenizer is not None and not isinstance(config.data.tokenizer, FromRun):
        dropped += OF_TOKENIZER
    family = family_of(exported.config["model_type"])
    options = config_options(config, origin, exported, family, dropped)
    num_parameters = sum(x.size for x in jax.tree.leaves(params))
    documents: dict[str, Any] = {
        "config.json": options,
        "README.md": model_card(about, config, origin, options, num_parameters, files),
    }
    notes = []
    if model.num_decoder_layers and model.head is not None:
        positions = options.get(family.length)
        written = generation_config(config.decode, model, config.data.max_source_length, positions)
        alone = not model.num_encoder_layers
        documents["generation_config.json"] = carried_generation(origin, written, dropped, alone=alone)
        notes = export_notes(config.decode)
    documents |= sentence.weight_files(exported.tensors)
    before = sentence.read_steps(files)  # those of the run that this one started from
    steps = sentence.module_steps(model, config.objective, before)
    if steps != before:
        documents |= sentence.documents(model, steps, config.data.max_source_length, files)
        for pattern in SENTENCE_FILES:
            for path in list(files.glob(pattern)):
                path.unlink()
    write_folder(output, documents, sentence.without_dense(exported.tensors), files)
    return len(exported.tensors), notes


def config_options(
    config: Config, origin: Mapping[str, Any], exported: Exported, family: Family, dropped: Sequence[str]
) -> dict[str, Any]:
    """Returns `config.json` of a run: the model, special ids, classes, and the settings of the origin but those in `dropped`."""
    theirs = origin.get("config", {})
    is_same_family = family.model_type == theirs.get("model_type")
    longest = max(config.objective.longest_row(config.data.longest))
    stated = theirs.get(family.length)
    if origin.get("trained") and type(stated) is int:  # before options and model are compared: it may scale positions
        stated = max(longest, stated)
        theirs = {**theirs, family.length: stated}
    if is_same_family:
        tensors = sentence.without_dense(exported.tensors)
        options = carried(theirs, exported.config, family, config.model, tensors, dropped)
    else:
        kept = {name: theirs[name] for name in SPECIAL_IDS if name in theirs and name not in dropped}
        options = kept | exported.config
    if family.length and not is_same_family:
        options.setdefault(family.length, longest)
    elif type(stated) is int:
        options[family.length] = stated
    options |= written_special_ids(config.decode, config.model) | class_names(config, theirs)
    if config.objective.label_threshold is not None:
        options["problem_type"] = SEVERAL_LABELS
    elif "problem_type" in theirs:
        options["problem_type"] = PROBLEMS.get(config.objective.kind, theirs["problem_type"])
    if config.objective.mask_id is not None:  # an id that the tokenizer's file does not know
        options["mask_token_id"] = config.objective.mask_id
    return options


def heads_of(config: Config) -> tuple[str, ...]:
    """Returns the tensors of heads that the objective decides on: one that finds answers scores two classes of tokens, too."""
    return (ANSWERS,) if config.objective.reads == "questions" else ()


def export_like(
    origin: Mapping[str, Any], model: ModelConfig, params: PyTree, model_type: str | None, heads: Sequence[str]
) -> Exported:
    """Returns the model as the family `model_type` has it; None: that of the origin, or the first that can express the model.

    heads: see `heads_of`.

    Raises: CannotExpress that lists the settings that the family cannot express.
    """
    theirs = origin.get("config", {}).get("model_type")
    if model_type is None and theirs is None:
        return first_fitting(model, params, heads=heads)
    family = family_of(model_type or theirs)
    is_as_imported = family.model_type == theirs and not origin.get("trained")
    architecture = origin["architecture"] if is_as_imported else None
    try:
        return export(model, params, family, architecture, heads)
    except CannotExpress as error:
        if model_type is not None or not origin.get("trained"):
            raise
        try:
            return first_fitting(model, params, heads=heads)
        except CannotExpress:
            raise error from None


def export(
    model: ModelConfig,
    params: PyTree,
    family: Family,
    architecture: str | None = None,
    heads: Sequence[str] = (),
) -> Exported:
    """Returns the model in the terms of a family. `architecture` is the class that it was imported as, if it was.

    heads: see `heads_of`.

    Raises: CannotExpress that lists the settings that the family cannot express.
    """
    architecture = architecture or family.architecture(model, heads)
    try:
        config = {"model_type": family.model_type, "architectures": [architecture], "dtype": "float32"}
        num_classes = model.pooler.num_classes if model.pooler else 0
        config |= label_maps([f"LABEL_{i}" for i in range(num_classes)])
        config |= family.options_for(model)
        names = family.name_map(model, architecture) + sentence.dense_names(model)
        try:
            tensors = from_params(params, names)
        except ValueError:
            check_same(model, family.model_config(Options(config), empty_tensors(names)))
            raise
        theirs = family.model_config(Options(config), tensors)
        check_same(model, replace(theirs, sentence_embedding=model.sentence_embedding))
        if heads and not architecture:
            raise CannotExpress("objective.kind is answer_spans, for which it has no class", ["model.pooler"])
    except ValueError as error:
        raise CannotExpress.of(family.model_type, error) from None
    return Exported(config, family.saved_names(tensors, architecture))


def first_fitting(
    model: ModelConfig, params: PyTree, families: Families | None = None, heads: Sequence[str] = ()
) -> Exported:
    """Returns the model as the first family that can express it has it. Raises: CannotExpress with the nearest family's reason.

    heads: see `heads_of`.
    """
    families = known_families() if families is None else families
    exported, errors = tried(model, params, families, heads)
    if exported is not None:
        return exported
    stacks = model.num_layers.keys()
    alike = [name for name, family in families.items() if family.template.num_layers.keys() == stacks]
    nearest = min(alike or families, key=lambda name: distance(model, families[name]))
    raise CannotExpress(
        f"no Hugging Face family has a model like this one; the nearest is {nearest}, but {errors[nearest].reason}. A model "
        "that is trained with the other values can be exported; the families are in docs/systems/huggingface.md, and another one, "
        "if you choose it, gives its own reason",
        errors[nearest].settings,
    )


def tried(
    model: ModelConfig, params: PyTree, families: Families, heads: Sequence[str]
) -> tuple[Exported | None, dict[str, CannotExpress]]:
    """Returns the model as the first family that can express it has it, None if none can, and the reasons of the others."""
    errors: dict[str, CannotExpress] = {}
    for name, family in families.items():
        try:
            return export(model, params, family, heads=heads), errors
        except CannotExpress as error:
            errors[name] = error
    return None, errors


def distance(model: ModelConfig, family: Family) -> tuple[int, int]:
    """Returns the number of parameters that only the model, or only the family's model that is like it, has.

    Those of the stacks come first: a head is easily replaced.
    """
    names = family.name_map(model, family.architecture(model, ()))
    try:
        there = family.model_config(Options(family.options_for(model)), empty_tensors(names))
    except ValueError:
        there = family.template
    unlike = our_shapes(model).keys() ^ our_shapes(there).keys()
    in_stacks = [path for path in unlike if not path.startswith(("head", "pooler"))]
    return len(in_stacks), len(unlike)


def empty_tensors(names: Sequence[WeightName]) -> Tensors:
    """Returns a tensor without a number for each name, for a family that reads which tensors a file has."""
    return {name: np.zeros(0) for weight in names for name in weight.names}


def class_names(config: Config, theirs: Mapping[str, object]) -> dict[str, Any]:
    """Returns the names of the classes: those of the objective, else the imported ones."""
    num_classes = 0 if config.model.pooler is None else config.model.pooler.num_classes
    names = config.objective.class_names
    if len(names) == num_classes:
        return label_maps(names)
    maps = dict[str, Any]()
    for name in ("id2label", "label2id"):
        labels = theirs.get(name)
        if isinstance(labels, dict) and len(labels) == num_classes > 0:
            maps[name] = labels
    return maps


def label_maps(names: Sequence[str]) -> dict[str, Any]:
    """Returns `id2label` and `label2id`, which also state the number of classes; empty without classes."""
    if not names:
        return {}
    by_id = {str(i): name for i, name in enumerate(names)}
    by_name = {name: i for i, name in enumerate(names)}
    return {"id2label": by_id, "label2id": by_name}


# The systems that a model fits ----------------------------------------------------------------------------------------


def own_family(origin: Mapping[str, Any]) -> str | None:
    """Returns the `model_type` that the weights of a run had, by its `imported.json`; None: they are from elsewhere."""
    return origin["config"].get("model_type") if origin.get("system") == "hf" else None


def fitting_systems(config: Config, own: str | None = None) -> list[str]:
    """Returns the systems that a run's model can be exported to, as `export` calls them; for hf with the family.

    own: see `own_family`.
    """
    return [name for name, obstacles in export_obstacles(config, own).items() if not obstacles]


def has_family(config: Config, families: Families) -> bool:
    """Returns whether one of the families can express a run's model; where none can, the nearest one is not looked for."""
    model = as_used(config.model)
    return tried(model, placeholders(model), families, heads_of(config))[0] is not None


def exports_in_words(config: Config, own: str | None = None) -> str:
    """Returns a line such as `Hugging Face: no (norm); CTranslate2: yes`, with the settings that keep a model from a system."""
    words = []
    for name, obstacles in export_obstacles(config, own).items():
        system, _, family = name.partition(" ")
        said = f"no ({', '.join(obstacles)})" if obstacles else f"yes {family}".strip()
        words.append(f"{SYSTEM_NAMES.get(system, system)}: {said}")
    return "; ".join(words)


def export_obstacles(config: Config, own: str | None = None) -> dict[str, list[str]]:
    """Returns the groups of settings that keep a model from a system; none for a system that it fits.

    hf has those of the nearest family. An older system is listed if the model fits it.
    """
    model = as_used(config.model)
    params = placeholders(model)
    prompts = [] if config.objective.prompt_attention == "causal" else ["objective"]
    reasons = {}
    try:
        family = first_fitting(model, params, known_families(own), heads_of(config)).config["model_type"]
        reasons["hf" if prompts else f"hf ({family})"] = prompts
    except CannotExpress as error:
        reasons["hf"] = prompts + groups(error.settings) or ["model"]
    endless = [] if config.decode.eos_ids else ["decode.eos_ids"]
    reasons["ctranslate2"] = prompts + groups(ctranslate2.unsupported_settings(model)) + endless
    for name, system in SYSTEMS.items():
        with contextlib.suppress(ValueError):
            from_params(params, system.name_map(system.config_for(model)))
            reasons[name] = []
    return reasons


def groups(settings: Iterable[str]) -> list[str]:
    """Returns the groups of a model's settings, each once: `positions` of `model.positions.layout`."""
    return list(dict.fromkeys(path.split(".")[1] for path in settings))
