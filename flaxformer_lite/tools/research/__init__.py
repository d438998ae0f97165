"""Recipes of papers: an objective of translation that changes a train step, and a choice among translations.

`minimum_risk.py` is a subclass of `Seq2Seq`, which a config names by import; `minimum_bayes_risk.py` chooses among translations.
"""

from flaxformer_lite.tools.research.minimum_bayes_risk import minimum_bayes_risk
from flaxformer_lite.tools.research.minimum_risk import MinimumRisk

__all__ = ["MinimumRisk", "minimum_bayes_risk"]
