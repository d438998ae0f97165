"""Charts by Altair of metrics, attention and lengths: for notebooks, for PNG files, and for the report's page.

Altair is imported when a chart is made, as it belongs to the extra `report`. A chart is Altair's own object: a notebook shows it,
`chart.save("x.png")` writes it without a browser, and the usual methods change it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float

Chart: TypeAlias = Any
"""A chart of Altair's."""

MAX_POINTS = 1000
"""The most points of a curve: of longer ones, rows at equal distances are drawn."""
CELL = 18
"""Pixels of a side of a cell in an attention map."""
EXTRA = 'pip install "flaxformer-lite[report]"'


def altair() -> ModuleType:
    """Returns the module. Raises: ValueError if it is not installed."""
    try:
        import altair
        import vl_convert  # noqa: F401  # it writes PNG files
    except ModuleNotFoundError as error:
        raise ValueError(f"charts need {error.name}, which is not installed: {EXTRA}") from None
    return altair


class Curve(NamedTuple):
    """The finite values of a metric, of one run and one split (train or eval)."""

    run: str
    split: str
    steps: list[int]
    values: list[float]


def curves_of(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[Curve]]:
    """Returns the curves of every metric in the rows of metrics.jsonl, by run; the metrics in the order of the rows, loss first."""
    found: dict[str, dict[tuple[str, str], Curve]] = {"loss": {}}
    for run, rows in runs.items():
        for row in rows:
            for name, value in row.items():
                number = isinstance(value, int | float) and not isinstance(value, bool)
                if name in ("step", "split", "epoch") or not number or not math.isfinite(value):
                    continue
                curve = found.setdefault(name, {}).setdefault((run, row["split"]), Curve(run, row["split"], [], []))
                curve.steps.append(row["step"])
                curve.values.append(value)
    return {name: [thinned(curve) for curve in curves.values()] for name, curves in found.items() if curves}


def thinned(curve: Curve) -> Curve:
    """Returns the curve with at most `MAX_POINTS` points, the first and the last among them."""
    if len(curve.steps) <= MAX_POINTS:
        return curve
    kept = np.linspace(0, len(curve.steps) - 1, MAX_POINTS).round().astype(int)
    return curve._replace(steps=[curve.steps[i] for i in kept], values=[curve.values[i] for i in kept])


def line_chart(metric: str, curves: Sequence[Curve]) -> Chart:
    """Returns a chart of a metric by steps: a colour for each run, dashes and diamonds for evaluations, a dot for one value."""
    alt = altair()
    values = [
        {"run": curve.run, "split": curve.split, "step": step, "value": value}
        for curve in curves
        for step, value in zip(curve.steps, curve.values, strict=True)
    ]
    runs, splits = {curve.run for curve in curves}, {curve.split for curve in curves}
    # The ticks around a single value would all be rounded to the same number.
    y_axis = alt.Axis(format=".4~g") if len({point["value"] for point in values}) == 1 else alt.Axis()
    base = alt.Chart(alt.Data(values=values)).encode(
        x=alt.X("step:Q", title="step", axis=alt.Axis(format="~s", labelSeparation=12)),
        y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=False), axis=y_axis),
        color=alt.Color("run:N", title=None, legend=alt.Legend(orient="bottom", columns=2) if len(runs) > 1 else None),
    )
    scale = alt.Scale(domain=["train", "eval"], range=[[1, 0], [5, 3]])
    dashes = alt.StrokeDash("split:N", scale=scale, legend=None)
    nearest = alt.selection_point(nearest=True, on="pointerover", fields=["step"], empty=False)
    hovered = base.mark_point(filled=True, size=70).encode(
        opacity=alt.condition(nearest, alt.value(1), alt.value(0)),
        tooltip=[
            "run:N",
            "split:N",
            alt.Tooltip("step:Q", format=","),
            alt.Tooltip("value:Q", title=metric, format=".5~g"),
        ],
    )
    layers = [base.mark_line(strokeWidth=1.8).encode(strokeDash=dashes), hovered.add_params(nearest)]
    lone = [curve.run for curve in curves if len(curve.steps) == 1 and curve.split == "train"]
    if lone:  # a line through one point is not seen
        only = f"datum.split == 'train' && indexof({json.dumps(lone)}, datum.run) >= 0"
        layers.insert(1, base.transform_filter(only).mark_point(filled=True, size=25, opacity=1))
    if "eval" in splits:
        diamonds = base.transform_filter("datum.split == 'eval'").mark_point(
            shape="diamond", size=60, strokeWidth=1.6, opacity=1
        )
        layers.insert(1, diamonds)
    title = alt.TitleParams(metric.replace("_", " "), subtitle=split_legend(curves) if len(splits) > 1 else "")
    return alt.layer(*layers).properties(title=title, width=480, height=240)


