"""Minimum-Bayes-risk decoding: the candidate that is most like all the others."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from flaxformer_lite.inference.decoder import ScoredText

Utility = Literal["chrf", "bleu"]


def minimum_risk(candidates: Sequence[str], utility: Utility, *, tokenized: bool = False) -> list[ScoredText]:
    """Returns the distinct candidates, each with its mean utility, best first; ties go to the earlier one.

    The utility of a candidate is sacreBLEU's sentence-level score (chrF2, or BLEU with effective order) with another candidate as
    its reference. The mean is over all candidates, itself included. So a candidate counts as often as it was sampled. `tokenized`
    is that of `metrics.bleu`.

    Reference: Kumar & Byrne 2004, NAACL; Eikema & Aziz 2020, arXiv:2005.10283, section 7 (samples).
    """
    bleu = BLEU(tokenize="none" if tokenized else "13a", effective_order=True, force=tokenized)
    metric = CHRF() if utility == "chrf" else bleu
    counts = Counter(candidates)

    def mean(text: str) -> float:
        scores = [count * metric.sentence_score(text, [other]).score for other, count in counts.items()]
        return sum(scores) / len(candidates)

    return sorted((ScoredText(text, mean(text)) for text in counts), key=lambda found: -found.score)
