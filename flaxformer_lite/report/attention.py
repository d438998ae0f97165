"""Attention maps of chosen sentences: all layers and heads of a sentence, in the compact form that the page reads."""

import base64
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
from jaxtyping import Float

from flaxformer_lite.charts import Chart, piece_labels
from flaxformer_lite.report.facts import RunFacts
from flaxformer_lite.run import AttentionWeights, load
from flaxformer_lite.run.plots import Kind, attention_axes, attention_chart

KINDS = get_args(Kind)
MOST_SENTENCES = 3
"""Sentences of samples/ whose attention is drawn by default."""


class Attended(NamedTuple):
    """The attention weights of a run for one source and what it was translated to."""

    title: str
    weights: AttentionWeights

    def charts(self) -> Iterator[tuple[str, Chart]]:
        """Yields name and chart of each attention's last layer, with the mean of its heads."""
        for kind in KINDS:
            yield f"{kind} attention", attention_chart(self.weights, kind, None, None)

    def packed(self) -> dict[str, Any]:
        """Returns all weights for the page: labels, and 16 bits for each weight, 65,535 for 1."""
        return {"title": self.title, "kinds": {kind: packed(self.weights, kind) for kind in KINDS}}


def packed(weights: AttentionWeights, kind: Kind) -> dict[str, Any]:
    """Returns the labels, sizes and weights of one attention."""
    array: Float[np.ndarray, "L N T S"] = getattr(weights, kind)
    queries, keys = attention_axes(weights, kind)
    numbers = np.round(np.asarray(array, np.float64) * 65_535).astype("<u2")
    return {
        "layers": array.shape[0],
        "heads": array.shape[1],
        "queries": piece_labels(queries),
        "keys": piece_labels(keys),
        "weights": base64.b64encode(numbers.tobytes()).decode("ascii"),
    }


def attended(run: RunFacts, sentences: Sequence[str], several: bool) -> list[Attended]:
    """Returns the weights for the sentences, by default the first ones of samples/, each with the run's own translation.

    Raises: ValueError if the run has no weights, does not translate, or has no sentences.
    """
    if not sentences:
        newest = list(run.samples.values())[-1:]
        sentences = [sample.source for sample in (newest[0] if newest else [])[:MOST_SENTENCES]]
    if not sentences:
        raise ValueError("the run has no samples: choose sentences by --sentence")
    if not run.config.objective.translates:
        raise ValueError("the run does not translate: maps are drawn of encoder–decoders")
    loaded = load(run.path)
    found = []
    for source, target in zip(sentences, loaded.translate(sentences), strict=True):
        title = f"{source} → {target}"
        found.append(Attended(f"{run.name}: {title}" if several else title, loaded.attention(source, target)))
    return found
