"""Weights of another system as a run: `import_hf` and `import_file`."""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import jax
from jaxtyping import PyTree

from flaxformer_lite.base.console import Progress, note
from flaxformer_lite.base.model_names import hub_name
from flaxformer_lite.config import Config, TrainConfig
from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.objectives import Objectives, Reranking, default_objective
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.core.text import Languages, Tokenizers
from flaxformer_lite.files.chats.chat import read_chat_template
from flaxformer_lite.files.chats.translation_prompt import SOURCE_ALONE, TranslationPrompt, preset
from flaxformer_lite.files.data import DataConfig
from flaxformer_lite.files.tokenizers.kinds import CHAT_TEMPLATE, HUB_FILES, FromRun
from flaxformer_lite.interop.hf import peft
from flaxformer_lite.interop.hf.card import stated_license
from flaxformer_lite.interop.hf.carried import SEVERAL_LABELS
from flaxformer_lite.interop.hf.families import Families
from flaxformer_lite.interop.hf.family import ANSWERING
from flaxformer_lite.interop.hf.folder import copy_companions, read_config, read_json
from flaxformer_lite.interop.hf.import_folder import Imported, read_folder
from flaxformer_lite.interop.hf.languages import read_languages
from flaxformer_lite.interop.hf.reranker import read_pair_template
from flaxformer_lite.interop.hf.sentence import with_prompts
from flaxformer_lite.interop.hf.tokenizer_files import read_tokenizers
from flaxformer_lite.interop.name_map import WeightName, to_params, unwrapped
from flaxformer_lite.interop.systems import SYSTEMS
from flaxformer_lite.interop.weight_files import read_json_object, read_weights
from flaxformer_lite.metrics.translations import MetricConfig, language_of
from flaxformer_lite.run import write_run
from flaxformer_lite.workdir.folder import check_new_run, new_run


def import_hf(
    source: str | Path, run: str | Path, *, families: Families | None = None, follow_links: bool = False
) -> str | Path:
    """Imports a Hugging Face folder, or a model of the hub by its name (`ORG/NAME`, `ORG/NAME@REVISION`), into a new run.

    A folder that PEFT wrote is read with its base, and the run has the adapters as `model.lora`. A tokenizer and a chat template
    beside the adapters come before the base's.

    `families`: those that may be read, by `model_type`; None: the package's, and those of imported files (docs/extending.md).
    `follow_links`: read files of the folder that are links to others elsewhere, and copy the small ones of them into the run.
    Returns `run`, a folder or a URL (docs/training.md). Notes on stderr tell what was left out.

    Example: `load(import_hf("google-bert/bert-base-uncased", "runs/bert")).fill_mask(["Paris is [MASK]."])`.

    Raises: ValueError if the folder cannot be imported exactly, or `run` exists already.
    """
    check_new_run(run)
    folder, origin = folder_of(source, families)
    adapters = folder if peft.is_adapter(folder) else None
    if adapters is not None:
        folder, origin = base_of(adapters, families)
    with Progress() as progress:
        progress.update(f"importing {source}")
        try:
            loaded = read_folder(folder, families, follow_links=follow_links)
            read = functools.partial(read_tokenizers, config=loaded.config, vocab_sizes=loaded.model.vocab_sizes)
            of_adapters = None if adapters is None else read(adapters)
            has_own = of_adapters is not None and of_adapters.tokenizers is not None
            tokenizers, reason, about_tokens = of_adapters if has_own else read(folder)
        except ValueError as error:
            raise with_path(str(folder), error) from None
        if adapters is not None:
            try:
                loaded = peft.read_adapters(adapters, loaded)
            except ValueError as error:
                raise with_path(str(adapters), error) from None
        paths = leaves_by_path(loaded.params)
        data = data_config(loaded, tokenizers, str(run), read_languages(folder, loaded.config, tokenizers))
        data = replace(data, translation=translation_prompt(loaded, [adapters or folder, folder], origin, tokenizers))
        config = Config(
            model=loaded.model,
            objective=reranking(loaded, [adapters or folder, folder], tokenizers)
            or with_prompts(objective(loaded, tokenizers), loaded.steps),
            data=data,
            train=TrainConfig(trainable=("*", *(f"!{path}" for path in loaded.family.buffers if path in paths))),
            decode=loaded.decode,
            metrics=MetricConfig(language=target_language(folder, origin, loaded.model, loaded.config)),
        )
        imported = {
            "system": "hf",
            "weights": origin,
            "config": loaded.config,
            "generation": loaded.generation,
            "architecture": loaded.architecture,
            "license": stated_license(adapters or folder),
        }
        with new_run(run) as made:
            write_run(
                made,
                config,
                0,
                loaded.params,
                f"imported from {origin}",
                tokenizers=tokenizers,
                imported=imported,
                add_files=lambda place: copy_tokenizer(folder, adapters, has_own, place / "huggingface", follow_links),
            )
            has_template = tokenizers is not None and read_chat_template(made.path, tokenizers.target) is not None
    for line in (*loaded.notes, *about_tokens):
        note(line)
    for tensor in loaded.skipped:
        note(f"skipped {tensor}: a constant of this architecture, and its values are the expected ones")
    if reason:
        note(f"the run has no tokenizer, it reads and writes token ids: {reason}")
    elif tokenizers is not None and loaded.model.continues_texts and not has_template:
        note(f"no chat template came with it: if it is a chat model, put its own into {run}/{CHAT_TEMPLATE}")
    report_import(loaded.params, loaded.names, run)
    return run


