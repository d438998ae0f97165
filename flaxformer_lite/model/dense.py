"""Products with kernels: one product of two matrices each, where that pays."""

import functools

from flax import linen as nn
from jaxtyping import Array, Float

from flaxformer_lite.model.kernels import platform


def matrix_product(x: Float[Array, "*B D"], kernel: Float[Array, "D F"]) -> Float[Array, "*B F"]:
    """Returns `x kernel`; on a CPU `x` is seen as a matrix `[M, D]`, with a row for each position.

    The kernel's gradient is then a product of two matrices too. Without it, the product of `[B, T, D]` and `[B, T, F]` over B and T
    makes a transposed copy first, and a CPU takes up to 8 times as long. A TPU copies activations of most lengths to see them as
    matrices, so it gets them as they are (`docs/layout.md`).
    """
    if platform() != "cpu":
        return x @ kernel
    return (x.reshape(-1, x.shape[-1]) @ kernel).reshape(*x.shape[:-1], kernel.shape[-1])


Dense = functools.partial(nn.Dense, dot_general=lambda x, kernel, *_, **__: matrix_product(x, kernel))
"""Flax's dense layer with `matrix_product`; parameters `kernel` `[D, F]` and perhaps `bias` `[F]`."""
