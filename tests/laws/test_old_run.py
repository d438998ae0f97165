"""Oracle: a run folder of the release before settings were renamed, and the answers that release gave with it."""

import json
import shutil
from pathlib import Path

import jax
import pytest

import flaxformer_lite
from flaxformer_lite.config.load import load_config
from flaxformer_lite.training.loop import train
from flaxformer_lite.workdir.digests import parameter_digest
from tests.support.paths import FIXTURES

OLD_RUN = FIXTURES / "before_rebuild" / "run"
EXPECTED = json.loads((OLD_RUN / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(OLD_RUN, tmp_path / "run")


def test_an_old_run_has_the_same_parameters_and_answers(folder: Path):
    run = flaxformer_lite.load(folder)
    assert run.step == EXPECTED["step"] and parameter_digest(run.params) == EXPECTED["sha256"]["last"]
    for name, settings in (("greedy", {"beam_size": 1}), ("beam3", {"beam_size": 3, "num_hypotheses": 3})):
        found = run.hypotheses(EXPECTED["inputs"], **settings)
        assert [[h.text for h in answers] for answers in found] == [
            [h["text"] for h in answers] for answers in EXPECTED[name]
        ]
        scores = [h["score"] for answers in EXPECTED[name] for h in answers]
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
    assert run.step == 502 and "micro_batches" not in json.loads((folder / "config.json").read_text())["train"]
    assert jax.tree.leaves(run.params)