def translation_prompt(
    loaded: Imported, folders: Sequence[Path], origin: str, tokenizers: Tokenizers | None
) -> TranslationPrompt | None:
    """Returns the message that asks a chat model to translate, by its name and family; None without a chat template."""
    if tokenizers is None or not loaded.model.continues_texts:
        return None
    templates = filter(None, (read_chat_template(folder, tokenizers.target) for folder in folders))
    template = next(templates, None)
    if template is None:
        return None
    if template.reads_codes:
        return SOURCE_ALONE
    names = [origin, str(loaded.config.get("model_type")), str(loaded.config.get("_name_or_path"))]
    return preset(" ".join(Path(name).name for name in names))


def copy_tokenizer(base: Path, adapters: Path | None, has_own: bool, output: Path, follow_links: bool) -> None:
    """Copies the files of a folder's tokenizer; `has_own`: those beside the adapters take the place of the base's."""
    replaced = [name for name in HUB_FILES if has_own and name != CHAT_TEMPLATE]
    copy_companions(base, output, skip=replaced, follow_links=follow_links)
    if adapters is not None:
        copy_companions(adapters, output, follow_links=follow_links)


def folder_of(source: str | Path, families: Families | None) -> tuple[Path, str]:
    """Returns a folder with the model that a path or a name on the hub stands for, and its full name. Raises: ValueError."""
    name = hub_name(str(source))
    if name is None:
        return Path(source), str(source)
    from flaxformer_lite.interop.hub import download  # with the library for it

    return download(name, families)


def base_of(adapters: Path, families: Families | None) -> tuple[Path, str]:
    """Returns the base of a folder of adapters as `folder_of` does. Raises: ValueError that names the base if it is missing."""
    name = peft.base_name(adapters)
    try:
        folder, origin = folder_of(name, families)
        read_config(folder)
    except ValueError as error:
        raise ValueError(
            f"{adapters / peft.ADAPTER_CONFIG} names the base {name}: {error}. Put it there, or change base_model_name_or_path"
        ) from None
    return folder, origin


def import_file(system: str, weights: str | Path, config: str | Path, run: str | Path) -> str | Path:
    """Imports a file of weights of an older system (docs/systems), with that system's own config, into a new run.

    Returns `run`, a folder or a URL.

    Raises: ValueError if an array is missing, left over or of another shape, or `run` exists already.
    """
    weights, config_file = str(weights), str(config)
    check_new_run(run)
    theirs = SYSTEMS[system]
    settings = read_json_object(config_file)
    with Progress() as progress:
        progress.update(f"importing {weights}")
        try:
            model, names = theirs.model_config(settings), theirs.name_map(settings)
        except ValueError as error:
            raise with_path(config_file, error) from None
        try:
            known = set[str]().union(*(weight.names for weight in names))
            arrays, renamed = unwrapped(read_weights(weights), known)
            params = to_params(arrays, names, model)
        except ValueError as error:
            raise with_path(weights, error) from None
        limit = model.positions.max_positions or DataConfig.max_source_length
        data = DataConfig(tokenizer=None, max_source_length=limit, max_target_length=limit)
        origin = {"system": system, "weights": weights, "config": settings}
        of_run = Config(model=model, data=data, decode=older_special_ids(settings))
        with new_run(run) as made:
            write_run(made, of_run, 0, params, f"imported from {weights}", imported=origin)
        if renamed:
            note(renamed)
    report_import(params, names, run)
    return run


