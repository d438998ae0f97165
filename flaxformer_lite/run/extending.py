"""One more language for a run that translates between several: `extend`."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from flaxformer_lite.base.atomic_files import atomic_write, require_absent
from flaxformer_lite.base.console import note
from flaxformer_lite.core.model.transformer import parameter_shapes
from flaxformer_lite.core.parallel import MeshConfig
from flaxformer_lite.core.text import LanguageTokenizers
from flaxformer_lite.files.text import FromRun, save_tokenizer
from flaxformer_lite.files.text.extension import extended
from flaxformer_lite.files.text.files import line_chunks, matching_files
from flaxformer_lite.files.text.tables import require_lines
from flaxformer_lite.run.run import load
from flaxformer_lite.run.write import write_run
from flaxformer_lite.workdir import RunFolder


def extend(
    run: str | Path, output: str | Path, *, language: str, like: str, pieces: int, text: str, weights: str | None = None
) -> Path:
    """Writes a new run folder with one more language; the other languages are translated as before, bit for bit.

    The embedding of the language's token is that of the language `like`. A vocabulary of `pieces` is learned from the lines of
    the files `text`; the run gets the pieces that it lacks. The embedding of a piece is the mean of those that it was split into
    before. Only the new language reads and writes them.

    Returns the new run folder. `weights`: last, best, ema or average:N; None: the config's.

    Example: `extend("runs/nllb", "runs/new", language="xyz_Latn", like="deu_Latn", pieces=2000, text="text.xyz")`.

    Raises: ValueError if the run has no languages, or this one already; for an unknown language `like`, too few or too many pieces,
        a text without words, or an output that exists.
    """
    folder = RunFolder(output)
    require_absent(folder.path)
    loaded = load(run, weights=weights, mesh=MeshConfig())
    config, tokenizers = loaded.config, loaded.tokenizers
    if not isinstance(tokenizers, LanguageTokenizers) or config.data.languages is None:
        raise ValueError(
            f"{run} translates in one direction (data.languages is None): train a run of several languages"
        )
    languages, model = config.data.languages, config.model
    if language in languages.codes:
        raise ValueError(
            f"language is {language!r}, which the run has already: choose a code that is none of its languages"
        )
    if not re.fullmatch(r"\w[\w-]*", language):
        raise ValueError(f"language is {language!r}: it must be a code of letters, digits, _ and -, such as xyz_Latn")
    languages.check_code("like", like)
    if model.target_vocab_size is not None or model.lora is not None:
        name = "model.lora" if model.target_vocab_size is None else "model.target_vocab_size"
        raise ValueError(f"{name} is set: a language is added to a run with one vocabulary and without adapters")
    base = [tokenizers.base.source, *tokenizers.own.values()][-1]
    token, like_id = languages.token.replace("{}", language), tokenizers.token_id(like)
    require_lines(text)
    lines = (line for file in matching_files(text) for chunk in line_chunks(file) for line in chunk)
    extension = extended(base, lines, pieces, token, model.vocab_size)
    larger = dataclasses.replace(model, vocab_size=model.vocab_size + 1 + len(extension.parts))
    params = grown(loaded.params, parameter_shapes(larger), [[like_id], *extension.parts])
    data = dataclasses.replace(
        config.data,
        languages=dataclasses.replace(languages, codes=(*languages.codes, language)),
        tokenizer=FromRun(path=str(folder.path.absolute())),
    )
    changed = dataclasses.replace(config, model=larger, data=data, weights="last")

    def save_own(place: Path) -> None:
        for code, added in {**tokenizers.own, language: extension.tokenizer}.items():
            save_tokenizer(added, place, f"tokenizer.{code}")

    with atomic_write(folder.path) as unfinished:
        write_run(
            RunFolder(unfinished),
            changed,
            loaded.step,
            params,
            f"{run} with {language}",
            tokenizers=tokenizers.base,
            add_files=save_own,
        )
    note(
        f"{language}: {len(extension.parts):,} of {pieces:,} pieces are new; {larger.vocab_size:,} ids are in {folder.path}"
    )
    return folder.path


def grown(params: PyTree, shapes: PyTree, relatives: Sequence[Sequence[int]]) -> PyTree:
    """Returns parameters in these shapes. Rows of new ids follow the old ones: each the mean of those of its relatives."""

    def more(array: Any, shape: jax.ShapeDtypeStruct) -> np.ndarray:
        x = np.asarray(array)
        for axis in (axis for axis, size in enumerate(shape.shape) if size != x.shape[axis]):
            rows = np.stack([x.take(ids, axis).mean(axis, dtype=np.float64) for ids in relatives], axis)
            x = np.concatenate([x, rows.astype(x.dtype)], axis)
        return x

    return jax.tree.map(more, params, shapes)
