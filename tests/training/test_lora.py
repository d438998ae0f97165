"""Laws of training with adapters: on every runner and mesh only they move; the base keeps its bits and has no optimizer state."""

import dataclasses
import functools
from pathlib import Path

import jax
import numpy as np
import pytest

from flaxformer_lite.config import Config, from_json, to_json
from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.model import LoRA
from flaxformer_lite.core.parallel.mesh import MeshConfig, make_mesh
from flaxformer_lite.core.runners import MeshRunner, PmapRunner
from flaxformer_lite.core.step import TrainState
from flaxformer_lite.training.task import train_task
from tests.support.commands import Command
from tests.support.experiments import after_steps, tiny_config, with_train, write_config_file
from tests.support.small_models import NO_DROPOUT

RUNNERS = {
    "one device": lambda task: MeshRunner(task, make_mesh(devices=jax.devices()[:1])),
    "fsdp 2, tensor 3": lambda task: MeshRunner(
        task, make_mesh(MeshConfig(fsdp=2, tensor=3), devices=jax.devices()[:6])
    ),
    "pmap 2": lambda task: PmapRunner(task, make_mesh(devices=jax.devices()[:2])),
}


def with_lora(config: Config, lora: LoRA | None, **sizes: int) -> Config:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, lora=lora, **sizes))


EVERYWHERE = LoRA(rank=4, targets=("*",))
STILL = dataclasses.replace(tiny_config().model, dropout=NO_DROPOUT)
"""The tiny model without dropout, whose keys under pmap depend on the number of devices."""
CONFIG = with_lora(with_train(tiny_config(model=STILL), text_metrics=()), EVERYWHERE, vocab_size=150, d_ff=24)


@functools.cache
def trained(name: str) -> tuple[TrainState, TrainState]:
    """The state before and after three steps, with weight decay and a moving average."""
    return after_steps(RUNNERS[name](train_task(CONFIG)), 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNNERS)
def test_only_adapters_move_and_all_of_them(name: str):
    before, after = trained(name)
    for path, new in leaves_by_path(after.params).items():
        moved = [not np.array_equal(x, y) for x, y in zip(new, leaves_by_path(before.params)[path], strict=True)]
        assert all(moved) if "/lora_" in path else not any(moved), path
    moments = {path for path in leaves_by_path(after.opt_state) if path.endswith("/kernel")}
    assert moments and all("/lora_" in path for path in moments)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(RUNNERS)[1:])
def test_the_numbers_do_not_depend_on_the_mesh(name: str):
    one = leaves_by_path(trained("one device")[1].params)
    for path, x in leaves_by_path(trained(name)[1].params).items():
        np.testing.assert_allclose(x, one[path], rtol=1e-3, atol=1e-5, err_msg=path)


@pytest.mark.slow
def test_what_train_trainable_names_trains_beside_the_adapters():
    task = train_task(with_train(CONFIG, trainable=("*", "decoder/final_norm/*")))
    before, after = after_steps(RUNNERS["one device"](task), 2)
    moved = {
        path
        for path, x in leaves_by_path(after.params).items()
        if not np.array_equal(x, leaves_by_path(before.params)[path])
    }
    assert {path for path in moved if "/lora_" not in path} == {
        f"decoder/final_norm/{leaf}" for leaf in ("scale", "bias")
    }


def test_settings_go_through_json():
    assert from_json(to_json(CONFIG), "config.json") == CONFIG


def test_a_target_without_a_projection_is_one_line(tmp_path: Path, command: Command):
    path = write_config_file(tmp_path / "tiny.json", with_lora(CONFIG, LoRA(targets=("embedding",))))
    status, said = command.ended("train", path, "--workdir", tmp_path / "run")
    assert status == 2 and "error: model.lora.targets has 'embedding', which matches no projection" in said.err
