"""Oracles: `torch.load(weights_only=True)`, equal to the bit; and files that are written by hand, one operation at a time."""

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chex
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from flaxformer_lite.interop.hf.folder import PICKLED
from flaxformer_lite.interop.hf.import_folder import read_folder
from flaxformer_lite.interop.torch_files import OPERATIONS, read_torch
from tests.support import needs
from tests.support.hf_folders import copied
from tests.support.torch_files import (
    HEADER,
    KINDS,
    called,
    named,
    operations,
    pickled,
    tensor,
    write_archive,
    write_pickles,
    write_torch,
)

NUMBERS = np.arange(12, dtype=np.float32)
PAIR = {"a": tensor("Float", "k", (3, 2), (1, 3), offset=2), "tied": tensor("Float", "k", (2,), (1,), offset=2)}
"""A transposed part of `NUMBERS`, and another tensor that begins at the same place."""


def same(found: np.ndarray, wanted: np.ndarray) -> bool:
    return found.dtype == wanted.dtype and found.shape == wanted.shape and found.tobytes() == wanted.tobytes()


@needs.torch
@pytest.mark.parametrize("archive", [True, False], ids=["archive", "pickles"])
def test_every_type_and_layout_is_that_of_torch(archive: bool, tmp_path: Path) -> None:
    """Transposed, strided, expanded, empty and single numbers, tied ones, parameters, and the attributes of a state dict."""
    import torch

    torch.manual_seed(0)
    state: dict[str, Any] = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).state_dict()
    state["parameter"] = torch.nn.Parameter(torch.randn(3))
    for name in KINDS:
        x = (50 * torch.randn(6, 5)).to(getattr(torch, name))
        state |= {name: x, f"{name}.tied": x, f"{name}.transposed": x.T, f"{name}.row": x[3], f"{name}.one": x[2, 1]}
        state |= {f"{name}.part": x[2:5, 1::2], f"{name}.empty": x[:0], f"{name}.expanded": x[:1].expand(3, 5)}
    torch.save(state, tmp_path / "x.bin", _use_new_zipfile_serialization=archive)
    found, wanted = read_torch(tmp_path / "x.bin"), torch.load(tmp_path / "x.bin", weights_only=True)
    assert list(found) == list(wanted)
    for name, x in wanted.items():
        bits = x.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
        assert (found[name].tobytes(), found[name].shape) == (bits, tuple(x.shape)), name
        assert found[name].dtype.name == str(x.dtype).removeprefix("torch.")


@pytest.mark.parametrize("write", [write_archive, write_pickles])
def test_tensors_are_views_of_the_file(write: Callable[..., None], tmp_path: Path) -> None:
    write(tmp_path / "x.bin", PAIR, {"k": NUMBERS.tobytes()})
    found = read_torch(tmp_path / "x.bin")
    assert same(found["a"], NUMBERS[2:8].reshape(2, 3).T) and same(found["tied"], NUMBERS[2:4])
    assert not any(x.flags.owndata or x.flags.writeable for x in found.values())
    assert np.shares_memory(found["a"], found["tied"])


