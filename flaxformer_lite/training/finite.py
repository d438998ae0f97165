"""Finite numbers: a state with a NaN or an infinity is neither saved nor trained on."""

import functools
import operator

import jax
import jax.numpy as jnp
from jaxtyping import PyTree


def is_finite(tree: PyTree) -> bool:
    """Returns whether every number in a tree of arrays, on any devices, is finite."""
    return bool(_all_finite([x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]))


@jax.jit
def _all_finite(leaves: list[jax.Array]) -> jax.Array:
    return functools.reduce(operator.and_, [jnp.isfinite(x).all() for x in leaves], jnp.bool_(True))
