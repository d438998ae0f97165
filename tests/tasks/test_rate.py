"""Oracle: MetricX's own models.py and COMET 2.2.7 on tiny random models (tests/makers/make_metric_fixtures.py)."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from flaxformer_lite.core.objectives import Regression
from flaxformer_lite.core.search.answers import ScoredText
from flaxformer_lite.interop.exporting import export_hf
from flaxformer_lite.interop.importing import import_hf
from flaxformer_lite.metrics.translations import MetricConfig
from flaxformer_lite.run import Run, load
from flaxformer_lite.run.choosing import best_first
from tests.support.limits import assert_close
from tests.support.paths import FIXTURES

pytestmark = pytest.mark.usefixtures("one_device")

METRICS = FIXTURES / "metrics"
THEIRS = json.loads((METRICS / "scores.json").read_text(encoding="utf-8"))
SOURCES, TRANSLATIONS, REFERENCES = (THEIRS["texts"][name] for name in ("source", "translation", "reference"))


def imported(folder: Path, name: str, **settings: str) -> Run:
    """Returns the run of a fixture, with other settings of metric.json."""
    shutil.copytree(METRICS / name, folder / "theirs")
    file = folder / "theirs" / "metric.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return load(import_hf(folder / "theirs", folder / "run"))


@pytest.mark.parametrize("version", ["23", "23-qe", "24"])
def test_metricx_gives_their_numbers(tmp_path: Path, version: str):
    run = imported(tmp_path, "metricx", version=version)
    references = None if version == "23-qe" else REFERENCES
    assert_close(run.rate(SOURCES, TRANSLATIONS, references), THEIRS["metricx"][version])
    if version == "24":
        without = THEIRS["metricx"]["24 without reference"]
        assert_close(run.rate(SOURCES, TRANSLATIONS), without)
        assert not np.allclose(without, THEIRS["metricx"]["24"], atol=0.1)


@pytest.mark.parametrize(("name", "reads_references"), [("comet", True), ("comet_qe", False)])
def test_comet_gives_their_numbers(tmp_path: Path, name: str, reads_references: bool):
    run = imported(tmp_path, name)
    references = REFERENCES if reads_references else None
    found = run.rate(SOURCES, TRANSLATIONS, references)
    assert_close([*found, found.mean()], [*THEIRS[name]["scores"], THEIRS[name]["system"]])


def test_numbers_lie_between_the_bounds(tmp_path: Path):
    run = imported(tmp_path, "metricx")
    for factor, bound in ((1000.0, 25.0), (-1000.0, 0.0)):
        params = run.params | {"pooler": jax.tree.map(lambda x, factor=factor: factor * x, run.params["pooler"])}
        scaled = dataclasses.replace(run, params=params)
        assert scaled.rate(SOURCES[:1], TRANSLATIONS[:1]).tolist() == [bound]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("comet", {"class_identifier": "unified_metric"}, r'class_identifier is "unified_metric": .*regression_metric'),
        ("comet", {"layer": "17"}, r'layer is "17": only "mix" is implemented'),
        ("metricx", {"version": "25"}, r'version is "25": .*23, 23-qe, 24'),
    ],
)
def test_another_network_is_refused_by_name(tmp_path: Path, name: str, settings: dict[str, str], message: str):
    with pytest.raises(ValueError, match=message):
        imported(tmp_path, name, **settings)


def test_what_a_metric_cannot_do_is_refused(tmp_path: Path):
    comet = imported(tmp_path, "comet_qe")
    with pytest.raises(ValueError, match=r"^references are given, but .* leave them out"):
        comet.rate(SOURCES, TRANSLATIONS, REFERENCES)
    with pytest.raises(ValueError, match=r"^there are 1 translations for 9 sources: give one for each"):
        comet.rate(SOURCES, TRANSLATIONS[:1])
    with pytest.raises(ValueError, match=r"rates translations: use Run\.rate, or evaluate --metric"):
        comet.rank("a", ["b"])
    with pytest.raises(ValueError, match=r"layer_mix"):
        export_hf(comet.path, tmp_path / "out")
    metricx = imported(tmp_path / "x", "metricx")
    for ask in (lambda: metricx.rank("a", ["b"]), lambda: metricx.classify(["a"])):
        with pytest.raises(ValueError, match=r"rates translations, in a text of its own: use Run\.rate, or evaluate"):
            ask()


def test_a_place_that_a_rated_text_cannot_have_is_refused():
    with pytest.raises(
        ValueError, match=r"objective\.without_reference is .* \{reference\}: .* \{source\}, \{translation\}$"
    ):
        Regression(without_reference="{source} {reference}")


def test_warnings_of_candidates_number_their_lines(tmp_path: Path):
    comet, told = imported(tmp_path, "comet_qe"), list[str]()
    answers = [[ScoredText("a", 0.0)] * 3, [ScoredText("b", 0.0), ScoredText("c" * 3000, 0.0)]]
    best_first(comet, ["x", "y"], answers, MetricConfig(), first_line=7, warn=told.append)
    assert [line[:8] for line in told if "cut" in line] == ["line 8: "]
