"""Laws of the train step: no way of cutting a batch, over micro-batches, rows or devices, changes the gradient."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import PyTree

from flaxformer_lite.config.train import TrainConfig
from flaxformer_lite.data.batch_plan import Bucket
from flaxformer_lite.data.records import Lengths, TokenPair
from flaxformer_lite.objectives import Batch, Seq2Seq
from flaxformer_lite.objectives.losses import LossTerm
from flaxformer_lite.optim.optimizers import OptimizerConfig
from flaxformer_lite.optim.schedules import Cosine
from flaxformer_lite.parallel.mesh import check_rows, make_mesh
from flaxformer_lite.training import step as step_module
from flaxformer_lite.training.runners import MeshRunner, Runner
from flaxformer_lite.training.step import TrainState, TrainTask, random_key, total, train_step
from tests.support.experiments import tiny_config
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

gradient = jax.jit(step_module.gradient, static_argnums=0)


def some_records(number: int, seed: int = 0) -> list[TokenPair]:
    """Pairs of two sizes, 6 to 4 and 2 to 2 tokens, so that a mean of means would differ from the mean over tokens."""
    rng = np.random.default_rng(seed)
    tokens = lambda size: rng.integers(4, CONFIG.model.vocab_size, size).astype(np.int32)  # noqa: E731
    return [TokenPair(*map(tokens, ((6, 4), (2, 2))[rng.integers(2)])) for _ in range(number)]


def stack(records: list[TokenPair], lengths: Lengths, rows: int = 0) -> Batch:
    """The records as a batch, with blank rows up to `rows`."""
    objective: Any = CONFIG.objective
    examples = [objective.example(record, lengths) for record in records]
    examples += [jax.tree.map(np.zeros_like, examples[0])] * (rows - len(records))
    return jax.tree.map(lambda *x: np.stack(x), *examples)


@functools.cache
def without_dropout(dtype: str, num_micro_batches: int = 1) -> TrainTask:
    model = dataclasses.replace(CONFIG.model, dtype=dtype, dropout=NO_DROPOUT)
    return dataclasses.replace(
        TrainTask.of(dataclasses.replace(CONFIG, model=model)), num_micro_batches=num_micro_batches
    )


@pytest.fixture(scope="module")
def batch() -> Batch:
    return stack(some_records(BUCKET.rows), BUCKET.lengths)


@pytest.fixture(scope="module")
def one_device() -> Runner:
    """The steps of CONFIG, dropout and moving average included: compiled once for all tests here."""
    return MeshRunner(TrainTask.of(CONFIG), make_mesh(devices=jax.devices()[:1]))


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
    runner = MeshRunner(TrainTask.of(CONFIG), make_mesh())
    (*_, one), one_losses = trained
    (*_, many), many_losses = three_steps(runner, batch)
    np.testing.assert_allclose(one_losses, many_losses, rtol=1e-5)
    chex.assert_trees_all_close(one.params, many.params, rtol=0, atol=1e-4)
    kernel = runner.init().params["encoder"]["layers"]["attention"]["query"]["kernel"]
    assert len(kernel.addressable_shards) == len(jax.devices()) == 8


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


@pytest.mark.slow
def test_a_consistency_reads_each_row_twice_with_different_dropout(batch: Batch, params: PyTree):
    """Law: both copies count, and differ by their dropout alone: by none, they are the same."""
    key, objective = random_key(0, "dropout"), Seq2Seq(label_smoothing=0, consistency=1.0)
    for task, differs in ((TrainTask.of(CONFIG), True), (without_dropout("float32"), False)):
        arrays = jax.tree.map(jnp.asarray, params)
        terms = step_module.loss_terms(dataclasses.replace(task, objective=objective), arrays, batch, key)
        assert float(terms["cross_entropy"].count) == 2 * batch.weights.sum()
        assert float(terms["consistency"].count) == batch.weights.sum()
        assert (float(terms["consistency"].mean) > 1e-3) == differs


def test_a_step_whose_loss_is_not_finite_changes_its_number_alone(one_device: Runner, batch: Batch):
    """Law: parameters, optimizer state and average stay bit for bit, and the step after is one as usual."""
    broken = batch._replace(weights=np.where(np.arange(5) == 1, np.float32("nan"), batch.weights))
    state = one_device.init()
    before = jax.tree.map(np.array, state)
    state, measured = one_device.train_step(state, one_device.shard_batch(broken))
    assert np.isnan(float(measured["loss"])) and int(state.step) == 1 and measured["update_norm"] == 0
    chex.assert_trees_all_equal(jax.tree.map(np.array, state)._replace(step=before.step), before)
    state, measured = one_device.train_step(state, one_device.shard_batch(batch))
    assert np.isfinite(float(measured["loss"])) and int(state.step) == 2
    changes = jax.tree.leaves(
        jax.tree.map(lambda x, y: np.sum((np.asarray(x, np.float64) - y) ** 2), state.params, before.params)
    )
    assert float(measured["update_norm"]) == pytest.approx(sum(changes) ** 0.5, rel=1e-4)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.opt_state))


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


def test_the_state_is_donated(one_device: Runner, batch: Batch):
    """Law: after a step the old state's buffers are gone, so that there is never a second copy of it."""
    state = one_device.init()
    one_device.train_step(state, one_device.shard_batch(batch))
    assert all(x.is_deleted() for x in jax.tree.leaves(state.params))


def test_rows_that_devices_do_not_divide_are_refused():
    with pytest.raises(
        ValueError, match=r"data\.rows_multiple is 12, which 8 devices do not divide: make it a multiple of 8"
    ):
        check_rows(12, make_mesh())


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
