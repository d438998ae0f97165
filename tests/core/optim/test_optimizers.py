"""Oracles: slow optimizers in float64 numpy, optax on every layer by itself, the singular values of what Muon makes."""

import math
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flaxformer_lite.core.base.bounds import NonNegativeFloat
from flaxformer_lite.core.base.tree_paths import leaf_path, leaves_by_path
from flaxformer_lite.core.optim import Constant, Cosine, Linear, optimizers
from flaxformer_lite.core.optim.optimizers import (
    SGD,
    Adafactor,
    AdamW,
    Algorithm,
    Lion,
    Muon,
    OptimizerAlgorithm,
    OptimizerConfig,
    clip,
    decay_mask,
    muon_labels,
)
from tests.support import reference_optimizers

D, E, V = 5, 7, 11
NUM_LAYERS = 13  # more than the kernels have rows or columns
TOTAL_STEPS = 23
SETTINGS = {"total_steps": TOTAL_STEPS, "d_model": D}


def toy_params(seed: int) -> dict:
    """A tree with the names and the stacking of the real one; float64."""
    shapes = {
        "encoder": {"layers": {"feed_forward": {"up": {"kernel": (2, D, E)}}}, "final_norm": {"scale": (D,)}},
        "decoder": {
            "layers": {
                "attention": {
                    "query": {"kernel": (NUM_LAYERS, D, E), "bias": (NUM_LAYERS, E)},
                    "out": {"kernel": (NUM_LAYERS, E, D)},
                },
                "attention_pre_norm": {"scale": (NUM_LAYERS, D)},
            }
        },
        "embedding": {"embedding": (V, D)},
        "head": {"kernel": (D, V)},
    }
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda shape: rng.normal(size=shape), shapes, is_leaf=lambda shape: type(shape) is tuple)


def flat(tree) -> dict:
    """Leaves by path, `encoder/layers/attention/query/kernel`."""
    return {path: np.asarray(leaf) for path, leaf in leaves_by_path(tree).items()}


def train(optimizer: optax.GradientTransformation, params, gradients: list) -> dict:
    """The parameters after one step for each of `gradients`, by path, computed in float64."""

    @jax.jit
    def step(params, state, gradient):
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    with jax.enable_x64(True):
        state = jax.jit(optimizer.init)(params)
        for gradient in gradients:
            params, state = step(params, state, gradient)
        return flat(params)


def assert_trees_close(actual: dict, expected: dict, rtol: float) -> None:
    assert actual.keys() == expected.keys()
    for path in expected:
        np.testing.assert_allclose(actual[path], expected[path], rtol=rtol, atol=rtol, err_msg=path)


def variants() -> tuple:
    """The algorithms' dataclasses."""
    return typing.get_args(Algorithm)


# Algorithms, against float64 numpy

RATE, DECAY, CLIP = Linear(peak_rate=0.3, warmup_steps=2), 0.1, 2.5
ALGORITHMS = [
    AdamW(b1=0.7, b2=0.8, eps=1e-3),
    Adafactor(min_size_to_factor=2),
    Adafactor(min_size_to_factor=2, decay_exponent=0.6, max_update_rms=None, scale_by_parameter=False),
    Lion(b1=0.6, b2=0.8),
    Muon(momentum=0.8, b1=0.7, b2=0.8, eps=1e-3),
    Muon(momentum=0.8, nesterov=False, newton_schulz_steps=3, update_rms=0.5),
    SGD(),
    SGD(momentum=0.7),
    SGD(momentum=0.7, nesterov=True),
]


def kind(algorithm) -> str:
    return algorithm.kind


def test_every_algorithm_is_tested():
    assert set(variants()) == {type(algorithm) for algorithm in ALGORITHMS}


def slow_train(algorithm, params: dict, gradients: list[dict]) -> dict:
    """Parameters by path after all steps, each layer of a stack on its own."""
    params, gradients = flat(params), [flat(gradient) for gradient in gradients]
    result = {path: w.copy() for path, w in params.items()}
    rates = [0.15, 0.3, 0.3 * 20 / 21, 0.3 * 19 / 21]
    for path, w in result.items():
        layers = list(w) if "/layers/" in path else [w]  # views: changed in place
        decay = DECAY if path.endswith(("kernel", "embedding")) else 0.0
        for i, layer in enumerate(layers):
            direction = reference_optimizers.direction_of(algorithm, path)
            for n, gradient in enumerate(gradients, start=1):
                norm = np.sqrt(sum(np.sum(g**2) for g in gradient.values()))
                g = gradient[path] * min(1.0, CLIP / norm)
                g = g[i] if "/layers/" in path else g
                layer -= rates[n - 1] * (direction(g, layer, n) + decay * layer)
    return result


