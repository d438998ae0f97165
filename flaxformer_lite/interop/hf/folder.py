"""The files of a Hugging Face folder: JSON, weights in one file or several, and the files of the tokenizer."""

import json
import os
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.files.text.json_objects import read_any_json
from flaxformer_lite.files.tokenizers.kinds import HUB_FILES, SENTENCE_FILES, copy_files
from flaxformer_lite.interop.name_map import NumpyArrays, Tensors
from flaxformer_lite.interop.weight_files import PICKLES, new_folder, read_file

WEIGHTS, INDEX, SHARDS = "model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
PICKLED = {
    WEIGHTS: "pytorch_model.bin",
    INDEX: "pytorch_model.bin.index.json",
    SHARDS: "pytorch_model-*-of-*.bin",
    ADAPTER_WEIGHTS: "adapter_model.bin",
}
"""The names in older folders, whose weights `torch.save` wrote."""
TRAINING_STATE = ("training_args.bin", "optimizer*", "scheduler*", "rng_state*", "scaler*")
"""Patterns of files that a trainer leaves beside a model, and that hold no weights of it."""

COMPANIONS = (*HUB_FILES, *SENTENCE_FILES)
"""Patterns of the files of the tokenizer and of sentence embeddings: they accompany a model unchanged."""


def read_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file, empty without the file. Raises: ValueError where the file holds something else."""
    document = read_any_json(path)
    if not isinstance(document, dict):
        raise ValueError(f"{path} holds a {type(document).__name__}: it should be a JSON object")
    return document


def check_links(folder: Path) -> None:
    """Raises: ValueError where a file is a link to something outside of the folder, but for the blobs of the hub's cache.

    Its content would be copied into the run.
    """
    root = folder.resolve()
    roots = [root, root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [root]
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        target = Path(os.path.realpath(path))  # of a link to itself too, at which `resolve` fails
        if path.is_symlink() and not any(map(target.is_relative_to, roots)):
            raise ValueError(
                f"{path} is a link to {target}, outside of {root}: put a copy of the file there, or allow links by --follow-links"
            )


def read_config(folder: Path) -> dict[str, Any]:
    """Returns `config.json`. Raises: ValueError where it is missing."""
    if not (folder / "config.json").is_file():
        what = "does not exist"
        if folder.exists():
            what = "has no config.json" if folder.is_dir() else "is not a folder"
        deeper = sorted(folder.glob("*/config.json"))
        if deeper:
            first = deeper[0]
            raise ValueError(f"{folder} {what}, but {first.relative_to(folder)} exists: name the folder {first.parent}")
        files = list[str]()
        if folder.exists():
            files = names_of_files(folder) if folder.is_dir() else [folder.name]
        for file in files:
            if any(fnmatchcase(file, pattern) for pattern in UNREAD):
                raise ValueError(f"{folder} {what}, and {file} is not read: {instead_of(file)}")
        raise ValueError(
            f"{folder} {what}: name a Hugging Face folder, with config.json and {WEIGHTS}, or ORG/NAME on the hub"
        )
    config = read_json(folder / "config.json")
    if {"model", "objective"} <= config.keys():
        raise ValueError(f"{folder} is a run already, to use as it is: `flaxformer-lite inspect {folder}` shows it")
    return config


def read_tensors(folder: Path) -> Tensors:
    """Returns every tensor by name, as stored. Raises: ValueError where a file is missing, damaged or holds more than tensors."""
    file = stored(folder, WEIGHTS, INDEX)
    if file is None:
        raise ValueError(f"{folder} is not a model to read: it {weights_elsewhere(names_of_files(folder))}")
    return read_shards(file) if file.suffix == ".json" else read_file(file)


def either(*names: str) -> tuple[str, ...]:
    """Returns names of files, then the names that these files have in older folders."""
    return (*names, *(PICKLED[name] for name in names))


def stored(folder: Path, *names: str) -> Path | None:
    """Returns the first of these files that a folder has, also by its older name; None if it has no such file."""
    paths = [folder / name for name in either(*names)]
    return next((path for path in paths if path.is_file()), None)


def names_of_files(folder: Path) -> list[str]:
    """Returns the names of the files in a folder and in the folders in it."""
    paths = [*folder.glob("*"), *folder.glob("*/*")]
    return sorted(str(path.relative_to(folder)) for path in paths if path.is_file())


def weights_elsewhere(files: Iterable[str]) -> str:
    """Returns what a folder has in the place of its weights, by the names of its files, with the remedy."""
    files = [file for file in files if not any(fnmatchcase(Path(file).name, pattern) for pattern in TRAINING_STATE)]

    def first(*patterns: str) -> str:
        for pattern in patterns:
            for file in files:
                if fnmatchcase(file, pattern):
                    return file
        return ""

    for shards, index in zip(either(SHARDS), either(INDEX), strict=True):
        shard = first(shards)
        if shard:
            return f"has {shard} without {index}, which tells the tensors of each file: copy it there too"
    adapters = first(*either(ADAPTER_WEIGHTS))
    if adapters:
        return f"has {adapters} without adapter_config.json, which names the base: copy it there too"
    beside = [file for file in files if "/" not in file]
    file = next((file for file in beside if file.endswith((".safetensors", *PICKLES))), "")
    if file:
        name = WEIGHTS if file.endswith(".safetensors") else PICKLED[WEIGHTS]
        return f"has {file}, but no {name}: give it that name if it holds the model's tensors by their names in transformers"
    deeper = first(*(f"*/{name}" for name in either(WEIGHTS, INDEX)))
    if deeper:
        return f"has its weights in {deeper}: name the folder {Path(deeper).parent.name} in it"
    other = first(*UNREAD)
    if other:
        return f"has {other}, which is not read, and no {WEIGHTS}: {instead_of(other)}"
    return f"has neither {WEIGHTS} nor {INDEX}, nor {PICKLED[WEIGHTS]}: name a folder with the weights in it"


UNREAD = ("*.gguf", "*.onnx", "*.h5", "*.msgpack", "*.ot", "*.ckpt")
"""Patterns of files that hold weights, and that are not read here."""


def instead_of(file: str) -> str:
    """Returns what to do with a file of weights that is not read."""
    if not file.endswith(".gguf"):
        return "name the model that it was made of, or a copy of it in safetensors"
    call = f"from_pretrained(FOLDER, gguf_file={json.dumps(Path(file).name)}).save_pretrained(NEW)"
    return f"transformers reads it; save what it reads by AutoModelForCausalLM.{call} and AutoTokenizer.{call}"


def read_shards(index: Path) -> Tensors:
    """Returns the tensors of all files that the index names. Raises: ValueError where index and files do not agree."""
    file_of = read_json(index).get("weight_map")
    folder = index.parent
    if not isinstance(file_of, dict) or not all(isinstance(file, str) for file in file_of.values()):
        raise ValueError(f"{index} has no weight_map from tensor names to files: copy it again")
    tensors: Tensors = {}
    for file in sorted(set(file_of.values())):
        if Path(file).name != file or not (folder / file).is_file():
            raise ValueError(f"{index} names {cut(file)}, which is not in the folder: copy it there")
        tensors |= read_file(folder / file)
    strays = tensors.keys() ^ file_of.keys()
    if strays:
        raise ValueError(f"{index} does not fit its files, by {cut(min(strays))}: copy all again")
    return tensors


def write_folder(output: Path, documents: Mapping[str, object], tensors: NumpyArrays, files: Path) -> None:
    """Writes a new folder, completely or not at all: documents by file name, texts or JSON; the tensors; the files of `files`.

    A document replaces a file of the same name.

    Raises: ValueError where the folder exists or cannot be made.
    """
    with new_folder(output, documents) as unfinished:
        copy_companions(files, unfinished, skip=documents)
        save_tensors(tensors, unfinished / WEIGHTS, like=unfinished / "config.json")


def save_tensors(tensors: NumpyArrays, path: Path, like: Path) -> None:
    """Writes tensors as a safetensors file, which those may read who may read the file `like`."""
    save_file({name: np.ascontiguousarray(x) for name, x in tensors.items()}, path, {"format": "pt"})
    os.chmod(path, like.stat().st_mode)  # the library lets only the owner read it


def copy_companions(source: Path, output: Path, skip: Collection[str] = (), *, follow_links: bool = False) -> list[str]:
    """Copies the files that accompany a model unchanged, but for those to skip. Returns their names."""
    if not follow_links:
        check_links(source)
    return copy_files(source, output, COMPANIONS, skip)
