"""Oracles: rows and figures worked by hand; cosines, F1 and correlations by their definitions, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.data.records import Lengths
from flaxformer_lite.core.model.config import ModelConfig
from flaxformer_lite.core.model.inputs import Inputs, Outputs
from flaxformer_lite.core.objectives import Batch, Classification, Regression, SentenceEmbeddings
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.core.text.special_ids import BOS, EOS, PAD
from tests.support.objectives import example, in_batches, labelled, record

YES_NO = Classification(classes=("yes", "no"))


def test_texts_and_pairs_by_hand():
    """BOS A EOS, BOS A EOS B EOS with types 0 and 1, the longer text cut first, classes by their place and numbers as they are."""
    tokenizer = CharacterTokenizer("abcdefghijklmnop")
    rows = YES_NO.make_rows(
        [labelled([], [4, 5], "no"), labelled([6], [4, 5, 7, 8], "yes"), labelled([6, 7, 8], [9, 10, 11, 12], "yes")],
        Lengths(7, 0), 0, tokenizer,
    )  # fmt: skip
    assert [row.tokens.tolist() for row in rows] == [
        [BOS, 4, 5, EOS],
        [BOS, 6, EOS, 4, 5, 7, EOS],
        [BOS, 6, 7, EOS, 9, 10, EOS],
    ]
    assert [row.types.tolist() for row in rows] == [[0] * 4, [0] * 3 + [1] * 4, [0] * 4 + [1] * 3]
    assert [row.label for row in rows] == [1, 0, 0]
    assert rows.lengths.tolist() == [[4, 0], [7, 0], [7, 0]]
    assert rows.note == "2 of 3 rows have texts that were cut, as data.max_source_length is 7"
    batch = example(YES_NO, rows[0], Lengths(6, 0))
    assert batch.inputs.source_tokens.tolist() == [BOS, 4, 5, EOS, PAD, PAD]
    assert batch.inputs.source_mask.tolist() == [True] * 4 + [False] * 2
    assert (batch.targets.tolist(), batch.weights.tolist()) == ([1], [1])
    (row,) = Regression().make_rows([labelled([], [4], "-2.5")], Lengths(7, 0), 0, tokenizer)
    assert example(Regression(), row, Lengths(6, 0)).targets.tolist() == [-2.5]


@pytest.mark.parametrize(
    ("objective", "label", "words"),
    [
        (
            YES_NO,
            "maybe",
            r"^record 2 of the data has the label 'maybe', which is not one of objective\.classes \(yes, no\)",
        ),
        (YES_NO, "", r"^record 2 of the data has the label '', "),
        (YES_NO, "[" * 100_000, r"^record 2 of the data has the label '\[{60}', which is not one of"),
        (Regression(), "much", r"^record 2 of the data has the label 'much', which is no finite number"),
        (Regression(), "nan", r"which is no finite number"),
    ],
)
def test_labels_that_are_none_are_located(objective: Classification | Regression, label: str, words: str):
    good = labelled([], [4], "yes" if objective is YES_NO else "1")
    with pytest.raises(ValueError, match=words):
        objective.make_rows([good, labelled([], [4], label)], Lengths(7, 0), 0, CharacterTokenizer("abc"))


def test_the_loss_of_numbers_is_the_squared_error():
    batch = Batch(Inputs(), jnp.array([[1.0], [2.0], [9.0]]), jnp.array([[1.0], [1.0], [0.0]]))
    term = Regression().loss(Outputs(class_logits=jnp.array([[0.5], [4.0], [0.0]])), batch)["squared_error"]
    assert (float(term.sum), float(term.count)) == (4.25, 2)


# Sentence embeddings --------------------------------------------------------------------------------------------------


def test_embeddings_are_compared_with_all_of_the_batch_but_empty_rows():
    """Oracle: cosines one by one, in float64; a row of weight 0 is no wrong answer, whatever its vector."""
    rng = np.random.default_rng(10)
    vectors = rng.normal(size=(4, 2, 5)) * rng.uniform(0.5, 2, size=(4, 2, 1))
    objective = SentenceEmbeddings(temperature=0.3)
    digests = jnp.arange(1, 9).reshape(4, 2), jnp.zeros((4, 1), jnp.int32)  # no two texts are equal
    batch = Batch(Inputs(), jnp.zeros((4, 1), jnp.int32), jnp.array([[1.0], [1.0], [1.0], [0.0]]), extra=digests)
    found = jax.jit(objective.metrics)(Outputs(embedding=jnp.asarray(vectors.reshape(8, 5), jnp.float32)), batch)
    loss, right = 0.0, 0
    for i in range(3):
        a = vectors[i, 0]
        cosines = [a @ vectors[j, 1] / np.linalg.norm(a) / np.linalg.norm(vectors[j, 1]) / 0.3 for j in range(3)]
        loss += np.log(np.exp(cosines).sum()) - cosines[i]
        right += int(np.argmax(cosines) == i)
    assert float(found["loss"].sum) == pytest.approx(loss, rel=1e-5) and float(found["loss"].count) == 3
    assert (float(found["accuracy"].sum), float(found["accuracy"].count)) == (right, 3)


def test_both_texts_of_a_pair_are_rows_of_the_model():
    objective = SentenceEmbeddings()
    (pack,) = rows = objective.make_rows([record([4, 5], [6])], Lengths(9, 0), 0, CharacterTokenizer("abc"))
    assert rows.lengths.tolist() == [[4, 0]]
    batch = jax.tree.map(lambda x: np.stack([x, x]), example(objective, pack, Lengths(5, 0)))
    model = ModelConfig(vocab_size=29, num_decoder_layers=0, num_token_types=1)
    inputs = objective.inputs(batch, model)
    assert inputs.source_tokens.tolist() == [[BOS, 4, 5, EOS, PAD], [BOS, 6, EOS, PAD, PAD]] * 2
    assert inputs.source_mask.tolist() == [[True] * 4 + [False], [True] * 3 + [False] * 2] * 2
    assert not inputs.token_types.any()
    with pytest.raises(
        ValueError, match=r"^objective\.kind is 'sentence_embeddings', .* record 1 of the data has no source"
    ):
        objective.make_rows([record([], [6])], Lengths(9, 0), 0, CharacterTokenizer("abc"))


# Figures of a whole evaluation ----------------------------------------------------------------------------------------


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
