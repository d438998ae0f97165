"""Laws of freezing: what does not train keeps its bits and costs no state; what trains moves as if nothing else could."""

import dataclasses
import functools
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.optim import SGD, Constant, OptimizerConfig
from flaxformer_lite.core.optim.selection import split
from flaxformer_lite.core.parallel.mesh import MeshConfig, make_mesh
from flaxformer_lite.core.runners import MeshRunner, PmapRunner
from flaxformer_lite.core.step import gradient, random_key, train_step
from flaxformer_lite.training import loop, train_task
from flaxformer_lite.workdir.weights import abstract_saved_params
from tests.support.commands import Command
from tests.support.experiments import (
    after_steps,
    first_batch,
    tiny_config,
    with_train,
    write_config_file,
)
from tests.support.final_state import final_state, open_run
from tests.support.limits import assert_close

PATTERNS = ("decoder/layers/*/attention/*", "encoder/layers/1/feed_forward/*")
"""Whole arrays of one stack, and one of two layers of the other."""
CONFIG = with_train(tiny_config(), trainable=PATTERNS, text_metrics=())
RUNNERS = {
    "one device": lambda task: MeshRunner(task, make_mesh(devices=jax.devices()[:1])),
    "data 2, fsdp 2": lambda task: MeshRunner(task, make_mesh(MeshConfig(fsdp=2), devices=jax.devices()[:4])),
    "pmap 2": lambda task: PmapRunner(task, make_mesh(devices=jax.devices()[:2])),
}


def trained_layers(path: str, x: np.ndarray) -> np.ndarray:
    """By hand: whether each layer of an array trains."""
    if path.startswith("decoder/layers/attention/"):
        return np.ones(len(x), bool)
    return np.array([False, True]) if path.startswith("encoder/layers/feed_forward/") else np.zeros(len(x), bool)


@pytest.mark.slow
@pytest.mark.parametrize("num_micro_batches", [1, 2])
@pytest.mark.parametrize("name", RUNNERS)
def test_frozen_parameters_keep_their_bits_and_the_others_move(name: str, num_micro_batches: int):
    """With weight decay and a moving average, which must not move either."""
    task = dataclasses.replace(train_task(CONFIG), num_micro_batches=num_micro_batches)
    before, after = after_steps(RUNNERS[name](task), 3)
    assert int(after.step) == 3
    for tree in (after.params, after.ema):
        for path, new in leaves_by_path(tree).items():
            old = leaves_by_path(before.params)[path]
            moved = np.array([np.any(new[i] != old[i]) for i in range(len(new))])
            np.testing.assert_array_equal(moved, trained_layers(path, old), path)


def test_the_state_of_the_optimizer_has_no_frozen_parameter():
    state = jax.eval_shape(train_task(CONFIG).initialize)
    moments = [path for path in leaves_by_path(state.opt_state) if "kernel" in path]
    assert moments and all("attention" in path or "feed_forward" in path for path in moments)
    assert not any("cross_attention" in path or path.startswith("encoder/layers/attention") for path in moments)


@pytest.mark.slow
def test_what_trains_moves_as_under_the_whole_gradient():
    """Oracle: the gradient of all parameters, the frozen ones set to 0 by hand, and optax's own AdamW."""
    config = with_train(tiny_config(), text_metrics=())
    batch = first_batch()
    whole, frozen = train_task(config), train_task(CONFIG)
    state = whole.initialize()
    key = random_key(whole.seed, "dropout", 0)
    _, _, grads = jax.jit(functools.partial(gradient, whole))(state.params, batch, key)
    zeroed = {
        path: x * trained_layers(path, x).reshape(-1, *[1] * (x.ndim - 1)) for path, x in leaves_by_path(grads).items()
    }
    norm = optax.tree.norm(zeroed)
    after, measured = jax.jit(functools.partial(train_step, frozen))(frozen.initialize(), batch)
    np.testing.assert_allclose(measured["gradient_norm"], norm, rtol=1e-5)
    clipped = jax.tree.map(lambda x: x * jnp.minimum(1, 1 / (norm + 1e-6)), zeroed)
    params = leaves_by_path(state.params)
    adam = optax.scale_by_adam(0.9, 0.98, 1e-8)
    updates, _ = adam.update(clipped, adam.init(params), params)
    for path, x in params.items():
        mask = trained_layers(path, x).reshape(-1, *[1] * (x.ndim - 1))
        decay = 0.01 * x if path.endswith("kernel") else 0
        expected = x - 1e-2 * mask * (updates[path] + decay)
        assert_close(leaves_by_path(after.params)[path], expected, message=path)


