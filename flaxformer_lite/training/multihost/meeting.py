"""Start and end of several processes: they meet before JAX looks for devices, and an error in one of them ends all."""

import contextlib
import ctypes
import importlib.util
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import jax

from flaxformer_lite.base.console import Failure, warn
from flaxformer_lite.base.remote_files import describe_error

GONE = "another process of this run is gone, or cannot be reached"
REMEDY = "All stop; the same command on every host continues from the last checkpoint"


def connect_processes(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    join_seconds: int = 300,
) -> None:
    """Connects this process and its devices with the others, if there are any. Call it before anything uses JAX's devices.

    Without a coordinator the others are those that SLURM, Open MPI or the hosts of a TPU slice list.

    Args:
        coordinator: `host:port` of the first process, where all meet.
        num_processes: number of processes that meet.
        process_id: number of this process, from 0 to `num_processes` - 1; the only argument that differs between them.
        join_seconds: seconds to wait for the other processes.

    Raises: ValueError if the processes cannot meet. If others do not come in time, or die, this process ends with status 2.
    """
    check_place(coordinator, num_processes, process_id)
    listed = started_by_cluster(os.environ)
    if coordinator is None and not listed and not on_cloud_tpu(os.environ):
        return
    where = "as the environment lists them" if coordinator is None else f"at --coordinator {coordinator}"
    failure = f"the processes did not meet {where}"
    remedy = (
        f"start all of them within {join_seconds} s (--join-seconds), check that all reach the host of the first one, "
        "and set --coordinator and --num-processes alike, each with its own --process-id"
    )
    if coordinator is not None:
        call_this_process(f"process {process_id} of {num_processes}")
        if process_id == 0:
            check_port(coordinator)
        waiting = f"waiting for {num_processes} processes to meet at {coordinator}"
        print(f"process {process_id}: {waiting}", file=sys.stderr, flush=True)

    def explain(_: int) -> None:
        print(f"error: {failure}, for the reason above: {remedy}", file=sys.stderr, flush=True)
        exit_at_once(2)

    on_abort(explain)
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_DFL)  # while JAX waits, no Python handler runs
    try:
        jax.distributed.initialize(coordinator, num_processes, process_id, initialization_timeout=join_seconds)
    except (RuntimeError, ValueError, OSError) as error:
        on_abort(None)
        reason = describe_error(error)
        if coordinator is None and not listed and not isinstance(error, RuntimeError):
            warn(f"this TPU's host has no list of other hosts ({reason}): it trains alone")
            return
        raise ValueError(f"{failure}: {reason}; {remedy}") from None
    else:
        on_abort(explain_abort)
        try:  # waits until all processes know each other's devices
            call_this_process(f"process {jax.process_index()} of {jax.process_count()}")
        except RuntimeError as error:
            reason = describe_error(error)
            write_error(f"the devices of all processes could not be connected ({reason}). {REMEDY}")
            exit_at_once(2)
    finally:
        signal.signal(signal.SIGINT, on_interrupt)


