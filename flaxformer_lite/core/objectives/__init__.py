"""Objectives: what goes into the model, what should come out, and what counts.

An objective is a frozen dataclass: `base.py` has its contract, `kinds.py` the union of all. On the host it turns records into rows
of padded arrays (`batch.py`); on devices it turns the model's outputs into losses and metrics (`losses.py`). The kinds:
`seq2seq.py`; `causal_lm.py` and, on its base class, `instruction.py`; `masked_lm.py`, `span_corruption.py`; `classification.py`
and, on its base classes, `token_labels.py`, `answer_spans.py`, and with that of `candidates.py`, `embeddings.py` and
`reranking.py`.

To add one: a file, and its name in `kinds.py`.
"""

from flaxformer_lite.core.objectives.answer_spans import AnswerSpans
from flaxformer_lite.core.objectives.base import Apply, BaseObjective
from flaxformer_lite.core.objectives.batch import Batch
from flaxformer_lite.core.objectives.causal_lm import CausalLM
from flaxformer_lite.core.objectives.classification import Classification, Regression
from flaxformer_lite.core.objectives.embeddings import SentenceEmbeddings
from flaxformer_lite.core.objectives.instruction import Instruction
from flaxformer_lite.core.objectives.kinds import Objective, Objectives, default_objective
from flaxformer_lite.core.objectives.losses import Counts, LossTerm, PerRowMetric
from flaxformer_lite.core.objectives.masked_lm import MaskedLM
from flaxformer_lite.core.objectives.reranking import Reranking
from flaxformer_lite.core.objectives.seq2seq import Seq2Seq
from flaxformer_lite.core.objectives.span_corruption import SpanCorruption
from flaxformer_lite.core.objectives.token_labels import TokenLabels

__all__ = [
    "AnswerSpans",
    "Apply",
    "BaseObjective",
    "Batch",
    "CausalLM",
    "Classification",
    "Counts",
    "Instruction",
    "LossTerm",
    "MaskedLM",
    "Objective",
    "Objectives",
    "PerRowMetric",
    "Regression",
    "Reranking",
    "SentenceEmbeddings",
    "Seq2Seq",
    "SpanCorruption",
    "TokenLabels",
    "default_objective",
]
