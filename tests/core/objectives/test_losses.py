"""Oracles: hand-worked numbers, float64 numpy one position at a time, the closed form of the gradient."""

import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.model.inputs import LazyLogits
from flaxformer_lite.core.objectives import LossTerm, losses
from flaxformer_lite.tools.planning.hlo_parser import parse_program
from flaxformer_lite.tools.planning.topology import describe_slice
from tests.support import needs

B, T, V = 2, 3, 11
whole = LazyLogits.logits
pytestmark = pytest.mark.usefixtures("float64")

loss, accuracy = jax.jit(losses.cross_entropy, static_argnames="label_smoothing"), jax.jit(losses.accuracy)


def by_hand(logits, targets, weights, smoothing: float) -> float:
    """Szegedy et al. 2016: cross-entropy against (1 - e) of the target and e / V of every class."""
    total = 0.0
    for row, target, weight in zip(logits, targets, weights, strict=True):
        partition = math.log(sum(math.exp(z) for z in row))
        for v, z in enumerate(row):
            wanted = smoothing / V + (1 - smoothing if v == target else 0)
            total -= weight * wanted * (z - partition)
    return total


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    weights = np.array([[1.0, 0.5, 0.0], [2.0, 0.0, 0.25]])
    return tuple(map(jnp.asarray, (3 * rng.normal(size=(B, T, V)), rng.integers(0, V, (B, T)), weights)))


@pytest.mark.parametrize(
    ("smoothing", "expected"),
    [
        (0.0, math.log(4)),  # p = 1/4
        (0.1, 0.9 * math.log(4) + 0.05 * (math.log(4) + math.log(4 / 3))),
        (0.5, 0.5 * math.log(4) + 0.25 * (math.log(4) + math.log(4 / 3))),
    ],
)
def test_two_classes_by_hand(smoothing, expected):
    """Logits 0 and ln 3 give the probabilities 1/4 and 3/4; the target is the first."""
    term = loss(jnp.array([[0.0, math.log(3)]]), jnp.array([0]), jnp.ones(1), label_smoothing=smoothing)
    assert isinstance(term, LossTerm)
    assert float(term.sum) == pytest.approx(expected, rel=1e-14)
    assert float(term.count) == 1 and term.weight == 1


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_cross_entropy_equals_the_float64_reference(data, smoothing):
    logits, targets, weights = map(np.asarray, data)
    term = loss(*data, label_smoothing=smoothing)
    want = by_hand(logits.reshape(-1, V), targets.reshape(-1), weights.reshape(-1), smoothing)
    assert float(term.sum) == pytest.approx(want, rel=1e-13)
    assert float(term.count) == 3.75


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_gradient_is_probability_minus_smoothed_target(data, smoothing):
    logits, targets, weights = data
    gradient = jax.jit(jax.grad(lambda z: loss(z, targets, weights, label_smoothing=smoothing).sum))(logits)
    probability = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    wanted = (1 - smoothing) * np.eye(V)[targets] + smoothing / V
    np.testing.assert_allclose(gradient, weights[..., None] * (probability - wanted), atol=1e-13)
    assert (np.asarray(gradient)[weights == 0] == 0).all()


def test_rows_of_weight_zero_count_for_nothing(data):
    """Other logits and targets there leave both sums bit for bit as they were."""
    logits, targets, weights = data
    away = weights == 0
    others = jnp.where(away[..., None], 50 - logits, logits), jnp.where(away, (targets + 5) % V, targets), weights
    for measure in (loss, accuracy):
        assert measure(*data) == measure(*others)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_large_logits_stay_finite_and_a_common_shift_changes_nothing(smoothing):
    logits, targets, weights = jnp.array([[0.0, 1.0, 4.0]]), jnp.array([1]), jnp.ones(1)
    near, far = (loss(z, targets, weights, label_smoothing=smoothing).sum for z in (logits, logits + 2048))
    assert float(far) == pytest.approx(float(near), abs=1e-11)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_bfloat16_logits_add_up_in_float32(smoothing):
    """1009 positions of V = 11: exact to float32 on the rounded logits; sums in bfloat16 have three digits at most."""
    rng = np.random.default_rng(2)
    logits = jnp.asarray(3 * rng.normal(size=(1009, V)), jnp.bfloat16)
    targets = rng.integers(0, V, 1009)
    weights = jnp.ones(1009, jnp.float32)
    term = loss(logits, jnp.asarray(targets), weights, label_smoothing=smoothing)
    assert term.sum.dtype == term.count.dtype == jnp.float32
    want = by_hand(np.asarray(logits, np.float64), targets, np.asarray(weights), smoothing)
    assert float(term.sum) == pytest.approx(want, rel=2e-6)


def test_z_loss_equals_the_float64_reference(data):
    """Oracle: the squared logarithm of each row's sum of exponentials, one position at a time; the weight is only carried."""
    logits, _, weights = data
    term = jax.jit(losses.z_loss, static_argnames="weight")(logits, weights, weight=1e-4)
    rows, counts = np.asarray(logits).reshape(-1, V), np.asarray(weights).reshape(-1)
    want = sum(w * math.log(sum(math.exp(z) for z in row)) ** 2 for row, w in zip(rows, counts, strict=True))
    assert float(term.sum) == pytest.approx(want, rel=1e-13)
    assert (float(term.count), float(term.weight)) == (3.75, 1e-4)


