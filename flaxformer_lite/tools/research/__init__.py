"""Recipes of papers: `minimum_risk.py` is a subclass of `Seq2Seq`, an objective that a config names by import."""

from flaxformer_lite.tools.research.minimum_risk import MinimumRisk

__all__ = ["MinimumRisk"]
