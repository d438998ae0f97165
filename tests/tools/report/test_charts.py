"""Charts: the curves of metrics.jsonl as data, and what a chart shows of them."""

import math

import numpy as np
import pytest

from flaxformer_lite.tools.report import plots
from tests.support import needs

ROWS = [
    {"step": 10, "split": "train", "learning_rate": 0.1, "loss": 3.0, "epoch": 0.5, "note": "text"},
    {"step": 20, "split": "train", "learning_rate": 0.2, "loss": math.nan, "epoch": 1.0},
    {"step": 20, "split": "eval", "loss": 2.5, "bleu": 11},
]


def test_curves_hold_the_finite_numbers_of_every_metric():
    """Hand-worked: loss comes first, a NaN, a text and the epoch are no points."""
    assert plots.curves_of({"a": ROWS, "b": ROWS[:1]}) == {
        "loss": [
            plots.Curve("a", "train", [10], [3.0]),
            plots.Curve("a", "eval", [20], [2.5]),
            plots.Curve("b", "train", [10], [3.0]),
        ],
        "learning_rate": [plots.Curve("a", "train", [10, 20], [0.1, 0.2]), plots.Curve("b", "train", [10], [0.1])],
        "bleu": [plots.Curve("a", "eval", [20], [11])],
    }
    assert plots.curves_of({"empty": []}) == {}


def test_a_long_curve_keeps_its_ends():
    rows = [{"step": step, "split": "train", "loss": float(step)} for step in range(1, 5001)]
    (curve,) = plots.curves_of({"a": rows})["loss"]
    assert len(curve.steps) == plots.MAX_POINTS
    assert (curve.steps[0], curve.steps[-1]) == (1, 5000)
    assert curve.steps == sorted(set(curve.steps)) == curve.values


def values(chart: plots.Chart) -> list[dict]:
    (found,) = [chart.to_dict()["data"]["values"]]
    return found


@needs.altair
def test_a_line_chart_has_every_point_and_its_tooltip():
    chart = plots.line_chart("loss", plots.curves_of({"a": ROWS})["loss"])
    assert values(chart) == [
        {"run": "a", "split": "train", "step": 10, "value": 3.0, "few": True},
        {"run": "a", "split": "eval", "step": 20, "value": 2.5, "few": True},
    ]
    layers = chart.to_dict()["layer"]
    assert [tip["field"] for layer in layers for tip in layer["encoding"].get("tooltip", [])] == [
        *("run", "split", "step", "value")
    ]


@needs.altair
def test_a_curve_of_few_values_has_dots():
    """By hand: a line needs two values to be seen; the first run has one row of training, the second too many."""
    rows = {"a": [ROWS[0]], "b": [ROWS[0] | {"step": step} for step in range(21)]}
    chart = plots.line_chart("loss", plots.curves_of(rows)["loss"])
    assert [value["few"] for value in values(chart)] == [True] + 21 * [False]
    assert chart.to_dict()["layer"][1]["transform"] == [{"filter": "datum.few"}]


@needs.altair
def test_an_attention_map_has_a_cell_for_each_pair_of_tokens():
    """Two tokens with the same piece keep rows of their own."""
    weights = np.array([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]])
    chart = plots.attention_map(weights, ["a", "a", "end"], ["x y", "z"])
    assert [(cell["query"], cell["key"], cell["weight"]) for cell in values(chart)] == [
        *(("0000a", "0000x␣y", 0.25), ("0000a", "0001z", 0.75)),
        *(("0001a", "0000x␣y", 1.0), ("0001a", "0001z", 0.0)),
        *(("0002end", "0000x␣y", 0.5), ("0002end", "0001z", 0.5)),
    ]


@needs.altair
def test_a_histogram_counts_all_texts():
    chart = plots.histogram("t", {"source": {0: 1, 2: 5}, "target": {2: 3}}, "tokens")
    assert values(chart) == [
        {"tokens": 0, "of": "source", "count": 1},
        {"tokens": 2, "of": "source", "count": 5},
        {"tokens": 2, "of": "target", "count": 3},
    ]
    encoding = chart.to_dict()["encoding"]
    assert encoding["x"]["bin"] and (encoding["y"]["aggregate"], encoding["y"]["stack"]) == ("sum", None)


def test_without_altair_the_message_has_the_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "altair", None)
    with pytest.raises(ValueError, match=r"charts need altair.*: pip install \"flaxformer-lite\[report\]\""):
        plots.line_chart("loss", [])
