"""Classification and regression: a class, or a number, for a text or a pair of texts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flaxformer_lite.model import ModelConfig
from flaxformer_lite.model.inputs import Outputs
from flaxformer_lite.objectives.base import check_pooler
from flaxformer_lite.objectives.batch import Batch
from flaxformer_lite.objectives.losses import LossTerm, PerRowMetric, accuracy, confusion, cross_entropy, squared_error
from flaxformer_lite.objectives.whole_texts import LabelledTexts


@dataclass(frozen=True, kw_only=True)
class Classification(LabelledTexts):
    """The class of a text or a pair of texts, scored by `model.pooler`.

    Evaluation reports `loss`, `accuracy`, `macro_f1`, `matthews` (the correlation of true and predicted classes) and, for two
    classes, `f1` of the second. All are figures of the whole evaluation data, not means of batches.
    """

    kind: Literal["classification"] = "classification"
    classes: tuple[str, ...]
    """The names of the classes, as in the data, in the order of their logits."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise ValueError(f"objective.classes is {self.classes}: it must be at least 2 names, all different")

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.classes

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("loss", "accuracy", "macro_f1", "matthews", *(["f1"] if len(self.classes) == 2 else []))

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError if the model has two stacks, or not as many classes."""
        super().check_model(model)
        check_pooler(model, len(self.classes), f"objective.kind '{self.kind}' needs")

    def label_value(self, label: str, record: int) -> float:
        if label not in self.classes:
            few = ", ".join(self.classes[:10]) + (", …" if len(self.classes) > 10 else "")
            raise ValueError(
                f"record {record} of the data has the label {label!r}, which is none of objective.classes ({few}): add it there, "
                "or correct the data (data.train.label_column or label_field names the labels)"
            )
        return self.classes.index(label)

    def target(self, label: float) -> Int[np.ndarray, "1"]:
        return np.array([label], np.int32)

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """Returns the cross-entropy, in nats per text."""
        return {"cross_entropy": cross_entropy(class_logits(outputs)[:, None], batch.targets, batch.weights)}

    def metrics(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm | PerRowMetric]:
        """Returns nats per text, and the confusion matrix."""
        scored = (class_logits(outputs)[:, None], batch.targets, batch.weights)
        return {
            "loss": cross_entropy(*scored),
            "accuracy": accuracy(*scored),
            "confusion": confusion(*scored),
        }

    def report(self, totals: Mapping[str, LossTerm | PerRowMetric]) -> dict[str, float]:
        terms = {name: total for name, total in totals.items() if isinstance(total, LossTerm)}
        means = {name: terms[name].mean for name in ("loss", "accuracy")}
        table = np.asarray(terms["confusion"].sum)
        scores = f1(table)
        occurs = table.sum(0) + table.sum(1) > 0
        figures = {**means, "macro_f1": float(scores[occurs].mean()), "matthews": matthews(table)}
        return figures | ({"f1": float(scores[1])} if len(self.classes) == 2 else {})


@dataclass(frozen=True, kw_only=True)
class Regression(LabelledTexts):
    """The number of a text or a pair of texts, predicted by the single logit of `model.pooler`.

    Evaluation reports `loss` (the mean squared error) and the correlations `pearson` and `spearman` over the whole evaluation
    data.
    """

    kind: Literal["regression"] = "regression"

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("loss", "pearson", "spearman")

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError if the model has two stacks, or not exactly one class logit."""
        super().check_model(model)
        check_pooler(model, 1, f"objective.kind '{self.kind}' needs")

    def label_value(self, label: str, record: int) -> float:
        try:
            value = float(label)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(
                f"record {record} of the data has the label {label!r}, which is no finite number: correct the data "
                "(data.train.label_column or label_field names the labels)"
            )
        return value

    def target(self, label: float) -> Float[np.ndarray, "1"]:
        return np.array([label], np.float32)

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """Returns the squared error per text."""
        return {"squared_error": squared_error(class_logits(outputs), batch.targets, batch.weights)}

    def metrics(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm | PerRowMetric]:
        """Returns the predicted and the true number of each row, `[B, 2]`."""
        values = jnp.concatenate([class_logits(outputs).astype(jnp.float32), batch.targets], -1)
        return {"rows": PerRowMetric(values, batch.weights[:, 0])}

    def report(self, totals: Mapping[str, LossTerm | PerRowMetric]) -> dict[str, float]:
        rows = totals["rows"]
        assert isinstance(rows, PerRowMetric)
        predicted, true = np.asarray(rows.values, np.float64).T
        return {
            "loss": float(np.square(predicted - true).mean()),
            "pearson": correlation(predicted, true),
            "spearman": correlation(ranks(predicted), ranks(true)),
        }


def class_logits(outputs: Outputs) -> Float[Array, "B C"]:
    """Returns the logits of the pooler's classes, which `check_model` has made sure of."""
    assert outputs.class_logits is not None
    return outputs.class_logits


# Figures of a whole evaluation, on the host ---------------------------------------------------------------------------


def f1(table: Float[np.ndarray, "C C"]) -> Float[np.ndarray, "C"]:
    """Returns the F1 score of each class, 2 TP / (2 TP + FP + FN); 0 for a class that never occurs.

    table: the confusion matrix, true classes as rows and predicted classes as columns.
    """
    return 2 * table.diagonal() / np.maximum(table.sum(0) + table.sum(1), 1)


def matthews(table: Float[np.ndarray, "C C"]) -> float:
    """Returns Matthews' correlation coefficient of a confusion matrix; 0 if all rows, or all predictions, are of one class.

    Reference: Gorodkin 2004, "Comparing two K-category assignments by a K-category correlation coefficient", equation 8.
    """
    total, true, predicted = table.sum(), table.sum(1), table.sum(0)
    spread = math.sqrt(total**2 - true @ true) * math.sqrt(total**2 - predicted @ predicted)
    return float((table.trace() * total - true @ predicted) / spread) if spread else 0.0


def correlation(x: Float[np.ndarray, "N"], y: Float[np.ndarray, "N"]) -> float:
    """Returns Pearson's correlation coefficient; 0 if all values of a side are equal."""
    x, y = x - x.mean(), y - y.mean()
    spread = math.sqrt(x @ x) * math.sqrt(y @ y)
    return float(x @ y / spread) if spread else 0.0


def ranks(x: Float[np.ndarray, "N"]) -> Float[np.ndarray, "N"]:
    """Returns the rank of each value, from 0; equal values share the mean of their ranks."""
    _, group, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[group]
