"""A run that has only the tokens that some texts need: `trim`."""

import contextlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from flaxformer_lite.base.atomic_files import atomic_write, require_absent
from flaxformer_lite.base.console import Progress, note
from flaxformer_lite.config import Config
from flaxformer_lite.core.model.transformer import parameter_shapes
from flaxformer_lite.core.parallel import MeshConfig
from flaxformer_lite.core.reading.objectives import AnsweredTexts
from flaxformer_lite.core.text import LanguageTokenizers, Tokenizers
from flaxformer_lite.core.text.pair_template import pair_text
from flaxformer_lite.core.text.special_ids import check_token_ids
from flaxformer_lite.files.chats.asking import Asking
from flaxformer_lite.files.chats.chat import DEFAULT_TEMPLATE, read_object, template_sources
from flaxformer_lite.files.chats.form import Form
from flaxformer_lite.files.chats.messages import Conversation
from flaxformer_lite.files.tokenizers import FromRun
from flaxformer_lite.files.tokenizers.json_tokenizer import JsonTokenizer
from flaxformer_lite.files.tokenizers.kinds import CHAT_TEMPLATE, CHAT_TEMPLATES, SENTENCE_FILES, copy_files
from flaxformer_lite.files.tokenizers.trimming import basic_ids, lines_cut_otherwise, needed_by, to_trim, with_parts
from flaxformer_lite.run.extending import check_one_table, lines_of_files
from flaxformer_lite.run.run import load
from flaxformer_lite.run.write import write_run
from flaxformer_lite.workdir import RunFolder

IDS = {
    "model": ("position_padding_id", "padding_id"),
    "decode": ("pad_id", "bos_id", "eos_ids", "forced_bos_id", "forced_eos_id"),
    "objective": ("mask_token", "first_sentinel"),
}
"""The settings that name token ids which must stay, by their part of the config."""
CHECKED = 10_000
"""The first lines, which the new tokenizer must cut as the old one does."""


def trim(
    run: str | Path,
    output: str | Path,
    *,
    text: str | Sequence[str],
    keep_ids: Collection[int] = (),
    weights: str | None = None,
) -> Path:
    """Writes a new run folder whose vocabulary has only the tokens that the lines of the files `text` need.

    Special and added tokens stay, those of languages, bytes, digits, signs, the letters of ASCII and of the texts' scripts, and the
    words of the run's own prompts and chat template. The ids are numbered anew, in their order, in the tokenizer, the rows of the
    parameters and the settings. A text whose tokens all stay is read as before, which is checked on the first lines. Every tenth
    line is held out from a count: how many lines need a token that the others lack.

    `keep_ids`: further ids that stay.
    Returns the new run folder. `weights`: last, best, ema or average:N; None: the config's.

    Example: `trim("runs/nllb", "runs/small", text=["a.en", "a.de"])`.

    Raises: ValueError for a run whose tokenizer has no table of subwords, a text that needs every token, or an output that exists.
    """
    folder = RunFolder(output)
    require_absent(folder.path)
    loaded = load(run, weights=weights, mesh=MeshConfig())
    config, size, tokenizers = loaded.config, loaded.config.model.vocab_size, loaded.tokenizers
    if tokenizers is None:
        raise ValueError(f"{run} has no tokenizer: only a run that reads texts can be cut to texts")
    check_one_table(config, "tokens are left out of")
    stay = {*keep_ids, *named_ids(config), *config.objective.sentinel_ids}
    if isinstance(tokenizers, LanguageTokenizers):
        if tokenizers.own:
            raise ValueError(
                f"{run} has a tokenizer of its own for {', '.join(tokenizers.own)}: cut the run before that"
            )
        stay.update(*map(tokenizers.token_ids, tokenizers.languages.codes))
        tokenizers = tokenizers.base
    check_token_ids(keep_ids, size, "keep_ids has")
    base = to_trim(tokenizers.source)
    with Progress() as progress:
        progress.update("reading the text")
        needed = needed_by(base, lines_of_files(text))
    stay |= own_ids(config.objective, loaded.translator.form, base) | basic_ids(base, needed.scripts)
    kept = with_parts(base, needed.ids | stay)
    if len(kept) == size:
        raise ValueError(f"the text needs all {size:,} ids of {run}: there is nothing to leave out; give less text")
    smaller = with_kept_ids(config, kept)
    tokenizer = base.with_ids(kept)
    data = replace(config.data, tokenizer=FromRun(path=str(folder.path.absolute())))
    params = cut_tables(loaded.params, parameter_shapes(smaller.model), kept)
    origin = with_new_ids(loaded.folder.imported, {i: number for number, i in enumerate(kept)}, size)
    with atomic_write(folder.path) as unfinished:
        write_run(
            RunFolder(unfinished),
            replace(smaller, data=data, weights="last"),
            loaded.step,
            params,
            f"{run} with {len(kept)} of {size} ids",
            tokenizers=Tokenizers(tokenizer, tokenizer),
            imported={"trimmed_from": size} | origin,
            add_files=lambda place: copy_beside(loaded.folder, RunFolder(place)),
        )
    before, after = (sum(x.size for x in jax.tree.leaves(tree)) for tree in (loaded.params, params))
    note(f"{len(kept):,} of {size:,} ids and {after:,} of {before:,} parameters are in {folder.path}")
    short = needed.number_short(stay)
    held_out = needed.held_out
    note(
        f"of {held_out:,} lines held out {short:,} need a token that no other line needs: expect this share of new lines"
    )
    lines = list(itertools.islice(filter(str.strip, lines_of_files(text)), CHECKED))
    other = lines_cut_otherwise(tokenizers.source, tokenizer, lines, kept)
    if other:
        note(f"{other:,} of the first {len(lines):,} lines are cut otherwise than before: their answers may be others")
    return folder.path


