"""Writes the two forms of `torch.save` without PyTorch, each operation by hand, after Python's module pickletools."""

import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

KINDS = {
    "float64": "Double",
    "float32": "Float",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int64": "Long",
    "int32": "Int",
    "int16": "Short",
    "int8": "Char",
    "uint8": "Byte",
    "bool": "Bool",
}
HEADER = (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True})
"""What the older form begins with."""


def operations(x: Any) -> bytes:
    """Returns the operations that put plain data on the stack; bytes are operations already."""
    match x:
        case bytes():
            return x
        case None | True | False:
            return {None: b"N", True: b"\x88", False: b"\x89"}[x]
        case int() if abs(x) < 2**31:
            return b"J" + struct.pack("<i", x)
        case int():
            return b"\x8a\x0a" + x.to_bytes(10, "little", signed=True)
        case str():
            return b"X" + struct.pack("<I", len(x.encode())) + x.encode()
        case tuple():
            return b"(" + b"".join(map(operations, x)) + b"t"
        case list():
            return b"](" + b"".join(map(operations, x)) + b"e"
        case dict():
            return b"}(" + b"".join(operations(part) for pair in x.items() for part in pair) + b"u"
    raise TypeError(type(x))


def named(name: str) -> bytes:
    module, _, last = name.rpartition(".")
    return f"c{module}\n{last}\n".encode()


def called(name: str, *arguments: Any) -> bytes:
    return named(name) + operations(arguments) + b"R"


def tensor(
    kind: str, key: str, shape: tuple[Any, ...], strides: tuple[Any, ...], offset: int = 0, views: tuple[Any, ...] = ()
) -> bytes:
    """Returns the operations that make a tensor in a storage."""
    storage = operations(("storage", named(f"torch.{kind}Storage"), key, "cuda:0", 7, *views)) + b"Q"
    hooks = called("collections.OrderedDict")
    return called("torch._utils._rebuild_tensor_v2", storage, offset, shape, strides, False, hooks)


def pickled(x: Any) -> bytes:
    return b"\x80\x02" + operations(x) + b"."


def write_archive(path: Path, tree: Any, storages: Mapping[str, bytes], compression: int = 0) -> None:
    """Writes the form of PyTorch 1.6 and later."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickled(tree))
        archive.writestr("archive/byteorder", b"little")
        for key, content in storages.items():
            archive.writestr(f"archive/data/{key}", content)


def write_pickles(path: Path, tree: Any, storages: Mapping[str, bytes], size: int = 4) -> None:
    """Writes the older form; `size`: the bytes of an element."""
    parts = [*map(pickled, (*HEADER, tree, list(storages)))]
    parts += [struct.pack("<q", len(content) // size) + content for content in storages.values()]
    path.write_bytes(b"".join(parts))


def write_torch(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays as a state dict, each in a storage of its own."""
    tree, storages = {}, {}
    for i, (name, x) in enumerate(arrays.items()):
        strides = tuple(stride // x.itemsize for stride in np.ascontiguousarray(x).strides)[: x.ndim]
        tree[name] = tensor(KINDS[x.dtype.name], str(i), x.shape, strides)
        storages[str(i)] = x.tobytes()
    write_archive(path, tree, storages)
