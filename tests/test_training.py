"""Laws of the train step: no way of cutting a batch, over micro-batches, rows or devices, changes the gradient."""

import dataclasses
import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from experiments import tiny_config

from flaxformer_lite import training
from flaxformer_lite.data.plan import Bucket
from flaxformer_lite.data.records import Lengths, TokenPair
from flaxformer_lite.layers import DropoutRates
from flaxformer_lite.losses import Term
from flaxformer_lite.objectives import Batch, Seq2Seq
from flaxformer_lite.parallel import check_rows, make_mesh
from flaxformer_lite.training import (
    Compiled,
    Task,
    TrainState,
    limit_traces,
    random_key,
    total,
    train_step,
)

CONFIG = tiny_config()
BUCKET = Bucket(Lengths(7, 5), 16)
NO_DROPOUT = DropoutRates(embedding_rate=0, attention_rate=0, feed_forward_rate=0, residual_rate=0)

gradient = jax.jit(training.gradient, static_argnums=0)
init_state = jax.jit(training.init_state, static_argnums=0)


def some_records(number: int, seed: int = 0) -> list[TokenPair]:
    """Pairs of different lengths, so that a mean of means would differ from the mean over tokens."""
    rng = np.random.default_rng(seed)
    tokens = lambda most: rng.integers(4, CONFIG.model.vocab_size, rng.integers(1, most)).astype(np.int32)  # noqa: E731
    return [TokenPair(tokens(7), tokens(5)) for _ in range(number)]


def stack(records: list[TokenPair], lengths: Lengths) -> Batch:
    return jax.tree.map(
        lambda *x: jnp.asarray(np.stack(x)), *[CONFIG.objective.example(record, lengths) for record in records]
    )


def task(**changes) -> Task:
    return dataclasses.replace(Task.of(CONFIG), **changes)


def without_dropout(dtype: str = "float32") -> Task:
    model = dataclasses.replace(CONFIG.model, dropout=NO_DROPOUT, dtype=dtype)
    return Task.of(dataclasses.replace(CONFIG, model=model))


def assert_trees_close(a, b, tolerance: float) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=0, atol=tolerance)


