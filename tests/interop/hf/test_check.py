"""Oracles: transformers itself, where it is installed, with folders that it made; a stand-in for it that computes as we do."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from flaxformer_lite.inference.forward import forward
from flaxformer_lite.interop.hf.check import check_folder
from flaxformer_lite.model import Transformer
from tests.support import needs
from tests.support.hf_folders import DATA, imported, refused

LABELS = sorted(str(file.parent.relative_to(DATA)) for file in DATA.glob("*/*/config.json"))


@needs.transformers
@pytest.mark.slow
@pytest.mark.parametrize("label", LABELS)
def test_transformers_answers_as_we_do_and_a_changed_parameter_is_noticed(label: str):
    if refused(label):
        pytest.skip("an option that is refused")
    found = imported(label)
    model = (found.model, found.decode)
    if not check_folder(DATA / label, *model, found.params):
        assert not found.model.vocab_size
        return
    changed = jax.tree.map(lambda x: x + 0.1, found.params)
    with pytest.raises(ValueError, match="answers otherwise with this model, by its"):
        check_folder(DATA / label, *model, changed)


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
    assert check_folder(folder, *model, found.params)
    for error in (0.02, np.nan):
        stand_in(monkeypatch, lambda error=error, **inputs: answer(error, **inputs))
        with pytest.raises(ValueError, match=r"^transformers 0 answers otherwise with this model, by its logits"):
            check_folder(folder, *model, found.params)
    stand_in(monkeypatch, lambda **inputs: 1 / 0)
    with pytest.raises(ValueError, match=r"^transformers 0 cannot use this folder \(division by zero\)\. Nothing was"):
        check_folder(folder, *model, found.params)
    del sys.modules["transformers"].GPT2LMHeadModel  # a release from before the architecture
    assert not check_folder(folder, *model, found.params)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not check_folder(folder, *model, found.params)
