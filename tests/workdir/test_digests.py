"""Oracles: the documented byte format written out with NumPy and hashlib alone; the law that any change is noticed."""

import hashlib
import json
import shutil

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from flaxformer_lite.base.sealed_files import DamageError, sealed
from flaxformer_lite.workdir.digests import (
    META,
    check_digests,
    difference,
    leaf_types,
    parameter_digest,
    read_document,
    write_digests,
)


def test_the_parameter_digest_is_the_documented_one():
    kernel = np.random.default_rng(0).standard_normal((3, 5)).astype("<f4")
    bias = np.arange(7, dtype=ml_dtypes.bfloat16)
    count = np.array(11, dtype="<i4")
    written_out = (
        b"decoder/bias bfloat16 7\n"
        + bias.view("<u2").tobytes()
        + b"encoder/attention/kernel float32 3,5\n"
        + kernel.tobytes()
        + b"encoder/count int32 \n"
        + count.tobytes()
    )
    params = {
        "encoder": {"count": jnp.array(count), "attention": {"kernel": jnp.array(kernel)}},
        "decoder": {"bias": jnp.array(bias)},
    }
    assert parameter_digest(params) == hashlib.sha256(written_out).hexdigest()


def test_the_parameter_digest_orders_by_the_whole_path():
    # "a-b" < "a/c" as strings, although the name "a" comes before "a-b".
    params = {"a": {"c": np.zeros(2, "<f4")}, "a-b": np.ones(3, "<f4")}
    written_out = b"a-b float32 3\n" + b"\x00\x00\x80\x3f" * 3 + b"a/c float32 2\n" + bytes(8)
    assert parameter_digest(params) == hashlib.sha256(written_out).hexdigest()


def test_the_parameter_digest_does_not_depend_on_the_layout_in_memory():
    kernel = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    assert parameter_digest({"kernel": np.asfortranarray(kernel)}) == parameter_digest({"kernel": kernel})


def test_leaf_types_and_their_difference_name_paths_dtypes_and_shapes():
    stored = leaf_types({"out": {"kernel": jnp.zeros((3, 5))}, "old": np.zeros((), np.int32)})
    assert stored == {"out/kernel": "float32[3,5]", "old": "int32[]"}
    wanted = leaf_types({"out": {"kernel": jnp.zeros((3, 7))}, "new": jnp.zeros(2)})
    assert difference(stored, wanted) == (
        "new is not in it, wanted float32[2], old is int32[], wanted is none, "
        "out/kernel is float32[3,5], wanted float32[3,7]"
    )
    many = {f"leaf_{i}": "float32[]" for i in range(5)}
    assert difference(many, {}).endswith(" and 2 more") and difference(many, {}).count("wanted") == 3
    assert difference(many, {"leaf_0": "float32[]"}).endswith(" and 1 more")


def test_a_folder_notices_a_flipped_bit_and_a_missing_file(tmp_path):
    folder, copy = tmp_path / "folder", tmp_path / "copy"
    (folder / "below").mkdir(parents=True)
    generator = np.random.default_rng(0)
    for name, size in {"a": 997, "below/b": 13, "empty": 0}.items():
        (folder / name).write_bytes(generator.bytes(size))
    write_digests(folder)
    check_digests(folder)
    for _ in range(20):
        name, size = (("a", 997), ("below/b", 13))[generator.integers(2)]
        shutil.copytree(folder, copy)
        data = bytearray((copy / name).read_bytes())
        data[generator.integers(size)] ^= 1 << generator.integers(8)
        (copy / name).write_bytes(data)
        with pytest.raises(DamageError, match=f"^{name} is not as it was written$"):
            check_digests(copy)
        shutil.rmtree(copy)
    (folder / "empty").unlink()
    with pytest.raises(DamageError, match=r"^empty: No such file or directory$"):
        check_digests(folder)
    (folder / "digests.json").unlink()
    with pytest.raises(DamageError, match=r"^digests\.json: No such file or directory$"):
        check_digests(folder)


def test_the_document_of_a_step_is_in_its_folder(tmp_path):
    (tmp_path / "7" / "meta").mkdir(parents=True)
    (tmp_path / "7" / "meta" / META).write_text(json.dumps(sealed({"step": 7})))
    assert read_document(tmp_path, 7) == {"step": 7}
