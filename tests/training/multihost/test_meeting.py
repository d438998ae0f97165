"""Laws of how processes meet, without others: the environments and settings that describe them are made up."""

import os
import socket
import subprocess
import sys

import jax
import pytest

from flaxformer_lite.training.multihost import meeting
from flaxformer_lite.training.multihost.meeting import check_place, on_cloud_tpu, started_by_cluster
from tests.support.paths import ROOT


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
        ({"TPU_WORKER_HOSTNAMES": "WARNING: could not determine TPU worker hostnames, please …"}, False),
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


@pytest.mark.slow
def test_without_tpu_chips_jax_itself_says_not_to_ask():
    """What `on_cloud_tpu` builds on, be libtpu installed or not."""
    command = "import os, jax; from flaxformer_lite.training.multihost.meeting import on_cloud_tpu; print(on_cloud_tpu(os.environ))"
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
    monkeypatch.setattr(meeting, "on_cloud_tpu", lambda _: True)
    meeting.connect_processes()
    assert "it trains alone" in capfd.readouterr().err
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(
        ValueError, match=r"as the environment lists them: coordinator_address should be defined.*and set --coordinator"
    ):
        meeting.connect_processes()


def test_a_port_that_is_taken_is_said_before_jax_tries_it():
    with socket.create_server(("", 0)) as taken:
        address = f"localhost:{taken.getsockname()[1]}"
        with pytest.raises(ValueError, match=rf"--coordinator is {address}, but .* \(Address already in use\)"):
            meeting.connect_processes(address, 2, 0)


def test_where_to_meet_is_all_or_nothing():
    with pytest.raises(ValueError, match=r"--num-processes None, --process-id 1: set all three or none"):
        check_place("a:1", None, 1)
    with pytest.raises(ValueError, match=r"--process-id is 2, but --num-processes is 2: must be from 0 to 1"):
        check_place("a:1", 2, 2)
    for given in ("localhost", "localhost:x", "localhost:0", "localhost:65536", ":1", "http://a:1", ""):
        with pytest.raises(ValueError, match=rf"--coordinator is '{given}': must be a host and a port"):
            check_place(given, 2, 0)
    check_place("[::1]:65535", 2, 0)


def test_the_end_by_jax_is_explained_without_asking_jax(monkeypatch, capfd):
    """JAX would wait for the process that is gone: its devices may not be there yet, or no longer."""

    def wait() -> int:
        raise AssertionError("would wait")

    class End(Exception):
        pass

    def exit_at_once(status: int) -> None:
        raise End(status)

    for name in ("process_index", "process_count", "devices", "local_devices"):
        monkeypatch.setattr(jax, name, wait)
    monkeypatch.setattr(os, "_exit", exit_at_once)
    monkeypatch.setattr(meeting, "_name", "process 1 of 2")
    with pytest.raises(End, match="2"):
        meeting.explain_abort(6)
    assert "error: process 1 of 2: JAX has ended it" in capfd.readouterr().err
