"""Figures of a whole evaluation of classes or numbers, in NumPy on the host."""

import math

import numpy as np
from jaxtyping import Float


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
