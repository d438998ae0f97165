"""Laws of several processes, real ones on this machine: they are one process, they end together, any others go on from there."""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flaxformer_lite.base.stores import LEDGER, Store
from flaxformer_lite.config import Config, TrainConfig, from_json
from flaxformer_lite.core.model import SentenceEmbedding
from flaxformer_lite.core.objectives import CausalLM, SentenceEmbeddings
from flaxformer_lite.core.search import Sampling
from flaxformer_lite.files.data import Dates, PlainText
from flaxformer_lite.training import evaluation, loop
from flaxformer_lite.workdir.bucket import read_ledger
from flaxformer_lite.workdir.manifest import read_document
from tests.support.experiments import tiny_config, use_one_device, with_train, write_config_file
from tests.support.final_state import assert_same_run
from tests.support.language_runs import language_config
from tests.support.paths import ROOT
from tests.support.s3 import BUCKET, s3_gate

TINY = tiny_config()
CONFIG = dataclasses.replace(
    TINY,
    model=dataclasses.replace(
        TINY.model, vocab_size=152, d_model=16, num_heads=4, d_ff=32, num_encoder_layers=1, num_decoder_layers=1
    ),
    data=dataclasses.replace(TINY.data, bucket_lengths=(40,), eval=None),
    train=TrainConfig(steps=6, log_every=1, checkpoint_every=2),
)
EMBEDS = dataclasses.replace(
    CONFIG,
    model=dataclasses.replace(CONFIG.model, num_decoder_layers=0, sentence_embedding=SentenceEmbedding()),
    objective=SentenceEmbeddings(directions="both"),
)
"""A date is near its own ISO form, and the forms of all other dates of the batch are its negatives."""

DIES_AFTER_JOINING = """
import jax, os, sys, time
jax.distributed.initialize(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
time.sleep(2)  # the others have joined too
os._exit(1)
"""


GATHERS = """
import itertools, jax, numpy as np, sys
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from flaxformer_lite.core.parallel.sharding import MESH_AXES, gather_to_each
expected = np.arange(3 * 8 * 20, dtype=np.float32).reshape(3, 8, 20)
for order, shape in itertools.product(([0, 1, 2, 3], [0, 2, 1, 3]), ((1, 4, 1), (2, 2, 1), (1, 2, 2), (2, 1, 2))):
    mesh = Mesh(np.array(jax.devices())[order].reshape(shape), MESH_AXES)
    sharding = NamedSharding(mesh, PartitionSpec(None, "fsdp", "tensor"))
    array = jax.make_array_from_callback(expected.shape, sharding, expected.__getitem__)
    for here in ((2, 1, 1), (1, 1, 2)):
        local = Mesh(np.array(jax.local_devices()[::-1]).reshape(here), MESH_AXES)
        leaf = gather_to_each({"attention": {"query": {"kernel": array}}}, local)["attention"]["query"]["kernel"]
        np.testing.assert_array_equal(leaf, expected)
        assert [shard.data.size for shard in leaf.addressable_shards] == [expected.size // here[2]] * 2, here
        assert leaf.sharding.mesh == local
"""


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Processes:
    """Processes that train together: `python train.py` with virtual devices, and what each said on stderr.

    All get the same flags, and then each its own where there are some.
    """

    def __init__(
        self,
        config: Path,
        run: Path,
        cache: Path,
        number: int,
        devices: int,
        *flags: str,
        own: Sequence[Sequence[str]] = (),
        own_devices: Sequence[int] = (),
        die_after_joining: int | None = None,
        program: Sequence[str] = (str(ROOT / "train.py"),),
    ):
        coordinator = free_address()
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        command = [sys.executable, *program, str(config), "--workdir", str(run), *flags]
        if number > 1:
            command += ["--coordinator", coordinator, "--num-processes", str(number)]
        self.started = []
        for i in range(number):
            here = ["--process-id", str(i)] if number > 1 else []
            here += own[i] if own else []
            count = own_devices[i] if own_devices else devices
            environment["XLA_FLAGS"] = re.sub("device_count=8", f"device_count={count}", os.environ["XLA_FLAGS"])
            with open(run.with_name(f"{run.name}.{i}.err"), "w") as stderr:
                words = [*command, *here]
                if i == die_after_joining:
                    words = [sys.executable, "-c", DIES_AFTER_JOINING, coordinator, str(number), str(i)]
                process = subprocess.Popen(words, env=environment, cwd=ROOT, stderr=stderr, stdout=stderr)
            self.started.append(process)
        self.run = run

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.started:
            process.kill()
            process.wait()

    def ends(self, seconds: float = 240) -> list[int]:
        """Their exit statuses."""
        deadline = time.monotonic() + seconds
        return [process.wait(max(0.1, deadline - time.monotonic())) for process in self.started]

    def said(self, i: int) -> str:
        return self.run.with_name(f"{self.run.name}.{i}.err").read_text()

    def wait_for_step(self, step: int, seconds: float = 240) -> None:
        """Waits for the row of a step in the metrics."""
        deadline = time.monotonic() + seconds
        while len(losses(self.run)) < step:
            assert all(process.poll() is None for process in self.started), self.said(0)
            assert time.monotonic() < deadline, self.said(0)
            time.sleep(0.1)


