"""Oracle: PyTorch itself, where it is installed, with weights that it saved."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from flaxformer_lite.interop.name_map import to_params
from flaxformer_lite.interop.systems.torch_check import check_weights
from flaxformer_lite.interop.systems.torch_transformer import SYSTEM
from tests.support import needs
from tests.support.commands import type_command
from tests.support.experiments import use_one_device
from tests.support.paths import FIXTURES

DATA = FIXTURES / "hf/pytorch_transformer"


@needs.torch
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(folder.name for folder in DATA.iterdir()))
def test_pytorch_answers_as_we_do_and_a_changed_or_missing_parameter_is_noticed(name: str):
    with np.load(DATA / name / "io.npz", allow_pickle=False) as file:
        config = json.loads(str(file["meta"]))["options"]
    arrays = load_file(DATA / name / "model.safetensors")
    model = SYSTEM.model_config(config)
    params = to_params(arrays, SYSTEM.name_map(config), model)
    assert check_weights(config, arrays, model, params)
    with pytest.raises(ValueError, match="answers otherwise with these weights"):
        check_weights(config, arrays, model, jax.tree.map(lambda x: x + 0.1, params))
    first = next(iter(arrays))
    with pytest.raises(ValueError, match=r"cannot use these weights .*Nothing was written"):
        check_weights(config, {key: x for key, x in arrays.items() if key != first}, model, params)


def test_without_pytorch_nothing_is_compared(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not check_weights({}, {}, SYSTEM.model_config({}), {})


def test_the_command_compares_before_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    use_one_device(monkeypatch)
    with np.load(DATA / "pre_gelu/io.npz", allow_pickle=False) as file:
        (tmp_path / "config.json").write_text(json.dumps(json.loads(str(file["meta"]))["options"]))
    weights, run, out = DATA / "pre_gelu/model.safetensors", tmp_path / "run", tmp_path / "out.safetensors"
    type_command(monkeypatch, "import", "torch-transformer", weights, run, "--config", tmp_path / "config.json")

    def differs(config, arrays, *_):
        assert config["norm_first"] and arrays.keys() == load_file(weights).keys()
        raise ValueError("it differs")

    monkeypatch.setitem(SYSTEM.__dict__, "check", differs)
    with pytest.raises(SystemExit):
        type_command(monkeypatch, "export", "torch-transformer", run, out)
    assert not out.exists()
