"""Faster ways to the numbers of the formulas: layouts and random bits that suit a CPU, and steps of a search.

Nothing here changes what a model computes. Each function names its formula, and `tests/core/model/test_fast.py` compares the two.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax.typing import VariableDict
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, PyTree

from flaxformer_lite.core.model.kernels import platform
from flaxformer_lite.core.parallel.sharding import constrain_sharding, current_mesh


def matmul(x: Float[Array, "*B D"], kernel: Float[Array, "D F"], dtype: DTypeLike) -> Float[Array, "*B F"]:
    """Formula: `x kernel`, with sums and result in `dtype`. On a CPU `x` is seen as a matrix, with a row for each position.

    The kernel's gradient is then a product of two matrices too. Without it, the product of `[B, T, D]` and `[B, T, F]` over B and T
    makes a transposed copy first, and a CPU takes up to 8 times as long. A TPU copies activations of most lengths to see them as
    matrices, so it gets them as they are (`lab/layout.md`).
    """
    rows = x.reshape(-1, x.shape[-1]) if platform() == "cpu" else x
    contracted = (((rows.ndim - 1,), (0,)), ((), ()))
    # Looked up at each call: tools for quantisation or adapters put a function of their own in this name's place.
    product = jax.lax.dot_general(rows, kernel, contracted, preferred_element_type=dtype)
    return product.reshape(*x.shape[:-1], kernel.shape[-1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def rounded_matmul(x: Float[Array, "*B D"], kernel: Float[Array, "D F"], dtype: str) -> Float[Array, "*B F"]:
    """Formula: `x kernel`, both rounded to `dtype`, with sums and result in the type of `x`; the same in the gradients.

    dtype: a value of `model.matmul_dtype`.
    """
    return rounded_forward(x, kernel, dtype)[0]


def rounded_forward(x: Array, kernel: Array, dtype: str) -> tuple[Array, tuple[Array, Array]]:
    """Returns the product, and its rounded factors for `rounded_backward`."""
    factors = rounded(x, dtype), rounded(kernel, dtype)
    return matmul(*factors, x.dtype), factors


def rounded_backward(dtype: str, factors: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    """Returns the gradients of `x` and of the kernel.

    A CPU multiplies bfloat16 fast only where both matrices lie row by row. A transposed matrix is a view; a reversed one is a copy.
    """
    x, kernel = factors
    upstream = rounded(gradient, dtype)
    of_x = matmul(upstream, kernel.T, gradient.dtype)
    if platform() == "cpu":
        rows, upstream = x.reshape(-1, x.shape[-1]), upstream.reshape(-1, upstream.shape[-1])
        return of_x, jnp.flip(matmul(jnp.flip(rows.T, 0), upstream, gradient.dtype), 0)
    axes = tuple(range(x.ndim - 1))
    of_kernel = jax.lax.dot_general(x, upstream, ((axes, axes), ((), ())), preferred_element_type=gradient.dtype)
    return of_x, of_kernel


def rounded(x: Array, dtype: str) -> Array:
    """Returns `x` in bfloat16; with `bfloat16_values` on a CPU, the same values in the type of `x`."""
    if dtype == "bfloat16_values" and platform() == "cpu":
        return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    return x.astype(jnp.bfloat16)


rounded_matmul.defvjp(rounded_forward, rounded_backward)


def random_mask(key: Array, shape: tuple[int, ...], rate: float) -> tuple[Bool[Array, "..."], float]:
    """Formula: `jax.random.bernoulli(key, 1 - rate, shape)`. Returns the mask, and the exact rate: a multiple of 2^-16.

    One 32-bit random word serves two elements, 16 bits each, which halves the cost of the random bits (otherwise a quarter of a
    training step on a CPU). The two elements are half of the last axis but one apart, so that no data moves within a row.
    """
    *batch, length, width = shape
    threshold = min(round(rate * 2**16), 2**16 - 1)
    words = jax.random.bits(key, (*batch, (length + 1) // 2, width), jnp.uint32)
    low = (words & 0xFFFF) >= threshold
    high = words >= jnp.uint32(threshold << 16)
    return jnp.concatenate([low, high], axis=-2)[..., :length, :], threshold / 2**16


def rotated_back(rotate: Callable[..., Array]) -> Callable[..., Array]:
    """Decorates `rotate(x, sin, cos, layout)`: its gradient is rotated back by the same angles; sines and cosines have none.

    Formula: the function without the decorator, whose gradient would fill halves of zeros and add them.
    """
    function = jax.custom_vjp(rotate, nondiff_argnums=(3,))
    function.defvjp(
        lambda x, sin, cos, layout: (function(x, sin, cos, layout), (sin, cos)),
        lambda layout, angles, gradient: (function(gradient, -angles[0], angles[1], layout), None, None),
    )
    return function


def cached_values(weights: Float[Array, "B N T S"], value: Float[Array, "B S K Hv"]) -> Float[Array, "B T N Hv"]:
    """Formula: `attention.weighted_values`. Multiplies with the values as a cache holds them, which moves only the answer."""
    batch, num_heads, length, num_slots = weights.shape
    by_head = value.swapaxes(1, 2)
    mixed = weights.reshape(batch, by_head.shape[1], -1, num_slots) @ by_head
    return mixed.reshape(batch, num_heads, length, -1).swapaxes(1, 2)


def step_layout(params: PyTree, kernel: Float[Array, "D V"] | None) -> dict[str, object]:
    """Formula: `{}`. Returns copies of variables in the layouts that the steps of a search read, moved once for all steps.

    kernel  the head's, in the layout of the product, where it is another one than that of the variables
    layers  a tuple of one array a layer for each parameter of the decoder's layers, on a CPU: it would cut them from the array of
            all layers, and copy them. Elsewhere this was not measured, and the second copy would take the device's memory.
    """
    copies: dict[str, Any] = {}
    if kernel is not None:
        copies["kernel"] = jax.lax.optimization_barrier(constrain_sharding(kernel, "D V"))
    if platform() == "cpu" and current_mesh() is None:
        copies["layers"] = jax.tree.map(tuple, params["decoder"]["layers"])
    return copies


def with_layout(variables: VariableDict, copies: dict[str, object]) -> VariableDict:
    """Returns the variables with the copies of `step_layout` in their places. No array is copied."""
    variables = {**variables}
    if "kernel" in copies:
        variables["step"] = {"head": {"kernel": copies["kernel"]}}
    if "layers" in copies:
        params = variables["params"]
        variables["params"] = {**params, "decoder": {**params["decoder"], "layers": copies["layers"]}}
    return variables
