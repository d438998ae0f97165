"""Oracles: closed forms and slow optimizers in float64 numpy, hand-worked values, optax on every layer by itself."""

import math
import typing

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flaxformer_lite.optimizer import (
    SGD,
    Adafactor,
    AdamW,
    Algorithm,
    Lion,
    Muon,
    OptimizerConfig,
    decay_mask,
    muon_labels,
)
from flaxformer_lite.schedules import Constant, Cosine, InverseSquareRoot, Linear, Noam, Schedule, WarmupStableDecay

D, E, V = 5, 7, 11
NUM_LAYERS = {"encoder": 2, "decoder": 13}  # the deeper stack has more layers than its kernels have rows or columns
TOTAL_STEPS = 23
SETTINGS = {"total_steps": TOTAL_STEPS, "d_model": D}
STEP = np.arange(1, TOTAL_STEPS + 1, dtype=np.float64)


def toy_params(seed: int) -> dict:
    """A tree with the names and the stacking of the real one; float64."""
    rng = np.random.default_rng(seed)

    def stack(num_layers: int) -> dict:
        layers = {
            "attention": {"query": {"kernel": (D, E), "bias": (E,)}, "out": {"kernel": (E, D)}},
            "attention_pre_norm": {"scale": (D,)},
        }
        layers = jax.tree.map(lambda s: rng.normal(size=(num_layers, *s)), layers, is_leaf=lambda s: type(s) is tuple)
        return {"layers": layers}

    params = {name: stack(num_layers) for name, num_layers in NUM_LAYERS.items()}
    params["encoder"]["final_norm"] = {"scale": rng.normal(size=D)}
    params["embedding"] = {"embedding": rng.normal(size=(V, D))}
    params["head"] = {"kernel": rng.normal(size=(D, V))}
    return params


def flat(tree) -> dict:
    """Leaves by path, `encoder/layers/attention/query/kernel`."""
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


def train(optimizer: optax.GradientTransformation, params, gradients: list) -> dict:
    """The parameters after one step for each of `gradients`, by path, computed in float64."""
    with jax.enable_x64(True):
        state, update = jax.jit(optimizer.init)(params), jax.jit(optimizer.update)
        for gradient in gradients:
            updates, state = update(gradient, state, params)
            params = optax.apply_updates(params, updates)
        return flat(params)


def assert_trees_close(actual: dict, expected: dict, rtol: float) -> None:
    assert actual.keys() == expected.keys()
    for path in expected:
        np.testing.assert_allclose(actual[path], expected[path], rtol=rtol, atol=rtol, err_msg=path)


# Schedules: (settings, rate of step n by its formula, step of the peak, peak rate, final rate)

SCHEDULES = [
    (
        Noam(factor=0.5, warmup_steps=7),
        lambda n: 0.5 * 5**-0.5 * np.minimum(n**-0.5, n * 7**-1.5),
        7,
        0.5 / 35**0.5,
        0.5 / (5 * 23) ** 0.5,
    ),
    (
        InverseSquareRoot(peak_rate=0.3, warmup_steps=7),
        lambda n: np.where(n < 7, 0.3 * n / 7, 0.3 * np.sqrt(7 / n)),
        7,
        0.3,
        0.3 * (7 / 23) ** 0.5,
    ),
    (
        Cosine(peak_rate=0.3, warmup_steps=7, final_rate_fraction=0.1),
        lambda n: np.where(n < 7, 0.3 * n / 7, 0.03 + 0.27 * (1 + np.cos(np.pi * (n - 7) / 16)) / 2),
        7,
        0.3,
        0.03,
    ),
    (
        Cosine(peak_rate=0.3),
        lambda n: 0.3 * (1 + np.cos(np.pi * (n - 1) / 22)) / 2,
        1,
        0.3,
        0.0,
    ),
    (
        Linear(peak_rate=0.3, warmup_steps=7, final_rate_fraction=0.1),
        lambda n: np.where(n < 7, 0.3 * n / 7, 0.03 + 0.27 * (23 - n) / 16),
        7,
        0.3,
        0.03,
    ),
    (Linear(peak_rate=0.3), lambda n: 0.3 * (23 - n) / 22, 1, 0.3, 0.0),
    (Constant(peak_rate=0.3, warmup_steps=7), lambda n: 0.3 * np.minimum(1, n / 7), 7, 0.3, 0.3),
    (Constant(peak_rate=0.3), lambda n: 0.3 * np.ones_like(n), 1, 0.3, 0.3),
    (
        WarmupStableDecay(peak_rate=0.3, warmup_steps=7, decay_steps=5, final_rate_fraction=0.1),
        lambda n: np.where(n < 7, 0.3 * n / 7, 0.03 + 0.27 * np.minimum(1, (23 - n) / 5)),
        7,
        0.3,
        0.03,
    ),
]


