"""Oracle: hand-worked residual commands."""

import jax.numpy as jnp
import pytest

from flaxformer_lite.model.config import POST_NORM, PRE_NORM, Residual
from flaxformer_lite.model.transformer import apply_commands


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        ("", 2),
        ("n", 20),
        ("d", 3),
        ("a", 102),
        ("da", 103),
        ("ad", 103),
        ("nda", 121),
        ("dan", 1030),
        ("and", 1021),
        ("adn", 1030),
        ("ddn", 40),
        ("aa", 202),
    ],
)
def test_residual_commands_apply_left_to_right(commands, expected):
    """x = 2, the norm multiplies by 10, dropout adds 1, the residual is 100."""
    out = apply_commands(commands, jnp.array([2.0]), jnp.array([100.0]), norm=lambda x: 10 * x, dropout=lambda x: x + 1)
    assert out.tolist() == [expected]


@pytest.mark.parametrize(("commands", "expected"), [("a", 2), ("nda", 21), ("dan", 30)])
def test_without_a_residual_a_does_nothing(commands, expected):
    out = apply_commands(commands, jnp.array([2.0]), None, norm=lambda x: 10 * x, dropout=lambda x: x + 1)
    assert out.tolist() == [expected]


def test_named_residuals():
    assert Residual(pre="n", post="da", final="n") == PRE_NORM == Residual()
    assert Residual(pre="", post="dan", final="") == POST_NORM


@pytest.mark.parametrize("place", ["pre", "post", "final"])
@pytest.mark.parametrize("commands", ["x", "dar", "nan", "N"])
def test_residual_commands_are_checked(place, commands):
    with pytest.raises(
        ValueError, match=rf"^model\.residual\.{place} is '{commands}': use the letters n .* d .* a .*\Z"
    ):
        Residual(**{place: commands})
