"""Minimum-Bayes-risk decoding: the candidate that is most like all the others."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from flaxformer_lite.core.search.answers import ScoredText
from flaxformer_lite.metrics.translations import DEFAULT_METRICS, MetricConfig, make_bleu, make_chrf, resolve

Utility = Literal["chrf", "bleu"]


def minimum_bayes_risk(
    candidates: Sequence[str], utility: Utility, config: MetricConfig = DEFAULT_METRICS
) -> list[ScoredText]:
    """Returns the distinct candidates, each with its mean utility, best first; ties go to the earlier one.

    The utility of a candidate is sacreBLEU's sentence-level score (chrF2, or BLEU with effective order) with another candidate as
    its reference. The mean is over all candidates, itself included. So a candidate counts as often as it was sampled.

    Reference: Kumar & Byrne 2004, NAACL; Eikema & Aziz 2020, arXiv:2005.10283, section 7 (samples).
    """
    if utility == "bleu" and config.bleu_tokenizer is None:
        config = resolve(config, candidates)
    metric = make_chrf(config) if utility == "chrf" else make_bleu(config, effective_order=True)
    counts = Counter(candidates)

    def mean(text: str) -> float:
        scores = [count * metric.sentence_score(text, [other]).score for other, count in counts.items()]
        return sum(scores) / len(candidates)

    return sorted((ScoredText(text, mean(text)) for text in counts), key=lambda scored: -scored.score)
