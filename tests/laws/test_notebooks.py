"""Law: the notebooks run from top to bottom, and are kept with what they show: a badge, an install, pictures."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
INSTALL = 'import importlib.util\n\nif importlib.util.find_spec("flaxformer_lite") is None:\n    %pip install -q '
COLAB = "https://colab.research.google.com/github/flaxformer-lite/flaxformer_lite/blob/main/notebooks/"


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    """Returns the cells of one kind, each with its source as one text."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell | {"source": "".join(cell["source"])} for cell in found if cell["cell_type"] == kind]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_with_its_outputs(path: Path):
    texts, code = cells(path, "markdown"), cells(path, "code")
    assert f"({COLAB}{path.name})" in texts[0]["source"]
    assert code[0]["source"].startswith(INSTALL)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "run it from top to bottom"
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    shown = json.dumps(outputs)
    assert not re.findall(r"/(?:home|root|tmp|work)/", shown), "an output names a folder of the machine that ran it"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_cells_are_short(path: Path):
    """One idea a cell; an idea with a picture takes some twenty lines."""
    for cell in cells(path, "code"):
        assert len(cell["source"].splitlines()) <= 30, cell["source"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_from_top_to_bottom(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """At toy size, in an empty folder, with this checkout's package."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    for name, value in (("FLAXFORMER_LITE_TOY", "1"), ("PYTHONPATH", str(ROOT))):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", os.environ["FLAXFORMER_LITE_TEST_CACHE"])
    monkeypatch.delenv("XLA_FLAGS")  # one device, as a user has, or as many as the notebook asks for
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()  # raises with the cell that fails
