"""The manifest of a checkpoint: what it is, and whether its files and those of the run are as they were when it was written.

    checkpoints/40/meta/meta.json        meta, metrics, `interim` if it is not regular, types of all leaves, and the seal of the run
    checkpoints/40/state/digests.json    SHA-256 of each file in `state/`

Both files hold their own digest (`base/sealed_files.py`).

The *seal* has the settings and the SHA-256 of the tokenizer files that the checkpoint was trained with; of an imported run also
of the copied files of the other system, which `export` and chat templates use. A flipped bit in `config.json` or in a tokenizer,
or an edit by hand, would otherwise load as another model, which answers wrongly. Checkpoints of older releases have no seal;
nothing is compared with them.
"""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict
from jaxtyping import PyTree

from flaxformer_lite.base.console import warn
from flaxformer_lite.base.sealed_files import DamageError, file_digest, read_sealed, sealed
from flaxformer_lite.config import Config, from_json, to_json
from flaxformer_lite.config.differences import describe_differences, differences
from flaxformer_lite.config.settings import has_mark
from flaxformer_lite.core.base.annotations import Answers
from flaxformer_lite.core.base.tree_paths import leaves_by_path

META = "meta.json"
DIGESTS = "digests.json"

TOKENIZER_FILES = ("tokenizer.*", "target_tokenizer.*")
SEALED_FILES = (*TOKENIZER_FILES, "imported.json", "huggingface/**/*")


def step_of(name: str) -> int | None:
    """Returns the step of the checkpoint that a file belongs to; None if it belongs to none."""
    match = re.match(r"checkpoints/(\d+)/", name)
    return None if match is None else int(match[1])


def steps_in(checkpoints: Path) -> list[int]:
    """Returns the steps of the complete checkpoints in a folder, ascending; none if there is no folder."""
    return sorted(int(step.name) for step in checkpoints.glob("*") if step.name.isdecimal())


def read_document(path: Path) -> dict[str, Any]:
    """Returns the content of a sealed JSON file. Raises: DamageError if it is missing or not as it was written."""
    try:
        return read_sealed(path)
    except OSError as error:
        raise DamageError(f"{path.name}: {error.strerror}") from None


def read_manifest(checkpoints: Path, step: int) -> dict[str, Any]:
    """Returns the content of `meta.json` of a checkpoint, in the folder of all checkpoints. Raises: DamageError."""
    return read_document(checkpoints / str(step) / "meta" / META)