def losses(run: Path) -> list[float]:
    """The losses that a run has written, a step each."""
    with contextlib.suppress(FileNotFoundError):
        lines = (run / "metrics.jsonl").read_text().split("\n")[:-1]
        rows = [json.loads(line) for line in lines]
        assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
        return [row["loss"] for row in rows]
    return []


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def alone(config: Config, run: Path) -> list[float]:
    """The losses of a single process with a single device, here."""
    return losses(alone_run(config, run))


def alone_run(config: Config, run: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        loop.train(config, run)
    return run


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return alone(CONFIG, tmp_path_factory.mktemp("one") / "run")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config_file(tmp_path / "tiny.json", CONFIG)


def together(config: Path, run: Path, cache: Path, number: int, devices: int, *flags: str) -> list[float]:
    """The losses of a run of several processes that all come to its end."""
    with Processes(config, run, cache, number, devices, *flags) as processes:
        statuses = processes.ends()
        assert statuses == [0] * number, [processes.said(i) for i in range(number)]
    return losses(run)


# Numbers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "axis"), [(CONFIG, "fsdp"), (EMBEDS, "data")], ids=["dates", "negatives"])
def test_two_processes_are_one(setting: Config, axis: str, tmp_path: Path, cache: Path, request: pytest.FixtureRequest):
    """Law, dropout on: the losses are those of one process, negatives of both are shared; the first one speaks for both."""
    expected = request.getfixturevalue("one") if setting is CONFIG else alone(setting, tmp_path / "one")
    run, file = tmp_path / "run", write_config_file(tmp_path / "tiny.json", setting)
    meshes = {"data": "1", axis: "2"}
    found = together(
        file, run, cache, 2, 1, *(word for name, n in meshes.items() for word in (f"--train.mesh.{name}", n))
    )
    np.testing.assert_allclose(found, expected, rtol=2e-5)
    log = (run / "train.log").read_text()
    assert f"on 2 cpu devices in 2 processes: mesh, {axis} 2" in log and log.count("all 6 steps are done") == 1
    assert "step" not in (run.with_name("run.1.err")).read_text()
    saved = (run / "config.json").read_text()
    assert getattr(from_json(saved).train.mesh, axis) == 2 and "coordinator" not in saved


@pytest.mark.slow
@pytest.mark.parametrize(("number", "devices"), [(2, 2)])
def test_a_pmap_of_processes_is_one_with_micro_batches(tmp_path: Path, cache: Path, number: int, devices: int):
    """Law, dropout on: with as many micro-batches as there are devices; and evaluations are the same."""
    data = dataclasses.replace(CONFIG.data, eval=TINY.data.eval)
    evaluated = with_train(dataclasses.replace(CONFIG, data=data), eval_every=6)
    expected = last_row(alone_run(with_train(evaluated, num_micro_batches=number * devices), tmp_path / "one"))
    config = write_config_file(tmp_path / "tiny.json", evaluated)
    with Processes(config, tmp_path / "run", cache, number, devices, "--train.runner", "pmap") as processes:
        assert processes.ends() == [0] * number, processes.said(0)
    found = last_row(tmp_path / "run")
    assert found["split"] == expected["split"] == "eval"
    np.testing.assert_allclose([found["loss"], found["accuracy"]], [expected["loss"], expected["accuracy"]], rtol=2e-5)


def last_row(run: Path) -> dict:
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])