@pytest.mark.parametrize("write", [write_archive, write_pickles])
def test_of_a_long_pickle_the_beginning_alone_is_read(write: Callable[..., None], tmp_path: Path) -> None:
    """A byte of it can be an object of 150 bytes: a whole file must not take the 700 MB that a stranger's file may take."""
    for length in (2**20, 700_000_000 // 150):
        write(tmp_path / "x.bin", {"n" * length: PAIR["a"]}, {"k": NUMBERS.tobytes()})
        if length == 2**20:
            assert len(read_torch(tmp_path / "x.bin")) == 1
        else:
            with pytest.raises(ValueError, match="it is damaged, or holds no state dict"):
                read_torch(tmp_path / "x.bin")


def test_a_state_dict_of_an_older_python_keeps_its_names(tmp_path: Path) -> None:
    """Python 2 wrote texts of bytes; other classes than OrderedDict had a parameter around the tensor."""
    x = called("torch._utils._rebuild_parameter", PAIR["tied"], True, called("collections.OrderedDict"))
    write_pickles(tmp_path / "x.bin", b"}(U\x01a" + x + b"u", {"k": NUMBERS.tobytes()})
    assert same(read_torch(tmp_path / "x.bin")["a"], NUMBERS[2:4])


@pytest.mark.parametrize("sharded", [False, True])
def test_a_folder_is_imported_as_the_same_in_safetensors(sharded: bool, tmp_path: Path) -> None:
    """The folder's own safetensors are the oracle; beside a pickle, they are the ones that are read."""
    folder = copied("bert/model", tmp_path)
    wanted = read_folder(folder)
    (folder / PICKLED["model.safetensors"]).write_bytes(b"never read")
    assert read_folder(folder).model == wanted.model
    tensors = load_file(folder / "model.safetensors")
    for file in ("model.safetensors", PICKLED["model.safetensors"]):
        (folder / file).unlink()
    names = list(tensors)
    parts = [names[::2], names[1::2]] if sharded else [names]
    files = [f"pytorch_model-{i + 1:05}-of-00002.bin" for i in range(2)] if sharded else ["pytorch_model.bin"]
    for file, part in zip(files, parts, strict=True):
        write_torch(folder / file, {name: tensors[name] for name in part})
    if sharded:
        index = {name: file for file, part in zip(files, parts, strict=True) for name in part}
        (folder / PICKLED["model.safetensors.index.json"]).write_text(json.dumps({"weight_map": index}))
    found = read_folder(folder)
    assert (found.model, found.skipped, found.notes) == (wanted.model, wanted.skipped, wanted.notes)
    chex.assert_trees_all_equal(found.params, wanted.params)


# Hostile files --------------------------------------------------------------------------------------------------------

DEEP = b")" + b"\x85" * 200_000
"""A tuple in a tuple, and so on: whatever follows it to its end runs out of stack."""
LAUGHS = operations(["x"]) + b"".join(
    b"q" + bytes([i]) + b"](h" + bytes([i]) + b"h" + bytes([i]) + b"e" for i in range(90)
)
"""A list that has the one before twice, 90 times: as a text it would not fit into the world."""
TYPELESS = operations(("storage", "f4", "k", "cpu", 7)) + b"Q"
TREES = {
    "os.system": called("os.system", "touch stolen"),
    "builtins.eval": called("builtins.eval", "open('stolen', 'w')"),
    "a dotted name": named("torch._utils._rebuild_tensor_v2.__globals__"),
    "a relative of a known name": called("torch._utils._rebuild_tensor_v3"),
    "INST": b"(X\x0c\x00\x00\x00touch stolenios\nsystem\n",
    "OBJ": b"(cos\nsystem\nX\x0c\x00\x00\x00touch stoleno",
    "NEWOBJ": named("collections.OrderedDict") + b")\x81",
    "STACK_GLOBAL": operations("os") + operations("system") + b"\x93",
    "EXT1": b"\x82\x01",
    "BUILD of a known function": named("torch._utils._rebuild_tensor_v2") + operations((None, {"_fields": ()})) + b"b",
    "BUILD of a type of numbers": named("torch.FloatStorage") + operations((3, ">", None, None, None, -1, -1, 0)) + b"b",
    "calls a type of numbers": called("torch.FloatStorage", 5),
    "calls a text": operations("os.system") + operations(("touch stolen",)) + b"R",
    "a dictionary of pairs": called("collections.OrderedDict", [("a", 1)]),
    "a deep key": b"}" + DEEP + b"Ns",
    "a deep key of a storage": {"a": tensor("Float", DEEP, (1,), (1,))},
    "a wide key of a storage": {"a": tensor("Float", LAUGHS, (1,), (1,))},
    "a deep size": {"a": tensor("Float", "k", (DEEP,), (1,))},
    "a wide value": {"a": LAUGHS},
    "a list": [PAIR["a"]],
    "one tensor": PAIR["a"],
    "no name": {5: PAIR["a"], "b": 1},
    "a checkpoint": {"model": PAIR, "optimizer": {"state": {0: {}}}},
    "a text for a storage": {"a": called("torch._utils._rebuild_tensor_v2", "k", 0, (1,), (1,), False, None)},
    "a tensor for a storage": {"a": called("torch._utils._rebuild_tensor_v2", PAIR["a"], 0, (1,), (1,), False, None)},
    "a text for a type": {"a": called("torch._utils._rebuild_tensor_v2", TYPELESS, 0, (1,), (1,), False, None)},
    "a storage of another form": {"a": operations(("storage", 5)) + b"Q"},
    "a whole module": operations(("module", named("torch.nn.modules.linear.Linear"), "x.py", "source")) + b"Q",
    "a view of a storage": {"a": tensor("Float", "k", (1,), (1,), views=(("v", 1, 2),))},
    "another storage": {"a": tensor("Float", "other", (1,), (1,))},
    "a storage elsewhere": {"a": tensor("Float", "../../etc/passwd", (1,), (1,))},
    "too many elements": {"a": tensor("Float", "k", (13,), (1,))},
    "an offset": {"a": tensor("Float", "k", (12,), (1,), offset=1)},
    "a stride": {"a": tensor("Float", "k", (2, 2), (11, 1))},
    "a negative offset": {"a": tensor("Float", "k", (1,), (1,), offset=-1)},
    "a negative stride": {"a": tensor("Float", "k", (2,), (-1,), offset=3)},
    "a negative size": {"a": tensor("Float", "k", (-1,), (1,))},
    "a sum over 64 bits": {"a": tensor("Float", "k", (5,), (2**62,))},
    "a size over 64 bits": {"a": tensor("Float", "k", (2**70, 0), (1, 1))},
    "a text for a size": {"a": tensor("Float", "k", ("3",), (1,))},
    "fewer strides": {"a": tensor("Float", "k", (2, 2), (1,))},
    "100 axes": {"a": tensor("Float", "k", (1,) * 100, (1,) * 100)},
    "few bytes shown often": {"a": tensor("Float", "k", (2**30,), (0,))},
    "a large place in the memo": b"}r\xff\xff\xff\xff(dd",
    "a text without end": b"X\xff\xff\xff\xffx",
    "too few on the stack": b"R",
    "marks alone": b"(" * 50_000,
}  # fmt: skip


@pytest.mark.parametrize("write", [write_archive, write_pickles])
@pytest.mark.parametrize("name", TREES)
def test_a_hostile_pickle_is_one_line_and_runs_nothing(
    name: str, write: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "x.bin", TREES[name], {"k": NUMBERS.tobytes()})
    with pytest.raises(
        ValueError, match=r"^.*x\.bin: .*: copy the file again, or save only the model's state dict"
    ) as refused:
        read_torch(tmp_path / "x.bin")
    assert len(str(refused.value)) < 600 and "\n" not in str(refused.value)
    assert os.listdir(tmp_path) == ["x.bin"]


@pytest.mark.parametrize(
    "name", ["os.system", "builtins.eval", "torch.nn.modules.linear.Linear", "numpy.core.multiarray._reconstruct"]
)
def test_a_name_that_is_not_known_is_named(name: str, tmp_path: Path) -> None:
    write_archive(tmp_path / "x.bin", called(name), {})
    with pytest.raises(ValueError, match=f"asks for {name}, and no code of a file is run"):
        read_torch(tmp_path / "x.bin")


def test_what_a_training_saved_is_named(tmp_path: Path) -> None:
    write_pickles(tmp_path / "x.bin", TREES["a checkpoint"], {"k": NUMBERS.tobytes()})
    with pytest.raises(ValueError, match="holds model, optimizer, which are not tensors"):
        read_torch(tmp_path / "x.bin")


def test_attributes_of_a_state_dict_are_harmless(tmp_path: Path) -> None:
    state = operations(PAIR) + operations({"_metadata": {"": {"version": 1}}, "__class__": "x", "items": None}) + b"b"
    write_archive(tmp_path / "x.bin", state, {"k": NUMBERS.tobytes()})
    assert same(read_torch(tmp_path / "x.bin")["tied"], NUMBERS[2:4])


def test_no_other_operation_is_known() -> None:
    """Those that call, import or set something are the names in capitals of the module pickle that are left out."""
    assert not {"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4", "PERSID"} & set(
        OPERATIONS.split()
    )
    assert all(isinstance(getattr(pickle, name), bytes) for name in OPERATIONS.split())


@pytest.mark.parametrize("write", [write_archive, write_pickles])
def test_a_file_that_was_cut_anywhere_is_one_line(write: Callable[..., None], tmp_path: Path) -> None:
    file = tmp_path / "x.bin"
    write(file, PAIR, {"k": NUMBERS.tobytes()})
    whole = file.read_bytes()
    needed = len(whole) if write is write_archive else len(whole) - 16  # the last four numbers are in no tensor
    for size in range(0, needed, 7):
        file.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"x\.bin: .*copy the file again"):
            read_torch(file)


