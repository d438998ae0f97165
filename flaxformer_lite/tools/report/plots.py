"""Charts of runs, for notebooks and files: `plot_curves(run, other)`, `plot_attention(run, source)`, `plot_lengths(run)`.

Each returns a chart of Altair's (extra `report`). A notebook shows it; `chart.save("x.png")` writes it.
"""

import numpy as np
from jaxtyping import Float

from flaxformer_lite.base.console import suggest
from flaxformer_lite.run import AttentionWeights, Run
from flaxformer_lite.run.attention import Kind, attention_axes
from flaxformer_lite.run.description import run_names
from flaxformer_lite.tools.report import charts
from flaxformer_lite.tools.report.charts import Chart
from flaxformer_lite.tools.report.text_lengths import text_lengths


def plot_curves(*runs: Run, metric: str = "loss") -> Chart:
    """Returns the curves of a metric in training and in evaluations of one or more runs.

    Example: `plot_curves(load("runs/a"), load("runs/b"), metric="learning_rate")`.

    Raises: ValueError if no run has the metric.
    """
    folders = [run.folder for run in runs]
    found = charts.curves_of(dict(zip(run_names(folders), (f.rows() for f in folders), strict=True)))
    if metric not in found:
        raise ValueError(
            f"metrics.jsonl has no {metric!r}: it has {', '.join(found) or 'no rows'}{suggest(metric, found)}"
        )
    return charts.line_chart(metric, found[metric])


def plot_attention(
    run: Run,
    source: str,
    target: str | None = None,
    *,
    kind: Kind | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> Chart:
    """Returns the map of attention weights while the model reads `source` and writes `target`.

    `target` is by default the model's own answer, see `Run.attention`. `kind`: by default cross attention if the model has it.
    `layer` and `head` count from 1; by default the last layer, and the mean of its heads.

    Example: `plot_attention(run, "20 November 2026", head=2)`.

    Raises: ValueError if the model has no such attention, layer or head.
    """
    return attention_chart(run.attention(source, target), kind, layer, head)


def plot_lengths(run: Run) -> Chart:
    """Returns the histogram of the lengths of the first 10,000 training texts, in tokens.

    Raises: ValueError if the data cannot be read, or the run has no tokenizer.
    """
    lengths = text_lengths(run.config, run.required_tokenizers)
    return charts.histogram("lengths of training texts", lengths.counts, "tokens")


def attention_chart(weights: AttentionWeights, kind: Kind | None, layer: int | None, head: int | None) -> Chart:
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
    return charts.attention_map(head_weights(array, layer, head), *attention_axes(weights, kind), title)


def head_weights(weights: Float[np.ndarray, "L N T S"], layer: int, head: int | None) -> Float[np.ndarray, "T S"]:
    """Returns the weights of a layer and a head, each counted from 1; without a head their mean.

    Raises: ValueError if the model has no such layer or head.
    """
    for name, number, most in (("layer", layer, weights.shape[0]), ("head", head, weights.shape[1])):
        if number is not None and not 1 <= number <= most:
            raise ValueError(f"{name} is {number}: this attention has {most}, counted from 1")
    layers = weights[layer - 1]
    return layers.mean(0) if head is None else layers[head - 1]
