"""Figures of ranked lists, as trec_eval counts them: nDCG, MRR and recall of the first k.

A gain is the judgement of a text for a query: 0 or less is not relevant, 1 and more is. A text without a judgement has 0.
"""

import math
from collections.abc import Mapping, Sequence


def ndcg(gains: Sequence[float], judged: Sequence[float], k: int) -> float:
    """Returns Σ gain / log2(rank + 1) of the first k texts, divided by that of the best order; 0 if no text is relevant.

    gains: those of the ranked texts, best first. judged: all gains of the query, in any order.

    Reference: Järvelin & Kekäläinen 2002, "Cumulated gain-based evaluation of IR techniques", with base 2 from the first rank on.
    """
    best = discounted(sorted(judged, reverse=True)[:k])
    return discounted(gains[:k]) / best if best else 0.0


def discounted(gains: Sequence[float]) -> float:
    return sum(max(gain, 0) / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def reciprocal_rank(gains: Sequence[float], k: int) -> float:
    """Returns 1 / rank of the first relevant text among the first k; 0 without one. Its mean over queries is MRR."""
    return next((1 / rank for rank, gain in enumerate(gains[:k], 1) if gain > 0), 0.0)


def recall(gains: Sequence[float], judged: Sequence[float], k: int) -> float:
    """Returns the fraction of the relevant texts that are among the first k; 0 if no text is relevant."""
    return sum(gain > 0 for gain in gains[:k]) / max(sum(gain > 0 for gain in judged), 1)


def search_figures(gains: Sequence[float], judged: Sequence[float]) -> dict[str, float]:
    """Returns the figures of a query that a search is compared by."""
    return {
        "ndcg@10": ndcg(gains, judged, 10),
        "mrr@10": reciprocal_rank(gains, 10),
        "recall@10": recall(gains, judged, 10),
        "recall@100": recall(gains, judged, 100),
    }


def ranked(scores: Mapping[str, float]) -> list[str]:
    """Returns the ids by their scores, best first; of equal scores the last id by its characters, as trec_eval has it."""
    return sorted(scores, key=lambda id_: (scores[id_], id_), reverse=True)


def mean_figures(
    results: Mapping[str, Mapping[str, float]], judgements: Mapping[str, Mapping[str, int]]
) -> dict[str, float]:
    """Returns the means of all figures over the queries that have judgements; one without results counts 0.

    results: the score of each document that was found, by query. judgements: its gain.
    """
    rows = []
    for query, judged in judgements.items():
        gains = [judged.get(id_, 0) for id_ in ranked(results.get(query, {}))]
        rows.append(search_figures(gains, list(judged.values())))
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
