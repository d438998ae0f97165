"""Oracle: trees with one number that is not finite, in any place."""

import jax.numpy as jnp
import pytest

from flaxformer_lite.training.finite import is_finite


@pytest.mark.parametrize("number", [jnp.nan, jnp.inf, -jnp.inf])
def test_one_number_suffices(number: float):
    tree = {"whole": jnp.arange(3), "none": None, "half": jnp.ones((2, 5), jnp.bfloat16), "empty": jnp.zeros((0, 3))}
    assert is_finite(tree) and is_finite({"whole": jnp.arange(3)})
    assert not is_finite(tree | {"half": tree["half"].at[1, 4].set(number)})
