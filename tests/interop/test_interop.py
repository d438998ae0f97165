"""Laws of the name maps: there and back is the identity, bit for bit; whatever does not fit is named."""

import dataclasses
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest

from flaxformer_lite.core.model import DotProduct, LanguageModelHead, ModelConfig
from flaxformer_lite.interop.name_map import from_params, name_map, to_params
from flaxformer_lite.interop.systems import SYSTEMS
from flaxformer_lite.interop.weight_files import read_weights
from tests.support.oracles import WHOLE, load_case, whole_models
from tests.support.quick import quick
from tests.support.seed_models import SYSTEM_OF


@pytest.mark.parametrize("name", quick(whole_models(), [*WHOLE.values()].__contains__))
def test_import_then_export_is_the_identity(name: str) -> None:
    config, weights = load_case(name)
    system = SYSTEMS[SYSTEM_OF[config["system"]]]
    names = system.name_map(config)
    params = to_params(weights, names, system.model_config(config))
    assert all(x.dtype == np.float32 for x in jax.tree.leaves(params))
    back = from_params(params, names)
    assert back.keys() == weights.keys()
    for key, x in weights.items():
        assert back[key].tobytes() == np.ascontiguousarray(x).tobytes() and back[key].shape == x.shape, key


@pytest.mark.parametrize("system", WHOLE)
def test_what_does_not_fit_is_named(system: str) -> None:
    config, weights = load_case(WHOLE[system])
    names, model = SYSTEMS[system].name_map(config), SYSTEMS[system].model_config(config)
    lost = sorted(weights)[3]
    with pytest.raises(ValueError, match="1 array missing: ") as raised:
        to_params({key: x for key, x in weights.items() if key != lost}, names, model)
    assert lost in str(raised.value)
    with pytest.raises(ValueError, match="1 array left over: stray"):
        to_params(weights | {"stray": np.zeros(3)}, names, model)
    with pytest.raises(ValueError, match=r"of another shape: .*the config needs"):
        to_params(weights, names, dataclasses.replace(model, d_ff=model.d_ff + 1))
    with pytest.raises(ValueError, match="1 array without a name in that system: stray"):
        from_params({"stray": np.zeros(3), **to_params(weights, names, model)}, names)


def test_a_parameter_has_one_row() -> None:
    """A module's row names its bias too; rows that no parameter of the model has are not read."""
    model = ModelConfig(
        vocab_size=5,
        d_model=4,
        num_heads=1,
        d_ff=4,
        num_encoder_layers=0,
        num_decoder_layers=1,
        share_target_output=False,
    )
    rows = {"head": "lm_head", "encoder/final_norm": "none"}
    found = name_map(rows, dataclasses.replace(model, head=LanguageModelHead(bias=True)))
    assert [(row.path, row.names) for row in found] == [
        ("head/kernel", ("lm_head.weight",)),
        ("head/bias", ("lm_head.bias",)),
    ]


def test_a_matrix_holds_queries_keys_and_values_by_key_head() -> None:
    """By hand: four query heads and two key heads of width 2, with the number of its column in each place of the array."""
    attention = DotProduct(num_kv_heads=2)
    model = ModelConfig(
        vocab_size=5, d_model=8, num_heads=4, d_ff=4, num_encoder_layers=0, num_decoder_layers=1, attention=attention
    )
    names = name_map({"decoder/layers/attention/{query|key|value}": "{i}.qkv"}, model)
    columns = {"query": [0, 1, 2, 3, 8, 9, 10, 11], "key": [4, 5, 12, 13], "value": [6, 7, 14, 15]}
    assert {row.path.split("/")[3]: [*row.part] for row in names} == columns
    ours = {role: {"bias": np.array([own]), "kernel": np.tile(own, (1, 8, 1))} for role, own in columns.items()}
    theirs = from_params({"decoder": {"layers": {"attention": ours}}}, names)
    np.testing.assert_array_equal(theirs["0.qkv.bias"], np.arange(16))
    np.testing.assert_array_equal(theirs["0.qkv.weight"], np.repeat(np.arange(16)[:, None], 8, 1))


def test_a_renamed_array_is_listed_twice_and_numbers_that_cannot_be_right_are_refused() -> None:
    """float64 would be rounded, so the exported array would differ."""
    config, weights = load_case(WHOLE["paddle"])
    names, model = SYSTEMS["paddle"].name_map(config), SYSTEMS["paddle"].model_config(config)
    first = sorted(weights)[0]
    renamed = {("renamed" if key == first else key): x for key, x in weights.items()}
    with pytest.raises(ValueError, match=rf"1 array missing: {first} \(.*\); 1 array left over: renamed"):
        to_params(renamed, names, model)
    with pytest.raises(ValueError, match=rf"not float32, float16 or bfloat16: {first} \(float64\)"):
        to_params(weights | {first: weights[first].astype(np.float64)}, names, model)
    for number in (np.nan, -np.inf):
        damaged = weights[first].copy()
        damaged.flat[1] = number
        with pytest.raises(ValueError, match=rf"^1 array with a NaN or an infinity: {first}: the file is damaged"):
            to_params(weights | {first: damaged}, names, model)
    half = to_params(weights | {first: weights[first].astype(np.float16)}, names, model)
    assert all(x.dtype == np.float32 for x in jax.tree.leaves(half))


def test_a_damaged_archive_is_refused_in_one_line(tmp_path: Path) -> None:
    """Whichever byte is flipped: `zipfile` and NumPy raise many types of errors. A flip that changes nothing may pass."""
    path = tmp_path / "x.npz"
    np.savez_compressed(path, a=np.arange(64.0), b=np.zeros((2, 3), np.float32))
    content, refused = path.read_bytes(), 0
    for at in range(0, len(content), 3):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        try:
            read_weights(str(path))
        except ValueError as error:
            refused += str(error).startswith("cannot be read as an .npz file of plain arrays: ")
    assert refused > len(content) / 3 / 2


def test_an_archive_that_fills_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(2**16, np.float32))
    monkeypatch.setattr("flaxformer_lite.interop.weight_files.most_unpacked", lambda packed: 100 * packed)
    with pytest.raises(ValueError, match=r"unpacks to 262,\d+ bytes, and at most \d+,\d+ are read"):
        read_weights(str(tmp_path / "x.npz"))


def test_an_entry_of_an_archive_that_is_no_array_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("folder/", b"")
    with pytest.raises(ValueError, match=r"cannot be read as an \.npz file of plain arrays: folder/ is not an array"):
        read_weights(str(tmp_path / "x.npz"))