def own_ids(objective: AnsweredTexts, form: Form, base: JsonTokenizer) -> set[int]:
    """Returns the ids of what a run itself adds to a text: prompts, and the words of its templates around a question or pair."""
    prompts = [text for _, text in getattr(objective, "prompts", ())]
    rows = base.encode_batch([*prompts, pair_text(objective.pair_template, "a", "a")])
    if isinstance(form, Asking):
        with contextlib.suppress(ValueError):  # a template that refuses a single question
            rows += form.prompts([Conversation(form.messages("a"))])
    return set(itertools.chain.from_iterable(rows))


def named_ids(config: Config) -> set[int]:
    """Returns the ids that settings name and that must stay."""
    ids = set[int]()
    for group, fields in IDS.items():
        for field in fields:
            value = getattr(getattr(config, group), field, None)
            if value is not None:
                ids.update(value if isinstance(value, tuple) else [value])
    return ids


def with_kept_ids(config: Config, kept: Sequence[int]) -> Config:
    """Returns the config of a model whose ids are the numbers of those that are kept."""
    new = {i: number for number, i in enumerate(kept)}
    limit = config.decode.num_ids
    changes: dict[str, dict[str, Any]] = {group: {} for group in IDS}
    for group, fields in IDS.items():
        for field in fields:
            value = getattr(getattr(config, group), field, None)
            if value is not None:
                changes[group][field] = tuple(new[i] for i in value) if isinstance(value, tuple) else new[value]
    changes["decode"]["suppress_ids"] = tuple(new[i] for i in config.decode.suppress_ids if i in new)
    changes["decode"]["num_ids"] = None if limit is None else sum(i < limit for i in kept)
    changes["model"]["vocab_size"] = len(kept)
    groups = {group: replace(getattr(config, group), **fields) for group, fields in changes.items()}
    return replace(config, **groups)


def cut_tables(params: PyTree, shapes: PyTree, kept: Sequence[int]) -> PyTree:
    """Returns parameters in these shapes, in which each axis of ids has only the kept ids."""

    def fewer(array: object, shape: jax.ShapeDtypeStruct) -> np.ndarray:
        x = np.asarray(array)
        for axis in (axis for axis, size in enumerate(shape.shape) if size != x.shape[axis]):
            x = x.take(np.array(kept), axis)
        return x

    return jax.tree.map(fewer, params, shapes)


def with_new_ids(options: Mapping[str, object], new: Mapping[int, int], size: int) -> dict[str, object]:
    """Returns the options of the folder that a run was imported from, with new token ids and in place of `size` their number."""

    def changed(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return with_new_ids(value, new, size)
        if name.endswith("_token_id"):
            return [new[i] for i in value if i in new] if isinstance(value, list) else new.get(value)
        return len(new) if name == "vocab_size" and value == size else value

    return {name: changed(name, value) for name, value in options.items()}


def copy_beside(old: RunFolder, folder: RunFolder) -> None:
    """Copies the files of a run that name no ids: chat templates, the steps of text vectors, the teachers."""
    theirs, ours = old.path / "huggingface", folder.path / "huggingface"
    copy_files(old.path, folder.path, CHAT_TEMPLATES)
    copy_files(theirs, ours, SENTENCE_FILES)
    for name, template in template_sources(theirs, read_object(theirs / "tokenizer_config.json")).items():
        file = ours / (CHAT_TEMPLATE if name == DEFAULT_TEMPLATE else f"additional_chat_templates/{name}.jinja")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(template, encoding="utf-8")
    folder.add_teachers(old.teachers)
