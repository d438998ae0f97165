"""The seal of a run: every checkpoint holds the settings and the SHA-256 of the tokenizer files that it was trained with.

Of an imported run these files include the copies of the other system's, from which `export` and chat templates are made.

A flipped bit in `config.json` or in a tokenizer, or an edit by hand, would otherwise load as another model, which answers wrongly.
Checkpoints of older releases have no seal; nothing is compared with them.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from flaxformer_lite.base.console import warn
from flaxformer_lite.base.sealed_files import DamageError
from flaxformer_lite.config.differences import describe_differences, differences
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.config.serialize import from_json, to_json
from flaxformer_lite.workdir.digests import read_document, steps_in

TOKENIZER_FILES = ("tokenizer.*", "target_tokenizer.*")
ORIGIN = "imported.json"
SEALED_FILES = (*TOKENIZER_FILES, ORIGIN, "huggingface/**/*")

TRAINING_ONLY = (
    *(
        "train.",
        "optimizer.",
        "data.train",
        "data.eval",
        "data.held_out",
        "data.tokens_per_batch",
        "data.rows_multiple",
    ),
    *("model.dropout.", "model.initializer.", "model.scan_unroll", "model.remat", "model.attention.implementation"),
)
"""Settings that decide no answer of a trained model."""

CHOICES = ("decode.", "model.dtype")
"""Settings that a user may edit in the `config.json` of a trained run: an edit is reported and holds."""


def seal(folder: Path, config: Config) -> dict[str, Any]:
    """Returns the seal of the run in `folder`, as JSON."""
    return {"config": json.loads(to_json(config)), "tokenizers": sealed_digests(folder)}


def sealed_digests(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of every sealed file of a run, by its path in the folder."""
    files = sorted(file for pattern in SEALED_FILES for file in folder.glob(pattern) if file.is_file())
    return {file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def newest_seal(checkpoints: Path) -> tuple[int, dict[str, Any]] | None:
    """Returns the newest checkpoint with a readable seal, and the seal; None if there is none."""
    for step in steps_in(checkpoints)[::-1]:
        try:
            found = read_document(checkpoints, step).get("seal")
        except DamageError:
            continue
        if found is not None:
            return step, found
    return None


def sealed_config(checkpoints: Path) -> Config | None:
    """Returns the config that the newest checkpoint was trained with; None where no checkpoint has one."""
    found = newest_seal(checkpoints)
    return None if found is None else from_json(json.dumps(found[1]["config"]), f"checkpoint {found[0]}")


def check_seal(folder: Path, config: Config, *, resumed: bool, with_changes: bool = False) -> None:
    """Compares the config and the tokenizers of a run with the newest seal.

    Args:
        resumed: whether training continues, which needs all settings as they were; else those are compared that decide answers.
        with_changes: whether training continues with other settings, those that may change if that is asked for.

    Raises: ValueError that names the file or the settings that differ.
    """
    found = newest_seal(folder / "checkpoints")
    if found is None:
        return
    step, sealed = found
    before = from_json(json.dumps(sealed["config"]), f"checkpoint {step}")
    different = differences(before, config, on_request=with_changes)
    if not resumed:
        different = {path: pair for path, pair in different.items() if not path.startswith(TRAINING_ONLY)}
        if chosen := {path: different.pop(path) for path in list(different) if path.startswith(CHOICES)}:
            warn(f"{folder / 'config.json'} was edited after the training: {describe_differences(chosen)}")
    if different:
        raise ValueError(
            f"{folder / 'config.json'} differs from the settings that checkpoint {step} was trained with: "
            f"{describe_differences(different)}. Restore them"
        )
    check_files(folder, step, {name: digest for name, digest in sealed["tokenizers"].items() if name != ORIGIN})


def check_origin(folder: Path) -> None:
    """Compares `imported.json`, which only exports read, with the newest seal. Raises: ValueError if it differs."""
    if found := newest_seal(folder / "checkpoints"):
        step, sealed = found
        check_files(folder, step, {name: digest for name, digest in sealed["tokenizers"].items() if name == ORIGIN})


def check_files(folder: Path, step: int, digests: dict[str, str]) -> None:
    """Compares files of a run with the digests that checkpoint `step` has of them. Raises: ValueError if one differs."""
    here = sealed_digests(folder)
    for name, digest in digests.items():
        if here.get(name) != digest:
            what = "is not the file that" if name in here else "is missing, but"
            raise ValueError(
                f"{folder / name} {what} checkpoint {step} was trained with: restore it from a copy or a mirror of the run"
            )