def gradients_of_varied_length() -> list[dict]:
    """Four gradients; the last one is shorter than the clipping norm."""
    trees = [toy_params(seed) for seed in (1, 2, 3, 4)]
    return [*trees[:3], jax.tree.map(lambda g: 0.03 * g, trees[3])]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=kind)
def test_algorithm_equals_slow_numpy(algorithm):
    config = OptimizerConfig(algorithm=algorithm, schedule=RATE, weight_decay=DECAY, clip_norm=CLIP)
    params, gradients = toy_params(0), gradients_of_varied_length()
    norms = [math.sqrt(sum(np.sum(g**2) for g in flat(gradient).values())) for gradient in gradients]
    assert norms[2] > CLIP > norms[3]
    actual, expected = train(config.build(**SETTINGS), params, gradients), slow_train(algorithm, params, gradients)
    assert_trees_close(actual, expected, 1e-6)  # rates and debiasing factors are float32 also here


def one_by_one(tree: dict, leaves: tuple[str, ...]) -> dict:
    """The leaves with these names, the first and the last layer of each stack as arrays of their own."""
    layers = {}
    for path, x in flat(tree).items():
        if path.endswith(leaves) and "/layers/" in path:
            layers |= {f"{path}/{i}": x[i] for i in (0, -1)}
    return layers


@pytest.mark.parametrize(
    ("algorithm", "plain", "leaves"),
    [
        (Adafactor(min_size_to_factor=2), optax.adafactor(0.3, min_dim_size_to_factor=2), ("kernel", "scale", "bias")),
        (Muon(), optax.contrib.muon(0.3, consistent_rms=0.2), ("kernel",)),
    ],
    ids=["adafactor", "muon"],
)
def test_stack_moves_as_its_layers_one_by_one(algorithm, plain, leaves):
    """Oracle: optax's own complete optimizer, given single layers as plain matrices and vectors."""
    config = OptimizerConfig(algorithm=algorithm, schedule=Constant(peak_rate=0.3), clip_norm=None)
    params, gradients = toy_params(0), gradients_of_varied_length()
    together = one_by_one(train(config.build(**SETTINGS), params, gradients), leaves)
    alone = train(plain, one_by_one(params, leaves), [one_by_one(gradient, leaves) for gradient in gradients])
    assert_trees_close(together, alone, 1e-6)


def test_muon_turns_every_hidden_matrix_by_the_same_amount():
    """Law: the direction of each layer's kernel has singular values near 0.2 sqrt(E); a norm scale's is Adam's sign."""
    config = OptimizerConfig(algorithm=Muon(), schedule=Constant(peak_rate=1.0), clip_norm=None)
    params, gradient = toy_params(0), toy_params(1)
    moved = train(config.build(**SETTINGS), params, [gradient])
    for path, before in flat(params).items():
        if path.endswith("kernel") and path != "head/kernel":
            values = np.linalg.svd(before - moved[path], compute_uv=False) / (0.2 * max(D, E) ** 0.5)
            assert values.min() > 0.68 and values.max() < 1.21, path
        else:
            np.testing.assert_allclose(before - moved[path], np.sign(flat(gradient)[path]), rtol=1e-4, err_msg=path)


# What goes by name


def test_masks_go_by_name():
    params = toy_params(0)
    kernels = {p for p in flat(params) if p.endswith(("query/kernel", "out/kernel", "up/kernel"))}
    assert len(kernels) == 3
    decayed = {path for path, decays in flat(decay_mask(params)).items() if decays}
    assert decayed == kernels | {"embedding/embedding", "head/kernel"}
    assert {path for path, label in flat(muon_labels(params)).items() if label == "matrices"} == kernels


def test_factored_memory_is_a_row_and_a_column_a_layer():
    algorithm = Adafactor(min_size_to_factor=2)
    state = jax.eval_shape(algorithm.direction().init, toy_params(0))["decoder"]["layers"]
    kernel, scale = state["attention"]["query"]["kernel"][0], state["attention_pre_norm"]["scale"][0]
    assert (kernel.v_row.shape, kernel.v_col.shape, kernel.v.shape) == ((13, D), (13, E), (13, 1))
    assert (scale.v_row.shape, scale.v_col.shape, scale.v.shape) == ((13, 1), (13, 1), (13, D))


# The chain