@pytest.mark.slow
def test_what_two_processes_saved_one_goes_on_from(config: Path, tmp_path: Path, cache: Path, one: list[float]):
    """Law, dropout on: 2 processes of 2 devices save; 1 of 1 reads that and has the losses of one from the start."""
    flags = ("--train.mesh.data", "1", "--train.mesh.fsdp", "2", "--train.mesh.tensor", "2")
    together(config, tmp_path / "run", cache, 2, 2, *flags, "--train.steps", "3")
    np.testing.assert_allclose(together(config, tmp_path / "run", cache, 1, 1), one, rtol=2e-5)


def translations(folder: Path) -> Config:
    """Text metrics of 40 dates, in five batches at least."""
    data = dataclasses.replace(CONFIG.data, eval=Dates(split="held_out", num_examples=40))
    config = dataclasses.replace(CONFIG, data=data, decode=dataclasses.replace(CONFIG.decode, batch_tokens=128))
    return with_train(config, eval_every=6, text_metrics=("chrf",), best_metric="chrf")


def languages(folder: Path) -> Config:
    """Text metrics of each direction too."""
    config = language_config(folder)
    model = dataclasses.replace(config.model, d_model=16, num_heads=4, d_ff=32)
    config = dataclasses.replace(config, model=model, decode=dataclasses.replace(config.decode, batch_tokens=128))
    return with_train(config, text_metrics=("chrf",))


def samples(folder: Path) -> Config:
    """Prompts of a language model in three batches, whose continuations are drawn."""
    text = folder / "text.txt"
    text.write_text("\n".join(f"{i} and {i + 1} are {2 * i + 1}" for i in range(60)))
    model = dataclasses.replace(CONFIG.model, num_encoder_layers=0)
    lines = PlainText(path=str(text), documents="lines")
    data = dataclasses.replace(CONFIG.data, train=lines, eval=lines, max_source_length=17, max_target_length=17)
    decode = dataclasses.replace(CONFIG.decode, sampling=Sampling(temperature=1.5), batch_tokens=32, max_new_tokens=9)
    prompts = ("1 and", "2", "3 and 4 are", "4 and 5", "5 and 6 are", "6", "7 ", "8 and 9 are", "9")
    train = dataclasses.replace(CONFIG.train, eval_every=6, checkpoint_every=6, sample_prompts=prompts)
    return dataclasses.replace(CONFIG, model=model, objective=CausalLM(), data=data, decode=decode, train=train)


