"""Laws of the train step: no way of cutting a batch, over micro-batches, rows or devices, changes the gradient."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import PyTree

from flaxformer_lite.config.train import TrainConfig
from flaxformer_lite.core import step as step_module
from flaxformer_lite.core.base.tree_paths import leaf_path
from flaxformer_lite.core.data.batch_plan import Bucket
from flaxformer_lite.core.data.records import Lengths, TokenPair
from flaxformer_lite.core.objectives import Apply, Batch, LossTerm, PerRowMetric, Seq2Seq
from flaxformer_lite.core.optim.optimizers import AdamW, Algorithm, OptimizerConfig
from flaxformer_lite.core.optim.schedules import Constant, Cosine
from flaxformer_lite.core.parallel.mesh import check_rows, make_mesh
from flaxformer_lite.core.runners import MeshRunner, Runner
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.core.step import TrainState, TrainTask, random_key, total, train_step
from flaxformer_lite.training.task import train_task
from tests.support.experiments import tiny_config
from tests.support.limits import assert_close
from tests.support.objectives import example
from tests.support.quick import quick
from tests.support.small_models import NO_DROPOUT

CONFIG = dataclasses.replace(
    tiny_config(),
    model=dataclasses.replace(tiny_config().model, num_encoder_layers=1, num_decoder_layers=1),
    objective=Seq2Seq(label_smoothing=0),
    # The moving average reaches its decay in the second step.
    optimizer=OptimizerConfig(schedule=Cosine(peak_rate=2e-2), weight_decay=0.01, ema_decay=0.15),
    train=TrainConfig(steps=500),
)
BUCKET = Bucket(Lengths(7, 5), 16)
ADAMW = AdamW()

gradient = jax.jit(step_module.gradient, static_argnums=0)


def some_records(number: int, seed: int = 0) -> list[TokenPair]:
    """Pairs of two sizes, 6 to 4 and 2 to 2 tokens, so that a mean of means would differ from the mean over tokens."""
    rng = np.random.default_rng(seed)
    tokens = lambda size: rng.integers(4, CONFIG.model.vocab_size, size).astype(np.int32)  # noqa: E731
    return [TokenPair(*map(tokens, ((6, 4), (2, 2))[rng.integers(2)])) for _ in range(number)]


def stack(records: list[TokenPair], lengths: Lengths, rows: int = 0) -> Batch:
    """The records as a batch, with blank rows up to `rows`."""
    objective: Any = CONFIG.objective
    examples = [example(objective, record, lengths) for record in records]
    examples += [jax.tree.map(np.zeros_like, examples[0])] * (rows - len(records))
    return jax.tree.map(lambda *x: np.stack(x), *examples)


@functools.cache
def without_dropout(dtype: str, num_micro_batches: int = 1) -> TrainTask:
    model = dataclasses.replace(CONFIG.model, dtype=dtype, dropout=NO_DROPOUT)
    return dataclasses.replace(
        train_task(dataclasses.replace(CONFIG, model=model)), num_micro_batches=num_micro_batches
    )


@pytest.fixture(scope="module")
def batch() -> Batch:
    return stack(some_records(BUCKET.rows), BUCKET.lengths)


@pytest.fixture(scope="module")
def one_device() -> Runner:
    """The steps of CONFIG, dropout and moving average included: compiled once for all tests here."""
    return MeshRunner(train_task(CONFIG), make_mesh(devices=jax.devices()[:1]))


def three_steps(runner: Runner, batch: Batch) -> tuple[list[TrainState], list[float]]:
    """The state before each of three steps and after the last, and their losses."""
    state, losses = runner.init(), []
    states = [jax.tree.map(np.array, state)]  # copies: the state itself is donated
    for _ in range(3):
        state, measured = runner.train_step(state, runner.shard_batch(batch))
        states.append(jax.tree.map(np.array, state))
        losses.append(float(measured["loss"]))
    return states, losses


@pytest.fixture(scope="module")
def trained(one_device: Runner, batch: Batch) -> tuple[list[TrainState], list[float]]:
    return three_steps(one_device, batch)


@pytest.fixture(scope="module")
def params(trained: tuple[list[TrainState], list[float]]) -> PyTree:
    """First parameters, in float64."""
    return jax.tree.map(lambda x: x.astype(np.float64), trained[0][0].params)


@pytest.fixture
def double() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.mark.slow
def test_micro_batches_change_nothing(batch: Batch, params: PyTree, double: None):
    """Law, in float64: 1 and 4 micro-batches, of different numbers of tokens, give the same loss, counts and gradient."""
    assert len(set(batch.weights.reshape(-1, 4, BUCKET.lengths.target).sum((0, 2)))) > 1
    key = random_key(0, "dropout")
    whole, parts = (gradient(without_dropout("float64", n), params, batch, key) for n in (1, 4))
    chex.assert_trees_all_close(whole, parts, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_batch_weighs_tokens_as_one_sentence_at_a_time(params: PyTree, double: None):
    """Law, in float64: the gradient of a batch is the token-weighted mean of its rows' own, and padding is nothing to it.

    The short record is also taken without any padding.
    """
    one, key, records = without_dropout("float64"), random_key(0, "dropout"), some_records(5)
    _, counts, whole = gradient(one, params, stack(records, BUCKET.lengths, rows=BUCKET.rows), key)
    tokens = [len(record.target) + 1 for record in records]
    mean = jax.tree.map(np.zeros_like, params)
    for record, count in zip(records, tokens, strict=True):
        alone = gradient(one, params, stack([record], BUCKET.lengths, rows=BUCKET.rows), key)[2]
        mean = jax.tree.map(lambda m, g, c=count: m + np.asarray(g) * c / sum(tokens), mean, alone)
    assert len(set(tokens)) == 2
    assert float(counts["cross_entropy"]) == sum(tokens)
    chex.assert_trees_all_close(whole, mean, rtol=0, atol=1e-12)
    short = stack([records[np.argmin(tokens)]], BUCKET.lengths, rows=BUCKET.rows)
    unpadded = stack([records[np.argmin(tokens)]], Lengths(3, 3))
    assert unpadded.weights.all() and unpadded.inputs.source_mask.all()
    chex.assert_trees_all_close(
        gradient(one, params, short, key), gradient(one, params, unpadded, key), rtol=0, atol=1e-12
    )


@pytest.mark.slow
def test_rows_that_fill_up_change_nothing(params: PyTree, double: None):
    """Law: with 8 blank rows, 8 rows give the loss and the gradient of the same rows twice over, and bring no NaN."""
    one, key, records = without_dropout("float64"), random_key(0, "dropout"), some_records(8, seed=1)
    filled, twice = stack(records, BUCKET.lengths, rows=16), stack(records * 2, BUCKET.lengths)
    loss, counts, grads = gradient(one, params, filled, key)
    loss_twice, counts_twice, grads_twice = gradient(one, params, twice, key)
    assert 2 * float(counts["cross_entropy"]) == float(counts_twice["cross_entropy"])
    chex.assert_trees_all_close((loss, grads), (loss_twice, grads_twice), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_any_number_of_devices_is_one_device(batch: Batch, trained: tuple[list[TrainState], list[float]]):
    """Law, dropout on: three steps over a mesh of 8 devices give the losses and parameters of one device."""
    runner = MeshRunner(train_task(CONFIG), make_mesh())
    (*_, one), one_losses = trained
    (*_, many), many_losses = three_steps(runner, batch)
    np.testing.assert_allclose(one_losses, many_losses, rtol=1e-5)
    chex.assert_trees_all_close(one.params, many.params, rtol=0, atol=1e-4)
    kernel = runner.init().params["encoder"]["layers"]["attention"]["query"]["kernel"]
    assert len(kernel.addressable_shards) == len(jax.devices()) == 8


@pytest.mark.slow
def test_dropout_is_on_in_training_and_differs_by_step(
    one_device: Runner, batch: Batch, trained: tuple[list[TrainState], list[float]]
):
    """Law: the same parameters give another loss at another step, and the same loss at the same step."""
    losses = []
    for step in (0, 1, 0):
        state = one_device.init()
        state = state._replace(step=state.step + step)
        losses.append(float(one_device.train_step(state, one_device.shard_batch(batch))[1]["loss"]))
    assert losses[0] == losses[2] == trained[1][0] != losses[1]


def test_a_step_whose_loss_is_not_finite_changes_its_number_alone(one_device: Runner, batch: Batch):
    """Law: parameters, optimizer state and average stay bit for bit, and the step after is one as usual."""
    broken = batch._replace(weights=np.where(np.arange(5) == 1, np.float32("nan"), batch.weights))
    state = one_device.init()
    before = jax.tree.map(np.array, state)
    state, measured = one_device.train_step(state, one_device.shard_batch(broken), with_norm=True)
    assert np.isnan(float(measured["loss"])) and int(state.step) == 1 and measured["update_norm"] == 0
    chex.assert_trees_all_equal(jax.tree.map(np.array, state)._replace(step=before.step), before)
    state, measured = one_device.train_step(state, one_device.shard_batch(batch), with_norm=True)
    assert np.isfinite(float(measured["loss"])) and int(state.step) == 2
    changes = jax.tree.leaves(
        jax.tree.map(lambda x, y: np.sum((np.asarray(x, np.float64) - y) ** 2), state.params, before.params)
    )
    assert float(measured["update_norm"]) == pytest.approx(sum(changes) ** 0.5, rel=1e-4)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.opt_state))


# Steps of a model of three weights, whose output is weights · inputs · noise: a compiled Transformer shows the same in minutes


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnlyEven(AdamW):
    """Trains `even` and leaves `odd` as it is, as many people freeze parameters."""

    def direction(self) -> optax.GradientTransformation:
        label = lambda params: jax.tree.map_with_path(lambda path, _: leaf_path(path).split("/")[0], params)  # noqa: E731
        return optax.partition({"even": super().direction(), "odd": optax.set_to_zero()}, label)


def toy(num_micro_batches: int = 1, *, algorithm: Algorithm = ADAMW, noise: bool = True, root: bool = False) -> Mock:
    """A task of the toy model with 64 rows of one number; the loss of a row is its output, or the root of that."""

    def apply(variables: PyTree, inputs: jax.Array, rngs: dict[str, jax.Array]) -> jax.Array:
        kept = jax.random.bernoulli(rngs["dropout"], 0.5, inputs.shape) if noise else 1
        return (variables["params"]["even"]["kernel"] + variables["params"]["odd"]["kernel"]) * inputs * kept

    def loss(outputs: jax.Array, batch: Batch) -> dict[str, LossTerm]:
        per_row = jnp.sqrt(outputs) if root else outputs
        return {"a": LossTerm(jnp.sum(per_row * batch.weights), jnp.sum(batch.weights), 2.0)}

    optimizer = OptimizerConfig(algorithm=algorithm, schedule=Constant(peak_rate=0.3), weight_decay=0.1)
    task = Mock(
        spec=TrainTask, num_micro_batches=num_micro_batches, seed=0, ema_decay=0.9, trainable=("*",), measures=()
    )
    task.optimizer = optimizer.build(total_steps=9, d_model=1)
    task.inputs = lambda batch: batch.inputs
    task.model, task.decode = Mock(apply=apply), DecodeConfig()

    def terms(model: Apply, batch: Batch, key: jax.Array) -> dict[str, LossTerm]:
        return loss(model.model.apply({"params": model.params}, batch.inputs, rngs={"dropout": key}), batch)

    task.objective = Mock(terms=terms)
    return task


def toy_state(task: Mock) -> TrainState:
    params = {"even": {"kernel": jnp.array([0.3, -1.7, 0.11])}, "odd": {"kernel": jnp.array([0.7, 1.3, 1.9])}}
    return TrainState(jnp.zeros((), jnp.int32), params, task.optimizer.init(params), params)


def toy_batch(num_rows: int = 64) -> Batch:
    rng = np.random.default_rng(0)
    return Batch(
        rng.normal(size=(num_rows, 1)), np.zeros((num_rows, 1), np.int32), rng.integers(1, 9, (num_rows, 1)) / 4
    )


def on_one_device(task: Mock, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
    return jax.jit(functools.partial(train_step, task))(state, batch)


def on_two_devices(task: Mock, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
    """A step of two devices as `pmap` makes it, here by `vmap`; each has the rows of its micro-batches."""
    cut = lambda x: x.reshape(-1, 2, task.num_micro_batches, 1).swapaxes(0, 1).reshape(2, -1, 1)  # noqa: E731
    both = jax.vmap(
        lambda state, part: train_step(task, state, part, "devices"), in_axes=(None, 0), axis_name="devices"
    )
    found = jax.jit(both)(state, jax.tree.map(cut, batch))
    chex.assert_trees_all_equal(*(jax.tree.map(lambda x, i=i: x[i], found) for i in (0, 1)))
    return jax.tree.map(lambda x: x[0], found)


@pytest.mark.parametrize("parts", quick([1, 2], (2).__eq__))
def test_two_devices_are_as_many_micro_batches_of_one_with_noise(parts: int):
    """Law: the same loss, gradient, tokens and update."""
    batch, one, each = toy_batch(), toy(2 * parts), toy(parts)
    jax.tree.map(assert_close, on_two_devices(each, toy_state(each), batch), on_one_device(one, toy_state(one), batch))


@pytest.mark.slow
def test_groups_of_rows_draw_different_noise():
    """Law: no two groups of rows have the same key, nor two steps."""
    batch, seen = jax.tree.map(np.ones_like, toy_batch()), []
    for task in (toy(1), toy(2)):

        def apply(variables: PyTree, inputs: jax.Array, rngs: dict[str, jax.Array]) -> jax.Array:
            jax.debug.callback(
                lambda key: seen.append(tuple(np.asarray(key).tolist())), jax.random.key_data(rngs["dropout"])
            )
            return variables["params"]["even"]["kernel"] * inputs

        task.model = Mock(apply=apply)
        state, _ = on_one_device(task, toy_state(task), batch)
        on_one_device(task, state, batch)
        on_two_devices(task, toy_state(task), batch)
    jax.effects_barrier()
    # The step's own key for one group, in two steps; groups 0 to 3 of the first step, 0 and 1 of the second.
    assert len(set(seen)) == 2 + 4 + 2


def test_a_gradient_that_is_not_finite_skips_the_update_though_the_loss_is_finite():
    """Oracle: by hand; the root of 0 is 0, and its slope infinite. Only the step's number changes."""
    task, batch = toy(noise=False, root=True), jax.tree.map(np.ones_like, toy_batch())
    still = {"even": {"kernel": jnp.zeros(3)}, "odd": {"kernel": jnp.zeros(3)}}
    before = toy_state(task)._replace(params=still, ema=still)
    state, measured = on_one_device(task, before, batch)
    assert float(measured["loss"]) == 0 and np.isinf(float(measured["gradient_norm"])) and measured["update_norm"] == 0
    chex.assert_trees_all_equal(state, before._replace(step=1))