@pytest.mark.parametrize("algorithm", [variant() for variant in variants()], ids=kind)
def test_three_compiled_steps_in_float32(algorithm):
    """Finite, moving every parameter, in states of float32, with the same structure whatever the length of the run."""
    toy = toy_params(0)
    params = {name: jax.tree.map(jnp.float32, toy[name]) for name in ("decoder", "embedding")}
    config = OptimizerConfig(algorithm=algorithm, schedule=Cosine(peak_rate=0.01), weight_decay=DECAY)
    optimizer, longer = config.build(total_steps=TOTAL_STEPS, d_model=D), config.build(total_steps=1009, d_model=D)

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(jax.tree.map(jnp.sin, params), state, params)
        return optax.apply_updates(params, updates), state

    state, before = jax.jit(optimizer.init)(params), flat(params)
    shapes = jax.eval_shape(longer.init, params)
    for _ in range(3):
        params, state = step(params, state)
        assert jax.eval_shape(lambda x: x, state) == shapes
    assert {leaf.dtype.name for leaf in jax.tree.leaves((params, state))} <= {"float32", "int32"}
    for path, after in flat(params).items():
        assert np.all(np.isfinite(after)) and np.all(after != before[path]), path


def test_structure_of_the_state_depends_on_the_algorithm_alone():
    params = toy_params(0)
    plain = jax.eval_shape(OptimizerConfig().build(**SETTINGS).init, params)
    other = OptimizerConfig(schedule=Constant(peak_rate=1.0), clip_norm=None, weight_decay=0.1, ema_decay=0.9)
    longer = jax.eval_shape(other.build(total_steps=1009, d_model=2).init, params)
    assert jax.tree.structure(longer) == jax.tree.structure(plain)


def test_rate_for_the_log_is_the_rate_of_the_step():
    config = OptimizerConfig(algorithm=SGD(), schedule=RATE, clip_norm=None)
    optimizer, rate = config.build(**SETTINGS), config.rate(**SETTINGS)
    params = {"kernel": np.zeros((D, E))}
    state, update, rate = jax.jit(optimizer.init)(params), jax.jit(optimizer.update), jax.jit(rate)
    for count in range(4):
        updates, state = update({"kernel": np.ones((D, E), np.float32)}, state, params)
        np.testing.assert_allclose(updates["kernel"], -float(rate(count)), rtol=1e-6)


# Mistakes


def test_a_setting_of_a_momentum_that_is_not_kept_is_refused():
    for settings in ({"nesterov": True}, {"moment_dtype": "bfloat16"}):
        with pytest.raises(ValueError, match=r"optimizer\.algorithm\..*: it must be .*momentum is 0; set the momentum"):
            SGD(**settings)


def test_clipping_divides_by_the_norm_and_a_millionth():
    """By hand: the norm of (3, 4) is 5. PyTorch's rule keeps a zero gradient zero, too."""
    updates = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    for norm, factor in ((10.0, 1.0), (0.5, 0.5 / 5.000001)):
        clipped, _ = clip(norm).update(updates, clip(norm).init(updates))
        np.testing.assert_allclose(clipped["a"], [3 * factor], rtol=1e-6)
        np.testing.assert_allclose(clipped["b"], [4 * factor], rtol=1e-6)
    with jax.enable_x64(True):
        small = {"a": jnp.array([3e-6]), "b": jnp.array([4e-6])}  # where the millionth matters
        clipped, _ = clip(1e-6).update(small, clip(1e-6).init(small))
        np.testing.assert_allclose(clipped["a"], [3e-6 * 1e-6 / 6e-6], rtol=1e-12)


# An algorithm from outside the package


@dataclass(frozen=True, kw_only=True)
class SignDescent(OptimizerAlgorithm):
    """The sign of every gradient.

    Reference: Bernstein et al. 2018, arXiv 1802.04434, algorithm 1.
    """

    kind: Literal["sign_descent"] = "sign_descent"
    dead_zone: NonNegativeFloat = 0.0

    def direction(self) -> optax.GradientTransformation:
        return optax.stateless_with_tree_map(lambda g, _: jnp.sign(g) * (jnp.abs(g) > self.dead_zone))


# Frozen parameters


def frozen(path: str) -> bool:
    return path.startswith(("embedding", "encoder"))


def labels(params) -> dict:
    return jax.tree.map_with_path(lambda path, _: "frozen" if frozen(leaf_path(path)) else "trained", params)


def times(factors: Callable[[str, np.ndarray], Any]) -> optax.GradientTransformation:
    """Multiplies the steps of each parameter by numbers, mostly 0 and 1."""

    def update(steps, _):
        return jax.tree.map_with_path(lambda path, u: u * factors(leaf_path(path), u), steps)

    return optax.stateless(update)