@pytest.fixture(scope="module", autouse=True)
def quick_compilation() -> Iterator[None]:
    """Laws hold whatever the compiler does; this halves its time."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def batch() -> Batch:
    return stack(some_records(BUCKET.rows), BUCKET.lengths)


def test_micro_batches_change_nothing(batch: Batch):
    """Law, in float64: 1, 2 and 8 micro-batches give the same loss, counts and gradient without dropout."""
    with jax.enable_x64(True):
        one = without_dropout("float64")
        params = jax.tree.map(lambda x: x.astype(jnp.float64), init_state(one, batch).params)
        key = random_key(0, "dropout")
        whole = gradient(one, params, batch, key)
        for micro_batches in (2, 8):
            parts = gradient(dataclasses.replace(one, micro_batches=micro_batches), params, batch, key)
            assert_trees_close(whole, parts, 1e-12)


def test_a_batch_weighs_tokens_as_one_sentence_at_a_time(batch: Batch):
    """Law, in float64: the gradient of a padded batch is the token-weighted mean of the gradients of its unpadded rows."""
    records = some_records(5)
    with jax.enable_x64(True):
        one = without_dropout("float64")
        params = jax.tree.map(lambda x: x.astype(jnp.float64), init_state(one, batch).params)
        key = random_key(0, "dropout")
        _, counts, whole = gradient(one, params, stack(records, BUCKET.lengths), key)
        tokens = [len(record.target) + 1 for record in records]
        mean = jax.tree.map(jnp.zeros_like, params)
        for record, count in zip(records, tokens, strict=True):
            alone = gradient(one, params, stack([record], CONFIG.objective.lengths(record)), key)[2]
            mean = jax.tree.map(lambda m, g, c=count: m + g * c / sum(tokens), mean, alone)
        assert float(counts["cross_entropy"]) == sum(tokens)
        assert_trees_close(whole, mean, 1e-12)


def test_rows_that_fill_up_change_nothing(batch: Batch):
    """Law: blank rows leave loss, counts and gradient alone, and bring no NaN."""
    more = jax.tree.map(lambda x: jnp.concatenate([x, jnp.zeros_like(x)]), batch)
    one = without_dropout()
    params, key = init_state(one, batch).params, random_key(0, "dropout")
    assert_trees_close(gradient(one, params, batch, key), gradient(one, params, more, key), 2e-6)


@pytest.mark.parametrize("num_devices", [2, 8])
def test_any_number_of_devices_is_one_device(batch: Batch, num_devices: int):
    """Law, dropout on: three steps over a mesh of 2 and 8 devices give the losses and parameters of one device."""

    def three_steps(devices: list[jax.Device]) -> tuple[TrainState, list[float]]:
        compiled = Compiled.of(task(), make_mesh(devices), train_shapes=1, eval_shapes=0)
        state, losses = compiled.init(batch), []
        for _ in range(3):
            state, measured = compiled.train(state, compiled.put(batch))
            losses.append(float(measured["loss"]))
        return state, losses

    (one, one_losses), (many, many_losses) = three_steps(jax.devices()[:1]), three_steps(jax.devices()[:num_devices])
    np.testing.assert_allclose(one_losses, many_losses, rtol=1e-5)
    assert_trees_close(one.params, many.params, 1e-4)
    kernel = many.params["encoder"]["layers"]["attention"]["query"]["kernel"]
    assert len(kernel.addressable_shards) == num_devices


def test_dropout_is_on_in_training_and_differs_by_step(batch: Batch):
    """Law: the same parameters give another loss at another step, and the same loss at the same step."""
    one = task()
    params = init_state(one, batch).params
    losses = [float(gradient(one, params, batch, random_key(0, "dropout", step))[0]) for step in (0, 1, 0)]
    assert losses[0] == losses[2] != losses[1]


def test_random_keys_differ_by_seed_purpose_and_step():
    keys = [
        random_key(0, "dropout", 0),
        random_key(1, "dropout", 0),
        random_key(0, "parameters", 0),
        random_key(0, "dropout", 1),
    ]
    assert len({tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in keys}) == len(keys)


def test_the_moving_average_follows_the_parameters(batch: Batch):
    """Oracle: the recurrence by hand. Step n keeps min(decay, (1 + n) / (10 + n)) of the average, n = 0, 1, …"""
    one = task(ema_decay=0.15)
    step = jax.jit(functools.partial(train_step, one))
    state = init_state(one, batch)
    average = jax.tree.map(np.asarray, state.params)
    for n in range(3):
        state, _ = step(state, batch)
        keep = min(0.15, (1 + n) / (10 + n))
        average = jax.tree.map(lambda a, p, k=keep: k * a + (1 - k) * np.asarray(p), average, state.params)
    assert_trees_close(state.ema, average, 1e-6)


def test_parameters_stay_float32_when_computing_in_bfloat16(batch: Batch):
    """Law: a bfloat16 model keeps float32 parameters, optimizer state and loss, and starts near the float32 loss."""
    model = dataclasses.replace(CONFIG.model, dtype="bfloat16", dropout=NO_DROPOUT)
    narrow = Task.of(dataclasses.replace(CONFIG, model=model))
    state, measured = jax.jit(functools.partial(train_step, narrow))(init_state(narrow, batch), batch)
    assert {x.dtype.name for x in jax.tree.leaves((state.params, state.opt_state))} <= {"float32", "int32"}
    assert measured["loss"].dtype == jnp.float32
    wide = gradient(without_dropout(), init_state(without_dropout(), batch).params, batch, random_key(0, "dropout"))[0]
    np.testing.assert_allclose(float(measured["loss"]), float(wide), rtol=0.02)


def test_the_objective_weighs_every_terms_own_mean():
    """Oracle: by hand. 2 * 6/3 + 1 * 8/4 = 6; a term that counts nothing adds nothing."""
    terms = {"a": Term(jnp.asarray(6.0), jnp.asarray(3.0), 2.0), "b": Term(jnp.asarray(8.0), jnp.asarray(4.0))}
    nothing = {"c": Term(jnp.asarray(0.0), jnp.asarray(0.0))}
    assert float(total(terms | nothing, {"a": jnp.asarray(3.0), "b": jnp.asarray(4.0), "c": jnp.asarray(0.0)})) == 6.0


def test_a_shape_too_many_is_an_error():
    function = jax.jit(limit_traces(lambda x: x + 1, "step", limit=2))
    function(jnp.zeros(2)), function(jnp.zeros(3)), function(jnp.zeros(2))
    with pytest.raises(AssertionError, match="step was traced 3 times for 2 shapes"):
        function(jnp.zeros(5))


def test_the_state_is_donated(batch: Batch):
    """Law: after a step the old state's buffers are gone, so that there is never a second copy of it."""
    compiled = Compiled.of(without_dropout(), make_mesh(jax.devices()[:1]), train_shapes=1, eval_shapes=0)
    state = compiled.init(batch)
    compiled.train(state, compiled.put(batch))
    assert all(x.is_deleted() for x in jax.tree.leaves(state.params))


def test_rows_that_devices_do_not_divide_are_refused():
    with pytest.raises(
        ValueError, match=r"data\.rows_multiple is 12, which 8 devices do not divide: make it a multiple of 8"
    ):
        check_rows(12, make_mesh())


def test_a_small_model_learns_to_copy():
    """Learning: copying 1 to 4 digits, unseen ones included, from 400 steps; a mask or a shift off by one would not get there."""
    rng = np.random.default_rng(0)
    digits = [rng.integers(4, 14, rng.integers(1, 5)).astype(np.int32) for _ in range(64 * 400 + 64)]
    model = dataclasses.replace(CONFIG.model, vocab_size=17, d_model=32, num_heads=4, d_ff=64, dropout=NO_DROPOUT)
    copier = dataclasses.replace(
        Task.of(dataclasses.replace(CONFIG, model=model, objective=Seq2Seq(label_smoothing=0))),
        optimizer=optax.adam(3e-3),
    )
    batches = [stack([TokenPair(d, d) for d in digits[i : i + 64]], Lengths(5, 5)) for i in range(0, len(digits), 64)]
    step = jax.jit(functools.partial(train_step, copier), donate_argnums=0)
    state = init_state(copier, batches[0])
    for batch in batches[:-1]:
        state, _ = step(state, batch)
    held_out = batches[-1]
    metrics = copier.objective.metrics(copier.model.apply({"params": state.params}, held_out.inputs), held_out)
    loss = float(metrics["loss"].sum / metrics["loss"].count)
    assert np.exp(loss) < 1.02
    assert float(metrics["accuracy"].sum / metrics["accuracy"].count) > 0.995