def manifests(checkpoints: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the steps and manifests that can be read, the newest first; a training may delete older ones meanwhile."""
    for step in steps_in(checkpoints)[::-1]:
        with contextlib.suppress(DamageError):
            yield step, read_manifest(checkpoints, step)


def why_damaged(checkpoints: Path, step: int, part: tuple[int, int] | None = (0, 1)) -> str | None:
    """Returns why a checkpoint is damaged, in a few words; None if all its files are as they were written.

    part: i of n: of every n files of the state compares the i-th, counted from 0, for n hosts that share the folder. None: only the
        manifest is read.
    """
    try:
        read_manifest(checkpoints, step)
        if part is not None:
            check_digests(checkpoints / str(step) / "state", part)
    except DamageError as damage:
        return str(damage)
    return None


def write_own_digests(folder: Path, subfolder: str) -> None:
    """Writes the SHA-256 of all files in a subfolder, which one process has written, to a list for `write_digests`."""
    digests = file_digests(folder, files_in(folder, folder / subfolder))
    (folder / f"{DIGESTS}.{subfolder}").write_text(json.dumps(sealed(digests)), encoding="utf-8")


def write_digests(folder: Path) -> None:
    """Writes the SHA-256 of every file in a folder and below to `digests.json`, and deletes the lists of `write_own_digests`.

    Reads no file that is in such a list.
    """
    known = dict[str, str]()
    for file in folder.glob(f"{DIGESTS}.*"):
        with contextlib.suppress(DamageError):
            known |= read_document(file)
        file.unlink()
    digests = known | file_digests(folder, files_in(folder, folder) - known.keys())
    (folder / DIGESTS).write_text(json.dumps(sealed(digests)), encoding="utf-8")


def files_in(folder: Path, subfolder: Path) -> set[str]:
    """Returns the paths, in `folder`, of all files in its subfolder and below."""
    return {path.relative_to(folder).as_posix() for path in subfolder.rglob("*") if path.is_file()}


def check_digests(folder: Path, part: tuple[int, int] = (0, 1)) -> None:
    """Compares the files, or i of n parts of them, with what `write_digests` wrote. Raises: DamageError if one has changed."""
    digests = read_document(folder / DIGESTS)
    expected = {name: digests[name] for name in sorted(digests)[part[0] :: part[1]]}
    try:
        actual = file_digests(folder, expected)
    except OSError as error:
        raise DamageError(f"{Path(error.filename or folder).name}: {error.strerror}") from None
    for name in expected:
        if actual[name] != expected[name]:
            raise DamageError(f"{name} is not as it was written")


def file_digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Returns the SHA-256 of files, by their paths in the folder."""

    listed = list(names)
    with ThreadPoolExecutor() as pool:  # hashlib lets other threads run meanwhile
        return dict(zip(listed, pool.map(lambda name: file_digest(folder / name), listed), strict=True))


def leaf_types(tree: PyTree) -> dict[str, str]:
    """Returns the type of every leaf by its path: {"params/out/kernel": "float32[3,5]", ...}."""
    return {
        path: f"{np.dtype(leaf.dtype).name}[{','.join(map(str, leaf.shape))}]"
        for path, leaf in leaves_by_path(tree).items()
    }


def listed_params(manifest: dict[str, Any], config: Config) -> PyTree | None:
    """Returns shapes and types of the saved parameters as a manifest lists them; None unless its seal has this very model.

    None too where it lists a part of them, as of a LoRA run, or was written before there were seals.
    """
    model = ((manifest.get("seal") or {}).get("config") or {}).get("model")
    if "base" in manifest or model != json.loads(to_json(config))["model"]:
        return None
    return unflatten_dict(
        {path: leaf_of(text) for path, text in manifest["leaves"].items() if path.startswith("params/")}, sep="/"
    ).get("params")


def leaf_of(text: str) -> jax.ShapeDtypeStruct:
    """Returns the shape and type that `leaf_types` wrote as this text."""
    name, sizes = text.removesuffix("]").split("[")
    return jax.ShapeDtypeStruct(tuple(int(size) for size in sizes.split(",") if size), jnp.dtype(name))


def difference(stored: dict[str, str], wanted: dict[str, str]) -> str:
    """Returns, in one line, how two trees of `leaf_types` differ, with at most three leaves."""
    lines = [
        f"{path} is {stored.get(path, 'absent')}, wanted {wanted.get(path, 'absent')}"
        for path in sorted(stored.keys() | wanted.keys())
        if stored.get(path) != wanted.get(path)
    ]
    return ", ".join(lines[:3]) + (f" and {len(lines) - 3} more" if len(lines) > 3 else "")


def seal(folder: Path, config: Config) -> dict[str, Any]:
    return {"config": json.loads(to_json(config)), "tokenizers": sealed_digests(folder)}


def sealed_digests(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of every sealed file of a run, by its path in the folder."""
    files = sorted(file for pattern in SEALED_FILES for file in folder.glob(pattern) if file.is_file())
    return file_digests(folder, [file.relative_to(folder).as_posix() for file in files])


def newest_seal(checkpoints: Path) -> tuple[int, Config, dict[str, str]] | None:
    """Returns the newest checkpoint with a readable seal, and its config and digests; None if there is none."""
    for step, manifest in manifests(checkpoints):
        if (seal := manifest.get("seal")) is not None:
            return step, from_json(json.dumps(seal["config"]), f"checkpoint {step}"), seal["tokenizers"]
    return None


def sealed_config(checkpoints: Path) -> Config | None:
    """Returns the config that the newest checkpoint was trained with, and its facts of the data; None without such a checkpoint."""
    seal = newest_seal(checkpoints)
    return None if seal is None else seal[1]


def check_seal(folder: Path, config: Config, *, resumed: bool, with_changes: bool = False) -> None:
    """Compares the config and the sealed files of a run with the newest seal.

    Args:
        resumed: whether training continues, which needs all settings as they were; else those are compared that decide answers.
        with_changes: whether training continues with other settings, those that may change if that is asked for.

    Raises: ValueError that names the file or the settings that differ.
    """
    seal = newest_seal(folder / "checkpoints")
    if seal is None:
        return
    step, before, digests = seal
    different = differences(before.concrete, config.concrete, on_request=with_changes)
    if not resumed:
        different = {path: pair for path, pair in different.items() if not has_mark(path, Answers.SAME)}
        if chosen := {path: different.pop(path) for path in list(different) if has_mark(path, Answers.CHOSEN)}:
            warn(f"{folder / 'config.json'} was edited after the training: {describe_differences(chosen)}")
    if different:
        raise ValueError(
            f"{folder / 'config.json'} differs from the settings that checkpoint {step} was trained with: "
            f"{describe_differences(different)}. Restore them"
        )
    here = sealed_digests(folder)
    for name, digest in digests.items():
        if here.get(name) != digest:
            what = "is not the file that" if name in here else "is missing, but"
            raise ValueError(
                f"{folder / name} {what} checkpoint {step} was trained with: restore it from a copy of the run"
            )
