"""Meeting: connects the processes of a run before JAX looks for devices."""

import importlib.util
import os
import re
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import jax

from flaxformer_lite.base.bounds import PositiveInt, violation
from flaxformer_lite.base.console import warn
from flaxformer_lite.training.multihost.ending import (
    ABORT_HANDLER,
    EXPLAIN_ABORT,
    REMEDY,
    call_this_process,
    exit_process,
    on_abort,
    report,
)


@dataclass(frozen=True, kw_only=True)
class ProcessConfig:
    """The other processes of a run. No part of the experiment: each process has its own, given on the command line.

    SLURM, Open MPI and the hosts of a TPU slice know their processes; there the defaults are right.
    """

    coordinator: str | None = None
    """`host:port` of the first process, where all meet; None: there is one process, or a cluster's environment lists them."""
    num_processes: PositiveInt | None = None
    """Number of processes that meet at `coordinator`."""
    process_id: int | None = None
    """Number of this process, from 0 to `num_processes` - 1; the only setting that differs between the processes."""
    join_seconds: PositiveInt = 300
    """Seconds to wait for the other processes at the start."""

    def __post_init__(self) -> None:
        meeting = (self.coordinator, self.num_processes, self.process_id)
        if any(value is None for value in meeting) and meeting != (None, None, None):
            raise ValueError(
                f"--coordinator is {self.coordinator}, --num-processes {self.num_processes}, --process-id {self.process_id}: "
                "set all three or none"
            )
        if self.coordinator is not None and not (
            (found := re.fullmatch(r"[^\s/]+:(\d{1,5})", self.coordinator)) and 0 < int(found[1]) < 2**16
        ):
            raise ValueError(
                f"--coordinator is {self.coordinator!r}: must be a host and a port, for example host0:4321"
            )
        for name in ("num_processes", "join_seconds"):
            if message := violation(type(self), name, getattr(self, name), f"--{name.replace('_', '-')}"):
                raise ValueError(message)
        if self.num_processes is not None and not 0 <= (self.process_id or 0) < self.num_processes:
            raise ValueError(
                f"--process-id is {self.process_id}, but --num-processes is {self.num_processes}: must be from 0 to "
                f"{self.num_processes - 1}"
            )


def join(processes: ProcessConfig) -> None:
    """Connects this process and its devices with the others, if there are any. Call it before anything uses JAX's devices.

    Without a coordinator the others are those that SLURM, Open MPI or the hosts of a TPU slice list.

    Raises: ValueError if the processes cannot meet. If others do not come in time, or die, this process ends with status 2.
    """
    coordinator, listed = processes.coordinator, started_by_cluster(os.environ)
    if coordinator is None and not listed and not on_cloud_tpu(os.environ):
        return
    failure = describe_failure(processes)
    if coordinator is not None:
        if processes.process_id == 0:
            check_port(coordinator)
        waiting = f"waiting for {processes.num_processes} processes to meet at {coordinator}"
        print(f"process {processes.process_id}: {waiting}", file=sys.stderr, flush=True)

    def explain(_: int) -> None:
        print(f"error: {failure[0]}, for the reason above: {failure[1]}", file=sys.stderr, flush=True)
        exit_process(2)

    if coordinator is not None:
        call_this_process(f"process {processes.process_id} of {processes.num_processes}")
    handler = ABORT_HANDLER(explain)
    on_abort(handler)
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_DFL)  # while JAX waits, no Python handler runs
    try:
        jax.distributed.initialize(
            coordinator,
            processes.num_processes,
            processes.process_id,
            initialization_timeout=processes.join_seconds,
        )
    except (RuntimeError, ValueError, OSError) as error:
        on_abort(None)
        reason = str(error).partition("\n")[0]
        if coordinator is None and not listed and not isinstance(error, RuntimeError):
            warn(f"this TPU's host has no list of other hosts ({reason}): it trains alone")
            return
        raise ValueError(f"{failure[0]}: {reason}; {failure[1]}") from None
    else:
        on_abort(EXPLAIN_ABORT)
        connect_devices()
    finally:
        signal.signal(signal.SIGINT, on_interrupt)


def connect_devices() -> None:
    """Waits until all processes know each other's devices; ends this process if that fails."""
    try:
        call_this_process(f"process {jax.process_index()} of {jax.process_count()}")
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        report(f"the devices of all processes could not be connected ({reason}). {REMEDY}")
        exit_process(2)


def describe_failure(processes: ProcessConfig) -> tuple[str, str]:
    """Returns the two parts of the message if the processes do not meet: the failure and the remedy."""
    seconds = processes.join_seconds
    remedy = (
        f"start all of them within {seconds} s (--join-seconds), check that all reach the host of the first one, and "
    )
    if processes.coordinator is None:
        where = "listed by the environment"
        remedy += "if the environment lists the wrong ones, set --coordinator, --num-processes and --process-id"
    else:
        where = f"at --coordinator {processes.coordinator}"
        remedy += "start all with the same --coordinator and --num-processes, each with its own --process-id"
    return f"the processes did not meet {where}", remedy


def check_port(coordinator: str) -> None:
    """Raises: ValueError if the first process cannot listen on the port; JAX would end with a segmentation fault."""
    if "JAX_COORDINATOR_BIND_ADDRESS" in os.environ:
        return
    dual = socket.has_dualstack_ipv6()
    try:
        address = ("", int(coordinator.rpartition(":")[2]))
        socket.create_server(address, family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual).close()
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise ValueError(
            f"--coordinator is {coordinator}, but the first process cannot listen there ({reason}): choose another port, or "
            "end the program that uses it"
        ) from None


def started_by_cluster(environment: Mapping[str, str]) -> bool:
    """Returns whether the environment lists several processes: set by SLURM, Open MPI, or GKE on TPUs."""

    def number(name: str) -> int:
        value = environment.get(name, "")
        return int(value) if value.isdecimal() else 0

    if "SLURM_JOB_ID" in environment and number("SLURM_STEP_NUM_TASKS") > 1:
        return True
    if number("OMPI_COMM_WORLD_SIZE") > 1 or number("MEGASCALE_NUM_SLICES") > 1:
        return True
    return "," in (tpu_hosts(environment) or "")


def tpu_hosts(environment: Mapping[str, str]) -> str | None:
    """Returns the hosts of a TPU slice, separated by commas, if the environment lists them; the variables in JAX's order."""
    return environment.get("TPU_PROCESS_ADDRESSES", environment.get("TPU_WORKER_HOSTNAMES"))


def on_cloud_tpu(environment: Mapping[str, str]) -> bool:
    """Returns whether this is a TPU's host whose metadata server alone lists the other hosts.

    Without TPU chips, JAX itself has set TPU_SKIP_MDS_QUERY when it was imported.
    """
    unlisted = "TPU_SKIP_MDS_QUERY" not in environment and tpu_hosts(environment) is None
    wanted = "tpu" in (environment.get("JAX_PLATFORMS") or "tpu")
    return unlisted and wanted and importlib.util.find_spec("libtpu") is not None