def variants(union) -> tuple:
    """The dataclasses of a discriminated union."""
    return typing.get_args(typing.get_args(union)[0])


def kind(variant) -> str | None:
    return getattr(variant, "kind", None)


def test_every_schedule_and_algorithm_is_tested():
    assert {kind(schedule) for schedule in variants(Schedule)} == {kind(case[0]) for case in SCHEDULES}
    assert {kind(algorithm) for algorithm in variants(Algorithm)} == {kind(case) for case in ALGORITHMS}


@pytest.mark.parametrize(
    ("schedule", "formula", "peak_step", "peak_rate", "final_rate"),
    SCHEDULES,
    ids=[kind(case[0]) for case in SCHEDULES],
)
def test_schedule_follows_its_formula(schedule, formula, peak_step, peak_rate, final_rate):
    rate = schedule.build(**SETTINGS)
    rates = np.asarray(jax.jit(jax.vmap(rate))(jnp.arange(TOTAL_STEPS)), np.float64)
    np.testing.assert_allclose(rates, formula(STEP), rtol=1e-6, atol=1e-7 * peak_rate)
    assert int(np.argmax(rates)) + 1 == peak_step
    np.testing.assert_allclose(rates[[peak_step - 1, -1]], [peak_rate, final_rate], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(rates[0], peak_rate / peak_step, rtol=1e-6)
    assert float(rate(4)) == pytest.approx(rates[4], rel=1e-6)


def test_rates_worked_by_hand():
    def rates(schedule, total_steps: int):
        rate = schedule.build(total_steps=total_steps, d_model=16)
        return pytest.approx([float(rate(count)) for count in range(total_steps)], rel=1e-6, abs=1e-9)

    # 16^-0.5 = 1/4 and 4^-1.5 = 1/8: the warm-up goes up by 1/32 a step, then (1/4) / sqrt(n).
    assert rates(Noam(warmup_steps=4), 5) == [0.03125, 0.0625, 0.09375, 0.125, 0.1118034]
    assert rates(InverseSquareRoot(peak_rate=0.5, warmup_steps=1), 4) == [0.5, 0.3535534, 0.2886751, 0.25]
    assert rates(Cosine(peak_rate=2.0, warmup_steps=2), 6) == [1.0, 2.0, 1.7071068, 1.0, 0.2928932, 0.0]
    assert rates(Linear(peak_rate=2.0, warmup_steps=2), 6) == [1.0, 2.0, 1.5, 1.0, 0.5, 0.0]
    assert rates(Constant(peak_rate=2.0, warmup_steps=4), 6) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    stable = WarmupStableDecay(peak_rate=2.0, warmup_steps=2, decay_steps=2)
    assert rates(stable, 6) == [1.0, 2.0, 2.0, 2.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("schedule", "formula"),
    [
        (Noam(factor=0.5), lambda n: 0.5 * 512**-0.5 * np.minimum(n**-0.5, n * 4000**-1.5)),
        (Constant(peak_rate=0.3, warmup_steps=4001), lambda n: 0.3 * np.minimum(1, n / 4001)),
    ],
    ids=["noam", "constant"],
)
def test_rates_of_first_and_late_steps_are_exact(schedule, formula):
    """To float32's precision relative to the rate itself, not to the peak."""
    count = np.array([0, 1, 2, 3998, 3999, 4000, 99_999, 2_999_999])
    rates = np.asarray(schedule.build(total_steps=1, d_model=512)(jnp.asarray(count)), np.float64)
    np.testing.assert_allclose(rates, formula(count + 1.0), rtol=1e-6)


@pytest.mark.parametrize("schedule", [Cosine(peak_rate=0.3), Linear(peak_rate=0.3), Constant(peak_rate=0.3)])
def test_a_run_of_one_step_makes_it_at_the_peak(schedule):
    assert float(schedule.build(total_steps=1, d_model=D)(0)) == pytest.approx(0.3)


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


def slow_adam(b1: float, b2: float, eps: float):
    m, v = 0.0, 0.0

    def direction(g, w, n):
        nonlocal m, v
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        return m / (1 - b1**n) / (np.sqrt(v / (1 - b2**n)) + eps)

    return direction


def slow_adafactor(exponent: float, limit: float | None, scale_by_parameter: bool):
    r, c, v = 0.0, 0.0, 0.0

    def rms(x):
        return np.sqrt(np.mean(x**2))

    def direction(g, w, n):
        nonlocal r, c, v
        beta = 1 - n**-exponent
        if g.ndim == 2:
            r = beta * r + (1 - beta) * np.mean(g**2, axis=1)
            c = beta * c + (1 - beta) * np.mean(g**2, axis=0)
            second_moment = np.outer(r, c) / np.mean(r)
        else:
            second_moment = v = beta * v + (1 - beta) * g**2
        u = g / np.sqrt(second_moment)
        u = u / max(1.0, rms(u) / limit) if limit else u
        return u * max(1e-3, rms(w)) if scale_by_parameter else u

    return direction


def slow_lion(b1: float, b2: float):
    m = 0.0

    def direction(g, w, n):
        nonlocal m
        sign, m = np.sign(b1 * m + (1 - b1) * g), b2 * m + (1 - b2) * g
        return sign

    return direction


def slow_muon(momentum: float, nesterov: bool, steps: int, update_rms: float):
    m = 0.0

    def direction(g, w, n):
        nonlocal m
        m = momentum * m + (1 - momentum) * g
        x = m / (1 - momentum**n)
        if nesterov:
            debiased = g / (1 - momentum**n)
            x = momentum * m / (1 - momentum ** (n + 1)) + (1 - momentum) * debiased
        # The polynomial acts on the singular values alone, so it can be applied to them (Jordan 2024).
        left, values, right = np.linalg.svd(x, full_matrices=False)
        values = values / np.sqrt(np.sum(values**2))
        for _ in range(steps):
            values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
        return update_rms * np.sqrt(max(g.shape)) * (left * values) @ right

    return direction


def slow_sgd(momentum: float, nesterov: bool):
    m = 0.0

    def direction(g, w, n):
        nonlocal m
        m = momentum * m + g
        return g + momentum * m if nesterov else m

    return direction


def slow_direction(a, path: str):
    """The direction of one parameter of one layer, a function of gradient, parameter and step with its own memory."""
    match a:
        case AdamW():
            return slow_adam(a.b1, a.b2, a.eps)
        case Adafactor():
            return slow_adafactor(a.decay_exponent, a.max_update_rms, a.scale_by_parameter)
        case Lion():
            return slow_lion(a.b1, a.b2)
        case Muon() if path.endswith("kernel") and path != "head/kernel":
            return slow_muon(a.momentum, a.nesterov, a.newton_schulz_steps, a.update_rms)
        case Muon():
            return slow_adam(a.b1, a.b2, a.eps)
        case SGD():
            return slow_sgd(a.momentum, a.nesterov)


def slow_train(algorithm, params: dict, gradients: list[dict]) -> dict:
    """Parameters by path after all steps, each layer of a stack on its own."""
    params, gradients = flat(params), [flat(gradient) for gradient in gradients]
    result = {path: w.copy() for path, w in params.items()}
    rates = [0.15, 0.3, 0.3 * 20 / 21, 0.3 * 19 / 21]
    for path, w in result.items():
        layers = list(w) if "/layers/" in path else [w]  # views: changed in place
        decay = DECAY if path.endswith(("kernel", "embedding")) else 0.0
        for i, layer in enumerate(layers):
            direction = slow_direction(algorithm, path)
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
    kernels = {p for p in flat(params) if p.endswith(("query/kernel", "out/kernel"))}
    assert len(kernels) == 4
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


@pytest.mark.parametrize("algorithm", [variant() for variant in variants(Algorithm)], ids=kind)
def test_three_compiled_steps_in_float32(algorithm):
    """Finite, moving every parameter, in states of float32, with the same structure whatever the length of the run."""
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), toy_params(0))
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
    plain = OptimizerConfig().build(**SETTINGS).init(params)
    other = OptimizerConfig(schedule=Constant(peak_rate=1.0), clip_norm=None, weight_decay=0.1, ema_decay=0.9)
    assert jax.tree.structure(other.build(total_steps=1009, d_model=2).init(params)) == jax.tree.structure(plain)


