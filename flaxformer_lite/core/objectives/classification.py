"""Objectives on whole texts: a row is one text or two. Classification and regression predict classes, or a number, of it."""

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from flaxformer_lite.core.base.bounds import PositiveFloat, check_places
from flaxformer_lite.core.base.mistake import known
from flaxformer_lite.core.data.records import LabelledText, Lengths, TokenPair
from flaxformer_lite.core.data.token_arrays import Rows, TokenArrays
from flaxformer_lite.core.model import Inputs, ModelConfig
from flaxformer_lite.core.model.inputs import Outputs, text_inputs
from flaxformer_lite.core.objectives.base import BaseObjective, HeadObjective, check_pooler
from flaxformer_lite.core.objectives.batch import Batch, text_row
from flaxformer_lite.core.objectives.losses import (
    Counts,
    LossTerm,
    PerRowMetric,
    accuracy,
    binary_cross_entropy,
    check_class_weights,
    confusion,
    cross_entropy,
    squared_error,
    weights_of,
)
from flaxformer_lite.core.reading.heads import check_one_stack
from flaxformer_lite.core.reading.objectives import ClassifiedTexts, RatedTexts
from flaxformer_lite.core.text import SpecialIds, Tokenizer
from flaxformer_lite.core.text.characters import ByteTokenizer