def report_import(params: PyTree, names: Sequence[WeightName], run: str | Path) -> None:
    count = sum(x.size for x in jax.tree.leaves(params))
    arrays = sum(len(weight.names) for weight in names)
    note(f"{count:,} parameters in {arrays} arrays are in {run}")


def with_path(path: str, error: ValueError) -> ValueError:
    """Returns the error with the path added, unless its message has it."""
    return error if path in str(error) else ValueError(f"{path}: {error}")


def older_special_ids(settings: Mapping[str, object]) -> DecodeConfig:
    """Returns the special ids of an older system's config, or this package's defaults."""
    theirs = {"pad_idx": "pad_id", "src_pad_idx": "pad_id", "bos_idx": "bos_id"}
    ids: dict[str, Any] = {ours: settings[name] for name, ours in theirs.items() if name in settings}
    if "eos_idx" in settings:
        ids["eos_ids"] = (settings["eos_idx"],)
    return DecodeConfig(**ids)


# The settings of its run ----------------------------------------------------------------------------------------------


def objective(imported: Imported, tokenizers: Tokenizers | None) -> Objectives:
    """Returns the objective that the model is for, with the class names of its config.

    A tokenizer without a mask, such as SentencePiece, gets the id that the config states.
    """
    if imported.metric is not None:
        return imported.metric.objective
    num_classes = 0 if imported.model.pooler is None else imported.model.pooler.num_classes
    labels, mask = imported.config.get("id2label"), imported.config.get("mask_token_id")
    if not isinstance(labels, dict):
        labels = {}
    names = [str(labels.get(str(i), i)) for i in range(num_classes)]
    if (
        tokenizers is None
        or tokenizers.source.mask_id is not None
        or type(mask) is not int
        or not tokenizers.source.vocab_size <= mask < imported.model.vocab_size
    ):
        mask = None
    labels_of_text: Literal["one", "several", "places"] = "one"
    if imported.architecture.endswith(ANSWERING):
        labels_of_text = "places"
    elif imported.config.get("problem_type") == SEVERAL_LABELS:
        labels_of_text = "several"
    return default_objective(imported.model, names, mask, labels_of_text)


def reranking(imported: Imported, folders: Sequence[Path], tokenizers: Tokenizers | None) -> Reranking | None:
    """Returns the objective of a model that scores pairs in the words of a template, or by logits; None for another model.

    Raises: ValueError for pairs that no template writes.
    """
    words, messages = imported.steps.words, imported.steps.messages
    if messages is None:
        return Reranking() if words else None
    if tokenizers is None:
        raise ValueError(f"{folders[0]} has no tokenizer that can be read: its chat template of pairs needs one")
    return Reranking(pair_template=read_pair_template(folders, messages, tokenizers.source))


def target_language(folder: Path, source: str, model: ModelConfig, config: Mapping[str, object]) -> str | None:
    """Returns the language of a translation model's answers, by its tokenizer's settings or a name such as opus-mt-en-zh.

    None: a language that is written with spaces, one that nothing names, or another model.
    """
    settings = read_json(folder / "tokenizer_config.json")
    codes = [str(settings.get(name)) for name in ("target_lang", "tgt_lang")]
    for name in (source, str(config.get("_name_or_path"))):
        codes += re.findall(r"-[a-z]{2,3}-([a-z]{2,3})/?(?:@.*)?$", name)
    return next(filter(None, map(language_of, codes)), None) if model.has_two_stacks else None


def data_config(imported: Imported, tokenizers: Tokenizers | None, run: str, languages: Languages | None) -> DataConfig:
    """Returns the data settings, with the folder's maximum length of a text; T5 has none and reads any length.

    An encoder is mostly tuned on short texts, often a few hundred: its batches have 32 rows of 32 tokens, 8 of 128 and more.
    """
    limit = imported.max_length or DataConfig.max_source_length
    small = not imported.model.num_decoder_layers
    one = tokenizers is None or (tokenizers.target is tokenizers.source and imported.model.target_vocab_size is None)
    return DataConfig(
        tokenizer=None if tokenizers is None else FromRun(path=run),
        target_tokenizer=None if one else FromRun(path=run, side="target"),
        languages=languages if imported.model.has_two_stacks else None,
        max_source_length=limit,
        max_target_length=limit,
        tokens_per_batch=1024 if small else DataConfig.tokens_per_batch,
        rows_multiple=8 if small else DataConfig.rows_multiple,
    )
