"""Classification and regression: which class, or which number, does a text or a pair of texts have?"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.inputs import Outputs
from flaxformer_lite.objectives.base import Batch
from flaxformer_lite.objectives.losses import LossTerm, PerRowMetric, accuracy, confusion, cross_entropy, squared_error
from flaxformer_lite.objectives.whole_texts import LabelledTexts


def check_pooler(kind: str, model: ModelConfig, num_classes: int) -> None:
    """Raises: ValueError where the model's pooler does not score so many classes."""
    if model.pooler is None or model.pooler.num_classes != num_classes:
        found = "None" if model.pooler is None else f"one of {model.pooler.num_classes} classes"
        raise ValueError(
            f"model.pooler is {found}, but objective.kind '{kind}' needs {num_classes}: set model.pooler to "
            f"Pooler(num_classes={num_classes})"
        )


@dataclass(frozen=True, kw_only=True)
class Classification(LabelledTexts):
    """Which of some classes a text, or a pair of texts, belongs to; `model.pooler` scores them.

    Evaluation reports `loss`, `accuracy`, `macro_f1`, `matthews` (the correlation of what is said with what is true), and for two
    classes `f1`, of the second. All are of the whole evaluation data at once.
    """

    kind: Literal["classification"] = "classification"
    classes: tuple[str, ...]
    """The names of the classes, as the data has them, in the order of their scores."""

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.classes

    def __post_init__(self) -> None:
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise ValueError(f"objective.classes is {self.classes}: give at least 2 names, each once")

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("loss", "accuracy", "macro_f1", "matthews", *(["f1"] if len(self.classes) == 2 else []))

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError where the model has two stacks, or does not score so many classes."""
        super().check_model(model)
        check_pooler(self.kind, model, len(self.classes))

    def number(self, label: str, record: int) -> float:
        if label not in self.classes:
            few = ", ".join(self.classes[:10]) + (", …" if len(self.classes) > 10 else "")
            raise ValueError(
                f"record {record} of the data has the label {label!r}, which is none of objective.classes ({few}): add it there, "
                "or mend the data (data.train.label_column or label_field says where labels are)"
            )
        return self.classes.index(label)

    def target(self, label: float) -> Int[np.ndarray, "1"]:
        return np.array([label], np.int32)

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """The terms that training minimises."""
        assert outputs.class_logits is not None
        return {"cross_entropy": cross_entropy(outputs.class_logits[:, None], batch.targets, batch.weights)}

    def metrics(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm | PerRowMetric]:
        """What evaluation counts: nats per text, and how many texts of each class are said to be of which."""
        assert outputs.class_logits is not None
        scored = (outputs.class_logits[:, None], batch.targets, batch.weights)
        return {
            "loss": cross_entropy(*scored),
            "accuracy": accuracy(*scored),
            "confusion": confusion(*scored),
        }

    def report(self, totals: Mapping[str, LossTerm | PerRowMetric]) -> dict[str, float]:
        """The figures of the whole data."""
        terms = {name: total for name, total in totals.items() if isinstance(total, LossTerm)}
        means = {name: terms[name].mean for name in ("loss", "accuracy")}
        table = np.asarray(terms["confusion"].sum)
        each = f1(table)
        present = table.sum(0) + table.sum(1) > 0
        figures = {**means, "macro_f1": float(each[present].mean()), "matthews": matthews(table)}
        return figures | ({"f1": float(each[1])} if len(self.classes) == 2 else {})


@dataclass(frozen=True, kw_only=True)
class Regression(LabelledTexts):
    """Which number a text, or a pair of texts, has; the one score of `model.pooler` is to be it.

    Evaluation reports `loss`, the mean squared error, and the correlations `pearson` and `spearman` over the whole evaluation data.
    """

    kind: Literal["regression"] = "regression"

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("loss", "pearson", "spearman")

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError where the model has two stacks, or does not give one score."""
        super().check_model(model)
        check_pooler(self.kind, model, 1)

    def number(self, label: str, record: int) -> float:
        try:
            value = float(label)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(
                f"record {record} of the data has the label {label!r}, which is no number: mend the data "
                "(data.train.label_column or label_field says where labels are)"
            )
        return value

    def target(self, label: float) -> Float[np.ndarray, "1"]:
        return np.array([label], np.float32)

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """The terms that training minimises."""
        assert outputs.class_logits is not None
        return {"squared_error": squared_error(outputs.class_logits, batch.targets, batch.weights)}

    def metrics(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm | PerRowMetric]:
        """What evaluation looks at: what was said and what is true, row by row."""
        assert outputs.class_logits is not None
        values = jnp.concatenate([outputs.class_logits.astype(jnp.float32), batch.targets], -1)
        return {"rows": PerRowMetric(values, batch.weights[:, 0])}

    def report(self, totals: Mapping[str, LossTerm | PerRowMetric]) -> dict[str, float]:
        """The figures of the whole data."""
        rows = totals["rows"]
        assert isinstance(rows, PerRowMetric)
        said, true = np.asarray(rows.values, np.float64).T
        return {
            "loss": float(np.square(said - true).mean()),
            "pearson": correlation(said, true),
            "spearman": correlation(ranks(said), ranks(true)),
        }


# Figures ---------------------------------------------------------------------------------------------------------------


def f1(table: Float[np.ndarray, "C C"]) -> Float[np.ndarray, "C"]:
    """F1 of each class, 2 TP / (2 TP + FP + FN), from how many of each class (row) are said to be of which (column); 0 of none."""
    return 2 * table.diagonal() / np.maximum(table.sum(0) + table.sum(1), 1)


def matthews(table: Float[np.ndarray, "C C"]) -> float:
    """Matthews' correlation coefficient of any number of classes, from the same table; 0 where a side knows one class only.

    Reference: Gorodkin 2004, "Comparing two K-category assignments by a K-category correlation coefficient", equation 8.
    """
    total, true, said = table.sum(), table.sum(1), table.sum(0)
    spread = math.sqrt(total**2 - true @ true) * math.sqrt(total**2 - said @ said)
    return float((table.trace() * total - true @ said) / spread) if spread else 0.0


def correlation(x: Float[np.ndarray, "N"], y: Float[np.ndarray, "N"]) -> float:
    """Pearson's correlation coefficient; 0 where a side is the same everywhere."""
    x, y = x - x.mean(), y - y.mean()
    spread = math.sqrt(x @ x) * math.sqrt(y @ y)
    return float(x @ y / spread) if spread else 0.0


def ranks(x: Float[np.ndarray, "N"]) -> Float[np.ndarray, "N"]:
    """The place of each number in their order, from 0; equal ones share the mean of theirs."""
    _, which, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[which]
