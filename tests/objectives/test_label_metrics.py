"""Figures of classes and numbers as the objectives report them: over all rows, however these were cut into batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.model.inputs import Inputs, Outputs
from flaxformer_lite.objectives import Batch, Classification, Regression
from flaxformer_lite.training.evaluation import merge_counts

YES_NO = Classification(classes=("yes", "no"))


def in_batches(objective, scores: np.ndarray, targets: np.ndarray, size: int) -> dict[str, float]:
    """What is reported of texts scored so, counted in batches whose last has rows of weight 0."""
    found, measure = [], jax.jit(objective.metrics)
    for start in range(0, len(scores), size):
        rows = slice(start, start + size)
        lacking = size - len(scores[rows])
        batch = Batch(
            Inputs(),
            jnp.asarray(np.pad(targets[rows], (0, lacking)))[:, None],
            jnp.asarray(np.pad(np.ones(size - lacking, np.float32), (0, lacking)))[:, None],
        )
        logits = jnp.asarray(np.pad(scores[rows], ((0, lacking), (0, 0)), constant_values=3.0))
        found.append(jax.device_get(measure(Outputs(class_logits=logits), batch)))
    return objective.report({name: merge_counts([counted[name] for counted in found]) for name in found[0]})


def test_figures_of_classes_equal_their_definitions():
    """Oracles, one text at a time: the fraction predicted right; F1 from precision and recall; Matthews by indicators."""
    rng = np.random.default_rng(8)
    for classes in (2, 3, 5):
        scores, targets = rng.normal(size=(47, classes)).astype(np.float32), rng.integers(0, classes, 47)
        scores[np.arange(47), targets] += 0.7
        predicted = scores.argmax(1)
        f1s = []
        for c in range(classes):
            right = sum(s == t == c for s, t in zip(predicted, targets, strict=True))
            precision, recall = right / max(1, (predicted == c).sum()), right / max(1, (targets == c).sum())
            f1s.append(2 * precision * recall / (precision + recall) if right else 0)
        x, y = (np.eye(classes)[which] - np.eye(classes)[which].mean(0) for which in (predicted, targets))
        probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        objective = Classification(classes=tuple("abcde"[:classes]))
        found = in_batches(objective, scores, targets.astype(np.int32), 10)
        wanted = {
            "loss": -np.log(probabilities[np.arange(47), targets]).mean(),
            "accuracy": (predicted == targets).mean(),
            "macro_f1": np.mean(f1s),
            "matthews": (x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()),
        }
        wanted |= {"f1": f1s[1]} if classes == 2 else {}
        assert found.keys() == set(objective.metric_names) and found == pytest.approx(wanted, rel=1e-5)


def test_figures_of_two_classes_by_hand():
    """Right 3 of 5 positives and 4 of 6 negatives: F1 = 6 / (6 + 2 + 2), Matthews = (3·4 - 2·2) / sqrt(5·5·6·6)."""
    predicted = np.array([1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0])
    targets = np.array([1] * 5 + [0] * 6, np.int32)
    found = in_batches(YES_NO, np.eye(2, dtype=np.float32)[predicted], targets, 11)
    assert found["f1"] == pytest.approx(0.6) and found["matthews"] == pytest.approx(8 / 30)
    one = in_batches(Classification(classes=("a", "b", "c")), np.eye(3, dtype=np.float32)[[1, 1]], np.int32([1, 1]), 2)
    assert (one["accuracy"], one["macro_f1"], one["matthews"]) == (1, 1, 0)  # a class that never occurs is no mistake


def test_figures_of_numbers_equal_their_definitions():
    """Oracles: NumPy's corrcoef, of the numbers (far from 0, where sums of squares would cancel) and of ranks by counting."""
    rng = np.random.default_rng(9)
    targets = np.float32(4000 + rng.integers(0, 9, 53))
    scores = np.float32(targets + rng.normal(size=53))[:, None]
    found = in_batches(Regression(), scores, targets, 10)

    def rank(values: np.ndarray) -> list[float]:
        return [(values < v).sum() + ((values == v).sum() - 1) / 2 for v in values]

    predicted = scores[:, 0].astype(np.float64)
    assert found == {
        "loss": pytest.approx(np.mean((predicted - targets) ** 2), rel=1e-6),
        "pearson": pytest.approx(np.corrcoef(predicted, targets)[0, 1], rel=1e-9),
        "spearman": pytest.approx(np.corrcoef(rank(predicted), rank(targets))[0, 1], rel=1e-9),
    }
    assert in_batches(Regression(), np.ones((3, 1), np.float32), targets[:3], 3)["pearson"] == 0
