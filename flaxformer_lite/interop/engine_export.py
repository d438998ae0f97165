"""The process that makes an export for the engine: its one word is `[WANTED, STATE, FOLDER]` as JSON.

`engine/exports.py` starts it, and reads its exit status and what it writes to stderr.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from flaxformer_lite.base.atomic_files import atomic_write
from flaxformer_lite.base.console import write_line
from flaxformer_lite.base.sealed_files import file_digest, write_sealed
from flaxformer_lite.config import Config
from flaxformer_lite.config.outside import import_named
from flaxformer_lite.config.serialize import as_tree
from flaxformer_lite.core.model.lora import merged
from flaxformer_lite.core.parallel import MeshConfig
from flaxformer_lite.engine.exports import (
    CANNOT,
    CHANGED,
    FACTS,
    MISTAKE,
    RunWeights,
    signed,
    state_of,
)
from flaxformer_lite.engine.search import Sizes
from flaxformer_lite.files.tokenizers.kinds import copy_files
from flaxformer_lite.interop import check, ctranslate2
from flaxformer_lite.interop.differences import CannotExpress
from flaxformer_lite.run import Run, load
from flaxformer_lite.run.searches import prompt_of
from flaxformer_lite.tasks.engine_model import HEADS_FILE
from flaxformer_lite.workdir.manifest import TOKENIZER_FILES, steps_in


class Changed(Exception):
    """The run has changed while it was exported: what was written goes."""


def main(words: list[str]) -> int:
    """Makes the export of the words. Returns an exit status: 0, CHANGED, or another one after a line that tells why."""
    fields, state, output = json.loads(words[0])
    wanted = RunWeights(*fields)
    loaded = None
    try:
        for name in wanted.imports:
            import_named(name)
        loaded = load(wanted.run, weights=wanted.weights, step=wanted.step, mesh=MeshConfig())
        check_whole(loaded, wanted.weights or loaded.config.weights)
        with atomic_write(Path(output)) as unfinished:
            export_for_engine(loaded, unfinished)
            if state_of(wanted.run) != state:
                raise Changed
    except Changed:
        return CHANGED
    except OSError as error:
        write_line(f"error: {error.strerror}: {output}: free the disk, or delete other exports there")
        return 2
    except ValueError as error:
        write_line(f"error: {error}")
        if isinstance(error, CannotExpress):
            return CANNOT
        return MISTAKE if loaded is None else 2
    return 0


def check_whole(loaded: Run, weights: str) -> None:
    """Raises: ValueError if a checkpoint is damaged that might be used instead once it is mended: the export would outlive it."""
    for step in steps_in(loaded.folder.checkpoints):
        may_be_used = step > loaded.step or weights == "best" or weights.startswith("average:")
        reason = loaded.folder.why_damaged(step) if may_be_used else None
        if reason:
            raise ValueError(f"checkpoint {step} of {loaded.folder.name} is damaged ({reason}): delete or restore it")


def check_read_alike(config: Config) -> None:
    """Raises: CannotExpress for a decoder whose prompts CTranslate2 reads otherwise, and for a pooler that NumPy does not have."""
    model, attention = config.model, config.objective.prompt_attention
    if not model.num_decoder_layers and model.pooler is not None and model.pooler.norm:
        raise CannotExpress("model.pooler.norm is True", {"model.pooler.norm": True}, "CTranslate2")
    if model.num_encoder_layers:
        return
    wrong: dict[str, Any] = {}
    if model.sliding_window is not None:
        wrong["model.sliding_window"] = model.sliding_window.size
    if attention != "causal":
        wrong["objective.prompt_attention"] = attention
    if wrong:
        told = " and ".join(f"{name} is {value}" for name, value in wrong.items())
        raise CannotExpress(f"{told}, and CTranslate2 reads long prompts otherwise", wrong, "CTranslate2")


def export_for_engine(loaded: Run, output: Path) -> None:
    """Writes a run as a new folder for the engine. Raises: ValueError if CTranslate2 cannot have it, or answers otherwise."""
    config, params = loaded.config, loaded.params
    lora = config.model.lora
    if lora is not None:
        model = replace(config.model, lora=None)
        config, params = replace(config, model=model), merged(params, lora)
    check_read_alike(config)
    # Each call names where an answer starts and ends. A source with only these two would have an empty answer.
    pad = config.decode.pad_id
    changes = {"decoder_start_token": None, "bos_token": str(pad), "eos_token": str(pad)}
    ctranslate2.export_run(config, params, None, output, changes=changes)
    check.check_ctranslate2(output, config, params, None, end=pad)
    copy_files(loaded.folder.path, output, TOKENIZER_FILES)
    model = config.model
    data = config.data
    positions = ctranslate2.num_positions(config)
    facts = {
        "origin": loaded.origin[0],
        "decode": as_tree(config.decode),
        "sizes": Sizes(*model.vocab_sizes, model.positions.max_positions, positions, data.max_source_length),
        "has_tokenizer": data.tokenizer is not None,
        "has_target_tokenizer": data.target_tokenizer is not None,
        "languages": None if data.languages is None else as_tree(data.languages),
    }
    if not model.num_encoder_layers:
        facts["asking"] = data.max_target_length, vars(prompt_of(config))
    if not model.num_decoder_layers:
        heads = {name: params[name] for name in ctranslate2.HEAD_PARAMETERS if name in params and name != "head"}
        arrays: dict[str, Any] = {name: np.asarray(x, np.float32) for name, x in flatten_dict(heads, sep="/").items()}
        np.savez(output / HEADS_FILE, **arrays)
        facts |= {"config": as_tree(config), "texts_of_rows": sorted(data.texts_of_rows)}
    files = {file.name: file_digest(file) for file in output.iterdir()}
    write_sealed(output / FACTS, signed({**facts, "files": files}))
