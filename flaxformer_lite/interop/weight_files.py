"""Reads and writes files of other systems: weights as .npz, safetensors, PyTorch's or TensorFlow's files, and configs as JSON."""

import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from flaxformer_lite.base.atomic_files import atomic_write, require_absent
from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.files.text.files import most_unpacked
from flaxformer_lite.interop.tf_checkpoint import model_weights, read_checkpoint
from flaxformer_lite.interop.torch_files import read_torch


def read_weights(path: str) -> dict[str, np.ndarray]:
    """Returns every array by name; of an .npz with names that start with `param/`, only those, without this prefix.

    Raises: ValueError where the file is missing, damaged, or holds more than arrays.
    """
    if path.endswith((".safetensors", *PICKLES)):
        return read_file(Path(path))
    if not path.endswith(".npz"):
        return model_weights(read_checkpoint(path))
    arrays = read_archive(path)
    marked = {name.removeprefix("param/"): x for name, x in arrays.items() if name.startswith("param/")}
    return model_weights(marked or arrays)


PICKLES = (".bin", ".pt", ".pth")
"""The ends of the names of files that `torch.save` wrote."""
SAFETENSORS_TYPES = ("F64", "F32", "F16", "BF16", "C64", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")
"""The number types of safetensors that NumPy has."""


def read_file(path: Path) -> dict[str, np.ndarray]:
    """Returns the tensors of one file, safetensors or one of `torch.save`. Raises: ValueError where it is damaged.

    `save_model` of safetensors stores one of several tied tensors; the file's metadata names it for each of the others.
    """
    if path.suffix in PICKLES:
        return read_torch(path)
    try:
        with safe_open(path, "np") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dictionary
            tied = {name: tensors[kept] for name, kept in (file.metadata() or {}).items() if kept in tensors}
            return tied | tensors
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read as safetensors ({error}): copy it again") from None
    except (TypeError, AttributeError):
        with safe_open(path, "np") as file:
            types = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
        name, number = next((pair for pair in types.items() if pair[1] not in SAFETENSORS_TYPES), ("", "unknown"))
        raise ValueError(
            f"{path}: {cut(name)} has the number type {number}, in which quantized weights are stored: they are not read; save the "
            "model in bfloat16 or float32, or name the model that it was made of"
        ) from None


def read_archive(path: str) -> dict[str, np.ndarray]:
    """Returns the arrays of an .npz file, by name. Raises: ValueError where it is damaged, or unpacks to far more than its size."""
    try:
        most = most_unpacked(Path(path).stat().st_size)
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(file.file_size for file in archive.infolist())
        if unpacked > most:
            raise ValueError(
                f"it unpacks to {unpacked:,} bytes, and at most {most:,} are read: save it without compression"
            )
        with np.load(path, allow_pickle=False) as entries:
            arrays = {name: entries[name] for name in entries.files}
        strays = [name for name, x in arrays.items() if not isinstance(x, np.ndarray)]
        if strays:
            raise ValueError(f"{strays[0]} is not an array: save only arrays")  # NumPy gives its bytes
    except Exception as error:  # zipfile, zlib and NumPy raise whatever the damage leads to, a MemoryError among them
        reason = cut(str(error)) or type(error).__name__
        raise ValueError(f"cannot be read as an .npz file of plain arrays: {reason}") from None
    return arrays


def write_weights(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a new file, completely or not at all: safetensors if the name ends so, else .npz.

    Raises: ValueError where the file exists or cannot be made.
    """
    require_absent(Path(path), "file")
    with atomic_write(Path(path)) as unfinished, open(unfinished, "wb") as file:
        arrays = {name: np.ascontiguousarray(x) for name, x in arrays.items()}
        if path.endswith(".safetensors"):
            file.write(save(arrays, {"format": "pt"}))
        else:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # its own option is called allow_pickle


def read_json_object(path: str) -> dict[str, object]:
    """Returns the JSON object in a file. Raises: ValueError without a JSON object."""
    try:
        settings = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(settings, dict):
        raise ValueError(f"{path} holds a {type(settings).__name__}: it should be a JSON object of settings")
    return settings


@contextmanager
def new_folder(output: Path, documents: Mapping[str, object]) -> Iterator[Path]:
    """Yields the unfinished folder, with these documents in it by file name: texts, bytes or JSON; it gets its own name at the end.

    Raises: ValueError where the folder exists or cannot be made.
    """
    require_absent(output)
    with atomic_write(output) as unfinished:
        unfinished.mkdir()
        for name, document in documents.items():
            (unfinished / name).parent.mkdir(exist_ok=True)
            if not isinstance(document, str | bytes):
                document = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
            (unfinished / name).write_bytes(document if isinstance(document, bytes) else document.encode())
        yield unfinished
