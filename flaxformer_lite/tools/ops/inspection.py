"""The work of `inspect`: what a run is, and what is damaged in it."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from flaxformer_lite.base.console import Progress
from flaxformer_lite.base.remote_files import is_url
from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.files.data.store import check_store, check_tokenizers, store_folders, stores_of
from flaxformer_lite.interop.exporting import exports_in_words, fitting_systems, own_family
from flaxformer_lite.run.description import describe_run as describe_run
from flaxformer_lite.workdir import (
    RunFolder,
    abstract_saved_params,
    open_checkpoints,
    open_run,
    parameter_digest,
    restore_weights,
)
from flaxformer_lite.workdir.manifest import check_seal, steps_in


def describe(path: str, weights: str = "last", step: int | None = None) -> dict[str, Any]:
    """Returns all facts about a run, ready for JSON. weights, step: as for `load`."""
    folder = open_run(path)
    config = folder.config()
    shown: int | None = None
    begun = folder.checkpoints.is_dir()
    with open_checkpoints(config, folder, read_only=True) as checkpoints:
        if checkpoints.steps() or weights != "last" or step is not None or not begun:
            shown, params = restore_weights(checkpoints, config, weights, step)
        else:
            folder.check_nothing_lost()  # then the run has just begun
            params = abstract_saved_params(config)
        best = checkpoints.best()
        listed = [{"step": s, "metrics": checkpoints.metrics(s), "best": s == best} for s in checkpoints.steps()]
    parameters = [
        {"path": path, "shape": list(leaf.shape), "dtype": leaf.dtype.name, "count": math.prod(leaf.shape)}
        for path, leaf in leaves_by_path(params).items()
    ]
    model_type = own_family(folder.imported)
    return {
        "run": folder.name,
        "description": f"{describe_run(folder, config, params, shown)}\n  exports to: {exports_in_words(config, model_type)}",
        "exports": fitting_systems(config, model_type),
        "weights": weights,
        "step": shown,
        "parameters": parameters,
        "total": sum(p["count"] for p in parameters),
        "checkpoints": listed,
        "sha256": None if shown is None else parameter_digest(params),
    }


def verify(path: str) -> dict[str, str | None]:
    """Returns what is wrong with each part of a run or of a folder of tokens; None: the part is as it was written."""
    parts = {} if is_url(path) else examine_stores(Path(path))
    return parts or examine(open_run(path))


def complaint(read: Callable[[], object]) -> str | None:
    """Returns what is wrong with a part, by the function that reads it; None if it is as it was written."""
    try:
        read()
    except ValueError as error:
        return str(error)
    return None


def examine_stores(folder: Path) -> dict[str, str | None]:
    """Returns what is wrong with each store in a folder, or with the folder itself if it is a store; {} for another folder."""
    complaints = {str(store): complaint(partial(check_store, store)) for store in store_folders(folder)}
    kept = sorted(folder.glob("tokenizer-*"))
    return complaints | {str(one): complaint(partial(check_tokenizers, one)) for one in kept}


def examine(folder: RunFolder) -> dict[str, str | None]:
    """Returns for each part of a run what is wrong with it; None for a part that is as it was written."""
    config = folder.config()  # without it, nothing is known
    sealed = complaint(lambda: check_seal(folder.path, config, resumed=True))
    parts = {"config.json and tokenizers, by the newest checkpoint": sealed}
    if config.data.tokenizer is not None:
        parts["tokenizers"] = complaint(lambda: folder.load_tokenizers(config.data, config.model.vocab_sizes))
    steps = steps_in(folder.checkpoints)
    if not steps:
        parts["checkpoints"] = "there is none"
    with Progress(len(steps)) as progress:
        for done, step in enumerate(steps):
            progress.update(f"reading checkpoint {step}", done)
            parts[f"checkpoint {step}"] = folder.why_damaged(step)
    parts |= examine_stores(folder.path / ".tokens")
    source = config.data.source("train")
    if config.data.store is not None and source is not None:
        files = [file for _, file in source.parts("data.train")]
        for store in stores_of(Path(config.data.store), files):
            parts[str(store)] = complaint(partial(check_store, store))
    if folder.metrics.exists():
        lines = len(folder.metrics.read_bytes().split(b"\n")) - 1
        lost = lines - len(folder.rows()) + (lines == 0)
        parts["metrics.jsonl"] = f"{lost} of {lines} lines are no rows, or come twice" if lost else None
    return parts