@pytest.mark.slow
def test_a_chain_of_ones_own_sees_no_frozen_parameter():
    """Plain weight decay of everything, which a chain may do, moves only what trains."""
    task = dataclasses.replace(train_task(CONFIG), optimizer=optax.add_decayed_weights(-0.1), ema_decay=None)
    before = task.initialize()
    after, _ = jax.jit(functools.partial(train_step, task))(before, first_batch())
    for path, old in leaves_by_path(before.params).items():
        new = leaves_by_path(after.params)[path]
        same = np.array([np.array_equal(new[i], old[i]) for i in range(len(old))])
        assert same[~trained_layers(path, old)].all(), path


@pytest.mark.slow
def test_the_program_computes_no_gradient_of_frozen_parameters():
    """Oracle: the compiler's count of operations; with the decoder frozen below, the encoder needs no backward pass."""

    def operations(config: Config) -> float:
        task = train_task(config)
        lowered = jax.jit(functools.partial(train_step, task)).lower(jax.eval_shape(task.initialize), first_batch())
        return lowered.compile().cost_analysis()["flops"]

    everything = operations(with_train(tiny_config(), text_metrics=()))
    head = operations(with_train(tiny_config(), text_metrics=(), trainable=("decoder/final_norm/*",)))
    assert head < 0.6 * everything


@pytest.mark.slow
def test_frozen_parameters_lie_in_bfloat16(tmp_path: Path, command: Command, one_device: None):
    config = with_train(CONFIG, frozen_dtype="bfloat16", steps=2)
    loop.train(config, tmp_path / "run")
    target = jax.eval_shape(train_task(config).initialize)
    trained, frozen = split(target.params, PATTERNS)
    assert {x.dtype for x in jax.tree.leaves(frozen)} == {jnp.dtype("bfloat16")}
    assert {x.dtype for x in jax.tree.leaves(trained)} == {jnp.dtype("float32")}
    command("evaluate", tmp_path / "run")


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_bit_for_bit_as_one_that_was_not(tmp_path: Path, one_device: None):
    loop.train(CONFIG, tmp_path / "once")
    loop.train(with_train(CONFIG, steps=4), tmp_path / "twice")
    loop.train(CONFIG, tmp_path / "twice")
    assert final_state(tmp_path / "once") == final_state(tmp_path / "twice")


@pytest.mark.slow
def test_frozen_parameters_come_from_another_run(tmp_path: Path, one_device: None, capfd):
    loop.train(with_train(tiny_config(), steps=1, text_metrics=()), tmp_path / "base")
    config = with_train(CONFIG, steps=2, init_from=str(tmp_path / "base"))
    loop.train(config, tmp_path / "run")
    leaves = leaves_by_path(abstract_saved_params(config))
    number = sum(x.size for x in leaves.values())
    frozen_ones = sum(x.size * np.mean(~trained_layers(path, np.zeros(x.shape[0]))) for path, x in leaves.items())
    assert f"{number:,} parameters, {frozen_ones:,.0f} of them frozen, on 1 cpu device" in capfd.readouterr().err
    with open_run(tmp_path / "base") as before, open_run(tmp_path / "run") as after:
        old, new = (
            checkpoints.restore_params(abstract_saved_params(config), checkpoints.latest())
            for checkpoints in (before, after)
        )
    _, frozen = split(old, PATTERNS)
    chex.assert_trees_all_equal(frozen, split(new, PATTERNS)[1])


def test_a_pattern_without_a_parameter_is_one_line(tmp_path: Path, command: Command):
    path = write_config_file(tmp_path / "tiny.json", with_train(CONFIG, trainable=("decoder/layer/*",)))
    status, said = command.ended("train", path, "--workdir", tmp_path / "run")
    assert status == 2
    assert "error: train.trainable has 'decoder/layer/*', which matches no parameter" in said.err


def test_a_rate_of_frozen_parameters_is_refused_before_the_first_step():
    config = with_train(tiny_config(), trainable=("embedding/*",))
    task = train_task(
        dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, rates={"decoder/*": 0.5}))
    )
    with pytest.raises(ValueError, match=r"optimizer\.rates has 'decoder/\*', which matches only frozen"):
        jax.eval_shape(task.initialize)


def test_the_embedding_has_its_rate_where_all_layers_are_frozen():
    """Oracle: the power of the decay, worked by hand from the layers of the config."""
    config = with_train(tiny_config(), trainable=("embedding/*",))
    optimizer = OptimizerConfig(algorithm=SGD(), schedule=Constant(peak_rate=1.0), clip_norm=None, layer_decay=0.5)
    task = train_task(dataclasses.replace(config, optimizer=optimizer))
    trained = {"embedding": {"embedding": np.ones((2, 2), np.float32)}}
    updates, _ = task.optimizer.update(trained, task.optimizer.init(trained), trained)
    depth = max(config.model.num_encoder_layers, config.model.num_decoder_layers) + 1
    np.testing.assert_array_equal(updates["embedding"]["embedding"], -(0.5**depth))
