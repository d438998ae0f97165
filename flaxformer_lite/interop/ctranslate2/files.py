"""The folder that CTranslate2 reads: `model.bin`, `config.json` and the vocabularies.

`model.bin` is little-endian: the version of the format, the name of the specification and its revision, then every array with its
name, and at last the aliases: further names of an array. A string is stored as its length, its bytes and a zero.
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from flaxformer_lite.interop.new_folder import new_folder

Variables = Mapping[str, np.ndarray]
"""Arrays by their names, parts joined by `/`; scalars are attributes. One array may have several names."""

FORMAT_VERSION = 6
TYPE_NUMBERS = {"float32": 0, "int8": 1, "int16": 2, "int32": 3}
MAX_BYTES = 2**32 - 1
"""The largest array: its size is written in 32 bits."""


class Specification(NamedTuple):
    """CTranslate2's name of a kind of model, and the revision of its names of variables."""

    name: str
    revision: int


def write_folder(
    output: Path,
    specification: Specification,
    variables: Variables,
    config: Mapping[str, Any],
    vocabularies: Mapping[str, Sequence[str]],
) -> None:
    """Writes a new folder, completely or not at all.

    Raises: ValueError where the folder exists or cannot be made.
    """
    documents = {f"{name}.json": document for name, document in {"config": config, **vocabularies}.items()}
    with new_folder(output, documents) as unfinished, open(unfinished / "model.bin", "wb") as file:
        write_model(file, specification, variables)


def write_model(file: BinaryIO, specification: Specification, variables: Variables) -> None:
    """Writes `model.bin`. Raises: ValueError for an array that is too large for it."""
    first: dict[int, str] = {}
    for name in sorted(variables):
        if variables[name].ndim:
            first.setdefault(id(variables[name]), name)
    own = [name for name in sorted(variables) if first.get(id(variables[name]), name) == name]
    file.write(struct.pack("<I", FORMAT_VERSION))
    write_string(file, specification.name)
    file.write(struct.pack("<II", specification.revision, len(own)))
    for name in own:
        write_array(file, name, variables[name])
    aliases = [name for name in sorted(variables) if name not in set(own)]
    file.write(struct.pack("<I", len(aliases)))
    for name in aliases:
        write_string(file, name)
        write_string(file, first[id(variables[name])])


def write_array(file: BinaryIO, name: str, array: np.ndarray) -> None:
    """Writes name, rank, sizes, type, size in bytes, and content."""
    if array.nbytes > MAX_BYTES:
        raise ValueError(
            f"{name} has {array.nbytes:,} bytes, and CTranslate2 stores at most {MAX_BYTES:,} in one array: "
            "make the vocabulary or the model smaller"
        )
    write_string(file, name)
    file.write(struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape))
    file.write(struct.pack("<BI", TYPE_NUMBERS[array.dtype.name], array.nbytes))
    file.write(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes())


def write_string(file: BinaryIO, text: str) -> None:
    encoded = text.encode()
    file.write(struct.pack("<H", len(encoded) + 1) + encoded + b"\0")


def vocabulary_files(source: Sequence[str], target: Sequence[str] | None) -> dict[str, list[str]]:
    """Returns the tokens by the names of their files; `target` is None for a model with one side."""
    if target is None:
        return {"vocabulary": list(source)}
    if source == target:
        return {"shared_vocabulary": list(source)}
    return {"source_vocabulary": list(source), "target_vocabulary": list(target)}
