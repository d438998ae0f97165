"""Laws of how processes meet and agree, without others: the environments, settings and answers that tell of them are made up."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from flaxformer_lite.config.train import TrainConfig
from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.text_files import ParallelText
from flaxformer_lite.training import data, multihost
from flaxformer_lite.training.multihost import on_cloud_tpu, started_by_cluster
from flaxformer_lite.workdir.folder import RunFolder
from tests.support.experiments import tiny_config, with_train
from tests.support.paths import ROOT

CONFIG = tiny_config()


# Meeting ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, False),  # a shell that salloc opened
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "1"}, False),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "4"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, False),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, True),
        ({"TPU_PROCESS_ADDRESSES": "local"}, False),
        ({"TPU_PROCESS_ADDRESSES": "local", "TPU_WORKER_HOSTNAMES": "a,b"}, False),  # JAX's order
        ({"TPU_WORKER_HOSTNAMES": "a", "MEGASCALE_NUM_SLICES": "1"}, False),
        ({"TPU_WORKER_HOSTNAMES": "a", "MEGASCALE_NUM_SLICES": "2"}, True),
    ],
)
def test_which_environments_start_several_processes(environment: dict[str, str], expected: bool):
    assert started_by_cluster(environment) == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, True),
        ({"JAX_PLATFORMS": "cpu"}, False),
        ({"TPU_SKIP_MDS_QUERY": "1"}, False),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        ({"TPU_PROCESS_ADDRESSES": "local"}, False),
    ],
)
def test_a_tpu_host_asks_who_else_there_is_where_nothing_tells(
    environment: dict[str, str], expected: bool, monkeypatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: {"libtpu": True}.get(name))
    assert on_cloud_tpu(environment) == expected


def test_without_tpu_chips_jax_itself_says_not_to_ask():
    """What `on_cloud_tpu` builds on, be libtpu installed or not."""
    command = (
        "import os, jax; from flaxformer_lite.training.multihost import on_cloud_tpu; print(on_cloud_tpu(os.environ))"
    )
    environment = {
        name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "TPU_SKIP_MDS_QUERY")
    }
    found = subprocess.run([sys.executable, "-c", command], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert found.stdout == "False\n", found.stderr


def test_where_jax_knows_no_cluster_a_tpu_host_trains_alone(monkeypatch, capfd):
    """Where the environment tells of others it does not."""

    def initialize(*_: object, **__: object) -> None:
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    monkeypatch.setattr(multihost, "on_cloud_tpu", lambda _: True)
    assert multihost.join(CONFIG) == CONFIG
    assert "it trains alone" in capfd.readouterr().err
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(
        ValueError, match=r"as the environment has it: coordinator_address should be defined.*train\.coordinator"
    ):
        multihost.join(CONFIG)


def test_a_port_that_is_taken_is_said_before_jax_tries_it():
    with socket.create_server(("", 0)) as taken:
        address = f"localhost:{taken.getsockname()[1]}"
        config = with_train(CONFIG, coordinator=address, num_processes=2, process_id=0)
        with pytest.raises(ValueError, match=rf"train\.coordinator is {address}, but .* \(Address already in use\)"):
            multihost.join(config)


def test_where_to_meet_is_all_or_nothing():
    with pytest.raises(ValueError, match=r"train\.num_processes None, train\.process_id 1: give all three or none"):
        TrainConfig(coordinator="a:1", process_id=1)
    with pytest.raises(
        ValueError, match=r"train\.process_id is 2, but train\.num_processes is 2: give a number from 0 to 1"
    ):
        TrainConfig(coordinator="a:1", num_processes=2, process_id=2)
    with pytest.raises(ValueError, match=r"train\.num_processes is 0: it must be at least 1"):
        TrainConfig(coordinator="a:1", num_processes=0, process_id=0)
    for given in ("localhost", "localhost:x", "localhost:0", "localhost:65536", ":1", "http://a:1", ""):
        with pytest.raises(ValueError, match=rf"train\.coordinator is '{given}': give a host and a port"):
            TrainConfig(coordinator=given, num_processes=2, process_id=0)
    TrainConfig(coordinator="[::1]:65535", num_processes=2, process_id=0)


# Agreeing --------------------------------------------------------------------------------------------------------------


def told(monkeypatch: pytest.MonkeyPatch, *others: str) -> None:
    """As though there were others, who answer so."""
    monkeypatch.setattr(multihost, "several", lambda: True)
    monkeypatch.setattr(multihost, "allgather_text", lambda text: [text, *others])


def test_what_several_found_is_said_once_with_who_found_it(monkeypatch: pytest.MonkeyPatch):
    def fail() -> None:
        raise ValueError("no a")

    told(monkeypatch, "no a")
    with pytest.raises(multihost.SharedError, match=r"^no a$"):
        multihost.on_all_processes(fail)
    told(monkeypatch, "", "no a", "no b")
    with pytest.raises(multihost.SharedError, match=r"^processes 0, 2 of 4: no a; process 3 of 4: no b$"):
        multihost.on_all_processes(fail)
    with pytest.raises(multihost.SharedError, match=r"^process 2 of 4: no a; process 3 of 4: no b$"):
        multihost.on_all_processes(lambda: 7)
    told(monkeypatch, "")
    assert multihost.on_all_processes(lambda: 7) == 7


def test_a_text_that_another_process_reads_otherwise_is_named(monkeypatch: pytest.MonkeyPatch):
    """The file, not the setting alone: of parallel files the one that differs."""
    source = ParallelText(source="data/a.txt", target="data/b.txt")
    pairs = [Pair("a", "b"), Pair("c", "d")]
    for other, name in (
        ([Pair("a", "b"), Pair("c", "x")], r"data\.train\.target data/b\.txt"),
        ([Pair("ac", "b"), Pair("", "d")], r"data\.train\.source data/a\.txt"),
    ):
        heard: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(multihost, "several", lambda: True)
            patch.setattr(multihost, "allgather_text", lambda text, heard=heard: heard.append(text) or [text])
            data.agree_on("data.train", source, other)
            data.agree_on("data.train", source, pairs)
        told(monkeypatch, heard[0])
        found = rf"^process 1 of 2: {name} is 2 texts with SHA-256 \w+, but 2 texts with SHA-256 \w+ in process 0\. Give all"
        with pytest.raises(multihost.SharedError, match=found):
            data.agree_on("data.train", source, pairs)
        told(monkeypatch, heard[1])
        data.agree_on("data.train", source, pairs)


def test_a_folder_is_known_by_the_mark_of_who_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A copy has the mark of an earlier holder, an empty folder none; a file system that is slow to tell gets some seconds."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    folder, copy = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "copy")
    with folder.lock(CONFIG) as mark:
        folder.check_mark(mark)
        with pytest.raises(ValueError, match="copy is not the folder that the first process writes to"):
            copy.check_mark(mark)
    shutil.copytree(folder.path, copy.path)
    with folder.lock(CONFIG) as mark:
        folder.check_mark(mark)
        with pytest.raises(ValueError, match="copy is not the folder that the first process writes to"):
            copy.check_mark(mark)
        monkeypatch.setattr("time.sleep", lambda wait: wait and shutil.copy(folder.path / ".lock", copy.path))
        copy.check_mark(mark)
