"""Throughput: tokens and operations per second since the last `train` row, the peak of memory, the time of compiling.

The operations of a step are those of the model's matrix products, by formula.
"""

import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import monitoring
from jaxtyping import PyTree

from flaxformer_lite.base.hardware import process_memory
from flaxformer_lite.config import Config
from flaxformer_lite.core.base.accelerators import peak_flops
from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.data.batch_plan import BatchPlan
from flaxformer_lite.core.data.dataset import zero_batch
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.model.attention import Disentangled, SharedProjection
from flaxformer_lite.core.objectives import Batch

compilations: list[float] = []
"""The seconds that each compilation of this process took, as JAX reports them."""


def note_compilation(event: str, duration_secs: float, **_: str | int) -> None:
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
        self.started = time.perf_counter()
        self.tokens = 0.0
        self.flops = 0.0

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
            return process_memory("VmHWM")
        stats = [device.memory_stats() or {} for device in self.local]
        return max((memory["peak_bytes_in_use"] for memory in stats if "peak_bytes_in_use" in memory), default=None)


# Operations by formula ---------------------------------------------------------------------------------------------------


class Operations(NamedTuple):
    """Operations of a whole step, on all devices."""

    weights: float
    """Products of each matrix weight with each position that it is applied to."""
    attention: float
    """Products of each query with each key and its value, masked or not."""


def weight_sum(model: ModelConfig, params: PyTree, positions: Callable[[str], int]) -> int:
    """Returns the sum over all matrices: weights times the positions of a row that they are applied to."""
    total = 0
    for path, x in leaves_by_path(params).items():
        times = positions(path)
        if isinstance(model.attention, SharedProjection) and re.search(r"/(query|key|value)/", path):
            times *= model.num_heads
        times *= "/relative_" not in path  # `table_sum` counts them
        if model.share_layers and "/layers/" in path:
            times *= model.num_layers[path.partition("/")[0]]
        is_table = path == "embedding/embedding" or path == "target_embedding/embedding"
        if path.endswith("/kernel") or (is_table and model.share_target_output and model.head is not None):
            total += times * x.size
    return total


def head_sum(model: ModelConfig) -> int:
    """Returns the multiplications for one query and one key in all heads: for each product of the score, and for the value.

    A content has products with twice as many relative positions as there are keys.
    """
    products = 2 * model.attention.parts - 1 if isinstance(model.attention, Disentangled) else 1
    return model.num_heads * (products * model.heads.d_key + model.heads.d_value)


def table_sum(model: ModelConfig, length: int) -> int:
    """Returns the multiplications that project the rows of relative positions, once for all texts of a batch."""
    variant = model.attention
    if not isinstance(variant, Disentangled):
        return 0
    first, last = variant.rows(np.array([-length, length])).tolist()
    projected = (last - first + 1) * model.d_model * model.num_heads * model.heads.d_key
    return model.num_encoder_layers * (variant.parts - 1) * projected


def training_flops(model: ModelConfig, params: PyTree, batch: Batch) -> Operations:
    """Returns the operations of a training step: 2 for each multiplication, times 3 for the gradient.

    Queries count with all keys, masked or not.

    Reference: Kaplan et al. 2020, arXiv:2001.08361, section 2.1; Chowdhery et al. 2022, arXiv:2204.02311, appendix B.
    """
    inputs = batch.inputs
    source = 0 if inputs.source_tokens is None else inputs.source_tokens.shape[1]
    target = 0 if inputs.target_tokens is None else inputs.target_tokens.shape[1]
    rows, scored = batch.targets.shape

    def positions(path: str) -> int:
        if path.startswith("encoder/") or re.search(r"/cross_attention/(key|value)/", path):
            return source
        if path.startswith("decoder/"):
            return target
        return 1 if path.startswith("pooler/") else scored

    attention = model.num_encoder_layers * source**2 * head_sum(model)
    attention += model.num_decoder_layers * target * (target + source) * head_sum(model.for_decoder)
    weights = rows * weight_sum(model, params, positions) + table_sum(model, source)
    return Operations(6.0 * weights, 6.0 * rows * attention)
