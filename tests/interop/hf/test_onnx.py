"""ONNX by the exporter of transformers, as docs/deploying.md has it. Oracle: the run's own logits."""

import re
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite import export_hf, import_hf, load
from tests.support import needs
from tests.support.hf_folders import DATA
from tests.support.limits import assert_close
from tests.support.paths import ROOT


def code_of_the_page() -> str:
    page = (ROOT / "docs/deploying.md").read_text(encoding="utf-8")
    (found,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "OnnxExporter" in code)
    return found


@needs.onnx
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # PyTorch's, about itself
@pytest.mark.parametrize(
    ("label", "name"), [("llama/gqa_llama3", "AutoModelForCausalLM"), ("bert/masked_lm", "AutoModelForMaskedLM")]
)
def test_onnx_runtime_computes_the_logits_of_the_run(
    label: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of the page, as it is; then with another number of rows and tokens."""
    monkeypatch.chdir(tmp_path)
    run = load(import_hf(DATA / label, "run"))
    export_hf("run", "hf-lm")
    names: dict = {}
    exec(code_of_the_page().replace("AutoModelForCausalLM", name), names)
    ours = run.forward(**{key: x.numpy() for key, x in names["inputs"].items()}).logits
    assert_close(names["logits"], ours)
    other = np.asarray([[5, 7, 11, 3, 2], [2, 9, 5, 1, 7], [1, 2, 3, 4, 5]], np.int64)
    found = names["session"].run(["logits"], {"input_ids": other, "attention_mask": np.ones_like(other)})[0]
    assert_close(found, run.forward(input_ids=other).logits)
