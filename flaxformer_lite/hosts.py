"""Several processes that train one model together, on one host or many: how they meet, agree, and end.

All run the same command and take the same steps; each reads its rows of a batch and holds its share of the state. What they say
and write is the first one's, but for checkpoints, which all write together, into a folder that all can reach.
"""

import contextlib
import ctypes
import importlib.util
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PyTree

from flaxformer_lite.config import Config
from flaxformer_lite.sharding import replicated

Result = TypeVar("Result")


# Meeting ---------------------------------------------------------------------------------------------------------------


def join(config: Config) -> Config:
    """Meets the other processes, where there are any; to be called before anything asks JAX for devices.

    They are those that `train.coordinator` gathers, or else those that a TPU pod, GKE, SLURM or Open MPI has started. Returns the
    config without that meeting, which is no part of the experiment and not the same in all processes.

    Raises: ValueError where they do not come together.
    """
    train = config.train
    if train.coordinator is None and not started_by_cluster(os.environ):
        return config
    try:
        jax.distributed.initialize(train.coordinator, train.num_processes, train.process_id)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        where = f"train.coordinator {train.coordinator}" if train.coordinator else "what the cluster's environment says"
        raise ValueError(
            f"the processes did not come together by {where}: {reason}. Start all of them, each with its own train.process_id, "
            "and let all reach the first one's host"
        ) from None
    LIBC.signal(signal.SIGABRT, ON_ABORT)
    return replace(config, train=replace(train, coordinator=None, num_processes=None, process_id=None))


def started_by_cluster(environment: Mapping[str, str]) -> bool:
    """Whether this process is one of several by the environment, or on a host of a TPU, which knows its pod."""

    def number(name: str) -> int:
        return int(environment.get(name, "0"))

    if "SLURM_JOB_ID" in environment and number("SLURM_STEP_NUM_TASKS") > 1:
        return True
    if number("OMPI_COMM_WORLD_SIZE") > 1 and "OMPI_MCA_orte_hnp_uri" in environment:
        return True
    if "," in environment.get("TPU_WORKER_HOSTNAMES", "") or "MEGASCALE_COORDINATOR_ADDRESS" in environment:
        return True
    has_chips = Path("/dev/accel0").exists() or Path("/dev/vfio/0").exists()
    wanted = "tpu" in environment.get("JAX_PLATFORMS", "tpu")
    return has_chips and wanted and importlib.util.find_spec("libtpu") is not None


def several() -> bool:
    """Whether there is more than one process."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Whether this process is the one that speaks and writes for all."""
    return jax.process_index() == 0


# Agreeing --------------------------------------------------------------------------------------------------------------


def in_turn(function: Callable[[], Result]) -> Result:
    """What the function gives, in the first process before it is called in any other: what it writes the others find."""
    result = function() if is_first() else None
    if several():
        multihost_utils.sync_global_devices("first process done")
    return function() if result is None else result


def from_first(values: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """The first process's numbers, bit for bit, in all."""
    if not several():
        return values
    return np.asarray(multihost_utils.broadcast_one_to_all(values.astype(np.float64).view(np.uint32))).view(np.float64)


def own_copy(params: PyTree) -> PyTree:
    """The parameters whole on a device of this process, for what it computes alone; as they are where it is the only one."""
    if not several():
        return params
    mesh = jax.tree.leaves(params)[0].sharding.mesh
    whole = jax.jit(lambda tree: tree, out_shardings=replicated(mesh))(params)
    return jax.tree.map(lambda x: x.addressable_data(0), whole)


class Vote:
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


def explain_abort(_: int) -> None:
    """What happens on SIGABRT: JAX aborts, from a thread of its own, when the first process (or a heartbeat) is missing.

    Python's own handlers would not come to run any more.
    """
    say(f"JAX has ended it, for the reason above. Most likely {GONE}. {REMEDY}")
    leave(2)


ON_ABORT = ctypes.CFUNCTYPE(None, ctypes.c_int)(explain_abort)


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
            leave(130)
        if isinstance(error, jax.errors.JaxRuntimeError):
            reason = str(error).partition("\n")[0]
            say(f"{GONE} ({reason}). {REMEDY}")
        elif isinstance(error, (ValueError, OSError)):
            say(str(error))
        else:
            traceback.print_exc()
        leave(2)


def say(line: str) -> None:
    print(f"error: process {jax.process_index()} of {jax.process_count()}: {line}", file=sys.stderr, flush=True)


def leave(status: int) -> NoReturn:
    """Ends the process; one of several without waiting for the others, as Python's end would."""
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
