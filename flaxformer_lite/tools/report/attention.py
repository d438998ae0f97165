"""Attention maps of chosen sentences: all layers and heads of a sentence, in the compact form that the page reads."""

import base64
import itertools
from collections.abc import Iterator, Sequence
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from flaxformer_lite.run import AttentionWeights, load
from flaxformer_lite.run.attention import Kind, attention_axes
from flaxformer_lite.tools.report.facts import RunFacts
from flaxformer_lite.tools.report.plots import Chart, attention_chart, piece_labels

MOST_SENTENCES = 3
"""Sentences whose attention is drawn by default."""
MOST_CHARACTERS = 40
"""Characters of such a sentence where it is the beginning of a text of the data."""


class Attended(NamedTuple):
    """The attention weights of a run for one text, or for a source and its target."""

    title: str
    weights: AttentionWeights

    def charts(self) -> Iterator[tuple[str, Chart]]:
        """Yields name and chart of each attention's last layer, with the mean of its heads."""
        for kind in self.weights.kinds:
            yield f"{kind} attention", attention_chart(self.weights, kind, None, None)

    def packed(self) -> dict[str, Any]:
        """Returns all weights for the page: labels, and 16 bits for each weight, 65,535 for 1."""
        return {"title": self.title, "kinds": {kind: packed(self.weights, kind) for kind in self.weights.kinds}}


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


def attended(run: RunFacts, sentences: Sequence[str], several: bool, weights: str | None = None) -> list[Attended]:
    """Returns the weights for the sentences, by default `default_sentences`, each with the run's own translation or continuation.

    weights: the parameters that `load` takes; None: the config's.

    Raises: ValueError if the run has no weights or no sentences.
    """
    sentences = sentences or default_sentences(run)
    if not sentences:
        raise ValueError("the run has neither samples nor data: choose sentences by --sentence")
    loaded = load(run.path, weights=weights)
    found = []
    for source, target in zip(sentences, loaded.own_targets(sentences), strict=True):
        title = source if target is None else f"{source} → {target}"
        found.append(Attended(f"{run.name}: {title}" if several else title, loaded.attention(source, target)))
    return found


def default_sentences(run: RunFacts) -> list[str]:
    """Returns the first sources of samples/, or without samples the first words of the first texts of the data."""
    if run.samples:
        return [sample.source for sample in list(run.samples.values())[-1][:MOST_SENTENCES]]
    for split in ("eval", "train"):
        if (data := run.config.data.source(split)) is not None:
            texts = (
                pair.source or pair.target for pair in itertools.islice(data.open(f"data.{split}"), MOST_SENTENCES)
            )
            return [shorten(text, MOST_CHARACTERS, placeholder="") or text[:MOST_CHARACTERS] for text in texts]
    return []