@dataclass(frozen=True, kw_only=True)
class WholeTexts(BaseObjective):
    """Rows for a model with one stack, an encoder or a decoder: BOS, a text, EOS, and for a pair the second text and EOS.

    Texts are truncated to `data.max_source_length` together, the longest first.
    """

    unit = counted = "examples"

    def longest_row(self, longest: Lengths) -> Lengths:
        return Lengths(longest.source, 0)

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError if the model has two stacks."""
        check_one_stack(model, f"objective.kind '{self.kind}'")

    def inputs(self, batch: Batch, model: ModelConfig) -> Inputs:
        tokens, mask, types = batch.inputs.source_tokens, batch.inputs.source_mask, batch.inputs.token_types
        assert tokens is not None and mask is not None
        return text_inputs(model, tokens, mask, types)


@dataclass(frozen=True, kw_only=True)
class LabelledTexts(WholeTexts):
    """Texts or pairs with a label each. A subclass defines `label_type` and `label_value`."""

    label_type: ClassVar[type]
    """The number type of the labels."""

    def row_targets(self, value: object) -> np.ndarray:
        """Returns the targets of a row whose label has this value."""
        return np.array([value], self.label_type)

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> Rows:
        """Returns one row a record. Raises: ValueError for an illegal label."""
        arrays, reader = TokenArrays.of(records), tokenizer or ByteTokenizer()
        sizes = arrays.sizes
        values: list[Any] = [0.0] * len(arrays)
        if tokenizer is not None:
            for number, label in enumerate(arrays.labels):
                with known(subject=f"record {number + 1} of the data"):
                    values[number] = self.label_value(label)
        one, two = (len(reader.truncated([[]] * texts, 0).tokens) for texts in (1, 2))

        def make(i: int) -> LabelledText:
            record = arrays[i]
            texts = [record.source, record.target] if len(record.source) else [record.target]
            return LabelledText.of(reader.truncated([text.tolist() for text in texts], longest.source), values[i])

        num_special = np.where(sizes[:, 0] > 0, two, one)
        return Rows.truncated(num_special, sizes.sum(1), longest.source, make)

    def example(
        self, record: LabelledText, lengths: Lengths, generator: np.random.Generator, special: SpecialIds
    ) -> Batch:
        return text_row(self.row_targets(record.label), np.ones(1, np.float32), record, lengths, special)


@dataclass(frozen=True, kw_only=True)
class Classification(ClassifiedTexts, LabelledTexts, HeadObjective):
    """The class of a text or a pair of texts, or any number of them, scored by `model.pooler`.

    Evaluation reports `loss` (without class weights), `accuracy`, `macro_f1`, `matthews` (the correlation of true and predicted
    classes) and, for two classes, `f1` of the second; for several labels `loss`, `accuracy` (the fraction of texts whose labels are
    all right, and no others), `micro_f1` and `macro_f1`. `macro_f1` is the mean over the classes that occur, in the data or in the
    predictions. All are figures of the whole evaluation data, not means of batches.
    """

    kind: Literal["classification"] = "classification"
    class_weights: tuple[PositiveFloat, ...] = ()
    """A weight for each class, in their order; (): all 1. With one label it multiplies the loss of the texts of that class, and the
    sum is divided by the sum of their weights; with several it multiplies the loss where a text has the label."""

    label_type = np.int32

    def __post_init__(self) -> None:
        super().__post_init__()
        fewest = 1 if self.several else 2
        if len(self.classes) < fewest or len(set(self.classes)) < len(self.classes):
            raise ValueError(f"objective.classes is {self.classes}: it must be at least {fewest} names, all different")
        check_class_weights(self.class_weights, "objective.classes", len(self.classes))
        if not self.several and self.threshold != 0.5:
            raise ValueError(
                f"objective.threshold is {self.threshold}, but objective.labels is 'one', so the most probable class is chosen: "
                "leave it out, or set labels to 'several'"
            )
        for name in ("label_smoothing", "z_loss"):
            if self.several and getattr(self, name):
                raise ValueError(
                    f"objective.{name} is {getattr(self, name)}, but objective.labels is 'several', whose loss has no softmax: "
                    "set it to 0"
                )

    @property
    def metric_names(self) -> tuple[str, ...]:
        if self.several:
            return ("loss", "accuracy", "micro_f1", "macro_f1")
        return ("loss", "accuracy", "macro_f1", "matthews", *(["f1"] if len(self.classes) == 2 else []))

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError if the model has two stacks, or not as many classes."""
        super().check_model(model)
        check_pooler(model, len(self.classes), f"objective.kind '{self.kind}' needs")

    def label_value(self, label: str) -> int | tuple[int, ...]:
        if not self.several:
            return self.class_number(label)
        return tuple(self.class_number(name) for name in label_names(label))

    def class_number(self, label: str) -> int:
        if label not in self.classes:
            few = ", ".join(self.classes[:10]) + (", …" if len(self.classes) > 10 else "")
            is_list = not self.several and label_names(label) != [label]
            more = "; for any number of labels a text, set objective.labels to 'several'" if is_list else ""
            raise ValueError(
                f"has the label {label[:60]!r}, which is not one of objective.classes ({few}): add it there, "
                f"or correct the data (data.train.record.label names the labels){more}"
            )
        return self.classes.index(label)

    def row_targets(self, value: Any) -> np.ndarray:
        if not self.several:
            return super().row_targets(value)
        return np.isin(np.arange(len(self.classes)), value).astype(np.float32)

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """Returns the terms of `head_loss`, or for several labels the binary cross-entropy, in nats per text."""
        logits = class_logits(outputs)
        targets = batch.targets
        weights = batch.weights
        if self.several:
            return {"binary_cross_entropy": binary_cross_entropy(logits, targets, weights, self.class_weights)}
        return self.head_loss(logits[:, None], targets, weights_of(self.class_weights, targets, weights))

    def metrics(self, outputs: Outputs, batch: Batch) -> Counts:
        """Returns nats per text, and the confusion matrix or the counts of several labels."""
        logits = class_logits(outputs)
        targets = batch.targets
        weights = batch.weights
        if self.several:
            right, counts = label_counts(jax.nn.sigmoid(logits) > self.threshold, targets, weights)
            return {"loss": binary_cross_entropy(logits, targets, weights), "accuracy": right, "counts": counts}
        scored = (logits[:, None], targets, weights)
        return {"loss": cross_entropy(*scored), "accuracy": accuracy(*scored), "confusion": confusion(*scored)}

    def report(self, totals: Counts) -> dict[str, float]:
        terms = {name: total for name, total in totals.items() if isinstance(total, LossTerm)}
        means = {name: terms[name].mean for name in ("loss", "accuracy")}
        if self.several:
            right, occurrences = np.asarray(terms["counts"].sum)
            return {
                **means,
                "micro_f1": float(f1(right.sum(keepdims=True), occurrences.sum(keepdims=True))[0]),
                "macro_f1": macro_f1(right, occurrences),
            }
        table = np.asarray(terms["confusion"].sum)
        right = table.diagonal()
        occurrences = table.sum(0) + table.sum(1)
        figures = {**means, "macro_f1": macro_f1(right, occurrences), "matthews": matthews(table)}
        return figures | ({"f1": float(f1(right, occurrences)[1])} if len(self.classes) == 2 else {})


