"""Charts of runs by Altair (extra `report`): for notebooks, for PNG files, and for the report's page.

`plot_curves(run, other)`, `plot_attention(run, source)` and `plot_lengths(run)` each return a chart of Altair's own. A notebook
shows it; `chart.save("x.png")` writes it without a browser. Altair is imported when a chart is made.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float

from flaxformer_lite.core.base.suggest import suggest
from flaxformer_lite.run import AttentionWeights, Run, load
from flaxformer_lite.run.attention import AttentionKind, attention_axes
from flaxformer_lite.run.description import run_names
from flaxformer_lite.tools.report.facts import evenly, text_lengths
from flaxformer_lite.workdir import RunFolder, open_run

Chart: TypeAlias = Any
"""A chart of Altair's."""

MAX_POINTS = 1000
"""The most points of a curve: of longer ones, rows at equal distances are drawn."""
FEW_POINTS = 20
"""The most points of a curve whose points are drawn as dots: a line through one point is not seen."""
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
    curves_of_metrics: dict[str, dict[tuple[str, str], Curve]] = {"loss": {}}
    for run, rows in runs.items():
        for row in rows:
            for name, value in row.items():
                number = isinstance(value, int | float) and not isinstance(value, bool)
                if name in ("step", "split", "epoch") or not number or not math.isfinite(value):
                    continue
                curve = curves_of_metrics.setdefault(name, {}).setdefault(
                    (run, row["split"]), Curve(run, row["split"], [], [])
                )
                curve.steps.append(row["step"])
                curve.values.append(value)
    return {name: [thinned(curve) for curve in curves.values()] for name, curves in curves_of_metrics.items() if curves}


def thinned(curve: Curve) -> Curve:
    """Returns the curve with at most `MAX_POINTS` points, the first and the last among them."""
    kept = evenly(len(curve.steps), MAX_POINTS)
    return curve._replace(steps=[curve.steps[i] for i in kept], values=[curve.values[i] for i in kept])


def line_chart(metric: str, curves: Sequence[Curve]) -> Chart:
    """Returns a chart of a metric by steps: a colour for each run, dashes for evaluations, dots where a curve has few values."""
    alt = altair()
    values = []
    for curve in curves:
        of_curve = {"run": curve.run, "split": curve.split, "few": len(curve.steps) <= FEW_POINTS}
        points = zip(curve.steps, curve.values, strict=True)
        values += [of_curve | {"step": step, "value": value} for step, value in points]
    runs, splits = {curve.run for curve in curves}, {curve.split for curve in curves}
    legend = alt.Legend(orient="bottom", columns=2)
    scale = alt.Scale(domain=["train", "eval"], range=[[1, 0], [5, 3]])
    base = alt.Chart(alt.Data(values=values)).encode(
        x=alt.X("step:Q", title="step", axis=alt.Axis(format="~s", labelSeparation=12)),
        y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=False), axis=alt.Axis(format=".4~g")),
        color=alt.Color("run:N", title=None, legend=legend if len(runs) > 1 else None),
    )
    dashes = alt.StrokeDash("split:N", title=None, scale=scale, legend=legend if len(splits) > 1 else None)
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
    lines = base.mark_line(strokeWidth=1.8).encode(strokeDash=dashes)
    dots = base.transform_filter("datum.few").mark_point(filled=True, size=25, opacity=1)
    title = metric.replace("_", " ")
    return alt.layer(lines, dots, hovered.add_params(nearest)).properties(title=title, width=480, height=240)


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


