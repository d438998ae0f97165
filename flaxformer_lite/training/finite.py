"""Finite numbers: a state with a NaN or an infinity is neither saved nor trained on."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree


def is_finite(tree: PyTree) -> bool:
    """Returns whether every number in a tree of arrays, on any devices, is finite.

    One small program for each shape: a program for the whole state takes longer to compile with every array.
    """
    numbers = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return all(bool(_all_finite(x)) for x in numbers)


@jax.jit
def _all_finite(x: Array) -> Bool[Array, ""]:
    return jnp.isfinite(x).all()