def answers_of(run: Path) -> dict[str, Any]:
    """The text metrics of the last row, to the bit, and the files of answers."""
    files = {
        str(file.relative_to(run)): file.read_text()
        for kind in ("samples", "hypotheses")
        for file in run.glob(f"{kind}/*")
    }
    return {name: value for name, value in last_row(run).items() if "chrf" in name} | files


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "shapes"),
    [(translations, [(2, 1), (4, 1), (2, 2)]), (samples, [(2, 1), (4, 1)]), (languages, [(2, 1)])],
)
def test_text_metrics_and_samples_are_those_of_one_process(
    setting: Callable[[Path], Config], shapes: list[tuple[int, int]], tmp_path: Path, cache: Path
):
    """Law: bit for bit, also in the checkpoint that ranks by them, also where some processes have no batch.

    All evaluate the same parameters: those of a run that was stopped in its last evaluation. Processes of one device divide them.
    """
    config = setting(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "count", lambda *a: os.kill(os.getpid(), signal.SIGTERM) or a[-1]("evaluating", 1, 1))
        alone_run(config, tmp_path / "stopped")
    assert last_row(tmp_path / "stopped")["split"] == "train"
    one = Path(shutil.copytree(tmp_path / "stopped", tmp_path / "one"))
    expected = answers_of(alone_run(config, one))
    assert expected and all(expected.values())
    file = write_config_file(tmp_path / "config.json", config)
    for number, devices in shapes:
        run = Path(shutil.copytree(tmp_path / "stopped", tmp_path / f"run{number}x{devices}"))
        flags = ("--train.mesh.fsdp", "2", "--train.mesh.tensor", str(number // 2))
        with Processes(file, run, cache, number, devices, *(flags if devices == 1 else ())) as processes:
            assert processes.ends() == [0] * number, processes.said(0)
        assert answers_of(run) == expected
        meta = read_document(run / "checkpoints" / str(config.train.steps) / "meta" / "meta.json")
        assert all(meta["metrics"][name] == value for name, value in expected.items() if "chrf" in name)


@pytest.mark.slow
def test_each_gets_whole_arrays_in_shards():
    """Law: bit for bit, whatever the order of the devices in the mesh."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    words = [sys.executable, "-c", GATHERS, free_address()]
    started = [subprocess.Popen([*words, str(i)], env=environment) for i in range(2)]
    assert [process.wait(240) for process in started] == [0, 0]


# Ends ------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("runner", "victim"), [("mesh", 0), ("pmap", 1)])
def test_when_one_is_killed_all_stop_and_start_again(tmp_path: Path, cache: Path, victim: int, runner: str):
    """The other one ends by the missing heartbeat at the latest (100 s), says why, and leaves a folder from which both go on."""
    config = write_config_file(tmp_path / "long.json", with_train(CONFIG, steps=100_000))
    run, flags = tmp_path / "run", ("--train.runner", runner)
    with Processes(config, run, cache, 2, 1, *flags) as processes:
        processes.wait_for_step(5)
        processes.started[victim].kill()
        statuses = processes.ends(130)
        assert statuses[victim] == -signal.SIGKILL and statuses[1 - victim] != 0
        said = processes.said(1 - victim)
        assert "another process of this run is gone" in said and "continues from the last checkpoint" in said
    steps = len(losses(run)) + 2
    found = together(config, run, cache, 2, 1, *flags, "--train.steps", str(steps))
    assert "resuming after step" in (run / "train.log").read_text()
    # The dropout of a pmap is that of as many micro-batches as there are devices.
    never_killed = with_train(
        CONFIG, steps=steps, checkpoint_every=steps, num_micro_batches=2 if runner == "pmap" else 1
    )
    np.testing.assert_allclose(found, alone(never_killed, tmp_path / "never_killed"), rtol=1e-3)


@pytest.mark.slow
def test_a_signal_to_one_is_a_signal_to_all(tmp_path: Path, cache: Path):
    """Both save the same step, and end well."""
    config = write_config_file(tmp_path / "long.json", with_train(CONFIG, steps=100_000, checkpoint_every=50_000))
    with Processes(config, tmp_path / "run", cache, 2, 1) as processes:
        processes.wait_for_step(3)
        processes.started[1].send_signal(signal.SIGTERM)
        assert processes.ends(60) == [0, 0], processes.said(0)
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert int(saved.name) == len(losses(tmp_path / "run"))
    assert f"saved after step {saved.name}" in (tmp_path / "run" / "train.log").read_text()


SIGNALLED = """
import jax, os, signal, sys
from flaxformer_lite.cli.process import program
from flaxformer_lite.training.loop import Loop
show, before, calls = Loop.show_evaluation, sys.argv.pop(1), []
def signalled(self, activity, done, total):
    calls.append(activity)
    print("shows", activity, len(calls), done, total, file=sys.stderr, flush=True)
    if calls[-2:] == [before] * 2 and jax.process_index() == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    show(self, activity, done, total)
Loop.show_evaluation = signalled
program(["train", *sys.argv[1:]])
"""
"""A training whose second process gets a signal before its second report of an activity."""


@pytest.mark.slow
@pytest.mark.parametrize("activity", ["evaluating", "decoding"])
def test_a_signal_to_one_in_an_evaluation_ends_it_in_all_after_the_same_batch(
    tmp_path: Path, cache: Path, activity: str
):
    """Law: as in one process, the step is saved without metrics; the same command ends with the bits of a run without a signal."""
    config = write_config_file(tmp_path / "config.json", with_train(translations(tmp_path), eval_every=4))
    whole, run = tmp_path / "whole", tmp_path / activity
    with Processes(config, whole, cache, 2, 1) as processes:
        assert processes.ends() == [0, 0], processes.said(0)
    with Processes(config, run, cache, 2, 1, program=("-c", SIGNALLED, activity)) as processes:
        assert processes.ends() == [0, 0], processes.said(0) + processes.said(1)
        shown = [[line for line in processes.said(i).splitlines() if line.startswith("shows")] for i in (0, 1)]
    reports = [line.split()[-2:] for line in shown[0] if line.split()[1] == activity]
    assert shown[0] == shown[1] and len(reports) == 2 and reports[-1][0] < reports[-1][1]
    assert last_row(run)["step"] == 4 and last_row(run)["split"] == "train" and not list(run.glob("samples/*"))
    with Processes(config, run, cache, 2, 1) as processes:
        assert processes.ends() == [0, 0], processes.said(0)
    assert_same_run(run, whole)
    assert answers_of(run) == answers_of(whole)


@pytest.mark.slow
def test_a_mistake_is_said_by_one_and_ends_all(config: Path, tmp_path: Path, cache: Path):
    """A folder that is no run folder: the first process looks and says so."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "holiday.jpg").write_bytes(b"")
    with Processes(config, tmp_path / "run", cache, 2, 1) as processes:
        assert "holds files but no config.json" in refused(processes)


def refused(processes: Processes) -> str:
    """What the first process says where both end with status 2; the other one says that it does."""
    assert processes.ends(90) == [2, 2], [processes.said(i) for i in (0, 1)]
    (other,) = [line for line in processes.said(1).splitlines() if "error" in line]
    assert other == "error: process 1 of 2: this run was refused; process 0 reports why"
    assert "Traceback" not in processes.said(0) + processes.said(1)
    (line,) = [line for line in processes.said(0).splitlines() if "error" in line]
    return line


SETTINGS = "process 1 of 2: train.seed is 1, but 0 in process 0; train.steps is 9, but 6 in process 0."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "own_devices", "said"),
    [
        ([["--train.seed", "0"], ["--train.seed", "1", "--train.steps", "9"]], (), SETTINGS),
        ([], (3, 1), "the processes have 3, 1 devices: start all with the same number"),
    ],
)
def test_processes_that_differ_do_not_train(
    own: list[list[str]], own_devices: tuple[int, ...], said: str, config: Path, tmp_path: Path, cache: Path
):
    """All settings that differ are named, with the process, and no run folder is made."""
    with Processes(config, tmp_path / "run", cache, 2, 1, own=own, own_devices=own_devices) as processes:
        assert said in refused(processes)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_processes_in_other_folders_do_not_train(config: Path, tmp_path: Path, cache: Path):
    """Also where the other folder holds the same run, a copy."""
    copy = tmp_path / "copy"
    together(config, tmp_path / "run", cache, 2, 1, "--train.steps", "2")
    shutil.copytree(tmp_path / "run", copy)
    own = [[], ["--workdir", str(copy)]]
    with Processes(config, tmp_path / "run", cache, 2, 1, own=own) as processes:
        assert f"process 1 of 2: --workdir {copy} is not the folder that the first process writes" in refused(processes)