def histogram(
    title: str,
    counts: Mapping[str, Mapping[Any, int]],
    unit: str,
    subtitle: str = "",
    *,
    items: str = "texts",
    least: float = 1,
) -> Chart:
    """Returns bars of how many items have each number of `unit`, in steps of `least` or more; one colour for each named group."""
    alt = altair()
    values = [
        {unit: number, "of": name, "count": count} for name, group in counts.items() for number, count in group.items()
    ]
    bins = alt.X(f"{unit}:Q", title=unit, bin=alt.Bin(maxbins=40, minstep=least))
    return (
        alt.Chart(alt.Data(values=values))
        .mark_bar(opacity=0.65)
        .encode(
            x=bins,
            y=alt.Y("sum(count):Q", stack=None, title=items),
            color=alt.Color("of:N", title=None, legend=alt.Legend(orient="bottom")),
            tooltip=["of:N", bins, alt.Tooltip("sum(count):Q", title="count", format=",")],
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


# Of a run ---------------------------------------------------------------------------------------------------------------


def loaded(run: Run | str | Path) -> Run:
    """Returns a run, after reading it where only its folder is named."""
    return run if isinstance(run, Run) else load(run)


def opened_folder(path: str | Path) -> RunFolder:
    """Returns the folder of a run, whose parameters are not read. Raises: ValueError if the folder holds no run."""
    folder = open_run(path)
    folder.config()
    return folder


def plot_curves(*runs: Run | str | Path, metric: str = "loss") -> Chart:
    """Returns the curves of a metric in training and in evaluations of one or more runs, or folders of runs.

    Example: `plot_curves("runs/a", "runs/b", metric="learning_rate")`.

    Raises: ValueError if no run has the metric.
    """
    folders = [run.folder if isinstance(run, Run) else opened_folder(run) for run in runs]
    curves = curves_of(dict(zip(run_names(folders), (f.rows() for f in folders), strict=True)))
    if metric not in curves:
        raise ValueError(
            f"metrics.jsonl has no {metric!r}: it has {', '.join(curves) or 'no rows'}{suggest(metric, curves)}"
        )
    return line_chart(metric, curves[metric])


def plot_attention(
    run: Run | str | Path,
    source: str,
    target: str | None = None,
    *,
    kind: AttentionKind | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> Chart:
    """Returns the map of attention weights while the model reads `source` and writes `target`.

    `target` is by default the model's own answer, see `Run.attention`. `kind`: by default cross attention if the model has it.
    `layer` and `head` count from 1; by default the last layer, and the mean of its heads.

    Example: `plot_attention(run, "20 November 2026", head=2)`.

    Raises: ValueError if the model has no such attention, layer or head.
    """
    return attention_chart(loaded(run).attention(source, target), kind, layer, head)


def plot_lengths(run: Run | str | Path) -> Chart:
    """Returns the histogram of the lengths of the first 10,000 training texts, in tokens.

    Raises: ValueError if the data cannot be read, or the run has no tokenizer.
    """
    run = loaded(run)
    lengths = text_lengths(run.config, run.required_tokenizers)
    return histogram("lengths of training texts", lengths.counts, "tokens")


def attention_chart(
    weights: AttentionWeights, kind: AttentionKind | None, layer: int | None, head: int | None
) -> Chart:
    """Returns the map of one layer and head; by default of the last layer, with the mean of its heads.

    Raises: ValueError if the model has no such attention, layer or head.
    """
    if kind is None:
        kind = weights.kinds[0]
    elif kind not in weights.kinds:
        raise ValueError(f"kind is {kind!r}, but this model has {weights.kinds[0]} attention only: leave it out")
    array: Float[np.ndarray, "L N T S"] = getattr(weights, kind)
    layer = len(array) if layer is None else layer
    title = f"{kind} attention, layer {layer}, " + ("mean of heads" if head is None else f"head {head}")
    return attention_map(head_weights(array, layer, head), *attention_axes(weights, kind), title)


def head_weights(weights: Float[np.ndarray, "L N T S"], layer: int, head: int | None) -> Float[np.ndarray, "T S"]:
    """Returns the weights of a layer and a head, each counted from 1; without a head their mean.

    Raises: ValueError if the model has no such layer or head.
    """
    for name, number, most in (("layer", layer, weights.shape[0]), ("head", head, weights.shape[1])):
        if number is not None and not 1 <= number <= most:
            raise ValueError(f"{name} is {number}: this attention has {most}, counted from 1")
    layers = weights[layer - 1]
    return layers.mean(0) if head is None else layers[head - 1]
