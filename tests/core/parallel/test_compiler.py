"""Oracles: the compilers themselves, that of this machine's CPUs and the TPU's own; no TPU is needed."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from flaxformer_lite.config import Config, differences
from flaxformer_lite.core import runners
from flaxformer_lite.core.data.batch_plan import Bucket
from flaxformer_lite.core.data.dataset import zero_batch
from flaxformer_lite.core.data.records import Lengths
from flaxformer_lite.core.objectives.losses import LossTerm
from flaxformer_lite.core.parallel import CompilerOptions, compiler, make_mesh
from flaxformer_lite.core.parallel.compiler import quick_options, refused_options
from flaxformer_lite.core.runners import MeshRunner, make_runner
from flaxformer_lite.tools.planning.topology import describe_slice
from flaxformer_lite.training import train_task
from tests.support import needs
from tests.support.commands import Command
from tests.support.experiments import tiny_config

KNOWN = ("xla_tpu_scoped_vmem_limit_kib=65536", "xla_tpu_assign_all_reduce_scatter_layout=True")


def with_options(**options: tuple[str, ...]) -> Config:
    config = tiny_config()
    return dataclasses.replace(
        config, train=dataclasses.replace(config.train, compiler_options=CompilerOptions(**options))
    )


def test_only_the_options_of_the_own_kind_reach_a_compiler():
    """A CPU's compiler refuses those of a TPU, so it would say that it got them."""
    mesh = make_mesh(devices=jax.devices()[:1])
    assert CompilerOptions(cpu=(), v6e=KNOWN, gpu=("no_such=1",)).of(mesh) == {}
    with pytest.raises(ValueError, match="No such compile option"):
        CompilerOptions(cpu=KNOWN).of(mesh)


def test_a_cpu_compiles_all_but_the_update_quickly_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch):
    """Oracle: the releases of JAX. That of JAX 0.12 lacks an option, and gets none: the others alone would slow its programs."""
    mesh = make_mesh(devices=jax.devices()[:1])
    monkeypatch.setattr(jax.config, "read", lambda name: False)
    expected = dict(compiler.QUICK) if jax.__version_info__ < (0, 12) else {}
    assert CompilerOptions().of(mesh) == quick_options(mesh) == expected
    assert CompilerOptions().of(mesh, update=True) == {}
    own = CompilerOptions(cpu=("xla_cpu_enable_fast_math=False",))
    assert own.of(mesh) == own.of(mesh, update=True) == {"xla_cpu_enable_fast_math": "False"}
    monkeypatch.setattr(compiler, "QUICK", (*compiler.QUICK[:1], ("xla_no", "1")))
    assert CompilerOptions().of(mesh) == {}


@pytest.mark.parametrize(
    ("word", "why"),
    [("xla_tpu_scoped_vmem_limit_kib=1", "No such"), ("xla_cpu_enable_fast_math=maybe", "not a valid bool")],
)
def test_a_wrong_option_is_named_when_the_runner_is_made(word: str, why: str):
    task = train_task(with_options(cpu=(word,)))
    with pytest.raises(
        ValueError, match=rf"^train\.compiler_options\.cpu is {word}, which the compiler refuses \(.*{why}"
    ):
        MeshRunner(task, make_mesh(devices=jax.devices()[:1]))


def test_a_compiler_is_asked_once_for_all_runners_of_a_mesh():
    refused_options.cache_clear()
    task = train_task(with_options(cpu=("xla_cpu_enable_fast_math=False",)))
    for _ in range(3):
        MeshRunner(task, make_mesh(devices=jax.devices()[:1]))
    assert refused_options.cache_info().misses == 1


@pytest.mark.parametrize("words", [("xla_no_value",), ("xla_twice=1", "xla_twice=2"), ("xla spaced=1",), ("=1",)])
def test_what_is_not_a_name_and_a_value_is_refused(words: tuple[str, ...]):
    with pytest.raises(
        ValueError, match=r"^train\.compiler_options\.v5p has '.*': it must be NAME=VALUE, each name once"
    ):
        CompilerOptions(v5p=words)


@pytest.mark.parametrize("kind", ["mesh", "pmap"])
def test_both_steps_are_compiled_with_the_options(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runners, "train_step", lambda task, state, batch, **_: (state, {}))
    monkeypatch.setattr(
        runners, "eval_step", lambda task, params, batch, **_: {"n": LossTerm(batch.weights.sum(), params)}
    )
    runner = make_runner(kind, train_task(tiny_config()), make_mesh(devices=jax.devices()[:1]))
    batch = runner.shard_batch(zero_batch(runner.task.objective, Bucket(Lengths(5, 3), 8)))
    runner.compiler_options = {"xla_no": "1"}
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option: 'xla_no'"):
        runner.eval_step(jnp.ones(()), batch)
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option: 'xla_no'"):
        runner.train_step(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), runner.abstract_state), batch)


def test_a_run_continues_with_other_options():
    assert differences(with_options(), with_options(cpu=("xla_x=1",), v6e=())) == {}


@needs.libtpu
def test_a_tpu_gets_its_own_options_and_its_compiler_names_a_wrong_one():
    for topology, kind in (("v5e:2x2", "v5e"), ("v6e:2x2", "v6e"), ("v5p:2x2x1", "v5p")):
        mesh = make_mesh(devices=describe_slice(topology).devices)
        assert CompilerOptions(**{kind: KNOWN}).of(mesh) == dict(word.split("=") for word in KNOWN)
        with pytest.raises(
            ValueError, match=rf"^train\.compiler_options\.{kind} is xla_no=1, which .*No such compile option"
        ):
            CompilerOptions(**{kind: ("xla_no=1",)}).of(mesh)


@needs.libtpu
def test_the_compilers_know_the_default_options():
    for topology in ("v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1"):
        options = CompilerOptions().of(make_mesh(devices=describe_slice(topology).devices))
        assert bool(options) == topology.startswith("v6e")


@needs.libtpu
def test_plan_and_its_command_line_take_them(command: Command):
    words = ["--train.compiler-options.v6e", KNOWN[0], "xla_no=1"]
    status, said = command.ended("plan", "configs/char_lm.py", "--topology", "v6e:2x2", *words)
    assert status == 2
    assert f"train.compiler_options.v6e is {KNOWN[0]}, xla_no=1, which the compiler refuses" in said.err
