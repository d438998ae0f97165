"""The largest of many numbers: the exact answer of `jax.lax.top_k`, for rows as long as a vocabulary."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

BLOCK = 64
"""Numbers in a block: a row of 40,000 then has 625 blocks, as many as a search for ten looks through afterwards."""


def top_k(x: Float[Array, "B W"], k: int) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """Returns the k largest numbers of each row, largest first, and their indices; of equal numbers the first comes first.

    Only the k blocks with the largest maxima are searched: each has a number that comes before all numbers of the other blocks.
    """
    batch, width = x.shape
    num_blocks = width // BLOCK
    if num_blocks < 4 * k:
        return best(x, k)
    full = num_blocks * BLOCK
    maxima = x[:, :full].reshape(batch, num_blocks, BLOCK).max(-1)
    if full < width:
        maxima = jnp.concatenate([maxima, x[:, full:].max(-1, keepdims=True)], -1)
    # In the order of the row, so that the first of equal numbers still comes first.
    blocks = jnp.sort(best(maxima, k)[1], axis=-1)
    indices = (blocks[..., None] * BLOCK + jnp.arange(BLOCK, dtype=blocks.dtype)).reshape(batch, k * BLOCK)
    found = jnp.take_along_axis(x, indices, 1, mode="fill", fill_value=-jnp.inf)
    values, places = best(found, k)
    return values, jnp.take_along_axis(indices, places, 1)


def best(x: Float[Array, "B W"], k: int) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """Returns `jax.lax.top_k` as it is fast on a CPU."""
    # Without barriers XLA sorts whole rows on a CPU; one for both arrays aborts JAX 0.10 on several devices.
    values, indices = map(jax.lax.optimization_barrier, jax.lax.top_k(x, k))
    return values, indices