def test_archives_of_another_kind_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "x.bin"
    write_archive(file, PAIR, {"k": bytes(10**6)}, zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="its archive is compressed"):
        read_torch(file)
    write_archive(file, PAIR, {"k": NUMBERS.tobytes()})
    file.write_bytes(file.read_bytes().replace(b"little", b"biggie"))
    with pytest.raises(ValueError, match="its numbers are big-endian"):
        read_torch(file)
    header = (*HEADER[:2], {"little_endian": False})
    file.write_bytes(b"".join(map(pickled, (*header, {}, []))))
    with pytest.raises(ValueError, match="its numbers are big-endian"):
        read_torch(file)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x", b"")
    for content in (
        file.read_bytes(),
        b"version https://git-lfs.github.com/spec/v1\n",
        b"",
        pickle.dumps({"a": NUMBERS}),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"x\.bin: .*copy the file again"):
            read_torch(file)


def test_bfloat16_is_that_of_the_file(tmp_path: Path) -> None:
    x = np.asarray([1.5, -2, 3e38], ml_dtypes.bfloat16)
    write_torch(tmp_path / "x.bin", {"x": x, "one": x[0].reshape(())})
    found = read_torch(tmp_path / "x.bin")
    assert same(found["x"], x) and same(found["one"], x[0].reshape(()))


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"x\.pt: .*No such file"):
        read_torch(tmp_path / "x.pt")
