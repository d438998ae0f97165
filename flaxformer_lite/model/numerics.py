"""Number types: what a model computes in, and what sums are taken in."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float64": jnp.float64}


def accumulation_dtype(x: Array) -> Any:
    """The type in which softmax, norms and losses add up: at least float32, float64 where the input is."""
    return jnp.promote_types(x.dtype, jnp.float32)
