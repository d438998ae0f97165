"""Laws of a LoRA run's checkpoints: without the base's parameters they are small, with the base they are whole, and refer to it."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from flaxformer_lite import load
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.model import LoRA
from flaxformer_lite.core.model.lora import ADAPTERS
from flaxformer_lite.core.parallel.mesh import MeshConfig
from flaxformer_lite.training import loop
from flaxformer_lite.workdir import parameter_digest, warm_start
from flaxformer_lite.workdir.checkpoints import Retention
from flaxformer_lite.workdir.frozen import Frozen, WithFrozen
from flaxformer_lite.workdir.manifest import read_manifest
from tests.support.commands import Command
from tests.support.experiments import normal_params, tiniest_config, with_train
from tests.support.final_state import final_state
from tests.support.limits import assert_close

BASE = with_train(tiniest_config(), text_metrics=())


def lora_config(base: Path, **train: object) -> Config:
    """A run with adapters, and with a norm that trains too, in part of the steps of the tiny config."""
    config = with_train(BASE, init_from=str(base), trainable=("decoder/final_norm/*",), **train)
    return dataclasses.replace(config, model=dataclasses.replace(config.model, lora=LoRA(rank=4)))


def write_base(folder: Path, seed: int = 0) -> Path:
    loop.train(with_train(BASE, steps=1, seed=seed), folder)
    return folder


@pytest.mark.slow
def test_a_checkpoint_holds_what_trains_and_refers_to_the_base(tmp_path: Path, one_device: None):
    base = write_base(tmp_path / "base")
    loop.train(lora_config(base, steps=6, keep_latest=2), tmp_path / "run")
    leaves = read_manifest(tmp_path / "run" / "checkpoints", 6)["leaves"]
    for field in ("params", "ema"):
        saved = {path.removeprefix(f"{field}/") for path in leaves if path.startswith(f"{field}/")}
        assert saved and all("/lora_" in path or path.startswith("decoder/final_norm/") for path in saved)
    start, found = leaves_by_path(load(base).params), leaves_by_path(load(tmp_path / "run").params)
    frozen = {path for path in start if not path.startswith("decoder/final_norm/")}
    for path in frozen:
        np.testing.assert_array_equal(found[path], start[path], path)
    assert any(np.any(found[path]) for path in found if path.endswith("lora_b/kernel"))
    left_out = {path: np.asarray(start[path]) for path in frozen}
    reference = read_manifest(tmp_path / "run" / "checkpoints", 6)["base"]
    assert reference == {"run": str(base), "sha256": parameter_digest(left_out)}
    for weights in ("ema", "average:2"):
        leaf = "encoder/layers/attention/key/kernel"
        np.testing.assert_array_equal(leaves_by_path(load(tmp_path / "run", weights=weights).params)[leaf], start[leaf])

    moved = tmp_path / "moved"
    shutil.move(base, moved)
    with pytest.raises(ValueError, match=r"^train\.init_from is '.*base', the base of this LoRA run, .*does not exist"):
        load(tmp_path / "run")
    write_base(base, seed=1)
    with pytest.raises(ValueError, match=r"its parameters are not those that this LoRA run was trained on \(SHA-256"):
        load(tmp_path / "run")
    settings = json.loads((tmp_path / "run" / "config.json").read_text())
    settings["train"]["init_from"] = str(moved)
    (tmp_path / "run" / "config.json").write_text(json.dumps(settings))
    assert parameter_digest(load(tmp_path / "run").params) == parameter_digest(found)


class State(NamedTuple):
    params: Any
    ema: Any = None


def test_only_what_trains_is_saved(tmp_path: Path):
    kernel = {"kernel": np.ones((3, 5), np.float32)}
    state = State(jax.tree.map(jax.device_put, {"query": kernel | {"lora_a": {"kernel": np.ones((3, 2), np.float32)}}}))
    frozen, retention = Frozen("base", ADAPTERS, (), lambda params: params), Retention(1, 1, "loss", "min")
    with WithFrozen(frozen, tmp_path, retention) as made:
        made.save(1, state, {})
    assert [*read_manifest(tmp_path, 1)["leaves"]] == ["params/query/lora_a/kernel"]
    expected = {"run": "base", "sha256": parameter_digest({"query": kernel})}
    assert read_manifest(tmp_path, 1)["base"] == expected


def test_a_fresh_parameter_is_saved_beside_the_adapters(tmp_path: Path):
    """One that the base lacks is in the checkpoint, also where it is frozen. Law: what is restored is what was saved."""
    kernel, head = np.ones((3, 5), np.float32), np.arange(10, dtype=np.float32).reshape(5, 2)
    params = {"query": {"kernel": kernel, "lora_a": {"kernel": 2 * kernel}}, "head": {"kernel": head}}
    state, asked = State(jax.tree.map(jax.device_put, params)), list[str]()

    def read(wanted: Any) -> Any:
        asked.extend(leaves_by_path(wanted))
        return {"query": {"kernel": jax.device_put(kernel)}}

    frozen, retention = Frozen("base", ADAPTERS, ("head/*",), read), Retention(1, 1, "loss", "min")
    with WithFrozen(frozen, tmp_path, retention) as made:
        made.save(1, state, {})
        _, restored, _ = made.restore(state)
    assert asked == ["query/kernel"]
    assert set(read_manifest(tmp_path, 1)["leaves"]) == {"params/head/kernel", "params/query/lora_a/kernel"}
    jax.tree.map(np.testing.assert_array_equal, restored.params, params)


@pytest.mark.slow
def test_a_stopped_run_ends_with_the_bits_of_one_that_was_not(tmp_path: Path):
    """On a mesh, with the base in bfloat16."""
    base = write_base(tmp_path / "base")
    config = lora_config(base, mesh=MeshConfig(fsdp=2), frozen_dtype="bfloat16")
    loop.train(config, tmp_path / "once")
    loop.train(with_train(config, steps=5), tmp_path / "twice")
    loop.train(config, tmp_path / "twice")
    assert final_state(tmp_path / "once") == final_state(tmp_path / "twice")


@pytest.mark.slow
def test_a_run_whose_base_was_moved_continues_on_request(tmp_path: Path, one_device: None):
    base = write_base(tmp_path / "base")
    loop.train(lora_config(base, steps=2), tmp_path / "once")
    expected = parameter_digest(load(tmp_path / "once").params)
    loop.train(lora_config(base, steps=1), tmp_path / "run")
    shutil.move(base, tmp_path / "moved")
    loop.train(lora_config(tmp_path / "moved", steps=2), tmp_path / "run", with_changes=True)
    assert parameter_digest(load(tmp_path / "run").params) == expected


@pytest.mark.slow
def test_adapters_may_leave_nothing_of_a_base(tmp_path: Path, one_device: None):
    config = with_train(lora_config(write_base(tmp_path / "base")), init_fresh=("*",))
    loop.train(with_train(config, steps=1), tmp_path / "run")
    loop.train(with_train(config, steps=2), tmp_path / "run")
    assert load(tmp_path / "run").step == 2


@pytest.mark.slow
def test_a_base_that_is_gone_is_one_line(tmp_path: Path, command: Command, one_device: None):
    base = write_base(tmp_path / "base")
    loop.train(lora_config(base, steps=1), tmp_path / "run")
    shutil.rmtree(base)
    status, said = command.ended("evaluate", tmp_path / "run")
    assert status == 2 and said.notes[-1].startswith("error: train.init_from is")


@pytest.mark.slow
def test_a_run_without_adapters_starts_from_the_merged_kernels(tmp_path: Path, one_device: None):
    base = write_base(tmp_path / "base")
    loop.train(lora_config(base, steps=2), tmp_path / "run")
    other = lora_config(tmp_path / "run")
    other = dataclasses.replace(other, model=dataclasses.replace(other.model, lora=LoRA(rank=4, alpha=16)))
    with pytest.raises(ValueError, match=r"^model\.lora is LoRA\(rank=4, alpha=16.*, but the run train\.init_from"):
        loop.train(other, tmp_path / "other")
    zeros = jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype)), normal_params(BASE, 0))
    found, _ = warm_start(zeros, with_train(BASE, init_from=str(tmp_path / "run")))
    run = load(tmp_path / "run")
    kernels = {path: x for path, x in leaves_by_path(run.params).items() if path.endswith("/kernel")}
    for path, x in leaves_by_path(found).items():
        adapter = [kernels.get(path.replace("/kernel", f"/lora_{name}/kernel")) for name in "ab"]
        expected = leaves_by_path(run.params)[path]
        if adapter[0] is not None:
            expected = expected + run.config.model.lora.scale * np.asarray(adapter[0]) @ np.asarray(adapter[1])
        assert_close(x, expected)
