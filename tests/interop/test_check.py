"""Oracles: transformers and PyTorch, where they are installed, with what they saved; a stand-in that computes as we do."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from flaxformer_lite.core.model import Transformer
from flaxformer_lite.core.predictions.forward import forward
from flaxformer_lite.interop.check import check_hf, check_torch
from flaxformer_lite.interop.name_map import to_params
from flaxformer_lite.interop.systems.torch_transformer import SYSTEM
from tests.support import needs
from tests.support.commands import Command
from tests.support.hf_folders import DATA, imported, refused

PYTORCH = DATA / "pytorch_transformer"
LABELS = sorted(str(file.parent.relative_to(DATA)) for file in DATA.glob("*/*/config.json"))


@needs.transformers
@pytest.mark.slow
@pytest.mark.parametrize("label", LABELS)
def test_transformers_answers_as_we_do_and_a_changed_parameter_is_noticed(label: str):
    if refused(label):
        pytest.skip("an option that is refused")
    found = imported(label)
    model = (found.model, found.decode)
    if not check_hf(DATA / label, *model, found.params):
        assert not found.model.vocab_size
        return
    changed = jax.tree.map(lambda x: x + 0.1, found.params)
    with pytest.raises(ValueError, match="answers otherwise with this model, by its"):
        check_hf(DATA / label, *model, changed)


def stand_in(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """Puts modules in place of PyTorch and transformers."""

    class Reader:
        @classmethod
        def from_pretrained(cls, folder: str) -> "Reader":
            return cls()

        def float(self) -> "Reader":
            return self

        def eval(self) -> "Reader":
            return self

        def __call__(self, **inputs: Any) -> Any:
            return answer(**inputs)

    torch: Any = ModuleType("torch")
    transformers: Any = ModuleType("transformers")
    torch.no_grad = lambda: jax.named_scope("no gradient")
    torch.tensor = np.asarray
    quiet = SimpleNamespace(set_verbosity_error=lambda: None, disable_progress_bar=lambda: None)
    transformers.__version__, transformers.utils = "0", SimpleNamespace(logging=quiet)
    for name in ("BertForMaskedLM", "BertForPreTraining", "BertModel", "GPT2LMHeadModel"):
        setattr(transformers, name, Reader)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "transformers", transformers)


def test_a_folder_that_is_read_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch):
    label = "gpt2/untied"
    found = imported(label)
    folder, model = DATA / label, (found.model, found.decode)

    def answer(error: float, **inputs: Any) -> Any:
        logits = forward(Transformer(found.model), {"params": found.params}, found.decode, **inputs).logits
        changed = logits + error * np.abs(logits).max() * (np.arange(logits.size) == 5).reshape(logits.shape)
        return SimpleNamespace(logits=SimpleNamespace(numpy=lambda: changed))

    stand_in(monkeypatch, lambda **inputs: answer(0.001, **inputs))
    assert check_hf(folder, *model, found.params)
    for error in (0.02, np.nan):
        stand_in(monkeypatch, lambda error=error, **inputs: answer(error, **inputs))
        with pytest.raises(ValueError, match=r"^transformers 0 answers otherwise with this model, by its logits"):
            check_hf(folder, *model, found.params)
    stand_in(monkeypatch, lambda **inputs: 1 / 0)
    with pytest.raises(ValueError, match=r"^transformers 0 cannot use this folder \(division by zero\): nothing was"):
        check_hf(folder, *model, found.params)
    del sys.modules["transformers"].GPT2LMHeadModel  # a release from before the architecture
    assert not check_hf(folder, *model, found.params)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not check_hf(folder, *model, found.params)


@needs.torch
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(folder.name for folder in PYTORCH.iterdir()))
def test_pytorch_answers_as_we_do_and_a_changed_or_missing_parameter_is_noticed(name: str):
    with np.load(PYTORCH / name / "io.npz", allow_pickle=False) as file:
        config = json.loads(str(file["meta"]))["options"]
    arrays = load_file(PYTORCH / name / "model.safetensors")
    model = SYSTEM.model_config(config)
    params = to_params(arrays, SYSTEM.name_map(config), model)
    assert check_torch(config, arrays, model, params)
    with pytest.raises(ValueError, match="answers otherwise with these weights"):
        check_torch(config, arrays, model, jax.tree.map(lambda x: x + 0.1, params))
    first = next(iter(arrays))
    with pytest.raises(ValueError, match=r"cannot use these weights .*nothing was written"):
        check_torch(config, {key: x for key, x in arrays.items() if key != first}, model, params)


def test_without_pytorch_nothing_is_compared(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not check_torch({}, {}, SYSTEM.model_config({}), {})


def test_the_command_compares_before_it_writes(
    tmp_path: Path, command: Command, one_device: None, monkeypatch: pytest.MonkeyPatch
):
    with np.load(PYTORCH / "pre_gelu/io.npz", allow_pickle=False) as file:
        (tmp_path / "config.json").write_text(json.dumps(json.loads(str(file["meta"]))["options"]))
    weights, run, out = PYTORCH / "pre_gelu/model.safetensors", tmp_path / "run", tmp_path / "out.safetensors"
    command("import", "torch-transformer", weights, run, "--config", tmp_path / "config.json")

    def differs(config, arrays, *_):
        assert config["norm_first"] and arrays.keys() == load_file(weights).keys()
        raise ValueError("it differs")

    monkeypatch.setattr("flaxformer_lite.interop.check.check_torch", differs)
    assert "it differs" in command.mistake("export", "torch-transformer", run, out)
    assert not out.exists()
