"""Several processes that train one model together, on one host or many: how they meet, agree, and end.

All run the same command and take the same steps; each reads its rows of a batch and holds its share of the state. What they say
and write is the first one's, but for checkpoints, which all write together, into a folder that all can reach.
"""

import contextlib
import ctypes
import importlib.util
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PyTree

from flaxformer_lite.config.differences import changed, flatten
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.console import warn
from flaxformer_lite.parallel.sharding import replicated

Result = TypeVar("Result")


# Meeting ---------------------------------------------------------------------------------------------------------------


def join(config: Config) -> Config:
    """Meets the other processes, where there are any; to be called before anything asks JAX for devices.

    They are those that `train.coordinator` gathers, or else those that SLURM, Open MPI or the hosts of a TPU slice stand for.
    Returns the config without that meeting, which is no part of the experiment and not the same in all processes.

    Raises: ValueError where they do not come together; where they are waited for in vain the process ends, with status 2.
    """
    train, told = config.train, started_by_cluster(os.environ)
    if train.coordinator is None and not told and not on_cloud_tpu(os.environ):
        return config
    remedy = f"start all of them within {train.join_seconds} s (train.join_seconds), let all reach the first one's host, and "
    if train.coordinator is None:
        where = "as the environment has it"
        remedy += "where it knows them not, say so with train.coordinator, train.num_processes and train.process_id"
    else:
        where = f"at train.coordinator {train.coordinator}"
        remedy += "give all the same train.coordinator and train.num_processes, each its own train.process_id"
        if train.process_id == 0:
            check_port(train.coordinator)
        said = f"process {train.process_id}: waiting for {train.num_processes} processes to meet at {train.coordinator}"
        print(said, file=sys.stderr, flush=True)
    not_met = HANDLER(lambda _: end(f"the processes did not come together {where}, for the reason above: {remedy}"))
    LIBC.signal(signal.SIGABRT, not_met)
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_DFL)  # while it waits, Python's own would not come to run
    try:
        jax.distributed.initialize(
            train.coordinator, train.num_processes, train.process_id, initialization_timeout=train.join_seconds
        )
    except (RuntimeError, ValueError, OSError) as error:
        LIBC.signal(signal.SIGABRT, None)
        reason = str(error).partition("\n")[0]
        if train.coordinator is None and not told and not isinstance(error, RuntimeError):
            warn(f"nothing tells this TPU's host of others ({reason}): it trains alone")
            return config
        raise ValueError(f"the processes did not come together {where}: {reason}; {remedy}") from None
    finally:
        signal.signal(signal.SIGINT, on_interrupt)
    LIBC.signal(signal.SIGABRT, ON_ABORT)
    return replace(config, train=replace(train, coordinator=None, num_processes=None, process_id=None))


def check_port(coordinator: str) -> None:
    """Raises: ValueError where the first process cannot listen there; JAX would end with a segmentation fault."""
    if "JAX_COORDINATOR_BIND_ADDRESS" in os.environ:
        return
    dual = socket.has_dualstack_ipv6()
    try:
        address = ("", int(coordinator.rpartition(":")[2]))
        socket.create_server(address, family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual).close()
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise ValueError(
            f"train.coordinator is {coordinator}, but the first process cannot listen there ({reason}): give all another port, or "
            "end what has it"
        ) from None


def started_by_cluster(environment: Mapping[str, str]) -> bool:
    """Whether the environment tells that this process is one of several: by SLURM, Open MPI, or GKE on TPUs."""

    def number(name: str) -> int:
        value = environment.get(name, "")
        return int(value) if value.isdecimal() else 0

    if "SLURM_JOB_ID" in environment and number("SLURM_STEP_NUM_TASKS") > 1:
        return True
    if number("OMPI_COMM_WORLD_SIZE") > 1 or number("MEGASCALE_NUM_SLICES") > 1:
        return True
    return "," in (tpu_hosts(environment) or "")


def tpu_hosts(environment: Mapping[str, str]) -> str | None:
    """The hosts of a TPU slice, with commas in between, where the environment lists them, in JAX's order."""
    return environment.get("TPU_PROCESS_ADDRESSES", environment.get("TPU_WORKER_HOSTNAMES"))


def on_cloud_tpu(environment: Mapping[str, str]) -> bool:
    """Whether this is a TPU's host whose metadata server alone knows of the others.

    Where there are no TPU chips, JAX itself has set TPU_SKIP_MDS_QUERY when it was imported.
    """
    asks = "TPU_SKIP_MDS_QUERY" not in environment and tpu_hosts(environment) is None
    wanted = "tpu" in (environment.get("JAX_PLATFORMS") or "tpu")
    return asks and wanted and importlib.util.find_spec("libtpu") is not None


def several() -> bool:
    """Whether there is more than one process."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Whether this process is the one that speaks and writes for all."""
    return jax.process_index() == 0


# Agreeing --------------------------------------------------------------------------------------------------------------


class SharedError(ValueError):
    """A mistake that all processes have come to know of in the same place: the first one says it, all end."""


def allgather_text(text: str) -> list[str]:
    """What each process gives, in their order, in all."""
    if not several():
        return [text]
    mine = np.frombuffer(text.encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(len(mine)))
    row = np.zeros(lengths.max(initial=1), np.uint8)
    row[: len(mine)] = mine
    rows = multihost_utils.process_allgather(row)
    return [bytes(row[:length]).decode() for row, length in zip(rows, lengths, strict=True)]


def on_all_processes(function: Callable[[], Result]) -> Result:
    """What the function gives here, once all processes have called it; it is to work without the others.

    Raises: SharedError in all, with what each found, where one raised a ValueError or an OSError.
    """
    if not several():
        return function()
    found, result = "", None
    try:
        result = function()
    except (ValueError, OSError) as error:
        found = str(error) or repr(error)
    if any(errors := allgather_text(found)):
        raise SharedError(merge_messages(errors))
    return result  # type: ignore[return-value]  # it was called: without an error