def losses_in(store: Store) -> list[float]:
    """The losses of a run in a bucket, a step each."""
    rows = [json.loads(line) for line in (store.read("metrics.jsonl").content or b"").splitlines()]
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    return [row["loss"] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["file", "s3"])
def test_hosts_that_share_only_a_bucket(
    config: Path, tmp_path: Path, cache: Path, one: list[float], place: str, monkeypatch: pytest.MonkeyPatch
):
    """Law, dropout on, over fsdp 2: both are killed and lose their disks; the losses are those of one process from the start, which
    goes on from what the two have written."""
    with s3_gate() if place == "s3" else contextlib.nullcontext():
        url = f"s3://{BUCKET}/run" if place == "s3" else f"file://{tmp_path}/bucket"
        store = Store(url)
        own = [["--workdir", url]] * 2
        flags = ("--train.mesh.data", "1", "--train.mesh.fsdp", "2")

        def newest() -> int:
            return max(read_ledger(store.read(LEDGER).content, url).steps, default=0)

        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "first"))
        with Processes(config, tmp_path / "run", cache, 2, 1, *flags, "--train.steps", "100000", own=own) as processes:
            deadline = time.monotonic() + 240
            while newest() < 6:
                assert all(process.poll() is None for process in processes.started), processes.said(0)
                assert time.monotonic() < deadline
                time.sleep(0.05)
        shutil.rmtree(tmp_path / "first")
        step = newest() + 2
        with Processes(config, tmp_path / "run", cache, 2, 1, *flags, "--train.steps", str(step), own=own) as processes:
            assert processes.ends() == [0, 0], processes.said(0) + processes.said(1)
            assert f"resuming after step {step - 2}" in processes.said(0)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second"))
        with Processes(config, tmp_path / "run", cache, 1, 1, "--train.steps", str(step + 2), own=own[:1]) as processes:
            assert processes.ends() == [0], processes.said(0)
        assert newest() == step + 2
        found = losses_in(store)
    expected = alone(with_train(CONFIG, steps=step + 2, checkpoint_every=step + 2), tmp_path / "never_killed")
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    np.testing.assert_allclose(found[: len(one)], one, rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("process", [0, 1])
def test_processes_that_wait_in_vain_end_with_a_word(config: Path, tmp_path: Path, cache: Path, process: int):
    """The first one, for whom nobody comes, and another, who finds nobody."""
    with Processes(config, tmp_path / "run", cache, 2, 1, "--join-seconds", "3") as processes:
        processes.started[1 - process].kill()
        assert processes.started[process].wait(60) == 2
        said = processes.said(process)
    assert f"process {process}: waiting for 2 processes to meet at 127.0.0.1:" in said
    last = said.splitlines()[-1]
    assert last.startswith("error: the processes did not meet at --coordinator 127.0.0.1:")
    assert "start all of them within 3 s (--join-seconds)" in last


@pytest.mark.slow
@pytest.mark.parametrize("process", [0, 1])
def test_one_whose_partner_dies_before_its_devices_are_known_ends_with_a_word(
    config: Path, tmp_path: Path, cache: Path, process: int
):
    """By the broken connection to the first process at once, by the missing heartbeat of another within 100 s."""
    with Processes(config, tmp_path / "run", cache, 2, 1, die_after_joining=1 - process) as processes:
        assert processes.started[process].wait(240) == 2, processes.said(process)
        said = processes.said(process)
    assert f"error: process {process} of 2: " in said and "Traceback" not in said, said
