"""The quality of answers that are texts: `translations` has the settings of metrics, and computes BLEU, chrF and exact match.

`minimum_bayes_risk` orders candidates by them.
"""

from flaxformer_lite.metrics.translations import MetricConfig

__all__ = ["MetricConfig"]
