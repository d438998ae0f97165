"""Oracles: a run folder of the release before settings were renamed, and the answers that release gave with it; a run folder of
each format since, and the digest of its parameters."""

import json
import shutil
from pathlib import Path

import jax
import pytest

import flaxformer_lite
from flaxformer_lite.config.load import load_config
from flaxformer_lite.config.serialize import FORMAT
from flaxformer_lite.training.loop import train
from flaxformer_lite.workdir import parameter_digest
from flaxformer_lite.workdir.manifest import sealed_config
from tests.support.paths import FIXTURES
from tests.support.quick import quick

OLD_RUN = FIXTURES / "before_rebuild" / "run"
EXPECTED = json.loads((OLD_RUN / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(OLD_RUN, tmp_path / "run")


SEARCHES = {"greedy": {"beam_size": 1}, "beam3": {"beam_size": 3, "num_hypotheses": 3}}


@pytest.mark.parametrize("search", quick(SEARCHES, "greedy".__eq__))
def test_an_old_run_has_the_same_parameters_and_answers(folder: Path, search: str):
    run = flaxformer_lite.load(folder)
    assert run.step == EXPECTED["step"] and parameter_digest(run.params) == EXPECTED["sha256"]["last"]
    found = run.hypotheses(EXPECTED["inputs"], **SEARCHES[search])
    assert [[h.text for h in answers] for answers in found] == [
        [h["text"] for h in answers] for answers in EXPECTED[search]
    ]
    scores = [h["score"] for answers in EXPECTED[search] for h in answers]
    assert [h.score for answers in found for h in answers] == pytest.approx(scores, abs=1e-4)
    assert parameter_digest(flaxformer_lite.load(folder, weights="ema").params) == EXPECTED["sha256"]["ema"]


@pytest.mark.slow
def test_an_old_run_is_trained_on(folder: Path):
    """As `python train.py RUN/config.json --train.steps 502` does: from step 500 on, with the old optimizer state."""
    train(load_config(str(folder / "config.json"), ["--train.steps", "502"]), folder)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    old = [json.loads(line) for line in (OLD_RUN / "metrics.jsonl").read_text().splitlines()]
    assert rows[: len(old)] == old
    assert rows[-1]["step"] == 502 and rows[-1]["loss"] == pytest.approx(EXPECTED["evaluation"]["loss"], abs=0.05)
    run = flaxformer_lite.load(folder)
    assert run.step == 502
    assert jax.tree.leaves(run.params)


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


def test_this_format_has_its_folder():
    assert GOLDEN[-1].name == f"format_{FORMAT}"


@pytest.mark.slow
@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_a_run_of_every_format_is_trained_on(golden: Path, tmp_path: Path):
    folder = shutil.copytree(golden, tmp_path / "run")
    train(load_config(str(folder / "config.json"), ["--train.steps", "3"]), folder)
    assert flaxformer_lite.load(folder).step == 3
