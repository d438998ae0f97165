"""Oracles: a checkpoint that TensorFlow wrote; bundles written here byte by byte from the format's description."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from google_crc32c import value as crc32c

from flaxformer_lite.interop.tf_checkpoint import model_weights, read_checkpoint
from tests.support.paths import FIXTURES

ORACLES = FIXTURES / "oracles"
GENUINE = ORACLES / "002_bert_ckpt" / "bert_model.ckpt"
DATA_TYPES = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 5,
    "int8": 6,
    "int64": 9,
    "bool": 10,
    "bfloat16": 14,
    "uint16": 17,
    "float16": 19,
    "uint32": 22,
    "uint64": 23,
}


def masked_crc(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15) + (crc % 2**15) * 2**17 + 0xA282EAD8) % 2**32


def varint(number: int) -> bytes:
    return bytes([number % 128 + 128]) + varint(number // 128) if number >= 128 else bytes([number])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number * 8) + varint(value)
    return varint(number * 8 + 2) + varint(len(value)) + value


def entry(data_type: int, shape: Sequence[int], shard: int, offset: int, data: bytes) -> bytes:
    """Zeros are left out, as protocol buffers do."""
    sizes = b"".join(field(2, field(1, size) if size else b"") for size in shape)
    message = field(1, data_type) + field(2, sizes)
    message += b"".join(field(number, x) for number, x in ((3, shard), (4, offset), (5, len(data))) if x)
    return message + varint(6 * 8 + 5) + masked_crc(data).to_bytes(4, "little")


def block(rows: Sequence[tuple[bytes, bytes]], kind: bytes) -> bytes:
    """With every third key whole and the others shortened by what they share with the key before."""
    out, starts, before = b"", [], b""
    for i, (key, value) in enumerate(rows):
        shared = 0
        if i % 3 == 0:
            starts.append(len(out))
        else:
            while key[: shared + 1] == before[: shared + 1] and shared < len(before):
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    starts = starts or [0]
    out += b"".join(x.to_bytes(4, "little") for x in [*starts, len(starts)]) + kind
    return out + masked_crc(out).to_bytes(4, "little")


def write_table(path: Path, rows: Sequence[tuple[bytes, bytes]], kind: bytes = b"\0") -> None:
    """Five rows a block."""
    table, handles = b"", []
    for part in [*(rows[i : i + 5] for i in range(0, len(rows), 5)), [], None]:
        whole = block(handles if part is None else part, kind)
        handle = varint(len(table)) + varint(len(whole) - 5)
        table += whole
        if part:
            handles.append((part[-1][0] + b"~", handle))
        elif part is not None:
            footer = handle
    footer = (footer + handle).ljust(40, b"\0")
    path.write_bytes(table + footer + bytes.fromhex("57fb808b247547db"))


def write_bundle(
    folder: Path,
    tensors: dict[str, np.ndarray],
    num_shards: int = 1,
    header: bytes = b"",
    entries: dict[str, bytes] | None = None,
    kind: bytes = b"\0",
) -> str:
    """The tensors by turns over the shards; `header` and `entries` are added to their entries in the index."""
    prefix, shards = folder / "model.ckpt", [b""] * num_shards
    rows = {"": field(1, num_shards) + header + field(3, field(1, 1)), **(entries or {})}
    for i, (name, tensor) in enumerate(tensors.items()):
        shard, data = i % num_shards, tensor.tobytes()
        rows[name] = entry(DATA_TYPES[tensor.dtype.name], tensor.shape, shard, len(shards[shard]), data)
        shards[shard] += data
    write_table(Path(f"{prefix}.index"), sorted((name.encode(), row) for name, row in rows.items()), kind)
    for shard, data in enumerate(shards):
        Path(f"{prefix}.data-{shard:05}-of-{num_shards:05}").write_bytes(data)
    return str(prefix)


def training_tensors() -> dict[str, np.ndarray]:
    """Every type, a scalar, an empty array, and what Adam leaves behind."""
    random = np.random.default_rng(0)
    tensors = {f"model/layer_{i}/{name}": random.integers(0, 2, (3, i)) for i, name in enumerate(DATA_TYPES)}
    tensors = {name: x.astype(np.dtype(name.rpartition("/")[2])) for name, x in tensors.items()}
    kernel = random.standard_normal((5, 7, 2)).astype(np.float32)
    tensors |= {"model/kernel": kernel, "model/kernel/adam_m": kernel / 3, "model/kernel/adam_v": kernel**2}
    return tensors | {"model/bfloat16": np.array([math.pi], ml_dtypes.bfloat16), "global_step": np.array(11)}


def assert_bit_equal(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert (got[name].dtype, got[name].shape) == (tensor.dtype, tensor.shape), name
        assert got[name].tobytes() == tensor.tobytes(), name


def complaint(prefix: str) -> str:
    with pytest.raises(ValueError) as error:
        read_checkpoint(prefix)
    message = str(error.value)
    assert "\n" not in message and prefix in message, message
    return message


@pytest.mark.parametrize("ending", ["", ".index", ".data-00000-of-00001"])
def test_a_checkpoint_of_tensorflow_reads_bit_for_bit(ending: str) -> None:
    with np.load(ORACLES / "002_bert_gelu.npz") as archive:
        wanted = {name.removeprefix("param/"): archive[name] for name in archive if name.startswith("param/")}
    assert len(wanted) == 46
    got = read_checkpoint(f"{GENUINE}{ending}")
    assert_bit_equal(got, wanted)
    assert_bit_equal(model_weights(got), wanted)


@pytest.mark.parametrize("num_shards", [1, 2])
def test_every_type_in_one_or_more_data_files(tmp_path: Path, num_shards: int) -> None:
    tensors = training_tensors()
    assert_bit_equal(read_checkpoint(write_bundle(tmp_path, tensors, num_shards)), tensors)


def test_the_weights_of_a_training_checkpoint_are_those_without_adam_and_the_step() -> None:
    tensors = training_tensors()
    gone = tensors.keys() - model_weights(tensors).keys()
    assert gone == {"model/kernel/adam_m", "model/kernel/adam_v", "global_step"}


def test_no_flipped_or_missing_byte_of_the_index_goes_unnoticed(tmp_path: Path) -> None:
    """Except in the footer's padding, which has no meaning: there the tensors stay the same."""
    tensors = {f"model/layer/{i}": np.arange(i + 2, dtype=np.int16) for i in range(7)}
    prefix = write_bundle(tmp_path, tensors)
    index = Path(f"{prefix}.index")
    table = index.read_bytes()
    padding = range(len(table[:-8].rstrip(b"\0")), len(table) - 8)
    for at in range(len(table)):
        index.write_bytes(table[:at] + bytes([table[at] ^ 1 << at % 8]) + table[at + 1 :])
        if at in padding:
            assert_bit_equal(read_checkpoint(prefix), tensors)
        else:
            assert str(index) in complaint(prefix)
    for size in range(0, len(table), 7):
        index.write_bytes(table[:size])
        assert str(index) in complaint(prefix)


