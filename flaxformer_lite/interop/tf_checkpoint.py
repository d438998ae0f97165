"""Reads TensorFlow checkpoints ("V2": PREFIX.index and PREFIX.data-00000-of-00001) as NumPy arrays, without TensorFlow.

The data files hold the tensors' bytes. The index is a sorted LevelDB table, from a tensor's name to a protocol buffer with its
location; the empty name holds the header. Both have CRC-32C checksums, and every checksum is verified.

Reference: LevelDB's doc/table_format.md; TensorFlow's core/protobuf/tensor_bundle.proto and core/framework/types.proto.
"""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from google_crc32c import value as crc32c

from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.files.text.files import most_unpacked

_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER_SIZE = 48
_COPY_AGAIN = "copy or download the checkpoint again"
_SAVE_AGAIN = "save only the weights as plain arrays, as tf.compat.v1.train.Saver does"
_DTYPES = {
    number: np.dtype(kind)
    for number, kind in {
        1: np.float32,
        2: np.float64,
        3: np.int32,
        4: np.uint8,
        5: np.int16,
        6: np.int8,
        9: np.int64,
        10: np.bool_,
        14: ml_dtypes.bfloat16,
        17: np.uint16,
        19: np.float16,
        22: np.uint32,
        23: np.uint64,
    }.items()
}
"""NumPy's type, by TensorFlow's DataType number."""


def read_checkpoint(prefix: str) -> dict[str, np.ndarray]:
    """Returns every tensor of a checkpoint, by name.

    `prefix` is TensorFlow's name of the checkpoint, such as `uncased/bert_model.ckpt`, or the name of one of its files.

    Raises: ValueError that names the file, and the tensor if there is one, where a file is missing or damaged, or where a tensor
        is no plain array: strings, partitioned variables, big-endian numbers.
    """
    prefix = re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", prefix)
    num_shards, entries = _read_index(Path(f"{prefix}.index"))
    return {
        name: _read_tensor(Path(f"{prefix}.data-{item.shard:05}-of-{num_shards:05}"), cut(name), item)
        for name, item in entries.items()
    }


def model_weights(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the parameters without Adam's moments (`…/adam_m`, `…/adam_v`) and `global_step` of BERT's training."""
    return {
        name: tensor
        for name, tensor in tensors.items()
        if name != "global_step" and not name.endswith(("/adam_m", "/adam_v"))
    }


class _Entry(NamedTuple):
    """The location of a tensor's bytes, its type and its shape."""

    dtype: np.dtype
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    """In bytes, like the offset."""
    masked_crc: int


def _read_index(path: Path) -> tuple[int, dict[str, _Entry]]:
    """Returns the number of data files, and the entry of every tensor.

    Fields of BundleHeaderProto: num_shards 1, endianness 2 (big is 1).
    """
    try:
        table = path.read_bytes()
    except OSError as error:
        folder = path.with_suffix("") if path.with_suffix("").is_dir() else path.parent
        prefixes = ", ".join(str(file.with_suffix("")) for file in sorted(folder.glob("*.index"))) or "none there"
        raise ValueError(
            f"{path}: cannot be read ({error.strerror}); a checkpoint is PREFIX.index and PREFIX.data-…; "
            f"name a PREFIX: {prefixes}"
        ) from None
    if len(table) < _FOOTER_SIZE or table[-8:] != _MAGIC:
        raise ValueError(f"{path}: {len(table)} bytes without the end of a TensorFlow index: {_COPY_AGAIN}")
    try:
        meta, after = _handle(table, len(table) - _FOOTER_SIZE)
        index, _ = _handle(table, after)
        list(_block(path, table, meta))  # empty, but damage in it is damage of the file
        blocks = [_handle(at, 0)[0] for _, at in _block(path, table, index)]
        rows = list(_rows(path, table, blocks))
        if not rows or rows[0][0]:
            raise ValueError(f"{path}: a table without the header of a checkpoint: name the index of a checkpoint")
        header = _fields(rows[0][1])
        if header.get(2, [0])[0]:
            raise ValueError(f"{path}: big-endian numbers; save the checkpoint again on a little-endian machine")
        entries = dict[str, _Entry]()
        for key, value in rows[1:]:
            name = key.decode(errors="backslashreplace")
            entries[name] = _entry(path, cut(name), value)
        return int(header.get(1, [0])[0]), entries
    except (LookupError, TypeError):
        raise ValueError(f"{path}: an entry cannot be decoded: name the index of a checkpoint") from None


def _entry(path: Path, name: str, entry: bytes) -> _Entry:
    """Returns an entry. Fields of BundleEntryProto: dtype 1, shape 2, shard_id 3, offset 4, size 5, crc32c 6, slices 7.

    Field 2 of shape is dim, whose field 1 is size.
    """
    fields = _fields(entry)
    number = fields.get(1, [0])[0]
    if 7 in fields or number not in _DTYPES:
        what = "is partitioned" if 7 in fields else f"is of TensorFlow's DataType {number}"
        raise ValueError(f"{path}: {name} {what}: {_SAVE_AGAIN}")
    sizes = list[int]()
    for shape in fields.get(2, []):
        sizes += [_fields(size).get(1, [0])[0] for size in _fields(shape).get(2, [])]
    shard, offset, size, crc = (fields.get(field, [0])[0] for field in (3, 4, 5, 6))
    described = _Entry(_DTYPES[number], tuple(sizes), shard, offset, size, crc)
    if size != math.prod(sizes) * described.dtype.itemsize:
        raise ValueError(f"{path}: {name} has {size} bytes for {described.dtype}{sizes}: {_SAVE_AGAIN}")
    return described


def _read_tensor(path: Path, name: str, entry: _Entry) -> np.ndarray:
    try:
        size = path.stat().st_size
        if size < entry.offset + entry.size:
            needed = f"{name} lies at {entry.offset} to {entry.offset + entry.size}"
            raise ValueError(f"{path}: {size} bytes, {needed}; {_COPY_AGAIN}")
        data = np.fromfile(path, np.uint8, count=entry.size, offset=entry.offset)
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read ({error.strerror}) and holds {name}; put it beside the index"
        ) from None
    if _masked(crc32c(data.tobytes())) != entry.masked_crc:
        raise ValueError(f"{path}: {name} is damaged (its checksum differs); {_COPY_AGAIN}")
    return data.view(entry.dtype).reshape(entry.shape)


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Returns the offset and the size of a block, encoded at `at`, and the position after them."""
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return (offset, size), at


def _rows(path: Path, table: bytes, blocks: list[tuple[int, int]]) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of the blocks.

    Raises: ValueError where the table unfolds to far more than its size, as no writer makes it.
    """
    held = 0
    most = most_unpacked(len(table)) if len(set(blocks)) == len(blocks) else 0
    for block in blocks:
        for key, value in _block(path, table, block):
            held += len(key) + len(value)
            if held > most:
                raise ValueError(f"{path}: it unfolds to more than {most:,} bytes of names: {_COPY_AGAIN}")
            yield key, value