def test_accuracy_is_the_weight_of_right_positions():
    logits = jnp.array([[[5.0, 1.0, 0.0], [0.0, 1.0, 5.0], [1.0, 5.0, 0.0]]])
    term = accuracy(logits, jnp.array([[0, 1, 1]]), jnp.array([[2.0, 1.0, 0.5]]))
    assert (float(term.sum), float(term.count), term.weight) == (2.5, 3.5, 1)


@pytest.mark.parametrize(("chunk", "in_chunks"), [(1, True), (2, True), (4, True), (5, False), (None, False)])
def test_lazy_logits_in_chunks_are_those_at_once(monkeypatch, chunk, in_chunks):
    """Oracle: the logits of the whole length, 5; a chunk that is shorter, and no other, is computed by itself."""
    rng = np.random.default_rng(5)
    hidden, kernel, bias = (jnp.asarray(rng.normal(size=shape)) for shape in ((B, 5, 7), (7, V), (V,)))
    targets = jnp.asarray(rng.integers(0, V, (B, 5)))
    lazy = LazyLogits(hidden=hidden, kernel=kernel, bias=bias, soft_cap=3.0, chunk=chunk)
    sizes = []
    monkeypatch.setattr(LazyLogits, "logits", lambda self: sizes.append(self.hidden.shape) or whole(self))
    chunked, original = [], losses.chunked_logit_stats
    monkeypatch.setattr(losses, "chunked_logit_stats", lambda *words: chunked.append(words) or original(*words))
    found = losses.logit_stats(lazy, targets)
    assert bool(chunked) == in_chunks and sizes == [(B, chunk if in_chunks else 5, 7)]
    assert losses.logit_stats(found, targets) is found
    for field, expected in zip(found, losses.logit_stats(whole(lazy), targets), strict=True):
        np.testing.assert_allclose(field, expected, rtol=1e-13)


@needs.libtpu
@pytest.mark.slow
def test_a_tpu_stores_no_logits_in_float32():
    """Of logits in bfloat16, in the program of the TPU's own compiler."""
    rows, length, width, classes = 8, 128, 256, 8192
    place = jax.sharding.SingleDeviceSharding(describe_slice("v5e:1x1").devices[0])

    def objective(hidden, kernel, targets, weights):
        stats = losses.logit_stats(jnp.matmul(hidden, kernel), targets)
        term = losses.cross_entropy(stats, targets, weights, label_smoothing=0.1)
        return term.sum / term.count, losses.accuracy(stats, targets, weights)

    arguments = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=place)
        for shape, dtype in (
            ((rows, length, width), jnp.bfloat16),
            ((width, classes), jnp.bfloat16),
            ((rows, length), jnp.int32),
            ((rows, length), jnp.float32),
        )
    ]
    program = jax.jit(jax.value_and_grad(objective, argnums=(0, 1), has_aux=True)).lower(*arguments).compile()
    computations, entry = parse_program(program.as_text())
    stored = [t for i in computations[entry].values() for t in i.types if t.dtype == "f32"]
    assert stored and max(math.prod(t.shape) for t in stored) < rows * length * classes


def test_squared_error_and_confusion_by_hand():
    term = losses.squared_error(jnp.array([1.0, 5.0, 0.0]), jnp.array([3.0, 4.0, 9.0]), jnp.array([1.0, 2.0, 0.0]))
    assert (float(term.sum), float(term.count)) == (4 + 2, 3)
    logits = jnp.array([[5.0, 1.0, 0.0], [0.0, 1.0, 5.0], [1.0, 5.0, 0.0]])
    table = losses.confusion(logits, jnp.array([0, 1, 1]), jnp.array([2.0, 1.0, 0.5]))
    assert table.sum.tolist() == [[2, 0, 0], [0, 0.5, 1], [0, 0, 0]] and float(table.count) == 3.5
    tagged = losses.confusion(logits[:, None], jnp.array([[0], [1], [1]]), jnp.array([[2.0], [1.0], [0.5]]))
    np.testing.assert_array_equal(tagged.sum, table.sum)


def test_the_mean_and_the_rows_of_all_devices():
    """Oracle: by hand, for two devices of one row each."""
    assert LossTerm(jnp.array(3.0), jnp.array(4.0)).mean == 0.75
    rows = losses.PerRowMetric(jnp.array([[[1.0, 2.0]], [[3.0, 4.0]]]), jnp.array([[1.0], [0.0]]))
    found = jax.vmap(lambda *own: losses.PerRowMetric(*own).across("devices"), axis_name="devices")(*rows)
    assert found.values[0].tolist() == [[1, 2], [3, 4]] and found.weights[1].tolist() == [1, 0]


def test_targets_of_another_shape_are_refused():
    """Law: targets of one column would be broadcast over all positions. Users do not run the type checker of these tests."""
    with pytest.raises(AssertionError, match="different shape prefixes"):
        inspect.unwrap(losses.logit_stats)(jnp.zeros((2, 3, 5)), jnp.zeros((2, 1), jnp.int32))