@dataclass(frozen=True, kw_only=True)
class Regression(RatedTexts, LabelledTexts):
    """The number of a text or a pair of texts, predicted by the single logit of `model.pooler`.

    Evaluation reports `loss` (the mean squared error) and the correlations `pearson` and `spearman` over the whole evaluation
    data.
    """

    kind: Literal["regression"] = "regression"
    label_type = np.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bounds and (len(self.bounds) != 2 or self.bounds[0] >= self.bounds[1]):
            raise ValueError(f"objective.bounds is {self.bounds}: it must be a lower and a higher number, or ()")
        places = ("source", "translation", "reference")
        check_places("objective.with_reference", self.with_reference, places)
        check_places("objective.without_reference", self.without_reference, places[:2])

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("loss", "pearson", "spearman")

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError if the model has two stacks, or not exactly one class logit."""
        super().check_model(model)
        check_pooler(model, 1, f"objective.kind '{self.kind}' needs")
        for name in ("with_reference", "without_reference"):
            text = getattr(self, name)
            if text:
                raise ValueError(
                    f"objective.{name} is {text!r}, but training reads a source and its translation as a pair: set it to ''"
                )

    def label_value(self, label: str) -> float:
        try:
            value = float(label)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(
                f"has the label {label[:60]!r}, which is no finite number: correct the data "
                "(data.train.record.label names the labels)"
            )
        return value

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """Returns the squared error per text."""
        return {"squared_error": squared_error(class_logits(outputs), batch.targets, batch.weights)}

    def metrics(self, outputs: Outputs, batch: Batch) -> Counts:
        """Returns the predicted and the true number of each row, `[B, 2]`."""
        values = jnp.concatenate([class_logits(outputs).astype(jnp.float32), batch.targets], -1)
        return {"rows": PerRowMetric(values, batch.weights[:, 0])}

    def report(self, totals: Counts) -> dict[str, float]:
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


# Several labels -------------------------------------------------------------------------------------------------------


def label_names(label: str) -> list[str]:
    """Returns the labels of a text: those of a JSON list; any other text is one label, and an empty text has no label."""
    with contextlib.suppress(ValueError, RecursionError):
        names = json.loads(label) if label.startswith("[") else None
        if isinstance(names, list):
            return list(map(str, names))
    return [label] if label else []


def label_counts(
    predicted: Bool[Array, "B C"], targets: Float[Array, "B C"], weights: Float[Array, "B 1"]
) -> tuple[LossTerm, LossTerm]:
    """Returns the number of texts whose labels are all predicted and no others; and for each class `[2, C]` how often it is
    predicted rightly, and how often it is a label or predicted, twice where it is both.
    """
    true = targets > 0
    right = ((predicted == true).all(-1, keepdims=True) * weights).sum()
    both = (jnp.stack([predicted & true, predicted.astype(jnp.int32) + true]) * weights).sum(1)
    return LossTerm(right, weights.sum()), LossTerm(both, weights.sum())


# Figures of a whole evaluation, on the host ---------------------------------------------------------------------------


def f1(right: Float[np.ndarray, "*C"], occurrences: Float[np.ndarray, "*C"]) -> Float[np.ndarray, "*C"]:
    """Returns the F1 score of each class, 2 TP / (2 TP + FP + FN); 0 for a class that never occurs.

    right: how often a class is predicted rightly. occurrences: how often it is true or predicted, twice where it is both.
    """
    return 2 * right / np.maximum(occurrences, 1)


def macro_f1(right: Float[np.ndarray, "C"], occurrences: Float[np.ndarray, "C"]) -> float:
    """Returns the mean F1 score of the classes that occur, 0 if none does."""
    return float(f1(right, occurrences)[occurrences > 0].mean()) if occurrences.any() else 0.0


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
