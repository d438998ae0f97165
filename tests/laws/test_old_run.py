"""Oracle: a run folder of each format, and the digest of its parameters."""

import json
import shutil
from pathlib import Path

import pytest

import flaxformer_lite
from flaxformer_lite.config.load import load_config
from flaxformer_lite.config.serialize import FORMAT
from flaxformer_lite.core.model.transformer import parameter_shapes
from flaxformer_lite.training.loop import train
from flaxformer_lite.workdir import parameter_digest
from flaxformer_lite.workdir.manifest import leaf_types, sealed_config
from tests.support.paths import FIXTURES

GOLDEN = sorted((FIXTURES / "runs").iterdir())
"""A folder for each format, written by `tests/makers/make_golden_run.py` of the release that introduced it."""


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_a_run_of_every_format_is_loaded_and_compared_with_its_seal(golden: Path):
    expected, config = (
        json.loads((golden / "expected.json").read_text()),
        json.loads((golden / "config.json").read_text()),
    )
    assert golden.name == f"format_{config['format']}" and sealed_config(golden / "checkpoints") is not None
    run = flaxformer_lite.load(golden)
    assert (run.step, parameter_digest(run.params)) == (expected["step"], expected["sha256"])
    # A load trusts the tree that the checkpoint lists: the model of a release must still be of that tree.
    assert leaf_types(run.params) == leaf_types(parameter_shapes(run.config.model))


def test_this_format_has_its_folder():
    assert GOLDEN[-1].name == f"format_{FORMAT}"


@pytest.mark.slow
@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_a_run_of_every_format_is_trained_on(golden: Path, tmp_path: Path, one_device: None):
    folder = shutil.copytree(golden, tmp_path / "run")
    train(load_config(str(folder / "config.json"), ["--train.steps", "3"]), folder)
    assert flaxformer_lite.load(folder).step == 3