def merge_messages(found: Sequence[str]) -> str:
    """What the processes found, by their number, in one line: each thing once, with those that found it; "" is nothing."""
    if len(set(found)) == 1:
        return found[0]
    lines = []
    for line in dict.fromkeys(filter(None, found)):
        numbers = [str(i) for i, other in enumerate(found) if other == line]
        lines.append(f"process{'es' * (len(numbers) > 1)} {', '.join(numbers)} of {len(found)}: {line}")
    return "; ".join(lines)


def first_process_first(function: Callable[[], Result]) -> Result:
    """What the function gives, in the first process before it is called in any other: what it writes the others find.

    Raises: SharedError, as `on_all_processes`.
    """
    result = on_all_processes(function if is_first() else lambda: None)
    return on_all_processes(lambda: function() if result is None else result)


def agree(here: Mapping[str, str], remedy: str) -> None:
    """Raises: SharedError, in all processes, where one has other values by some name than the first."""
    first, *others = map(json.loads, allgather_text(json.dumps(dict(here))))
    lines = [unlike(other, first) for other in others]
    if any(lines):
        raise SharedError(f"{merge_messages(['', *lines])}. {remedy}")


def unlike(here: Mapping[str, str], first: Mapping[str, str]) -> str:
    """The names whose values are not the first process's, with both, in one line."""
    different = changed(here, first, absent="not there")
    return "; ".join(f"{name} is {value}, but {other} in process 0" for name, (value, other) in different.items())


def agree_on_command(config: Config) -> None:
    """Raises: SharedError, in all processes, where one has other settings, another JAX, or more devices than others."""
    devices = Counter(device.process_index for device in jax.devices())
    if len(set(devices.values())) > 1:
        counts = ", ".join(str(devices[i]) for i in sorted(devices))
        raise SharedError(f"the processes have {counts} devices: give each as many, as with CUDA_VISIBLE_DEVICES")
    settings = {setting: repr(value) for setting, value in flatten(config).items()}
    agree({"JAX": jax.__version__, **settings}, "Give all the same command, but for train.process_id")


def from_first(values: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """The first process's numbers, bit for bit, in all."""
    if not several():
        return values
    return np.asarray(multihost_utils.broadcast_one_to_all(values.astype(np.float64).view(np.uint32))).view(np.float64)


def local_replica(params: PyTree) -> PyTree:
    """The parameters whole on a device of this process, for what it computes alone; as they are where it is the only one."""
    if not several():
        return params
    mesh = jax.tree.leaves(params)[0].sharding.mesh
    whole = jax.jit(lambda tree: tree, out_shardings=replicated(mesh))(params)
    return jax.tree.map(lambda x: x.addressable_data(0), whole)


class StopConsensus:
    """Whether any process wishes to stop. All hear of a wish after the same step, the next but one at the latest.

    The answer to each question is fetched when the next one is asked, so that nobody waits for a step that is under way.
    """

    def __init__(self) -> None:
        mesh = Mesh(np.array(jax.devices()), ("all",), axis_types=(AxisType.Auto,))
        self.sharding = NamedSharding(mesh, PartitionSpec("all"))
        self.any = jax.jit(jnp.max, out_shardings=replicated(mesh))
        self.asked: Array | None = None

    def ask(self, wish: bool) -> bool:
        """Whether any process had the wish when this was asked last."""
        here = np.full(jax.local_device_count(), wish, np.int32)
        answer, self.asked = self.asked, self.any(jax.make_array_from_process_local_data(self.sharding, here))
        return answer is not None and bool(answer)


# Ending ----------------------------------------------------------------------------------------------------------------

GONE = "another process of this run is gone, or cannot be reached"
REMEDY = "All stop; the same command on every host goes on from the last checkpoint"
LIBC = ctypes.CDLL(None)


HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
"""Of a signal, for C: with SIGABRT JAX ends, from a thread of its own, and Python's handlers would not come to run any more."""


def explain_abort(_: int) -> None:
    """What happens on SIGABRT when the first process (or a heartbeat) is missing."""
    say(f"JAX has ended it, for the reason above. Most likely {GONE}. {REMEDY}")
    exit_process(2)


ON_ABORT = HANDLER(explain_abort)


@contextlib.contextmanager
def all_or_none() -> Iterator[None]:
    """Within, what ends one of several processes ends it at once and with a message, so that the others see it gone and end too.

    To leave in good order would be to wait for the others, who wait for this one.
    """
    try:
        yield
    except BaseException as error:
        if not several():
            raise
        if isinstance(error, KeyboardInterrupt):
            exit_process(130)
        if isinstance(error, SharedError):
            if is_first():
                print(f"error: {error}", file=sys.stderr, flush=True)
                time.sleep(1)  # the others end first: what connects them goes with this one
            else:
                say("this run is refused; the first process says why")
            exit_process(2)
        if isinstance(error, jax.errors.JaxRuntimeError):
            reason = str(error).partition("\n")[0]
            say(f"{GONE} ({reason}). {REMEDY}")
        elif isinstance(error, (ValueError, OSError)):
            say(str(error))
        else:
            traceback.print_exc()
        exit_process(2)


def say(line: str) -> None:
    print(f"error: process {jax.process_index()} of {jax.process_count()}: {line}", file=sys.stderr, flush=True)


def end(line: str) -> NoReturn:
    """Ends the process with a message."""
    print(f"error: {line}", file=sys.stderr, flush=True)
    exit_process(2)


def exit_process(status: int) -> NoReturn:
    """Ends the process; one of several without waiting for the others, as Python's end would."""
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
