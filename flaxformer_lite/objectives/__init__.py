"""Objectives: what goes into the model, what should come out, and what counts.

An objective is a value. `make_rows` turns the records of a data set into those that fill a row each, and `example`, on the host,
one of these into arrays of a fixed shape; `loss` sees the model's outputs and the batch, never the model. To add one: a file
here, and its name in the union below.
"""

from typing import Annotated

from pydantic import Discriminator

from flaxformer_lite.objectives.base import Batch as Batch
from flaxformer_lite.objectives.causal_lm import CausalLM as CausalLM
from flaxformer_lite.objectives.classification import Classification as Classification
from flaxformer_lite.objectives.classification import Regression as Regression
from flaxformer_lite.objectives.embeddings import SentenceEmbeddings as SentenceEmbeddings
from flaxformer_lite.objectives.masked_lm import MaskedLM as MaskedLM
from flaxformer_lite.objectives.seq2seq import Seq2Seq as Seq2Seq
from flaxformer_lite.objectives.span_corruption import SpanCorruption as SpanCorruption

Objectives = Seq2Seq | CausalLM | MaskedLM | SpanCorruption | Classification | Regression | SentenceEmbeddings
Objective = Annotated[Objectives, Discriminator("kind")]
