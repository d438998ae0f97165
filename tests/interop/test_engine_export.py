"""The process that exports, as a function. Oracles: the run in JAX, and the exit statuses that its caller reads."""

import dataclasses
import json
from pathlib import Path

import pytest

from flaxformer_lite.base.sealed_files import read_sealed
from flaxformer_lite.core.model.norms import DeviationNorm
from flaxformer_lite.engine.exports import CANNOT, CHANGED, FACTS, MISTAKE, RunWeights, state_of
from flaxformer_lite.interop import engine_export
from tests.support import needs
from tests.support.engine_runs import run_config, save, write_random_run
from tests.support.experiments import write_config_file

pytestmark = [needs.ctranslate2, pytest.mark.usefixtures("one_device")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_random_run(tmp_path / "run")


def words(wanted: RunWeights, output: Path, state: str = "") -> list[str]:
    return [json.dumps([wanted, state or state_of(wanted.run), str(output)])]


def test_an_export_has_the_facts_of_the_run(folder: Path, tmp_path: Path):
    wanted = RunWeights(str(folder), "best")
    output = tmp_path / "made"
    assert engine_export.main(words(wanted, output)) == 0
    facts = read_sealed(output / FACTS)
    assert facts["origin"][0] == 3 and facts["decode"]["max_length_extra"] == 6 and facts["sizes"][:2] == [23, 23]
    assert {"model.bin", "config.json"} < facts["files"].keys() and [*output.glob("tokenizer.*")]


def test_a_run_that_changes_meanwhile_is_no_export(folder: Path, tmp_path: Path):
    assert engine_export.main(words(RunWeights(str(folder)), tmp_path / "made", "another state")) == CHANGED
    assert not (tmp_path / "made").exists()


def test_a_model_that_ctranslate2_lacks_has_a_status_of_its_own(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    config = run_config()
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, norm=DeviationNorm()))
    other = tmp_path / "other"
    other.mkdir()
    write_config_file(other / "config.json", config)
    for file in folder.glob("tokenizer.*"):
        (other / file.name).write_bytes(file.read_bytes())
    save(other, config, 3, seed=1)
    assert engine_export.main(words(RunWeights(str(other)), tmp_path / "made")) == CANNOT
    assert "model.norm" in capsys.readouterr().err.splitlines()[-1]


def test_weights_that_are_not_there_are_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    assert engine_export.main(words(RunWeights(str(folder), "average:9"), tmp_path / "made")) == MISTAKE
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: weights is 'average:9'")
