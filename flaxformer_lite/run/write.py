"""Writing a run folder for parameters that were not trained in it."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxtyping import PyTree

from flaxformer_lite.base.atomic_files import require_absent, write_json, write_whole
from flaxformer_lite.config import Config, to_json
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.files.tokenizers import save_tokenizers
from flaxformer_lite.training import LoopState
from flaxformer_lite.workdir import RunFolder, open_checkpoints


def write_run(
    output: RunFolder,
    config: Config,
    step: int,
    params: PyTree,
    origin: str,
    *,
    tokenizers: Tokenizers | None = None,
    imported: dict[str, Any] | None = None,
    add_files: Callable[[Path], object] = lambda folder: None,
) -> None:
    """Writes a new run folder with parameters that were not trained in it: imported ones, or an average.

    `origin` describes where the parameters come from. `imported` becomes imported.json. `add_files` writes further files into the
    folder, before they are sealed.

    Raises: ValueError if the folder exists already.
    """
    if output.bucket is None:
        require_absent(output.path)
    if tokenizers is not None:
        save_tokenizers(tokenizers, output.path, two=config.data.target_tokenizer is not None)
    if imported is not None:
        write_json(output.path / "imported.json", imported)
    add_files(output.path)
    with open_checkpoints(config, output, read_only=False) as checkpoints:
        checkpoints.save(step, {"params": params}, dataclasses.asdict(LoopState(data="", parameters_only=origin)))
    # Written last: a folder without config.json is no run.
    write_whole(output.path / "config.json", to_json(config))