def test_rate_for_the_log_is_the_rate_of_the_step():
    config = OptimizerConfig(algorithm=SGD(), schedule=RATE, clip_norm=None)
    optimizer, rate = config.build(**SETTINGS), config.rate(**SETTINGS)
    params = {"kernel": np.zeros((D, E))}
    state = optimizer.init(params)
    for count in range(4):
        updates, state = optimizer.update({"kernel": np.ones((D, E), np.float32)}, state, params)
        np.testing.assert_allclose(updates["kernel"], -float(rate(count)), rtol=1e-6)


# Mistakes


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (lambda: AdamW(b1=1.0), "optimizer.algorithm.b1 is 1.0"),
        (lambda: AdamW(b2=-0.1), "optimizer.algorithm.b2 is -0.1"),
        (lambda: AdamW(eps=0.0), "optimizer.algorithm.eps is 0.0"),
        (lambda: Adafactor(decay_exponent=0.0), "optimizer.algorithm.decay_exponent is 0.0"),
        (lambda: Adafactor(max_update_rms=0.0), "optimizer.algorithm.max_update_rms is 0.0"),
        (lambda: Adafactor(min_size_to_factor=0), "optimizer.algorithm.min_size_to_factor is 0"),
        (lambda: Lion(b1=math.nan), "optimizer.algorithm.b1 is nan"),
        (lambda: Lion(b2=1.0), "optimizer.algorithm.b2 is 1.0"),
        (lambda: Muon(momentum=1.0), "optimizer.algorithm.momentum is 1.0"),
        (lambda: Muon(newton_schulz_steps=0), "optimizer.algorithm.newton_schulz_steps is 0"),
        (lambda: Muon(update_rms=0.0), "optimizer.algorithm.update_rms is 0.0"),
        (lambda: Muon(b1=2.0), "optimizer.algorithm.b1 is 2.0"),
        (lambda: SGD(momentum=1.0), "optimizer.algorithm.momentum is 1.0"),
        (lambda: SGD(nesterov=True), "optimizer.algorithm.nesterov is True"),
        (lambda: Noam(factor=0.0), "optimizer.schedule.factor is 0.0"),
        (lambda: Noam(warmup_steps=0), "optimizer.schedule.warmup_steps is 0"),
        (lambda: InverseSquareRoot(peak_rate=1.0, warmup_steps=0), "optimizer.schedule.warmup_steps is 0"),
        (lambda: Constant(peak_rate=math.inf), "optimizer.schedule.peak_rate is inf"),
        (lambda: Cosine(peak_rate=0.0), "optimizer.schedule.peak_rate is 0.0"),
        (lambda: Cosine(peak_rate=1.0, warmup_steps=-1), "optimizer.schedule.warmup_steps is -1"),
        (lambda: Linear(peak_rate=1.0, final_rate_fraction=1.1), "optimizer.schedule.final_rate_fraction is 1.1"),
        (
            lambda: WarmupStableDecay(peak_rate=1.0, warmup_steps=1, decay_steps=0),
            "optimizer.schedule.decay_steps is 0",
        ),
        (lambda: OptimizerConfig(clip_norm=0.0), "optimizer.clip_norm is 0.0"),
        (lambda: OptimizerConfig(weight_decay=-0.1), "optimizer.weight_decay is -0.1"),
        (lambda: OptimizerConfig(ema_decay=1.0), "optimizer.ema_decay is 1.0"),
    ],
)
def test_a_wrong_value_names_its_setting(make, setting):
    with pytest.raises(ValueError) as error:
        make()
    message = str(error.value)
    assert message.startswith(f"{setting}: it must be ") and "; " in message and "\n" not in message


@pytest.mark.parametrize(
    ("schedule", "least_steps"),
    [
        (Cosine(peak_rate=1.0, warmup_steps=7), 7),
        (Linear(peak_rate=1.0, warmup_steps=7), 7),
        (WarmupStableDecay(peak_rate=1.0, warmup_steps=7, decay_steps=5), 12),
        (WarmupStableDecay(peak_rate=1.0, warmup_steps=0, decay_steps=5), 6),
    ],
    ids=["cosine", "linear", "warmup_stable_decay", "warmup_stable_decay without warm-up"],
)
def test_a_schedule_must_fit_into_the_run(schedule, least_steps):
    config = OptimizerConfig(schedule=schedule)
    assert float(config.rate(total_steps=least_steps, d_model=D)(max(schedule.warmup_steps, 1) - 1)) == pytest.approx(
        1.0
    )
    pattern = f"optimizer.schedule.warmup_steps is {schedule.warmup_steps}.* train.steps is {least_steps - 1}: "
    with pytest.raises(ValueError, match=pattern):
        config.build(total_steps=least_steps - 1, d_model=D)
