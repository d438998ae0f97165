"""Ensembles: several runs that translate together."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from flaxformer_lite.inference.decoder import check_translates
from flaxformer_lite.run.run import Run, load
from flaxformer_lite.text import Tokenizers


def load_ensemble(paths: Sequence[str | Path], *, weights: str | None = None, weights_dtype: str = "float32") -> Run:
    """Returns the first run, which translates with the mean of the predicted probabilities of all runs.

    The models may differ in shape, but not in their tokenizers. Settings of decoding are the first run's. Sources are as long as
    all runs read. Everything but translation, such as `metrics`, is the first run's alone.

    Example: `load_ensemble(["runs/seed_0", "runs/seed_1"]).translate(["a man"])`.

    Raises: ValueError if a folder holds no run with these weights, or the runs do not fit together.
    """
    first, *others = (load(path, weights=weights, weights_dtype=weights_dtype) for path in paths)
    for other in others:
        check_translates(other.config.model)
        if vocabulary(first) != vocabulary(other):
            raise ValueError(
                f"{other.folder.path} has other tokenizers or another vocabulary than {first.folder.path}: train the runs of an "
                "ensemble with one tokenizer, by data.tokenizer=FromRun(path=…)"
            )
    return dataclasses.replace(first, others=tuple(others))


def vocabulary(run: Run) -> tuple[object, ...]:
    """Returns what the members of an ensemble have in common: tokenizers, sizes of the vocabularies, ids that start and end."""
    tokenizers: Tokenizers | None = run.tokenizers
    files = () if tokenizers is None else (tokenizers.source.to_bytes(), tokenizers.target.to_bytes())
    decode = run.config.decode
    return *files, run.config.model.vocab_sizes, decode.pad_id, decode.bos_id, decode.eos_ids
