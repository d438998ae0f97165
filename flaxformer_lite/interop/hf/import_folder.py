"""A Hugging Face folder as a model: its config, its tensors and its settings of decoding, in our terms."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import PyTree

from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.interop.hf.decoding import decode_config
from flaxformer_lite.interop.hf.families import Families, family_of
from flaxformer_lite.interop.hf.family import Family
from flaxformer_lite.interop.hf.folder import check_links, read_config, read_json, read_tensors
from flaxformer_lite.interop.hf.metrics import Metric, read_metric
from flaxformer_lite.interop.hf.multimodal import text_config, text_tensors
from flaxformer_lite.interop.hf.options import architecture_of, refuse_unread
from flaxformer_lite.interop.hf.reranker import with_score
from flaxformer_lite.interop.hf.sentence import Steps, dense_names, dense_tensors, read_steps, similarity_note
from flaxformer_lite.interop.name_map import NumpyArrays, Tensors, WeightName, renamings, to_params
from flaxformer_lite.interop.options import Options

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
    """`generation_config.json`; None: the file is missing."""
    names: list[WeightName]
    max_length: int | None
    """The longest text that the model reads, in tokens; None: the folder states no limit."""
    skipped: list[str]
    """Tensors in the file that the model does not need."""
    steps: Steps
    """The steps of a sentence encoder after the model."""
    metric: Metric | None
    """The parts of a metric of translations; None: the folder holds none."""
    notes: list[str]
    """Notes for the user: names that were read otherwise, and settings of generation that `decode` lacks."""


class Fitted(NamedTuple):
    """A folder's tensors under the names of a family, and the model that they make up."""

    model: ModelConfig
    architecture: str
    names: list[WeightName]
    tensors: Tensors
    """The tensors of the file that the model needs, and those that it does not know."""
    skipped: list[str]
    unread: str
    """A note on options that the library does not read; empty if it reads all."""
    misfits: int
    """The number of names that are missing or left over."""


def read_folder(folder: Path, families: Families | None = None, *, follow_links: bool = False) -> Imported:
    """Returns the model in a folder. `families`, `follow_links`: see `import_hf`.

    Raises: ValueError that names the option or the tensor that does not fit.
    """
    if not follow_links:
        check_links(folder)
    whole = read_config(folder)
    rules = folder / "generation_config.json"
    config = text_config(whole)
    generation = read_json(rules) if rules.is_file() else None
    if config.get("quantization_config"):
        rule = "quantized weights are not read: save the model in bfloat16 or float32, or name the model that it was made of"
        raise Options(config).wrong("quantization_config", rule)
    family = family_of(config.get("model_type"), families)
    tensors = read_tensors(folder)
    no_pictures = ""
    if family.model_type != whole["model_type"]:
        tensors, no_pictures = text_tensors(tensors)
    fit, renamed = fit_names(family, config, tensors)
    steps = read_steps(folder)
    model = dataclasses.replace(fit.model, sentence_embedding=steps.embedding)
    names = fit.names + dense_names(model, steps.dense)
    tensors = fit.tensors | dense_tensors(folder, steps.dense)
    longest = max_length(folder, config, model)
    metric = read_metric(folder, model, longest)
    if metric is not None:
        model = metric.model
        names = names + metric.names
        tensors = tensors | metric.tensors
        longest = metric.max_length
    decode, notes = decode_config(config, generation, model, family.special)
    try:
        params = to_params(tensors, names, model)
    except ValueError as error:
        raise (ValueError(f"{error} ({renamed})") if renamed else error) from None
    architecture = fit.architecture
    if steps.words:
        model, params = with_score(model, params, steps.words)
        architecture = family.architecture(model, ())
        if not architecture:
            raise ValueError(
                f"model_type {family.model_type} has no classes here: LogitScore needs a family that has them"
            )
        names = family.name_map(model, architecture)
    return Imported(
        model=model,
        decode=decode,
        params=params,
        family=family,
        architecture=architecture,
        config=config,
        generation=generation,
        names=names,
        max_length=longest,
        skipped=fit.skipped,
        steps=steps,
        metric=metric,
        notes=[
            note
            for note in (no_pictures, renamed, fit.unread, *notes, similarity_note(folder, steps.embedding))
            if note
        ],
    )


def fit_names(family: Family, config: Mapping[str, object], stored: NumpyArrays) -> tuple[Fitted, str]:
    """Returns the tensors under the first names that fit the model, else under those that fit best; a note says which they are.

    Raises: ValueError that names an option that does not fit.
    """
    misfitting: list[tuple[Fitted, str]] = []
    complaints: list[ValueError] = []
    for tensors, renamed in renamings(stored):
        try:
            one = fitted(family, config, family.full_names(tensors))
        except ValueError as error:
            complaints += [] if misfitting else [error]
            continue
        if not one.misfits:
            return one, renamed
        misfitting.append((one, renamed))
    if complaints:
        raise complaints[0]
    return min(misfitting, key=lambda pair: pair[0].misfits)


def fitted(family: Family, config: Mapping[str, object], tensors: NumpyArrays) -> Fitted:
    """Returns the model that these tensors make up. Raises: ValueError that names an option that does not fit."""
    options = Options(config)
    model = family.model_config(options, tensors)
    unread = refuse_unread(options, family.model_type)
    architecture = family.architecture(model, {*tensors, architecture_of(options)})
    names = family.name_map(model, architecture)
    wanted = set[str]().union(*(weight.names for weight in names))
    needed, skipped = family.split_ignorable(tensors, wanted, model)
    return Fitted(model, architecture, names, needed, skipped, unread, misfits=len(needed.keys() ^ wanted))


def max_length(folder: Path, config: Mapping[str, object], model: ModelConfig) -> int | None:
    """Returns the smallest limit of a text's length that the files state, in tokens; None without a limit."""
    lengths = [config.get(name) for name in ("max_position_embeddings", "n_positions")]
    lengths += [model.positions.max_positions]
    lengths += [read_json(folder / "tokenizer_config.json").get("model_max_length")]
    lengths += [read_json(folder / "sentence_bert_config.json").get("max_seq_length")]
    return min((length for length in lengths if isinstance(length, int) and 1 < length < NO_LIMIT), default=None)
