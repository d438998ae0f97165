"""Oracles: rows worked by hand; precision, recall and F1 of drawn labels by seqeval (its figures are a fixture)."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.data.records import Lengths, TokenPair
from flaxformer_lite.core.model.config import ModelConfig
from flaxformer_lite.core.model.inputs import Inputs, Outputs
from flaxformer_lite.core.objectives import Batch, TokenLabels, default_objective
from flaxformer_lite.core.reading.heads import Pooler
from flaxformer_lite.core.reading.objectives import PIECE_LABELS, piece_label
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.core.text.pairs import Extent
from flaxformer_lite.core.text.special_ids import BOS, EOS, PAD
from flaxformer_lite.training.evaluation import merge_counts
from tests.support.entities import SCHEMES, TYPES, drawn_sentences, labels_of
from tests.support.objectives import example, record
from tests.support.paths import FIXTURES

NAMES = TokenLabels(labels=("O", "B-PER", "I-PER"))
TOKENIZER = CharacterTokenizer("abcdefghijklmnop")


def with_labels(target: list[int], labels: list[int]) -> TokenPair:
    return record([], target)._replace(arrays={PIECE_LABELS: np.array(labels, np.uint16)})


def test_rows_by_hand():
    """Two pieces of a B-PER, a token of no word, an O; the second row is cut, the refused one left out."""
    rows = NAMES.make_rows(
        [
            with_labels([4, 5, 6, 7], [piece_label(1, True), piece_label(2, False), 0, piece_label(0, True)]),
            record([], [])._replace(extent=Extent.REFUSED),
            with_labels([4, 5, 6, 7, 8, 9, 10], [1, 1, 1, 1, 1, 2, 1]),
        ],
        Lengths(7, 0), 0, TOKENIZER,
    )  # fmt: skip
    assert [row.tokens.tolist() for row in rows] == [[BOS, 4, 5, 6, 7, EOS], [BOS, 4, 5, 6, 7, 8, EOS]]
    assert rows.lengths.tolist() == [[6, 0], [7, 0]] and rows.spans.record.tolist() == [0, 2]
    assert rows.note == "1 words of 1 texts were cut off, as data.max_source_length is 7"
    batch = example(NAMES, rows[0], Lengths(8, 0))
    assert batch.inputs.source_tokens.tolist() == [BOS, 4, 5, 6, 7, EOS, PAD, PAD]
    assert batch.targets[[1, 4]].tolist() == [1, 0]
    assert batch.weights.tolist() == batch.extra.tolist() == [0, 1, 0, 0, 1, 0, 0, 0]
    batch = example(TokenLabels(labels=NAMES.labels, pieces="all"), rows[0], Lengths(8, 0))
    assert batch.targets[[1, 2, 4]].tolist() == [1, 2, 0]
    assert batch.weights.tolist() == [0, 1, 1, 0, 1, 0, 0, 0] and batch.extra.tolist() == [0, 1, 0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("weights", [(), (0.5, 3.0, 1.25)])
def test_class_weights_multiply_the_loss_of_pieces(weights: tuple[float, ...]):
    """Oracle: in float64, piece by piece, the negative log of the softmax. A piece that the loss does not count has no weight."""
    generator = np.random.default_rng(5)
    logits, targets = generator.normal(size=(4, 6, 3)) * 3, generator.integers(0, 3, (4, 6))
    counted = generator.integers(0, 2, (4, 6)).astype(np.float64)
    total = divisor = 0.0
    for z, label, is_counted in zip(logits.reshape(-1, 3), targets.flat, counted.flat, strict=True):
        weight = is_counted * (weights or (1, 1, 1))[label]
        total += weight * (np.log(np.exp(z).sum()) - z[label])
        divisor += weight
    objective = TokenLabels(labels=NAMES.labels, class_weights=weights)
    with jax.enable_x64():
        batch = Batch(Inputs(), jnp.asarray(targets), jnp.asarray(counted), extra=jnp.asarray(counted))
        outputs = Outputs(class_logits=jnp.asarray(logits))
        (term,) = objective.loss(outputs, batch).values()
        measured_loss = objective.metrics(outputs, batch)["loss"]
        assert float(term.sum / term.count) == pytest.approx(total / divisor, rel=1e-12)
        plain = NAMES.metrics(outputs, batch)["loss"]
    assert float(measured_loss.sum) == float(plain.sum) and float(measured_loss.count) == counted.sum()


def test_further_pieces_are_inside():
    objective = TokenLabels(labels=("O", "B-A", "I-A", "B-B"))
    assert [objective.further_label(i) for i in range(4)] == [0, 2, 2, 3]
    assert TokenLabels(labels=("B-A", "I-A"), scheme="plain").further_label(0) == 0


def measured(objective: TokenLabels, true: list[list[str]], predicted: list[list[str]], size: int) -> dict[str, float]:
    """What is reported of these labels, counted in batches whose words stand at drawn places; the last has rows of weight 0."""
    rng, counts, measure = np.random.default_rng(7), [], jax.jit(objective.metrics)
    for start in range(0, len(true), size):
        targets, words = np.zeros((size, 23), np.int32), np.zeros((size, 23), np.float32)
        logits = rng.normal(size=(size, 23, len(objective.labels)))
        for row, (labels, answers) in enumerate(
            zip(true[start : start + size], predicted[start : start + size], strict=True)
        ):
            places = np.sort(rng.choice(23, len(labels), replace=False))
            targets[row, places], words[row, places] = [objective.labels.index(label) for label in labels], 1
            logits[row, places, [objective.labels.index(label) for label in answers]] = 9
        batch = Batch(Inputs(), jnp.asarray(targets), jnp.asarray(words), extra=jnp.asarray(words))
        counts.append(jax.device_get(measure(Outputs(class_logits=jnp.asarray(logits, jnp.float32)), batch)))
    return objective.report({name: merge_counts([one[name] for one in counts]) for name in counts[0]})


@pytest.mark.parametrize("scheme", SCHEMES)
def test_scores_equal_those_of_seqeval(scheme):
    expected = json.loads((FIXTURES / "entity_scores.json").read_text())[scheme]
    objective = TokenLabels(labels=labels_of(scheme), scheme=scheme)
    figures = measured(objective, *drawn_sentences(scheme), size=97)
    assert set(figures) == set(objective.metric_names)
    assert figures["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-12)
    for name, suffix in (("micro avg", ""), *((kind, f"_{kind}") for kind in TYPES)):
        found = {score: figures[f"{score}{suffix}"] for score in ("precision", "recall", "f1")}
        assert found == pytest.approx(expected[name], abs=1e-12)


def test_plain_labels_are_counted_word_by_word():
    """By hand: of NOUN one of two predicted is right, of VERB the one; O is none."""
    objective = TokenLabels(labels=("NOUN", "VERB", "O"), scheme="plain")
    figures = measured(objective, [["NOUN", "NOUN", "VERB", "O"]], [["NOUN", "O", "VERB", "NOUN"]], size=2)
    assert (figures["precision_NOUN"], figures["recall_NOUN"], figures["f1_VERB"]) == (0.5, 0.5, 1)
    assert figures["f1"] == pytest.approx(2 / 3) and figures["accuracy"] == 0.5


def test_a_model_from_elsewhere_has_the_scheme_of_its_names():
    model = ModelConfig(
        vocab_size=29, num_decoder_layers=0, head=None, pooler=Pooler(token="each", activation=None, num_classes=3)
    )
    for names, scheme in (
        (("O", "B-A", "I-A"), "bio"),
        (("S-A", "O", "E-A"), "bioes"),
        (("O", "NOUN", "B-A"), "plain"),
        ((), "plain"),
    ):
        objective = default_objective(model, names)
        assert isinstance(objective, TokenLabels) and objective.scheme == scheme
        assert objective.class_names == (names or ("0", "1", "2"))
