"""Digests: whether two trees of arrays are the same, and whether files are still as they were written."""

import hashlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import PyTree

from flaxformer_lite.base.sealed_files import DamageError, read_sealed, sealed
from flaxformer_lite.base.tree_paths import leaves_by_path

DIGESTS = "digests.json"
META = "meta.json"
"""The file in the folder `meta` of a checkpoint: meta, metrics, the seal of the run, and the path and type of every leaf."""


def steps_in(checkpoints: Path) -> list[int]:
    """Returns the steps of the complete checkpoints in a folder, ascending; none if there is no folder."""
    return sorted(int(step.name) for step in checkpoints.glob("*") if step.name.isdecimal())


def parameter_digest(params: PyTree) -> str:
    """Returns the SHA-256, as 64 hexadecimal digits, over all parameters.

    The hash runs over the leaves in the order of their paths (compared as strings). A path is the names from the root
    to the leaf joined by "/", as in "encoder/layers/attention/query/kernel". Each leaf contributes, in UTF-8, the line

        PATH SPACE DTYPE SPACE SIZES NEWLINE

    where DTYPE is the NumPy name ("float32", "bfloat16") and SIZES the shape in decimal joined by "," (nothing for a
    scalar), and then its elements in row-major order, each little-endian. A float32 matrix of 3 rows and 5 columns
    called "out/kernel" contributes the 23 bytes "out/kernel float32 3,5\\n" and 60 bytes of numbers.
    """
    leaves = {path: np.asarray(leaf) for path, leaf in leaves_by_path(params).items()}
    digest = hashlib.sha256()
    for path in sorted(leaves):
        array = leaves[path] if sys.byteorder == "little" else leaves[path].byteswap()
        digest.update(f"{path} {array.dtype.name} {','.join(map(str, array.shape))}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def leaf_types(tree: PyTree) -> dict[str, str]:
    """Returns the type of every leaf by its path: {"params/out/kernel": "float32[3,5]", ...}."""
    return {
        path: f"{np.dtype(leaf.dtype).name}[{','.join(map(str, leaf.shape))}]"
        for path, leaf in leaves_by_path(tree).items()
    }


def difference(stored: dict[str, str], wanted: dict[str, str]) -> str:
    """Returns, in one line, how two trees of `leaf_types` differ, with at most three leaves."""
    lines = [
        f"{path} is {stored.get(path, 'not in it')}, wanted {wanted.get(path, 'is none')}"
        for path in sorted(stored.keys() | wanted.keys())
        if stored.get(path) != wanted.get(path)
    ]
    return ", ".join(lines[:3]) + (f" and {len(lines) - 3} more" if len(lines) > 3 else "")


def unsealed(path: Path) -> dict[str, Any]:
    """Returns the content of a sealed JSON file. Raises DamageError if it is missing or not as it was written."""
    try:
        return read_sealed(path)
    except OSError as error:
        raise DamageError(f"{path.name}: {error.strerror}") from None


def read_document(folder: Path, step: int) -> dict[str, Any]:
    """Returns the content of the `META` of a checkpoint, in the folder of all checkpoints. Raises: DamageError."""
    return unsealed(folder / str(step) / "meta" / META)


def write_digests(folder: Path) -> None:
    """Writes the SHA-256 of every file in a folder and below to `digests.json`."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    (folder / DIGESTS).write_text(json.dumps(sealed(_file_digests(folder, names))), encoding="utf-8")


def check_digests(folder: Path) -> None:
    """Compares all files with what `write_digests` wrote. Raises: DamageError if one is missing or has changed."""
    expected = unsealed(folder / DIGESTS)
    try:
        found = _file_digests(folder, list(expected))
    except OSError as error:
        raise DamageError(f"{Path(error.filename or folder).name}: {error.strerror}") from None
    for name in expected:
        if found[name] != expected[name]:
            raise DamageError(f"{name} is not as it was written")


def _file_digests(folder: Path, names: list[str]) -> dict[str, str]:
    def digest(name: str) -> str:
        with (folder / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    with ThreadPoolExecutor() as pool:  # hashlib lets other threads run meanwhile
        return dict(zip(names, pool.map(digest, names), strict=True))
