"""Number types of the computation and of sums."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float64": jnp.float64}


def accumulation_dtype(x: Array) -> Any:
    """Returns the number type of sums in softmax, norms and losses: at least float32, float64 for float64 input."""
    return jnp.promote_types(x.dtype, jnp.float32)
