"""Classes of texts and of pairs of texts, several labels, or numbers, from the logits of a pooler."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import MaxLen, MinLen
from jaxtyping import Float

from flaxformer_lite.tasks.commands import use_command
from flaxformer_lite.tasks.task import Report, Task, Text, TextModel

TextOrPair = str | Sequence[str]


class ClassPrediction(NamedTuple):
    """The predicted class of a text, or several, or the number that a regression model predicts."""

    label: str
    """The name of the most probable class; empty in a regression."""
    score: float
    """The probability of that class, or the number."""
    scores: dict[str, float]
    """The probability of every class; empty in a regression."""
    labels: list[str]
    """The classes of the text, most probable first: `label` alone, or of several labels those above `objective.threshold`."""


def class_prediction(logits: Float[np.ndarray, "C"], names: Sequence[str]) -> ClassPrediction:
    """Returns the prediction of a text from its class logits; a single logit is a number."""
    if len(logits) == 1:
        return ClassPrediction("", float(logits[0]), {}, [])
    powers = np.exp(logits - logits.max())
    scores = dict(zip(names, (powers / powers.sum()).tolist(), strict=True))
    best = names[int(logits.argmax())]
    return ClassPrediction(best, scores[best], scores, [best])


def several_labels(logits: Float[np.ndarray, "C"], names: Sequence[str], threshold: float) -> ClassPrediction:
    """Returns the prediction of a text that may have several labels, or none."""
    probabilities = np.exp(-np.logaddexp(0.0, -logits.astype(np.float64)))
    scores = dict(zip(names, probabilities.tolist(), strict=True))
    best_first = sorted(scores, key=lambda name: -scores[name])
    labels = [name for name in best_first if scores[name] > threshold]
    return ClassPrediction(best_first[0], scores[best_first[0]], scores, labels)


def check_classes(model: TextModel) -> None:
    """Raises: ValueError if the model gives whole texts no class logits, or reads translations in a text of its own."""
    pooler, rating = model.config.model.pooler, model.config.objective.rating
    if pooler is None or pooler.num_classes == 0:
        raise ValueError(
            f"model.pooler has no classes (model.pooler.num_classes), so the run {model.path} cannot classify: use "
            f"{use_command(model.config)}, or a run that was trained to classify"
        )
    if pooler.token == "each":
        raise ValueError(
            f"model.pooler reads each token, so the run {model.path} has no classes of whole texts: use {use_command(model.config)}"
        )
    if rating is not None and (rating.with_reference or rating.without_reference):
        raise ValueError(
            f"the run {model.path} rates translations, in a text of its own: use Run.rate, or evaluate --metric {model.path}"
        )


@dataclass(frozen=True)
class Classify(Task[TextOrPair, ClassPrediction]):
    """The class of each text or pair of texts with its probability, or all its labels; for a regression, the number.

    Classes are named as in `objective.classes`, else "0", "1" and so on.
    """

    name = "classify"
    reads = "classes"
    asked = Text | Annotated[list[Text], MinLen(2), MaxLen(2)]

    def check(self, model: TextModel) -> None:
        objective = model.config.objective
        if objective.reads == "candidates" and model.config.model.sentence_embedding is None:
            raise ValueError(
                f"objective.kind is '{objective.kind}', so the run {model.path} scores candidates: use `rank` (Run.rank), "
                "or a run that was trained to classify"
            )
        check_classes(model)

    def lengths(self, model: TextModel, asked: TextOrPair) -> list[int]:
        return [model.length(asked) if isinstance(asked, str) else model.length(*asked)]

    def refusal(self, model: TextModel, asked: TextOrPair) -> str:
        trained = model.config.data.texts_of_rows
        if isinstance(asked, str):
            are_pairs = trained == {2} and model.config.objective.reads == "classes"
            return "has one text, but this run was trained on pairs of texts: give two" if are_pairs else ""
        return "has two texts, but this run was trained on single texts: give one" if trained == {1} else ""

    def answered(self, model: TextModel, asked: Sequence[TextOrPair], report: Report) -> list[ClassPrediction]:
        objective = model.config.objective
        logits = model.predict("class_logits", asked, report)
        names = objective.class_names or tuple(map(str, range(len(logits[0]) if logits else 0)))
        if objective.label_threshold is not None:
            return [several_labels(row, names, objective.label_threshold) for row in logits]
        return [class_prediction(row, names) for row in logits]
