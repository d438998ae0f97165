"""Oracles: torch's BCEWithLogitsLoss and CrossEntropyLoss, with weights and gradients; formulas in float64; F1 by counting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.data.records import Lengths, TokenPair
from flaxformer_lite.core.model.inputs import Inputs, Outputs
from flaxformer_lite.core.objectives import Batch, Classification
from flaxformer_lite.core.text.characters import CharacterTokenizer
from tests.support import needs
from tests.support.objectives import example, in_batches, labelled

NAMES = ("art", "law", "sea")
SEVERAL = Classification(classes=NAMES, labels="several")
WEIGHTS = (0.5, 3.0, 1.25)


def batch_of(targets: np.ndarray, rows: int) -> Batch:
    """A batch whose first `rows` rows count."""
    return Batch(Inputs(), jnp.asarray(targets), (jnp.arange(len(targets)) < rows)[:, None].astype(jnp.float64))


def loss_and_gradient(objective: Classification, logits: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """The loss of a train step and its gradient, with two padding rows at the end."""
    padded = np.pad(targets, ((0, 2), (0, 0)))

    def loss(z: jax.Array) -> jax.Array:
        scores = jnp.concatenate([z, jnp.full((2, z.shape[1]), 7.0)])
        terms = objective.loss(Outputs(class_logits=scores), batch_of(padded, len(targets)))
        return sum(term.weight * term.sum / term.count for term in terms.values())

    with jax.enable_x64():
        value, gradient = jax.jit(jax.value_and_grad(loss))(jnp.asarray(logits))
    return float(value), np.asarray(gradient)


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(11, 3)) * 4, rng.integers(0, 2, (11, 3)).astype(np.float64), rng.integers(0, 3, (11, 1))


@pytest.mark.parametrize("weights", [(), WEIGHTS])
def test_the_loss_of_several_labels_is_the_mean_over_classes_and_rows(weights: tuple[float, ...]):
    """Oracle: the formula, one class at a time."""
    logits, targets, _ = drawn(1)
    objective = Classification(classes=NAMES, labels="several", class_weights=weights)
    wanted = 0.0
    for row, true in zip(logits, targets, strict=True):
        for z, y, w in zip(row, true, weights or (1, 1, 1), strict=True):
            p = 1 / (1 + np.exp(-z))
            wanted -= (w * y * np.log(p) + (1 - y) * np.log(1 - p)) / targets.size
    assert loss_and_gradient(objective, logits, targets)[0] == pytest.approx(wanted, rel=1e-9)


@pytest.mark.slow
@needs.torch
@pytest.mark.parametrize("weights", [(), WEIGHTS])
@pytest.mark.parametrize("labels", ["one", "several"])
def test_losses_and_gradients_are_those_of_torch(labels: str, weights: tuple[float, ...]):
    import torch

    logits, many, one = drawn(2)
    objective = Classification(classes=NAMES, labels=labels, class_weights=weights)
    value, gradient = loss_and_gradient(objective, logits, many if labels == "several" else one)
    z = torch.tensor(logits, requires_grad=True)
    w = torch.tensor(weights, dtype=torch.float64) if weights else None
    if labels == "several":
        theirs = torch.nn.BCEWithLogitsLoss(pos_weight=w)(z, torch.tensor(many))
    else:
        theirs = torch.nn.CrossEntropyLoss(weight=w)(z, torch.tensor(one[:, 0]))
    theirs.backward()
    assert value == pytest.approx(theirs.item(), rel=1e-9)
    np.testing.assert_allclose(gradient, z.grad.numpy(), rtol=1e-9, atol=1e-12)


def test_weights_of_one_label_by_hand():
    """Two texts of equal logits: nll ln 2 and ln 2, weights 1 and 3; the loss is (1·ln 2 + 3·ln 2) / 4. Evaluation: none."""
    objective = Classification(classes=("a", "b"), class_weights=(1.0, 3.0))
    logits, targets = np.array([[0.0, 0.0], [0.0, 0.0]]), np.array([[0], [1]])
    value, gradient = loss_and_gradient(objective, logits, targets)
    assert value == pytest.approx(np.log(2))
    np.testing.assert_allclose(gradient, [[-0.125, 0.125], [0.375, -0.375]])
    confident = np.float32([[2, 0], [2, 0]])
    plain = in_batches(Classification(classes=("a", "b")), confident, np.int32([0, 1]), 2)
    assert in_batches(objective, confident, np.int32([0, 1]), 2) == plain


def test_rows_have_a_one_for_each_label():
    """A JSON list is any number of labels, another text one label, an empty one none; a name may begin with a bracket."""
    objective = Classification(classes=("[x]", "law", "sea"), labels="several")
    labels = ['["sea", "[x]"]', "law", "", "[]", "[x]"]
    records = [labelled([], [4], label) for label in labels]
    rows = objective.make_rows(records, Lengths(7, 0), 0, CharacterTokenizer("abc"))
    batches = [example(objective, row, Lengths(6, 0)) for row in rows]
    assert [batch.targets.tolist() for batch in batches] == [[1, 0, 1], [0, 1, 0], [0] * 3, [0] * 3, [1, 0, 0]]
    assert all(batch.weights.tolist() == [1] for batch in batches)
    (shape,) = objective.make_rows([TokenPair(*np.zeros((2, 0), np.int32))], Lengths(7, 0), 0)
    assert example(objective, shape, Lengths(6, 0)).targets.shape == (3,)


@pytest.mark.parametrize("label", ['["law", "see"]', "see"])
def test_a_label_that_is_none_is_located(label: str):
    records = [labelled([], [4], "law"), labelled([], [4], label)]
    with pytest.raises(ValueError, match=r"^record 2 of the data has the label 'see', which is not one of .*\(art, "):
        SEVERAL.make_rows(records, Lengths(7, 0), 0, CharacterTokenizer("abc"))


def test_figures_of_several_labels_equal_counts():
    """Oracle: precision and recall of each class, one text at a time; a class that never occurs is no mistake."""
    rng = np.random.default_rng(3)
    for threshold in (0.5, 0.3):
        scores, targets = rng.normal(size=(47, 4)).astype(np.float32), rng.integers(0, 2, (47, 4)).astype(np.float32)
        scores[:, 3], targets[:, 3] = -9, 0
        objective = Classification(classes=("a", "b", "c", "never"), labels="several", threshold=threshold)
        probabilities = 1 / (1 + np.exp(-scores.astype(np.float64)))
        predicted, true = probabilities > threshold, targets > 0
        f1s = []
        for c in range(3):
            right = sum(predicted[:, c] & true[:, c])
            precision, recall = right / predicted[:, c].sum(), right / true[:, c].sum()
            f1s.append(2 * precision * recall / (precision + recall))
        precision, recall = (predicted & true).sum() / predicted.sum(), (predicted & true).sum() / true.sum()
        found = in_batches(objective, scores, targets, 10)
        assert found.keys() == set(objective.metric_names)
        assert found == pytest.approx(
            {
                "loss": -np.where(true, np.log(probabilities), np.log(1 - probabilities)).mean(),
                "accuracy": sum((p == t).all() for p, t in zip(predicted, true, strict=True)) / 47,
                "micro_f1": 2 * precision * recall / (precision + recall),
                "macro_f1": np.mean(f1s),
            },
            rel=1e-5,
        )
    nothing = in_batches(SEVERAL, np.full((3, 3), -5, np.float32), np.zeros((3, 3), np.float32), 2)
    assert (nothing["accuracy"], nothing["micro_f1"], nothing["macro_f1"]) == (1, 0, 0)


def test_lists_of_labels_where_a_text_has_one_are_told_of_the_setting():
    objective = Classification(classes=("art", "sea"))
    with pytest.raises(ValueError, match=r"any number of labels a text, set objective\.labels to 'several'$"):
        objective.label_value('["art"]')
    with pytest.raises(ValueError, match=r"record\.label names the labels\)$"):
        objective.label_value("[art]")