def first_half(path: str, x: np.ndarray) -> np.ndarray:
    """0 for the first layers of a stack, the first rows of another matrix, the first numbers of a vector; 1 for the rest."""
    return (np.arange(x.shape[0]) >= x.shape[0] // 2).reshape(-1, *[1] * (x.ndim - 1)).astype(float)


FREEZING: dict[str, Callable[[], optax.GradientTransformation]] = {
    "partition": lambda: optax.partition({"trained": optax.scale_by_adam(), "frozen": optax.set_to_zero()}, labels),
    "masked": lambda: optax.chain(
        optax.scale_by_adam(),
        optax.masked(optax.set_to_zero(), lambda params: jax.tree.map("frozen".__eq__, labels(params))),
    ),
    "times 0": lambda: optax.chain(optax.scale_by_lion(), times(lambda path, _: 0.0 if frozen(path) else 1.0)),
    "before the momentum": lambda: optax.chain(times(lambda path, _: 0.0 if frozen(path) else 1.0), optax.trace(0.9)),
    "rows and layers": lambda: optax.chain(optax.scale_by_adam(), times(first_half)),
    "nothing": optax.scale_by_adam,
}
"""Directions that freeze parts of a model, in the forms that people write."""


@dataclass(frozen=True, kw_only=True)
class Freezing(AdamW):
    """A direction by name: a subclass of an algorithm of the package, with its own direction."""

    form: str

    def direction(self) -> optax.GradientTransformation:
        return FREEZING[self.form]()


@pytest.mark.parametrize("form", FREEZING)
def test_what_an_algorithm_freezes_does_not_decay(form: str):
    """Oracle: optax's own chain of direction, decay and rate, for what is trained; the bits before, for what is frozen.

    Some gradients are 0: these weights are trained all the same, and decay.
    """
    config = OptimizerConfig(
        algorithm=Freezing(form=form), schedule=Constant(peak_rate=0.3), weight_decay=DECAY, clip_norm=None
    )
    plain = optax.chain(
        FREEZING[form](), optax.add_decayed_weights(DECAY, decay_mask), optax.scale_by_learning_rate(0.3)
    )
    params = toy_params(0)
    gradients = [jax.tree.map(lambda g: g * (np.arange(g.shape[-1]) > 0), g) for g in gradients_of_varied_length()]
    before, moved, expected = flat(params), *(train(o, params, gradients) for o in (config.build(**SETTINGS), plain))
    count = 0
    for path, x in before.items():
        if form == "rows and layers":
            still = np.broadcast_to(first_half(path, x) == 0, x.shape)
        else:
            still = np.full(x.shape, frozen(path) and form != "nothing")
        np.testing.assert_array_equal(moved[path][still], x[still], err_msg=path)
        np.testing.assert_allclose(moved[path][~still], expected[path][~still], rtol=1e-6, err_msg=path)
        count += still.sum()
    assert (count == 0) == (form == "nothing")


def test_directions_of_the_package_and_those_without_decay_are_not_computed_twice(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(optimizers, "decaying", lambda *_: pytest.fail("nothing is frozen, or nothing decays"))
    for algorithm, decay in (*((variant(), DECAY) for variant in variants()), (Freezing(form="partition"), 0.0)):
        OptimizerConfig(algorithm=algorithm, weight_decay=decay).build(**SETTINGS)


def test_decay_can_be_switched_on_in_a_state_from_before():
    """Law: the state of an algorithm from outside has one structure, with and without decay."""
    states = [
        OptimizerConfig(algorithm=Freezing(form="partition"), weight_decay=decay).build(**SETTINGS).init(toy_params(0))
        for decay in (0.0, DECAY)
    ]
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])


@dataclass(frozen=True, kw_only=True)
class ExtendedOptimizer(OptimizerConfig):
    """The settings of the optimizer with the new name in the union of algorithms."""

    algorithm: Algorithm | SignDescent


def test_an_algorithm_from_outside_the_package_moves_weights():
    """Oracle: by hand; rate, decay and bounds are those of every algorithm."""
    config = ExtendedOptimizer(
        algorithm=SignDescent(dead_zone=0.5), schedule=Constant(peak_rate=0.1), weight_decay=0.5, clip_norm=None
    )
    params = {"kernel": np.array([2.0, 2.0, 2.0]), "scale": np.array([3.0])}
    moved = train(config.build(**SETTINGS), params, [{"kernel": np.array([7.0, -0.6, 0.4]), "scale": np.array([-1.0])}])
    np.testing.assert_allclose(moved["kernel"], [2 - 0.1 * 2, 2 - 0.1 * 0, 2 - 0.1 * 1])
    np.testing.assert_allclose(moved["scale"], [3 + 0.1])
    with pytest.raises(ValueError, match=r"^optimizer\.algorithm\.dead_zone is -1\.0: it must be at least 0"):
        SignDescent(dead_zone=-1.0)
