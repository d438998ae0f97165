"""Throughput: tokens and operations per second since the last `train` row, the peak of memory, and the time of compiling."""

import time
from typing import Any

import jax
import numpy as np
from jax import monitoring
from jaxtyping import PyTree

from flaxformer_lite.base.hardware import peak_flops, peak_process_memory
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.data.batch_plan import BatchPlan
from flaxformer_lite.data.dataset import zero_batch
from flaxformer_lite.training.flops import training_flops

compilations: list[float] = []
"""The seconds that each compilation of this process took, as JAX reports them."""


def note_compilation(event: str, duration_secs: float, **_: str | int) -> None:
    """Notes the duration of an event of JAX, if that is a compilation."""
    if event == "/jax/core/compile/backend_compile_duration":
        compilations.append(duration_secs)


monitoring.register_event_duration_secs_listener(note_compilation)


def compiling_seconds() -> float:
    """Returns the seconds that this process has compiled so far."""
    return sum(compilations)


class Throughput:
    """Counts steps, their tokens and their operations since the last `train` row, without evaluations and saves."""

    def __init__(self, config: Config, params: PyTree, plan: BatchPlan, devices: np.ndarray) -> None:
        self.plan, self.local = plan, [d for d in devices.flat if d.process_index == jax.process_index()]
        peak = peak_flops(devices.flat[0].device_kind)
        self.name = f"{config.objective.counted}_per_second"
        self.peak = None if peak is None else peak * devices.size
        """Operations per second of all devices in bfloat16, as published; None: not known."""
        self.operations = {} if peak is None else {
            bucket: sum(training_flops(config.model, params, zero_batch(config.objective, bucket))) for bucket in plan.buckets
        }  # fmt: skip
        self.reset()

    def reset(self) -> None:
        """Starts a new row."""
        self.started, self.tokens, self.flops = time.perf_counter(), 0.0, 0.0

    def add(self, batch: int, tokens: float) -> None:
        """Counts a step on that batch of the plan, with its predicted tokens or examples."""
        self.tokens += tokens
        if self.peak:
            self.flops += self.operations[self.plan.batch(batch).bucket]

    def leave_out(self, seconds: float) -> None:
        """Leaves out the time of something other than steps."""
        self.started += seconds

    def row(self) -> dict[str, Any]:
        """Returns the fields of a `train` row: tokens or examples per second; where known, the MFU and the peak of memory.

        Reference: Chowdhery et al. 2022, arXiv:2204.02311, appendix B (model FLOPs utilization).
        """
        seconds = time.perf_counter() - self.started
        row: dict[str, Any] = {self.name: self.tokens / seconds}
        if self.peak:
            row["mfu"] = self.flops / seconds / self.peak
        memory = self.peak_memory()
        return row if memory is None else row | {"peak_memory_bytes": memory}

    def peak_memory(self) -> int | None:
        """Returns the most bytes that were in use on one of this process's devices; on a CPU those of the process."""
        if self.local[0].platform == "cpu":
            return peak_process_memory()
        stats = [device.memory_stats() or {} for device in self.local]
        return max((found["peak_bytes_in_use"] for found in stats if "peak_bytes_in_use" in found), default=None)
