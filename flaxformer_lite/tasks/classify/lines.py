"""Writes the class of each line, a tab, and its probability; for a regression, the number.

If texts have any number of labels, each line gets one JSON object of those above `objective.threshold` with their probabilities,
most probable first; `{}` for none.
A line is one text, or two texts separated by a tab if the run was trained on pairs. A line with other columns, or one that is not
UTF-8, is reported, and its answer is empty. The result for a TSV or CSV is the same table with the answers as further columns.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flaxformer_lite.tasks.lines import Columns, TaskLines

if TYPE_CHECKING:
    from flaxformer_lite.tasks.classify.answers import ClassPrediction
    from flaxformer_lite.tasks.task import TextModel


@dataclass(frozen=True)
class Lines(TaskLines["ClassPrediction"]):
    scores: bool
    """Whether the probabilities of all classes are written."""

    verb = "classify"
    doing = "classifying"
    texts = None

    @classmethod
    def add_arguments(cls, add: Callable[..., None]) -> None:
        add(
            "--scores",
            action="store_true",
            help="write the probabilities of all classes, one JSON object for each line",
        )

    def check(self, model: "TextModel") -> None:
        if self.scores and "value" in self.of_best(model):
            raise ValueError("--scores is for classes, but model.pooler.num_classes is 1, a regression: leave it out")

    def columns(self, model: "TextModel") -> Columns["ClassPrediction"]:
        return {"scores": lambda one: probabilities_as_json(one, one.scores)} if self.scores else self.of_best(model)

    def of_best(self, model: "TextModel") -> Columns["ClassPrediction"]:
        """Returns the columns of an answer without the probabilities of all classes."""
        if model.config.objective.label_threshold is not None:
            return {"labels": lambda one: probabilities_as_json(one, one.labels)}
        pooler = model.config.model.pooler
        if pooler is not None and pooler.num_classes == 1:
            return {"value": lambda one: f"{one.score:.6g}"}
        return {"label": lambda one: one.label, "probability": lambda one: f"{one.score:.6f}"}

    def read(self, texts: Sequence[str]) -> str | tuple[str, str]:
        """Returns the text of a line, or its pair of texts."""
        return texts[0] if len(texts) == 1 else (texts[0], texts[1])


def probabilities_as_json(answer: "ClassPrediction", names: Iterable[str]) -> str:
    """Returns the probabilities of some classes."""
    return json.dumps({name: round(answer.scores[name], 6) for name in names}, ensure_ascii=False)