def test_no_flipped_or_missing_byte_of_the_data_goes_unnoticed(tmp_path: Path) -> None:
    """Whatever the byte, the message names the file and the tensor."""
    tensors = {name: np.arange(5, dtype=np.float32) for name in ("first", "second", "third")}
    prefix = write_bundle(tmp_path, tensors)
    path = Path(f"{prefix}.data-00000-of-00001")
    data = path.read_bytes()
    for at in range(len(data)):
        name = list(tensors)[at // 20]
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        assert f"{path}: {name} is damaged" in complaint(prefix)
        path.write_bytes(data[:at])
        assert re.search(rf"{path}: {at} bytes, {name} lies at \d+ to \d+; copy", complaint(prefix))


def test_missing_files_are_named_with_the_present_ones(tmp_path: Path) -> None:
    prefix = write_bundle(tmp_path, {"a": np.arange(3), "b": np.arange(2)}, num_shards=2)
    for wrong in (str(tmp_path), f"{tmp_path}/other.ckpt"):
        message = complaint(wrong)
        assert f"{wrong}.index: cannot be read (No such file" in message and message.endswith(f"PREFIX: {prefix}")
    Path(f"{prefix}.data-00001-of-00002").unlink()
    message = complaint(prefix)
    assert f"{prefix}.data-00001-of-00002: cannot be read (No such file" in message and "holds b; put it" in message


@pytest.mark.parametrize(
    ("header", "entries", "kind", "words"),
    [
        (b"", {"odd": entry(99, [], 0, 0, b"")}, b"\0", "odd is of TensorFlow's DataType 99"),
        (
            b"",
            {"\0part\0\1\1": entry(1, [], 0, 0, bytes(4)), "part": entry(1, [3], 0, 0, b"") + field(7, b"")},
            b"\0",
            "part is partitioned",
        ),
        (b"", {"short": entry(1, [3], 0, 0, bytes(8))}, b"\0", "short has 8 bytes for float32[3]"),
        (b"", {"broken": field(2, field(2, b"\x08"))[:-1]}, b"\0", "an entry cannot be decoded"),
        (b"", {"group": b"\x0b"}, b"\0", "an entry cannot be decoded"),
        (field(2, 1), {}, b"\0", "big-endian"),
        (b"", {}, b"\1", "compressed (kind 1); save the checkpoint again"),
    ],
)
def test_tensors_without_a_plain_array_are_named(
    tmp_path: Path, header: bytes, entries: dict[str, bytes], kind: bytes, words: str
) -> None:
    prefix = write_bundle(tmp_path, {"fine": np.arange(3)}, 1, header, entries, kind)
    message = complaint(prefix)
    assert message.startswith(f"{prefix}.index: ") and words in message


def test_another_table_is_no_checkpoint(tmp_path: Path) -> None:
    for rows in ([], [(b"key", b"value")]):
        write_table(tmp_path / "other.index", rows)
        assert "without the header of a checkpoint" in complaint(str(tmp_path / "other"))


def linked(folder: Path, blocks: Sequence[bytes], handles: Sequence[int]) -> str:
    """Returns the prefix of an index with these blocks, named in the order of `handles`."""
    table, places = b"", []
    for whole in blocks:
        places.append(varint(len(table)) + varint(len(whole) - 5))
        table += whole
    parts = [block([], b"\0"), block([(bytes([i]), places[number]) for i, number in enumerate(handles)], b"\0")]
    footer = b""
    for whole in parts:
        footer += varint(len(table)) + varint(len(whole) - 5)
        table += whole
    (folder / "x.index").write_bytes(table + footer.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db"))
    return str(folder / "x")


def test_an_index_that_unfolds_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One block by many names, a number of a megabyte, and a long name of which each next one has almost all."""
    rows = [(b"", field(1, 1)), (b"name", b"")]
    assert "bytes of names: copy" in complaint(linked(tmp_path, [block(rows, b"\0")], [0] * 100))
    huge = [(b"", b"\x08" + b"\x80" * 2**20 + b"\x01")]
    assert "an entry cannot be decoded" in complaint(linked(tmp_path, [block(huge, b"\0")], [0]))
    monkeypatch.setattr("flaxformer_lite.interop.tf_checkpoint.most_unpacked", lambda packed: 2 * packed)
    names = [(b"", field(1, 1)), *((b"x" * 2000 + bytes([i]), b"") for i in range(60))]
    assert "bytes of names: copy" in complaint(linked(tmp_path, [block(names, b"\0")], [0]))
