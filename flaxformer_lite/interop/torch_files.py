"""Reads state dicts that `torch.save` wrote, without PyTorch, and without running what a file asks for.

A file is a zip archive of a pickle and of each storage's bytes (since PyTorch 1.6), or several pickles with the storages after
them. A pickle is a program for a machine with a stack. Here the machine has only the operations that build plain data, and `KNOWN`
tells what stands for the names that a state dict needs. The arrays are views of the file, which is mapped into memory.

Reference: PyTorch's torch/serialization.py and torch/_weights_only_unpickler.py; Python's module pickletools.
"""

import io
import mmap
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on
import numpy as np

from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.files.text.files import most_unpacked

MOST = 2**21
"""The most bytes of a pickle: enough for 7,000 tensors. Each byte can cost 100 of memory, and a microsecond."""
OPERATIONS = (
    "PROTO STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE BINSTRING SHORT_BINSTRING EMPTY_LIST "
    "EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND APPENDS SETITEM SETITEMS BINPUT LONG_BINPUT BINGET LONG_BINGET GLOBAL REDUCE "
    "BINPERSID"
)
"""The operations that are Python's own; `Machine` knows two more."""
BytesOf = Callable[["Storage"], memoryview]


class NotPlain(Exception):
    """Raised for what a state dict does not have."""


class Mapping(dict[str | int, Any]):
    """A dictionary in a pickle. The hash of another key, such as a deeply nested tuple, could end the process."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if type(key) not in (str, int):
            raise NotPlain("it has values of an unknown form")
        super().__setitem__(key, value)


class Storage(NamedTuple):
    key: str
    dtype: np.dtype


class StoredTensor(NamedTuple):
    """A tensor's place in its storage, in elements; then what only a training needs."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool = False
    hooks: Any = None


NUMPY_TYPES = {
    "Double": "f8",
    "Float": "f4",
    "Half": "f2",
    "BFloat16": "bfloat16",
    "Long": "i8",
    "Int": "i4",
    "Short": "i2",
}
KNOWN: dict[str, Any] = {
    **{
        f"torch.{kind}Storage": np.dtype(x)
        for kind, x in (NUMPY_TYPES | {"Char": "i1", "Byte": "u1", "Bool": "?"}).items()
    },
    "collections.OrderedDict": lambda: Mapping(),
    "torch._utils._rebuild_tensor": StoredTensor,
    "torch._utils._rebuild_tensor_v2": StoredTensor,
    "torch._utils._rebuild_parameter": lambda tensor, requires_grad, hooks: tensor,
}


class Machine(pickle._Unpickler):
    """Python's own machine, reduced to `OPERATIONS` and `KNOWN`; what a pickle sets as attributes is dropped."""

    dispatch = {
        ord(x): pickle._Unpickler.dispatch[ord(x)] for x in (getattr(pickle, x) for x in OPERATIONS.split())
    } | {
        ord(pickle.EMPTY_DICT): lambda self: self.append(Mapping()),
        ord(pickle.BUILD): lambda self: self.stack.pop(),
    }

    def find_class(self, module: str, name: str) -> object:
        full_name = f"{module}.{name}"
        if full_name not in KNOWN:
            raise NotPlain(f"it asks for {cut(full_name)}, and no code of a file is run")
        return KNOWN[full_name]

    def persistent_load(self, pid: Any) -> Storage:
        _, dtype, key, _, _, *views = pid
        if type(key) is not str or any(views):
            raise NotPlain("it has values of an unknown form")
        return Storage(key, dtype)


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """Returns the tensors of a state dict by name, read-only. Raises: ValueError where the file holds something else."""
    try:
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        tensors, bytes_of = read_torch_archive(path, content) if bytes(content[:2]) == b"PK" else read_pickles(content)
        arrays = {str(name): view(tensor, bytes_of(tensor.storage)) for name, tensor in tensors.items()}
        if sum(x.nbytes for x in arrays.values()) > most_unpacked(len(content)):
            raise NotPlain("its tensors show few bytes very often")
    except Exception as error:  # mmap, zipfile and the machine raise whatever the damage leads to
        reason = error if isinstance(error, NotPlain | OSError) else "it is damaged, or holds no state dict"
        raise ValueError(
            f"{path}: {reason}: copy the file again, or save only the model's state dict, as safetensors or by torch.save"
        ) from None
    return arrays


def read_torch_archive(path: Path, content: memoryview) -> tuple[dict[str, StoredTensor], BytesOf]:
    """Returns the tensors of an archive, and the function from a storage to its bytes."""
    with zipfile.ZipFile(path) as archive:
        members = {member.filename: member for member in archive.infolist()}
    start = next(name for name in members if name.endswith("/data.pkl")).removesuffix("data.pkl")

    def member_bytes(name: str) -> memoryview:
        member = members[start + name]
        if member.compress_type:
            raise NotPlain("its archive is compressed")
        begin = member.header_offset + 30 + sum(struct.unpack_from("<HH", content, member.header_offset + 26))
        return content[begin : begin + member.file_size]

    if f"{start}byteorder" in members and member_bytes("byteorder").tobytes() != b"little":
        raise NotPlain("its numbers are big-endian")
    return state_dict(io.BytesIO(member_bytes("data.pkl")[:MOST])), lambda storage: member_bytes(f"data/{storage.key}")


def read_pickles(content: memoryview) -> tuple[dict[str, StoredTensor], BytesOf]:
    """Returns what `read_torch_archive` does, of the older form: each storage is the number of its elements, then their bytes."""
    file = io.BytesIO(content[:MOST])
    _, _, system = (Machine(file).load() for _ in range(3))
    if not system["little_endian"]:
        raise NotPlain("its numbers are big-endian")
    tensors = state_dict(file)
    keys = Machine(file).load()
    end = file.tell()
    dtypes = dict(x.storage for x in tensors.values())
    parts = {}
    for key in keys:
        begin = end + 8
        end = begin + struct.unpack_from("<q", content, end)[0] * dtypes[str(key)].itemsize
        parts[key] = content[begin:end]
    return tensors, lambda storage: parts[storage.key]


def state_dict(file: io.BytesIO) -> dict[str, StoredTensor]:
    """Returns the state dict that the next pickle describes. Raises: NotPlain that names what else is in it."""
    tree = Machine(file).load()
    others = [str(name) for name, x in tree.items() if not isinstance(x, StoredTensor)]
    if others:
        raise NotPlain(f"it holds {cut(', '.join(others))}, which are not tensors")
    return tree


def view(tensor: StoredTensor, content: memoryview) -> np.ndarray:
    """Returns the array of a tensor in its storage. Raises: NotPlain where it reaches out of the storage."""
    (_, dtype), offset, shape, strides, *_ = tensor
    size = dtype.itemsize
    if any(type(number) is not int or number < 0 for number in (offset, *shape, *strides)):
        raise NotPlain("it has values of an unknown form")
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if 0 in shape:
        return np.zeros(shape, dtype)
    if (last + 1) * size > len(content):
        raise NotPlain("a tensor reaches out of its storage")
    return np.ndarray(shape, dtype, content, offset * size, [stride * size for stride in strides])
