"""Laws: the examples run as they stand, with nothing but the core."""

import ast
import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

SPINE = ROOT / "examples" / "spine.py"


def test_the_spine_is_short_and_uses_the_core_alone():
    lines = SPINE.read_text(encoding="utf-8").splitlines()
    names = [line.split()[1] for line in lines if line.startswith(("import flaxformer_lite", "from flaxformer_lite"))]
    assert len(lines) <= 60 and names and all(name.startswith("flaxformer_lite.core.") for name in names)


@pytest.mark.slow
def test_the_spine_learns_to_reverse():
    """Learning threshold: all three sources, which were not read in training as likely as not, come out reversed."""
    of_tests = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS")  # 600 steps are worth the compiler that users have
    environment = {name: value for name, value in os.environ.items() if name not in of_tests}
    done = subprocess.run(
        [sys.executable, SPINE], cwd=ROOT, capture_output=True, text=True, check=True, env=environment
    )
    answers = [line.split(" (")[0].split(" → ") for line in done.stdout.splitlines() if "→" in line]
    pairs = [(ast.literal_eval(source), ast.literal_eval(answer)) for source, answer in answers]
    assert len(pairs) == 3 and all(source[::-1] == answer for source, answer in pairs)


@pytest.mark.parametrize("name", ["convert_metricx.py", "convert_comet.py"])
def test_a_script_without_arguments_says_what_it_takes(name: str):
    """Without PyTorch too: the libraries are imported afterwards."""
    done = subprocess.run([sys.executable, "-S", ROOT / "examples" / name], capture_output=True, text=True)
    assert done.returncode == 1 and f"python examples/{name} " in done.stderr and "Traceback" not in done.stderr
