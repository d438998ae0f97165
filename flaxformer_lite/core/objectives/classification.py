"""Objectives on whole texts: a row is one text or two. Classification and regression predict a class, or a number, of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flaxformer_lite.core.data.records import LabelledText, Lengths, TokenPair
from flaxformer_lite.core.data.token_arrays import Rows, TokenArrays
from flaxformer_lite.core.model import Inputs, ModelConfig
from flaxformer_lite.core.model.inputs import Outputs, check_one_stack, text_inputs
from flaxformer_lite.core.objectives.base import BaseObjective, HeadObjective, check_pooler
from flaxformer_lite.core.objectives.batch import Batch, host_row, pad_tokens
from flaxformer_lite.core.objectives.losses import (
    LossTerm,
    PerRowMetric,
    accuracy,
    confusion,
    cross_entropy,
    squared_error,
)
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
    """Texts or pairs with one label each. A subclass defines `label_type` and `label_value`."""

    command = "classify"
    label_type: ClassVar[type]
    """The number type of the labels."""

    def label_value(self, label: str, record: int) -> float:
        """Returns a label as a number. Raises: ValueError for an illegal one, with the number of its record."""
        raise NotImplementedError

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> Rows:
        """Returns one row a record. Raises: ValueError for an illegal label."""
        arrays, reader = TokenArrays.of(records), tokenizer or ByteTokenizer()
        sizes, values = arrays.sizes, [0.0] * len(arrays)
        if tokenizer is not None:
            values = [self.label_value(label, number) for number, label in enumerate(arrays.labels, 1)]
        one, two = (len(reader.truncated([[]] * texts, 0).tokens) for texts in (1, 2))

        def make(i: int) -> LabelledText:
            record = arrays[i]
            texts = [record.source, record.target] if len(record.source) else [record.target]
            tokens, types = reader.truncated([text.tolist() for text in texts], longest.source)
            return LabelledText(np.array(tokens, np.int32), np.array(types, np.int32), values[i])

        num_special = np.where(sizes[:, 0] > 0, two, one)
        used = num_special + np.minimum(sizes.sum(1), np.maximum(longest.source - num_special, 0))
        return Rows.source_only(used, make)

    def example(
        self, record: LabelledText, lengths: Lengths, generator: np.random.Generator, special: SpecialIds
    ) -> Batch:
        return host_row(
            np.array([record.label], self.label_type),
            np.ones(1, np.float32),
            source_tokens=pad_tokens(record.tokens, lengths.source, special.pad),
            source_mask=np.arange(lengths.source) < len(record.tokens),
            token_types=pad_tokens(record.types, lengths.source),
        )


@dataclass(frozen=True, kw_only=True)
class Classification(LabelledTexts, HeadObjective):
    """The class of a text or a pair of texts, scored by `model.pooler`.

    Evaluation reports `loss`, `accuracy`, `macro_f1`, `matthews` (the correlation of true and predicted classes) and, for two
    classes, `f1` of the second. All are figures of the whole evaluation data, not means of batches.
    """

    kind: Literal["classification"] = "classification"
    classes: tuple[str, ...]
    """The names of the classes, as in the data, in the order of their logits."""

    label_type = np.int32

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

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """Returns the terms of `head_loss`, in nats per text."""
        return self.head_loss(class_logits(outputs)[:, None], batch.targets, batch.weights)

    def metrics(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm | PerRowMetric]:
        """Returns nats per text, and the confusion matrix."""
        scored = (class_logits(outputs)[:, None], batch.targets, batch.weights)
        return {"loss": cross_entropy(*scored), "accuracy": accuracy(*scored), "confusion": confusion(*scored)}

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

    label_type = np.float32

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
