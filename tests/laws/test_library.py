"""Law: the code in docs/library.md runs as it stands there, and its script learns."""

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests.support.doc_commands import python_blocks
from tests.support.paths import ROOT

SCRIPT, LAYERS, BRIDGE = python_blocks(ROOT / "docs" / "library.md")


@pytest.mark.slow
def test_the_script_learns_and_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Learning threshold: a loss below 0.5 with dropout, where guessing has log 10, 2.3; Orbax reads what it saved."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(SCRIPT, "docs/library.md", "exec"), names)
    (loss,) = re.findall(r"^loss ([\d.]+)$", capsys.readouterr().out, re.M)
    assert float(loss) < 0.5
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "reverse", names["params"])
    jax.tree.map(np.testing.assert_array_equal, restored, names["params"])


@pytest.mark.slow
def test_the_layers_are_called_as_the_page_says():
    names: dict[str, Any] = {}
    exec(compile(LAYERS, "docs/library.md", "exec"), names)
    for name in ("y", "z", "memory", "trained", "embedded"):
        assert names[name].shape == (2, 5, 32) and np.isfinite(names[name]).all()
    assert (names["trained"] != names["memory"]).any()  # dropout


@pytest.mark.slow
def test_the_bridge_to_nnx_has_the_same_parameters_and_numbers():
    """Oracle: the Linen module's own forward pass."""
    names: dict[str, Any] = {}
    exec(compile(BRIDGE, "docs/library.md", "exec"), names)
    logits = names["model"].apply({"params": names["params"]}, names["inputs"]).logits
    np.testing.assert_array_equal(names["bridged"](names["inputs"]).logits, logits)
    assert float(names["loss"]) == pytest.approx(float(logits.mean()), abs=1e-6)
    leaves = jax.tree.leaves(names["gradients"])
    assert len(leaves) == len(jax.tree.leaves(names["params"])) and any(np.any(leaf) for leaf in leaves)
