"""Oracle: `jax.lax.top_k`, bit for bit, with ties, infinities and rows that are no whole number of blocks."""

import jax
import numpy as np
import pytest

from flaxformer_lite.inference.top_k import BLOCK, top_k


@pytest.mark.parametrize("width", [7, 40 * BLOCK, 41 * BLOCK + 5])
def test_the_largest_numbers_and_their_places(width):
    rng = np.random.default_rng(width)
    rows = [
        rng.standard_normal(width),
        rng.integers(0, 3, width),  # ties inside blocks and between them
        np.where(np.arange(width) == width - 1, 1.0, -np.inf),  # the last number of the last block
        np.full(width, -np.inf),
        np.where(rng.random(width) < 0.1, np.inf, 0.0),
    ]
    x = np.stack(rows).astype(np.float32)
    found, expected = jax.jit(top_k, static_argnums=1)(x, 5), jax.lax.top_k(x, 5)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
