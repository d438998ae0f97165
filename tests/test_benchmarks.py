"""Benchmarks that need a device that is rarely there: their toy forms run on a CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support import needs
from tests.support.paths import ROOT

FOLDER = ROOT / "benchmarks"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    import gpu  # type: ignore[import-not-found]

    return gpu


def test_the_report_has_an_mfu_only_where_the_peak_is_known(gpu: ModuleType):
    """Worked by hand: 4 TFLOP in 0.5, 0.8 and 1 s; 10 TFLOP/s at most."""
    planned = {"device": "a GPU", "rows": 2, "tokens": 1600, "parameters": 7, "kernels": ["attention by hand"]}
    planned |= {"weights": 3e12, "attention": 1e12, "memory": 3 * 2**30, "peak": 10e12}
    ours, theirs = (
        [{"seconds": s, "memory": memory, "loss": 4.5, "version": "none"} for s in times]
        for times, memory in (((0.5, 1.0, 0.8), 2**31), ((1.0, 1.1, 1.6), None))
    )
    lines = gpu.report("toy", planned, {"ours": ours, "torch": theirs})
    assert lines[0] == "toy on a GPU: 2 rows, 1,600 tokens, 7 parameters" and lines[1] == "attention by hand"
    assert lines[3].split() == ["ours", "800.0", "2,000", "5.00", "50.0%", "2.00", "4.500", "none"]
    assert lines[4].split() == ["torch", "1100.0", "1,455", "3.64", "36.4%", "–", "4.500", "none"]
    assert lines[5].split(maxsplit=2) == ["ratio", "2.00", "(1.10 to 2.00)"]
    assert "memory 3.00, 4.00 TFLOP a step: at least 400.0 ms" in lines[6] and "25.0% of it" in lines[8]
    unknown = gpu.report("toy", planned | {"peak": None}, {"ours": ours})
    assert unknown[3].split() == ["ours", "800.0", "2,000", "5.00", "–", "2.00", "4.500", "none"]
    assert "at least" not in unknown[4]
    small = gpu.report("toy", planned | {"weights": 1.5e9, "attention": 0.5e9, "memory": 2**20}, {"ours": ours})
    assert small[3].split()[3] == "2.5e-03" and "memory 9.8e-04, 2.0e-03 TFLOP a step" in small[4]


def test_there_is_no_ratio_where_the_rounds_of_the_baseline_differ(monkeypatch: pytest.MonkeyPatch):
    """Worked by hand: 0.09 and 0.11 of a median of 1.0."""
    monkeypatch.syspath_prepend(str(FOLDER))
    from sides import refusal  # type: ignore[import-not-found]

    assert refusal("torch", [1.0, 1.05, 0.96]) is None
    why = refusal("torch", [1.0, 1.06, 0.95])
    assert why == "no ratio: the rounds of torch differ by 11%, more than 10%: try a quieter machine"


def toy(tmp_path: Path, shape: str, *words: str) -> tuple[dict, str]:
    """Returns the figures of a model's toy form, and what it prints."""
    command = [
        sys.executable,
        str(FOLDER / "gpu.py"),
        "--toy",
        "--shape",
        shape,
        "--steps",
        "1",
        "--rounds",
        "1",
        *words,
    ]
    environment = os.environ | {"XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
    command += ["--json", str(tmp_path / "found")]
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return json.loads((tmp_path / "found").read_text()), found.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "tokens"), [("transformer_big", 4 * (16 + 16)), ("bert_large", 64), ("llama_1b", 64)]
)
def test_the_toy_form_measures_the_real_step(shape: str, tokens: int, tmp_path: Path):
    figures, text = toy(tmp_path, shape)
    planned, (ours,) = figures["plan"], figures["rounds"]["ours"]
    assert (figures["shape"], planned["tokens"], planned["peak"]) == (shape, tokens, None)
    assert ours["memory"] > planned["memory"] > 4 * planned["parameters"] and planned["weights"] > planned["attention"]
    assert ours["seconds"] > 0 and 3 < ours["loss"] < 7 and "–" in text


@needs.torch
@pytest.mark.slow
@pytest.mark.parametrize("shape", ["transformer_big", "bert_large", "llama_1b"])
def test_the_toy_form_runs_beside_pytorch(shape: str, tmp_path: Path):
    """The peer has the same parameters; the benchmark itself refuses others."""
    figures, text = toy(tmp_path, shape, "--peer", "torch")
    (ours,), (theirs,) = figures["rounds"]["ours"], figures["rounds"]["torch"]
    assert abs(ours["loss"] - theirs["loss"]) < 1 and "ratio" in text


@pytest.mark.slow
def test_a_mistake_is_a_readable_line():
    command = [sys.executable, str(FOLDER / "gpu.py"), "--toy", "--shape", "llama_1b", "model.d_model=33"]
    found = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert found.returncode == 1 and "model.d_model" in found.stderr and "Traceback" not in found.stderr
    assert found.stderr.splitlines()[-1].startswith("llama_1b: plan failed")


def test_a_flipped_bit_is_reported_by_a_run_and_not_by_orbax(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """What docs and README say of it; a bit of an array is flipped, as 9 of 10 bits of a checkpoint are."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import bit_flips  # type: ignore[import-not-found]

    counts = {side: bit_flips.count(side, tmp_path / side, 6, seed=1) for side in bit_flips.SIDES}
    assert counts["a run"] == {"reported": 6}
    assert counts["Orbax alone"]["wrong"] > 3
