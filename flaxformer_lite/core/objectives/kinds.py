"""All kinds of objectives: the union that configs are read by. A new objective adds its name here."""

from collections.abc import Sequence
from typing import Literal

from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.objectives.answer_spans import AnswerSpans
from flaxformer_lite.core.objectives.causal_lm import CausalLM
from flaxformer_lite.core.objectives.classification import Classification, Regression
from flaxformer_lite.core.objectives.embeddings import SentenceEmbeddings
from flaxformer_lite.core.objectives.instruction import Instruction
from flaxformer_lite.core.objectives.masked_lm import MaskedLM
from flaxformer_lite.core.objectives.reranking import Reranking
from flaxformer_lite.core.objectives.seq2seq import Seq2Seq
from flaxformer_lite.core.objectives.span_corruption import SpanCorruption
from flaxformer_lite.core.objectives.token_labels import TokenLabels
from flaxformer_lite.core.reading.objectives import OUTSIDE, PREFIXES, Scheme

Objectives = (
    Seq2Seq
    | CausalLM
    | Instruction
    | MaskedLM
    | SpanCorruption
    | Classification
    | Regression
    | TokenLabels
    | AnswerSpans
    | SentenceEmbeddings
    | Reranking
)
Objective = Objectives


def default_objective(
    model: ModelConfig,
    class_names: Sequence[str] = (),
    mask_token: int | None = None,
    labels: Literal["one", "several", "places"] = "one",
) -> Objectives:
    """Returns the objective that a model from elsewhere, with its head, pooler and stacks, is most likely for.

    class_names: the names of the pooler's classes; by default their numbers. mask_token: the id of a mask that the tokenizer lacks.
    labels: the labels of a text, or the places of answers, where the model has classes.
    """
    if model.sentence_embedding is not None:
        return SentenceEmbeddings()
    if model.head is None and model.pooler is not None and model.pooler.num_classes:
        names = tuple(class_names) or tuple(map(str, range(model.pooler.num_classes)))
        if labels == "places":
            return AnswerSpans(unanswerable=True)
        if model.pooler.token == "each":
            return TokenLabels(labels=names, scheme=scheme_of(names))
        if model.pooler.num_classes == 1 and labels == "one":
            return Regression()
        return Classification(classes=names, labels=labels)
    if model.has_two_stacks:
        return Seq2Seq()
    if model.head is not None:
        return MaskedLM(mask_token=mask_token) if model.num_encoder_layers else CausalLM()
    return SentenceEmbeddings()


def scheme_of(labels: Sequence[str]) -> Scheme:
    """Returns the scheme that all labels follow, "plain" if they follow none."""
    prefixes = {label[0] if label[1:2] == "-" and label[2:] else "" for label in labels if label != OUTSIDE}
    schemes: tuple[Scheme, ...] = ("bio", "bioes")
    return next((scheme for scheme in schemes if prefixes and prefixes <= {*PREFIXES[scheme]}), "plain")