def _block(path: Path, table: bytes, handle: tuple[int, int]) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a block.

    [ entry | entry | … | restart positions, 4 bytes each | their number, 4 bytes ] compression, masked CRC-32C
    entry = number of bytes shared with the previous key, of further bytes, of the value; then the bytes themselves
    """
    offset, size = handle
    block = table[offset : offset + size]
    kind = table[offset + size : offset + size + 1]
    masked_crc = int.from_bytes(table[offset + size + 1 : offset + size + 5], "little")
    if not kind or _masked(crc32c(block + kind)) != masked_crc:
        raise ValueError(f"{path}: bytes {offset} to {offset + size} are damaged (checksum differs); {_COPY_AGAIN}")
    if kind != b"\0":
        raise ValueError(f"{path}: compressed (kind {kind[0]}); save the checkpoint again with TensorFlow 1.2 or later")
    end = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    key, at = b"", 0
    while at < end:
        shared, at = _varint(block, at)
        further, at = _varint(block, at)
        length, at = _varint(block, at)
        key = key[:shared] + block[at : at + further]
        yield key, block[at + further : at + further + length]
        at += further + length
    if at != end:
        raise IndexError


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns a number in groups of 7 bits, lowest first, and the position after it. The top bit marks all groups but the last."""
    value = shift = 0
    while data[at] & 0x80:
        if shift > 56:
            raise IndexError("a number of more than 64 bits")
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1


def _fields(message: bytes) -> dict[int, list[Any]]:
    """Returns the values of a protocol buffer's fields by number, integers or bytes."""
    fields: dict[int, list[Any]] = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        if tag & 7 == 0:
            value, at = _varint(message, at)
            fields.setdefault(tag >> 3, []).append(value)
            continue
        is_bytes = tag & 7 == 2
        if is_bytes:
            size, at = _varint(message, at)
        else:
            size = {1: 8, 5: 4}[tag & 7]
        content = message[at : at + size]
        at = at + size
        fields.setdefault(tag >> 3, []).append(content if is_bytes else int.from_bytes(content, "little"))
    if at != len(message):
        raise IndexError
    return fields


def _masked(crc: int) -> int:
    """Returns a checksum as it is stored: rotated right by 15 bits, plus LevelDB's constant."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
