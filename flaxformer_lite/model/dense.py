"""Products with kernels: one product of two matrices each, where that pays, in bfloat16 where the kernel is."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.dtypes import promote_dtype
from flax.typing import Dtype
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PyTree

from flaxformer_lite.model.kernels import platform


def product_dtype(x: Array, kernel: Array) -> Dtype:
    """Returns the type in which `matrix_product` multiplies: bfloat16 if the kernel has it, else the type of `x`."""
    return kernel.dtype if kernel.dtype == jnp.bfloat16 else x.dtype


def matrix_product(x: Float[Array, "*B D"], kernel: Float[Array, "D F"]) -> Float[Array, "*B F"]:
    """Returns `x kernel`; on a CPU `x` is seen as a matrix `[M, D]`, with a row for each position.

    The kernel's gradient is then a product of two matrices too. Without it, the product of `[B, T, D]` and `[B, T, F]` over B and T
    makes a transposed copy first, and a CPU takes up to 8 times as long. A TPU copies activations of most lengths to see them as
    matrices, so it gets them as they are (`lab/layout.md`).

    With a kernel in bfloat16, `x` is rounded to it. Sums and result have the type of `x`.
    """
    dtype = product_dtype(x, kernel)
    product = functools.partial(jnp.matmul, preferred_element_type=x.dtype)
    if platform() != "cpu":
        return product(x.astype(dtype), kernel.astype(dtype))
    matrix = x.reshape(-1, x.shape[-1]).astype(dtype)
    return product(matrix, kernel.astype(dtype)).reshape(*x.shape[:-1], kernel.shape[-1])


def promote_all_but_kernel(*operands: ArrayLike | None, dtype: Any = None, inexact: bool = True) -> list[Array | None]:
    """Returns input and bias in the type of the computation, and between them the kernel as it is, for `matrix_product`."""
    x, _, bias = promote_dtype(*operands, dtype=dtype, inexact=inexact)
    return [x, jnp.asarray(operands[1]), bias]


Dense = functools.partial(
    nn.Dense,
    dot_general=lambda x, kernel, *_, **__: matrix_product(x, kernel),
    promote_dtype=promote_all_but_kernel,
)
"""Flax's dense layer with `matrix_product`; parameters `kernel` `[D, F]` and perhaps `bias` `[F]`."""


def round_kernels(params: PyTree, dtype: Dtype) -> PyTree:
    """Returns the parameters with all kernels and embedding tables in `dtype`; biases, norms and scales stay as they are."""

    def rounded(keys: tuple[jax.tree_util.DictKey, ...], leaf: Array) -> Array:
        return leaf.astype(dtype) if keys[-1].key in ("kernel", "embedding") else leaf

    return jax.tree_util.tree_map_with_path(rounded, params)