def check_place(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Raises: ValueError for arguments of `connect_processes` that do not name a place and a number in it, or not all of them."""
    if coordinator is None or num_processes is None or process_id is None:
        if (coordinator, num_processes, process_id) == (None, None, None):
            return
        raise ValueError(
            f"--coordinator is {coordinator}, --num-processes {num_processes}, --process-id {process_id}: set all three or none"
        )
    address = re.fullmatch(r"[^\s/]+:(\d{1,5})", coordinator)
    if address is None or not 0 < int(address[1]) < 2**16:
        raise ValueError(f"--coordinator is {coordinator!r}: must be a host and a port, for example host0:4321")
    if not 0 <= process_id < num_processes:
        raise ValueError(
            f"--process-id is {process_id}, but --num-processes is {num_processes}: must be from 0 to {num_processes - 1}"
        )


def check_port(coordinator: str) -> None:
    """Raises: ValueError if the first process cannot listen on the port; JAX would end with a segmentation fault."""
    if "JAX_COORDINATOR_BIND_ADDRESS" in os.environ:
        return
    try:
        socket.create_server(("", int(coordinator.rpartition(":")[2]))).close()
    except OSError as error:
        raise ValueError(
            f"--coordinator is {coordinator}, but the first process cannot listen there ({os.strerror(error.errno or 0)}): choose "
            "another port, or end the program that uses it"
        ) from None


def started_by_cluster(environment: Mapping[str, str]) -> bool:
    """Returns whether the environment lists several processes: set by SLURM, Open MPI, or GKE on TPUs."""
    names = ["OMPI_COMM_WORLD_SIZE", "MEGASCALE_NUM_SLICES"]
    if "SLURM_JOB_ID" in environment:
        names.append("SLURM_STEP_NUM_TASKS")
    counts = [environment.get(name, "") for name in names]
    several = any(count.isdecimal() and int(count) > 1 for count in counts)
    hosts = tpu_hosts(environment) or ""
    return several or (
        "," in hosts and not hosts.startswith("WARNING")
    )  # libtpu writes WARNING on a machine without a TPU


def tpu_hosts(environment: Mapping[str, str]) -> str | None:
    """Returns the hosts of a TPU slice, separated by commas, if the environment lists them; the variables in JAX's order."""
    return environment.get("TPU_PROCESS_ADDRESSES", environment.get("TPU_WORKER_HOSTNAMES"))


def on_cloud_tpu(environment: Mapping[str, str]) -> bool:
    """Returns whether this is a TPU's host whose metadata server is the only one to list the other hosts.

    Without TPU chips, JAX itself has set TPU_SKIP_MDS_QUERY when it was imported.
    """
    unlisted = "TPU_SKIP_MDS_QUERY" not in environment and tpu_hosts(environment) is None
    wanted = "tpu" in (environment.get("JAX_PLATFORMS") or "tpu")
    return unlisted and wanted and importlib.util.find_spec("libtpu") is not None


# The end


class SharedError(ValueError):
    """An error that all processes raise at the same point: the first one reports it, all end."""


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Ends this process, one of several, at once on any exception, with a message: the others notice, and end too.

    An orderly exit would wait for the other processes, which wait for this one. A single process raises as usual.
    """
    if jax.process_count() == 1:
        yield
        return
    status = 2
    try:
        yield
        return
    except KeyboardInterrupt:
        status = 130
    except (SharedError, Failure) as error:
        status = 1 if isinstance(error, Failure) else 2
        if jax.process_index() == 0:
            print(f"error: {error}", file=sys.stderr, flush=True)
            time.sleep(1)  # the others end first: their connection ends with this process
        else:
            write_error(f"this run {'was refused' if status == 2 else 'has failed'}; process 0 reports why")
    except jax.errors.JaxRuntimeError as error:
        reason = describe_error(error)
        write_error(f"{GONE} ({reason}). {REMEDY}")
    except (ValueError, OSError) as error:
        write_error(str(error))
    except BaseException:
        traceback.print_exc()
    exit_at_once(status)


def explain_abort(_: int) -> None:
    """Handles SIGABRT once the processes have met: JAX sends it if the first process is gone, or another one is silent.

    Asks JAX for nothing: before its devices exist, and after, it would wait for the process that is gone.
    """
    write_error(f"JAX has ended it, for the reason above. Most likely {GONE}. {REMEDY}")
    exit_at_once(2)


_name = "one of several processes"
_handler: Any = None


def call_this_process(name: str) -> None:
    """Sets the name of this process in error messages, which cannot ask JAX: it may wait for the others before it answers."""
    global _name
    _name = name


def on_abort(handler: Callable[[int], None] | None) -> None:
    """Sets the handler of SIGABRT, or resets it with None.

    A handler in C: JAX ends by SIGABRT from a thread of its own, where no handler of Python's would run.
    """
    global _handler
    new = handler and ctypes.CFUNCTYPE(None, ctypes.c_int)(handler)
    ctypes.CDLL(None).signal(signal.SIGABRT, new)
    _handler = new  # kept alive while it is set


def write_error(line: str) -> None:
    """Writes an error message of this process."""
    print(f"error: {_name}: {line}", file=sys.stderr, flush=True)


def exit_at_once(status: int) -> NoReturn:
    """Ends the process without waiting for the others, as Python's own exit would."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
