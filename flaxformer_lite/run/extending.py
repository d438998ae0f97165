"""One more language for a run that translates between several: `extend`."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import jax
import numpy as np
from jaxtyping import PyTree

from flaxformer_lite.base.atomic_files import atomic_write, require_absent
from flaxformer_lite.base.console import note
from flaxformer_lite.config import Config
from flaxformer_lite.core.model.transformer import parameter_shapes
from flaxformer_lite.core.parallel import MeshConfig
from flaxformer_lite.core.text import LanguageTokenizers, Tokenizer, Tokenizers
from flaxformer_lite.files.data import DataConfig
from flaxformer_lite.files.data.store import PairStream
from flaxformer_lite.files.text.files import line_chunks, matching_files
from flaxformer_lite.files.text.tables import require_lines
from flaxformer_lite.files.tokenizers import FromRun, save_tokenizer
from flaxformer_lite.files.tokenizers.extension import cut_otherwise, extended_tokenizer
from flaxformer_lite.files.tokenizers.subwords import sample_lines
from flaxformer_lite.run.run import load
from flaxformer_lite.run.write import write_run
from flaxformer_lite.workdir import RunFolder

OLD_CHARACTERS = 20_000_000
"""Most characters of old text that are read: a random sample of its lines if it has more."""


def extend(
    run: str | Path,
    output: str | Path,
    *,
    language: str,
    like: str,
    pieces: int,
    text: str | Sequence[str],
    old: str | Sequence[str] | None = None,
    tokenizer: Literal["shared", "own"] = "shared",
    weights: str | None = None,
) -> Path:
    """Writes a new run folder with one more language.

    The embedding of the language's token is that of the language `like`. Up to `pieces` new pieces are learned from the lines of
    the files `text`: each joins pieces that the run puts side by side there. Its embedding is the mean of theirs.

    tokenizer: "shared": one for all languages, whose new pieces join no neighbours of the old text. The share of old lines that it
    cuts otherwise is measured on every tenth of them. "own": one only for the new language; the others are translated as before,
    bit for bit, but such a run is not exported. old: files of text in the run's languages; None: the run's training data.

    Returns the new run folder. `weights`: last, best, ema or average:N; None: the config's.

    Example: `extend("runs/nllb", "runs/new", language="xyz_Latn", like="deu_Latn", pieces=2000, text="text.xyz")`.

    Raises: ValueError if the run has no languages, or this one already; for an unknown language `like`, no pieces, a text without
        words, or an output that exists.
    """
    folder = RunFolder(output)
    require_absent(folder.path)
    if tokenizer not in ("shared", "own"):
        raise ValueError(f"tokenizer is {tokenizer!r}: it must be 'shared' or 'own'")
    if tokenizer == "own" and old is not None:
        raise ValueError("old is set with tokenizer 'own', which reads no old text: leave it out")
    loaded = load(run, weights=weights, mesh=MeshConfig())
    config, tokenizers = loaded.config, loaded.tokenizers
    if not isinstance(tokenizers, LanguageTokenizers) or config.data.languages is None:
        raise ValueError(
            f"{run} translates in one direction (data.languages is None): train a run of several languages"
        )
    languages, model = config.data.languages, config.model
    if language in languages.codes:
        raise ValueError(
            f"language is {language!r}, which the run has already: choose a code that is not one of its languages"
        )
    if not re.fullmatch(r"\w[\w-]*", language):
        raise ValueError(f"language is {language!r}: it must be a code of letters, digits, _ and -, such as xyz_Latn")
    languages.check_code("like", like)
    check_one_table(config, "a language is added to")
    if tokenizer == "shared" and tokenizers.own:
        raise ValueError(
            f"{run} has a tokenizer of its own for {', '.join(tokenizers.own)}: give the next one its own too"
        )
    base = [tokenizers.base.source, *tokenizers.own.values()][-1]
    token = languages.token.replace("{}", language)
    like_id = tokenizers.token_id(like)
    old_lines = old_text(config.data, old) if tokenizer == "shared" else []
    chosen = [line for number, line in enumerate(old_lines) if number % 10]
    extension = extended_tokenizer(base, lines_of_files(text), pieces, token, model.vocab_size, chosen)
    larger = replace(model, vocab_size=model.vocab_size + 1 + len(extension.parts))
    params = grown(loaded.params, parameter_shapes(larger), [[like_id], *extension.parts])
    data = replace(
        config.data,
        languages=replace(languages, codes=(*languages.codes, language)),
        tokenizer=FromRun(path=str(folder.path.absolute())),
    )
    changed = replace(config, model=larger, data=data, weights="last")
    separate = {**tokenizers.own, language: extension.tokenizer} if tokenizer == "own" else {}
    shared = Tokenizers(extension.tokenizer, extension.tokenizer)
    origin = loaded.folder.imported
    origin |= {"added_languages": [*origin.get("added_languages", ()), language]}

    def add_files(place: Path) -> None:
        for code, added in separate.items():
            save_tokenizer(added, place, f"tokenizer.{code}")
        RunFolder(place).add_teachers(loaded.folder.teachers)

    with atomic_write(folder.path) as unfinished:
        write_run(
            RunFolder(unfinished),
            changed,
            loaded.step,
            params,
            f"{run} with {language}",
            tokenizers=tokenizers.base if separate else shared,
            imported=origin,
            add_files=add_files,
        )
    note(f"{language}: {len(extension.parts):,} new pieces; {larger.vocab_size:,} ids are in {folder.path}")
    if tokenizer == "shared":
        note(cut_otherwise_in_words(base, extension.tokenizer, old_lines[::10]))
    return folder.path


def check_one_table(config: Config, action: str) -> None:
    """Raises: ValueError for a run with two vocabularies or with adapters. `action`: what is done to a run with one vocabulary."""
    for name, value in (("data.target_tokenizer", config.data.target_tokenizer), ("model.lora", config.model.lora)):
        if value is not None:
            raise ValueError(f"{name} is set: {action} a run with one vocabulary and without adapters")


def lines_of_files(files: str | Sequence[str]) -> Iterator[str]:
    """Yields the lines of the files that match a pattern or several. Raises: ValueError for none, or another kind of file."""
    patterns = [files] if isinstance(files, str) else files
    for pattern in patterns:
        require_lines(pattern)
    files_of_patterns = itertools.chain.from_iterable(map(matching_files, patterns))
    chunks = itertools.chain.from_iterable(map(line_chunks, files_of_patterns))
    return itertools.chain.from_iterable(chunks)


def old_text(data: DataConfig, files: str | Sequence[str] | None) -> list[str]:
    """Returns a sample of lines in the run's languages, each once: of the files, or else of its data; [] where that is not here."""
    train = data.source("train")
    if files is not None:
        lines = lines_of_files(files)
    elif train is None:
        return []
    else:
        lines = itertools.chain.from_iterable(pair[:2] for pair in PairStream(train, "data.train"))
    try:
        return list(dict.fromkeys(line for line in sample_lines(lines, OLD_CHARACTERS) if line.strip()))
    except (ValueError, OSError):
        if files is not None:
            raise
        return []


def cut_otherwise_in_words(before: Tokenizer, after: Tokenizer, held_out: Sequence[str]) -> str:
    """Returns a line for people: the share of old lines that are cut otherwise, and the pieces that cut them."""
    if not held_out:
        return "no old text is here, so the share of old lines that are cut otherwise was not measured: name files by --old"
    number, pieces = cut_otherwise(before, after, held_out)
    by = f", by {', '.join(pieces[:5])}" if pieces else ""
    return f"{number:,} of {len(held_out):,} held-out lines of old text ({number / len(held_out):.2%}) are cut otherwise{by}"


def grown(params: PyTree, shapes: PyTree, relatives: Sequence[Sequence[int]]) -> PyTree:
    """Returns parameters in these shapes. Rows of new ids follow the old ones: each the mean of those of its relatives."""

    def more(array: object, shape: jax.ShapeDtypeStruct) -> np.ndarray:
        x = np.asarray(array)
        for axis in (axis for axis, size in enumerate(shape.shape) if size != x.shape[axis]):
            rows = np.stack([x.take(ids, axis).mean(axis, dtype=np.float64) for ids in relatives], axis)
            x = np.concatenate([x, rows.astype(x.dtype)], axis)
        return x

    return jax.tree.map(more, params, shapes)