@pytest.mark.parametrize(
    ("devices", "parts"),
    [pytest.param(1, 1, marks=pytest.mark.slow), pytest.param(1, 4, marks=pytest.mark.slow), (2, 2)],
)
def test_frozen_parameters_and_their_average_keep_their_bits(devices: int, parts: int):
    """Law: with decay, noise, micro-batches and several devices, for three steps; the others move, and so does their average."""
    task = toy(parts, algorithm=OnlyEven())
    before = state = toy_state(task)
    for _ in range(3):
        state, _ = (on_one_device if devices == 1 else on_two_devices)(task, state, toy_batch())
    for found, first in ((state.params, before.params), (state.ema, before.ema)):
        chex.assert_trees_all_equal(found["odd"], first["odd"])
        assert (np.asarray(found["even"]["kernel"]) != first["even"]["kernel"]).all()


def test_random_keys_differ_by_seed_purpose_and_step():
    keys = [
        random_key(0, "dropout", 0),
        random_key(1, "dropout", 0),
        random_key(0, "parameters", 0),
        random_key(0, "dropout", 1),
    ]
    assert len({tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in keys}) == len(keys)


def test_the_moving_average_follows_the_parameters(trained: tuple[list[TrainState], list[float]]):
    """Oracle: the recurrence by hand. Step n keeps min(decay, (1 + n) / (10 + n)) of the average, n = 0, 1, …"""
    first, *after = trained[0]
    average = first.params
    for n, state in enumerate(after):
        keep = min(0.15, (1 + n) / (10 + n))
        average = jax.tree.map(lambda a, p, k=keep: k * a + (1 - k) * p, average, state.params)
    chex.assert_trees_all_close(after[-1].ema, average, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_parameters_stay_float32_when_computing_in_bfloat16(batch: Batch, params: PyTree):
    """Law: a bfloat16 model keeps float32 parameters, optimizer state and loss, and starts near the float64 loss."""
    narrow, key = without_dropout("bfloat16"), random_key(0, "dropout")
    state = jax.eval_shape(narrow.initialize)
    later, measured = jax.eval_shape(functools.partial(train_step, narrow), state, batch)
    assert {x.dtype.name for x in jax.tree.leaves((state, later))} == {"float32", "int32"}
    assert measured["loss"].dtype == jnp.float32
    loss = gradient(narrow, jax.tree.map(np.float32, params), batch, key)[0]
    with jax.enable_x64(True):
        wide = gradient(without_dropout("float64"), params, batch, key)[0]
    assert float(loss) != float(wide)
    np.testing.assert_allclose(float(loss), float(wide), rtol=0.02)


def test_the_objective_weighs_every_terms_own_mean():
    """Oracle: by hand. 2 * 6/3 + 1 * 8/4 = 6; a term that counts nothing adds nothing."""
    terms = {"a": LossTerm(jnp.asarray(6.0), jnp.asarray(3.0), 2.0), "b": LossTerm(jnp.asarray(8.0), jnp.asarray(4.0))}
    nothing = {"c": LossTerm(jnp.asarray(0.0), jnp.asarray(0.0))}
    assert float(total(terms | nothing, {"a": jnp.asarray(3.0), "b": jnp.asarray(4.0), "c": jnp.asarray(0.0)})) == 6.0
    one = LossTerm(jnp.asarray(5.0), jnp.asarray(1.0))
    assert float(total({"d": one}, {"d": one.count})) == 5.0, "the mean of one token is its loss"


def test_the_state_is_donated(one_device: Runner, batch: Batch):
    """Law: after a step the old state's buffers are gone, so that there is never a second copy of it."""
    state = one_device.init()
    one_device.train_step(state, one_device.shard_batch(batch))
    assert all(x.is_deleted() for x in jax.tree.leaves(state.params))


def test_rows_that_devices_do_not_divide_are_refused():
    with pytest.raises(
        ValueError, match=r"data\.rows_multiple is 12, which 8 devices do not divide: make it a multiple of 8"
    ):
        check_rows("data.rows_multiple", 12, make_mesh())


@pytest.mark.parametrize("number", quick([2, 8], (2).__eq__))
def test_an_evaluation_in_micro_batches_has_the_same_metrics_in_less_memory(
    batch: Batch, params: PyTree, double: None, number: int
):
    """Law, in float64: sums and counts of micro-batches add up. A whole batch of activations is never stored."""
    found, bytes_ = [], []
    for task in (without_dropout("float64"), without_dropout("float64", number)):
        step = jax.jit(step_module.eval_step, static_argnums=0).lower(task, params, batch).compile()
        found.append(step(params, batch))
        bytes_.append(step.memory_analysis().temp_size_in_bytes)
    chex.assert_trees_all_close(*found, rtol=1e-12)
    assert bytes_[1] < 0.8 * bytes_[0]


def test_an_evaluation_in_micro_batches_keeps_the_order_of_rows():
    """By hand: a metric of every row, and a table."""
    task = Mock(spec=TrainTask, num_micro_batches=3, model=Mock(), objective=Mock())
    task.inputs = lambda rows: rows.targets
    task.model.apply = lambda _, inputs: inputs
    task.objective.metrics = lambda outputs, rows: {
        "row": PerRowMetric(outputs[:, None], rows.weights),
        "table": LossTerm(outputs.sum() * jnp.eye(2), len(outputs) + jnp.zeros(())),
    }
    weights = jnp.ones(12).at[11].set(0)
    batch: Any = Batch(inputs=None, targets=jnp.arange(12.0), weights=weights)  # type: ignore[arg-type]
    found: Any = step_module.eval_step(task, {}, batch)
    np.testing.assert_array_equal(found["row"].values[:, 0], np.arange(12))
    np.testing.assert_array_equal(found["row"].weights, batch.weights)
    np.testing.assert_array_equal(found["table"].sum, 66 * np.eye(2))
    assert found["table"].count == 12


@pytest.mark.slow
def test_a_small_model_learns_to_copy(one_device: Runner):
    """Learning: copying 1 to 4 digits, unseen ones included, from 500 steps; a mask or a shift off by one would not get there."""
    rng = np.random.default_rng(0)
    digits = [rng.integers(4, 14, rng.integers(1, 5)).astype(np.int32) for _ in range(16 * 500 + 64)]
    records = [TokenPair(d, d) for d in digits]
    state = one_device.init()
    for i in range(0, 16 * 500, 16):
        state, _ = one_device.train_step(state, one_device.shard_batch(stack(records[i : i + 16], BUCKET.lengths)))
    metrics = one_device.eval_step(state.params, stack(records[-64:], BUCKET.lengths))
    assert np.exp(float(metrics["loss"].sum / metrics["loss"].count)) < 1.02
    assert float(metrics["accuracy"].sum / metrics["accuracy"].count) > 0.995
