"""Oracle: the table of number types and of the types of their sums."""

import jax
import jax.numpy as jnp
import pytest

from flaxformer_lite.model.layers import DTYPES, accumulation_dtype


@pytest.mark.parametrize(
    ("name", "sums"), [("bfloat16", "float32"), ("float16", "float32"), ("float32", "float32"), ("float64", "float64")]
)
def test_sums_are_at_least_float32(name, sums):
    with jax.enable_x64(True):
        assert accumulation_dtype(jnp.zeros(3, name)) == sums
        assert jnp.dtype(DTYPES.get(name, name)) == name
