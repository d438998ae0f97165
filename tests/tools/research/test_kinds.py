"""Laws: a config names an objective of a paper by its module."""

import subprocess
import sys

import pytest

from flaxformer_lite.config.load import load_config
from flaxformer_lite.config.outside import import_options
from flaxformer_lite.config.serialize import from_json, to_json
from flaxformer_lite.tools.research import MinimumRisk
from tests.support.experiments import tiny_config
from tests.support.paths import ROOT


@pytest.mark.slow
def test_a_process_that_imported_no_tool_reads_them():
    text = to_json(tiny_config(objective=MinimumRisk(weight=3.0)))
    code = (
        "import sys; from flaxformer_lite.config.serialize import from_json\n"
        "assert not any(name.startswith('flaxformer_lite.tools') for name in sys.modules)\n"
        "print(from_json(sys.stdin.read()).objective)"
    )
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=True)
    assert found.stdout.startswith("MinimumRisk(kind='minimum_risk', label_smoothing=0.1, z_loss=0.0, weight=3.0,")
    assert import_options(from_json(text)) == ""


def test_a_kind_that_no_tool_has_is_one_line():
    text = to_json(tiny_config(objective=MinimumRisk())).replace("minimum_risk:MinimumRisk", "minimum_risk:Other")
    with pytest.raises(
        ValueError, match=r"^config\.json: objective\.kind is '.*:Other': the class Other is not part of"
    ):
        from_json(text)


def test_their_settings_are_options():
    changed = load_config("multi30k_en_de_minimum_risk", ["--objective.weight", "7", "--objective.num-samples", "3"])
    assert changed.objective == MinimumRisk(label_smoothing=0.1, weight=7.0, num_samples=3)
