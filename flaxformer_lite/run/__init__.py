"""A trained run, for use: translate, generate, embed, classify, fill masks, measure.

`run.py` has `Run` and `load`, which reads one from its folder. A `Run` passes texts to generate or translate to decoders, and whole
texts to `text_predictor.py`; `attention.py` returns attention weights. `train.py` trains, then returns the run. `ensemble.py` makes
one of several runs. `description.py` says in a few lines what a run is. `write.py` writes a run folder for imported or averaged
parameters.
"""

from flaxformer_lite.run.attention import AttentionWeights
from flaxformer_lite.run.description import BestScore
from flaxformer_lite.run.ensemble import load_ensemble
from flaxformer_lite.run.run import Run, load
from flaxformer_lite.run.text_predictor import ClassPrediction, TextPredictor, TokenPrediction
from flaxformer_lite.run.train import train
from flaxformer_lite.run.write import write_run

__all__ = [
    "AttentionWeights",
    "BestScore",
    "ClassPrediction",
    "Run",
    "TextPredictor",
    "TokenPrediction",
    "load",
    "load_ensemble",
    "train",
    "write_run",
]
