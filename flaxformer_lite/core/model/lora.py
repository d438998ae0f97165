"""LoRA: low-rank adapters beside the kernels of projections, `x W + b` becomes `x W + b + alpha / rank · dropout(x) A B`.

    …/query/kernel          [D, F]      W, frozen
    …/query/lora_a/kernel   [D, rank]   A, starts at random
    …/query/lora_b/kernel   [rank, F]   B, starts at 0: the model starts as it was without adapters

Reference: Hu et al. 2021, arXiv:2106.09685, section 4.1. First values of A: those of the library PEFT.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import PyTree

from flaxformer_lite.core.base.bounds import Checked, PositiveFloat, PositiveInt, Rate

ADAPTERS = ("*/lora_a/kernel", "*/lora_b/kernel")
"""Patterns of the parameters of all adapters."""

FIRST_A = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
"""Uniform in ±1 / sqrt(fan-in): PyTorch's Kaiming initialization with `a = sqrt(5)`, as PEFT has it."""


@dataclass(frozen=True, kw_only=True)
class LoRA(Checked, at="model.lora"):
    """Low-rank adapters in the projections; only they train, and what `train.trainable` names besides."""

    rank: PositiveInt = 8
    """Rank of every adapter."""
    alpha: PositiveFloat = 8.0
    """Factor of the adapters' output, divided by the rank: `alpha / rank`."""
    targets: tuple[str, ...] = ("*attention/query", "*attention/value")
    """Patterns of the projections that get an adapter, by paths such as `decoder/layers/attention/query`; `*` stands for all."""
    dropout: Rate = 0.0
    """Dropout rate of the adapters' input."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.targets == ():
            raise ValueError(
                "model.lora.targets is (), so no projection has an adapter: name some, such as '*attention/query', or set "
                "model.lora to None"
            )

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def adapts(self, path: str) -> bool:
        """Returns whether the projection at this path has an adapter."""
        return any(fnmatchcase(path, pattern) for pattern in self.targets)

    def check(self, params: PyTree) -> None:
        """Raises: ValueError for a pattern that matches no projection with an adapter in the parameters."""
        suffix = "/lora_a/kernel"
        adapted = [path.removesuffix(suffix) for path in flatten_dict(params, sep="/") if path.endswith(suffix)]
        for pattern in self.targets:
            if not any(fnmatchcase(path, pattern) for path in adapted):
                raise ValueError(
                    f"model.lora.targets has {pattern!r}, which matches no projection: give patterns of the modules of kernels, "
                    "such as '*attention/query' or '*/feed_forward/*'"
                )


def merged(params: PyTree, lora: LoRA) -> PyTree:
    """Returns the parameters without adapters: each adapted kernel in float32 with its adapter's product added to it."""
    flat = flatten_dict(params, sep="/")
    for path in [path for path in flat if path.endswith("/lora_a/kernel")]:
        module = path.removesuffix("/lora_a/kernel")
        a = flat.pop(path)
        b = flat.pop(f"{module}/lora_b/kernel")
        kernel = flat[f"{module}/kernel"]
        a, b, kernel = (np.asarray(x, np.float32) for x in (a, b, kernel))
        flat[f"{module}/kernel"] = kernel + np.float32(lora.scale) * (a @ b)
    return unflatten_dict(flat, sep="/")
