"""Recipes of papers: objectives of translation that change a train step, and what a teacher or a decoder adds.

`minimum_risk.py` and `distillation.py` are subclasses of `Seq2Seq`, which a config names by import.
`teaching.py` computes the `predictions.py` that a student learns from; `minimum_bayes_risk.py` chooses among translations.
"""

from flaxformer_lite.tools.research.distillation import Distillation
from flaxformer_lite.tools.research.minimum_bayes_risk import minimum_bayes_risk
from flaxformer_lite.tools.research.minimum_risk import MinimumRisk
from flaxformer_lite.tools.research.predictions import Predictions
from flaxformer_lite.tools.research.teaching import predict_targets

__all__ = ["Distillation", "MinimumRisk", "Predictions", "minimum_bayes_risk", "predict_targets"]