def split_legend(curves: Sequence[Curve]) -> str:
    """Returns what stands for training and for evaluation in a chart: lines only where a curve has several points."""
    several = {curve.split for curve in curves if len(curve.steps) > 1}
    return f"{'──' if 'train' in several else '●'} train     {'╌◇╌' if 'eval' in several else '◇'} evaluation"


def piece_labels(pieces: Sequence[str]) -> list[str]:
    """Returns one label for each piece that no other has: its number in four digits, and the piece with visible blanks."""
    return [f"{i:04}{piece.replace(' ', '␣').replace(chr(10), '⏎')}" for i, piece in enumerate(pieces)]


def attention_map(
    weights: Float[np.ndarray, "T S"], queries: Sequence[str], keys: Sequence[str], title: str = ""
) -> Chart:
    """Returns a map of attention weights: a row for each query token, a column for each key token."""
    alt = altair()
    rows, columns = piece_labels(queries), piece_labels(keys)
    values = [
        {"query": rows[t], "key": columns[s], "weight": round(float(weights[t, s]), 4)}
        for t in range(len(rows))
        for s in range(len(columns))
    ]
    piece = "substring(datum.label, 4)"
    axes = {"labelExpr": piece, "labelOverlap": False, "labelLimit": 120, "ticks": False, "domain": False}
    above = {"orient": "top", "labelAngle": -90, "labelAlign": "left", "labelBaseline": "middle", "labelPadding": 5}
    return (
        alt.Chart(alt.Data(values=values))
        .transform_calculate(from_="substring(datum.query, 4)", to="substring(datum.key, 4)")
        .mark_rect()
        .encode(
            x=alt.X("key:O", sort=None, title=None, axis=alt.Axis(**above, **axes)),
            y=alt.Y("query:O", sort=None, title=None, axis=alt.Axis(**axes)),
            color=alt.Color(
                "weight:Q", scale=alt.Scale(scheme="viridis", domain=[0, 1]), legend=alt.Legend(orient="bottom")
            ),
            tooltip=[
                alt.Tooltip("from_:N", title="row"),
                alt.Tooltip("to:N", title="column"),
                alt.Tooltip("weight:Q", format=".3f"),
            ],
        )
        .properties(title=title, width=alt.Step(CELL), height=alt.Step(CELL))
    )


def histogram(title: str, counts: Mapping[str, Mapping[int, int]], unit: str, subtitle: str = "") -> Chart:
    """Returns bars of how often each number of `unit` occurs, one colour for each named group."""
    alt = altair()
    most = max((number for group in counts.values() for number in group), default=0)
    width = max(1, -(-most // 40))
    binned: dict[tuple[str, int], int] = {}
    for name, group in counts.items():
        for number, count in group.items():
            place = name, number // width * width
            binned[place] = binned.get(place, 0) + count
    values = [
        {unit: start, "end": start + width, "range": f"{start}" if width == 1 else f"{start} … {start + width - 1}"}
        | {"of": name, "count": count, "none": 0}
        for (name, start), count in sorted(binned.items())
    ]
    return (
        alt.Chart(alt.Data(values=values))
        .mark_rect(opacity=0.65)
        .encode(
            x=alt.X(f"{unit}:Q", title=unit, axis=alt.Axis(labelSeparation=12)),
            x2="end:Q",
            y=alt.Y("count:Q", stack=None, title="texts"),
            y2="none:Q",
            color=alt.Color("of:N", title=None, legend=alt.Legend(orient="bottom")),
            tooltip=["of:N", alt.Tooltip("range:N", title=unit), alt.Tooltip("count:Q", format=",")],
        )
        .properties(title=alt.TitleParams(title, subtitle=subtitle), width=480, height=240)
    )


def bars(title: str, shares: Mapping[str, float], unit: str) -> Chart:
    """Returns one horizontal bar for each name, from 0 to 1."""
    alt = altair()
    values = [{"name": name, "share": share} for name, share in shares.items()]
    return (
        alt.Chart(alt.Data(values=values))
        .mark_bar()
        .encode(
            x=alt.X(
                "share:Q", title=unit, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%", labelSeparation=12)
            ),
            y=alt.Y("name:N", sort=None, title=None),
            tooltip=["name:N", alt.Tooltip("share:Q", title=unit, format=".1%")],
        )
        .properties(title=title, width=480, height=26 * len(values))
    )
