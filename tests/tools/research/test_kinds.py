"""Laws: a config names an objective of a paper by its module; the settings that translation once had are read as one of them."""

import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest

from flaxformer_lite.config.load import load_config
from flaxformer_lite.config.outside import import_options
from flaxformer_lite.config.serialize import from_json, to_json
from flaxformer_lite.core.objectives import Seq2Seq
from flaxformer_lite.tools.research import Consistency, Distillation, MinimumRisk
from tests.support.experiments import tiny_config
from tests.support.paths import ROOT

OLD = {"consistency": 0.0, "distillation": 0.0, "risk": None}
"""The settings of papers in the config.json of a run before they became objectives, at their defaults."""


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
    text = to_json(tiny_config(objective=Consistency())).replace("consistency:Consistency", "consistency:Other")
    with pytest.raises(
        ValueError, match=r"^config\.json: objective\.kind is '.*:Other': the class Other is not part of"
    ):
        from_json(text)


def test_their_settings_are_options():
    changed = load_config("multi30k_en_de_minimum_risk", ["--objective.weight", "7", "--objective.num-samples", "3"])
    assert changed.objective == MinimumRisk(label_smoothing=0.1, weight=7.0, num_samples=3)


@pytest.mark.parametrize(
    ("settings", "objective"),
    [
        ({}, Seq2Seq(label_smoothing=0.2)),
        ({"consistency": 2.5}, Consistency(label_smoothing=0.2, weight=2.5)),
        (
            {"risk": {"weight": 100.0, "num_samples": 4, "temperature": 0.5}},
            MinimumRisk(label_smoothing=0.2, weight=100.0, num_samples=4, temperature=0.5),
        ),
        ({"distillation": 0.7}, Distillation(label_smoothing=0.2, weight=0.7, predictions="a.npz")),
    ],
)
def test_old_settings_become_an_objective(settings: dict[str, Any], objective: Seq2Seq):
    config = tiny_config(objective=Seq2Seq(label_smoothing=0.2))
    tree = json.loads(to_json(config))
    tree["objective"] |= OLD | settings
    tree["data"]["predictions"] = "a.npz" if "distillation" in settings else None
    assert from_json(json.dumps(tree)) == dataclasses.replace(config, objective=objective)


def test_two_old_settings_are_refused():
    tree = json.loads(to_json(tiny_config()))
    tree["objective"] |= OLD | {"consistency": 1.0, "distillation": 0.5}
    with pytest.raises(
        ValueError, match=r"two of objective\.risk, objective\.consistency, objective\.distillation are set"
    ):
        from_json(json.dumps(tree))
