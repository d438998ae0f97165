"""Agreement of several processes: the trainer's interface to the others."""

import contextlib
import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from flaxformer_lite.base.hardware import check_platforms
from flaxformer_lite.config import Config
from flaxformer_lite.config.differences import changed, flatten
from flaxformer_lite.core.parallel.sharding import allgather_text, replicated
from flaxformer_lite.training.multihost.meeting import SharedError
from flaxformer_lite.training.signals import StopRequest
from flaxformer_lite.workdir import RunFolder

Result = TypeVar("Result")


class Processes:
    """The processes of a run, which agree at the start, on the data, on a stop and on a save. A single process agrees with itself.

    All processes call the same methods in the same order, after they have met.
    """

    def __init__(self) -> None:
        check_platforms()
        self.count = jax.process_count()
        self.index = jax.process_index()
        self.is_first = self.index == 0
        """Whether this process reports and writes for all."""

    # Start

    @contextlib.contextmanager
    def lock(self, folder: RunFolder, config: Config) -> Iterator[None]:
        """Holds the run, in its folder or in a bucket.

        Raises: ValueError if the folder does not fit this run, or the processes differ in settings or folder.
        """
        self._agree_on_command(config)
        with contextlib.ExitStack() as stack:
            mark = self.on_all(lambda: stack.enter_context(folder.lock(config)) if self.is_first else "")
            if self.count > 1 and folder.bucket is None:
                mark = allgather_text(mark)[0]
                self.on_all(lambda: folder.check_mark(mark))
            self.on_all(folder.receive)
            self.on_all(lambda: folder.check_nothing_lost() if self.is_first else None)
            yield

    def _agree_on_command(self, config: Config) -> None:
        """Raises: SharedError if the processes differ in settings, in the version of JAX or in the number of devices."""
        devices = Counter(device.process_index for device in jax.devices())
        if len(set(devices.values())) > 1:  # JAX cannot exchange a text then
            counts = ", ".join(str(devices[i]) for i in sorted(devices))
            raise SharedError(
                f"the processes have {counts} devices: start all with the same number, for example by CUDA_VISIBLE_DEVICES"
            )
        settings = {setting: repr(value) for setting, value in flatten(config).items()}
        self.agree(
            lambda: {"JAX": jax.__version__, **settings}, "Start all with the same command, except for --process-id"
        )

    # Data

    def on_all(self, function: Callable[[], Result]) -> Result:
        """Calls a function, which may not communicate, in all processes; returns its result here.

        Raises: SharedError in all processes, with each process's message, if one of them raised a ValueError or an OSError.
        """
        if self.count == 1:
            return function()
        message, result = "", None
        try:
            result = function()
        except (ValueError, OSError) as error:
            message = str(error) or repr(error)
        messages = allgather_text(message)
        if any(messages):
            raise SharedError(merge_messages(messages))
        return result  # type: ignore[return-value]  # no process raised, so the function returned

    def first_then_others(self, function: Callable[[], Result]) -> Result:
        """Calls a function in the first process, then in the others, which find the files that the first one wrote.

        Raises: SharedError, as `on_all`.
        """
        if not self.is_first:
            self.on_all(lambda: None)
            return self.on_all(function)
        result = self.on_all(function)
        self.on_all(lambda: None)
        return result

    def agree(self, values: Callable[[], Mapping[str, str]], remedy: str) -> None:
        """Compares named values over the processes. Raises: SharedError naming the differences and the remedy."""
        if self.count == 1:
            return
        first, *others = map(json.loads, allgather_text(json.dumps(dict(values()))))
        lines = []
        for other in others:
            different = changed(other, first, absent="absent")
            lines.append("; ".join(f"{name} is {x}, but {y} in process 0" for name, (x, y) in different.items()))
        if any(lines):
            raise SharedError(f"{merge_messages(['', *lines])}. {remedy}")

    # Evaluation

    def rounds(self, calls: Sequence[list[int]]) -> Iterator[tuple[list[int], int]]:
        """Deals calls, each the numbers of its requests, one a round to each process.

        Yields for each round the call of this process, which is empty if too few are left, and the number of requests in all calls.
        """
        for start in range(0, len(calls), self.count):
            dealt = calls[start : start + self.count]
            yield dealt[self.index] if self.index < len(dealt) else [], sum(map(len, dealt))

    def merge(self, texts: Mapping[int, str]) -> dict[int, str]:
        """Returns the numbered texts of all processes, in all."""
        gathered = allgather_text(json.dumps([*texts.items()]))
        return {i: text for of_process in gathered for i, text in json.loads(of_process)}

    # Stop and save

    def stop_request(self) -> StopRequest:
        return StopRequest() if self.count == 1 else StopConsensus()


class StopConsensus(StopRequest):
    """A signal to any process, or a notice of JAX's preemption service, stops all of them after the same step: at the
    latest two steps later.

    The answer of each exchange is fetched at the next one, so that no process waits for a step in progress. During an evaluation no
    step is: there it is fetched `now`, after each batch, or round of batches, of all processes, and ends the evaluation in all.
    """

    def __init__(self) -> None:
        super().__init__()
        mesh = Mesh(np.array(jax.devices()), ("all",), axis_types=(AxisType.Auto,))
        self._sharding = NamedSharding(mesh, PartitionSpec("all"))
        self._highest = jax.jit(jnp.max, out_shardings=replicated(mesh))
        self._answer: Array | None = None
        self._agreed = 0
        self._exchanges = 0

    def exchange(self, *, now: bool = False) -> None:
        self._exchanges += 1
        with contextlib.suppress(RuntimeError):  # the service is off: JAX_ENABLE_PREEMPTION_SERVICE=0
            if multihost_utils.reached_preemption_sync_point(self._exchanges):
                self.ask("a preemption notice", signal.SIGTERM)
        here = np.full(jax.local_device_count(), self.number, np.int32)
        before = self._answer
        self._answer = self._highest(jax.make_array_from_process_local_data(self._sharding, here))
        answer = self._answer if now else before
        self._agreed = 0 if answer is None else int(answer)

    @property
    def agreed(self) -> int:
        return self._agreed


def merge_messages(messages: Sequence[str]) -> str:
    """Merges the messages of all processes into one line: each message once, with the numbers of its processes; "" is left out."""
    if len(set(messages)) == 1:
        return messages[0]
    lines = []
    for line in dict.fromkeys(filter(None, messages)):
        numbers = [str(i) for i, other in enumerate(messages) if other == line]
        lines.append(f"process{'es' if len(numbers) > 1 else ''} {', '.join(numbers)} of {len(messages)}: {line}")
    return "; ".join(lines)
