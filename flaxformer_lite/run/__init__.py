"""A trained run, for use: translate, generate, embed, classify, label, fill masks, measure.

`run.py` has `Run`, with a method for each task; `load` and `load_ensemble` read one from folders. `searches.py` translates and
continues prompts. `choosing.py` finds the best of several translations. `attention.py` returns attention weights, `scoring.py`
scores. `train.py` trains, then returns the run. `description.py` says in a few lines what a run is. `write.py` writes
a run folder for imported parameters.
"""

from flaxformer_lite.run.attention import AttentionWeights
from flaxformer_lite.run.description import BestScore
from flaxformer_lite.run.run import Run, load, load_ensemble
from flaxformer_lite.run.train import train
from flaxformer_lite.run.write import write_run
from flaxformer_lite.tasks.answer.answers import FoundAnswer
from flaxformer_lite.tasks.classify.answers import ClassPrediction
from flaxformer_lite.tasks.fill_mask.answers import TokenPrediction
from flaxformer_lite.tasks.label.answers import LabelledSpan, LabelledWords
from flaxformer_lite.tasks.rank.answers import RankedText

__all__ = [
    "AttentionWeights",
    "BestScore",
    "ClassPrediction",
    "FoundAnswer",
    "LabelledSpan",
    "LabelledWords",
    "RankedText",
    "Run",
    "TokenPrediction",
    "load",
    "load_ensemble",
    "train",
    "write_run",
]
