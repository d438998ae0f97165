"""Oracles: the reference's rates, groups of waves counted by hand; that rotary positions use the scalings: `test_positions.py`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.model.positions import LinearScaling, Llama3Scaling, Rotary, YarnScaling
from tests.support import reference
from tests.support.small_models import rates

LLAMA3 = Llama3Scaling(factor=3.0, low_frequency_factor=1.3, high_frequency_factor=3.1, original_length=31)


def test_llama3_slows_down_long_waves_only():
    """The waves are 2π · 101^(j / 11) long: two are shorter than 31 / 3.1, two more than 31 / 1.3, the other seven are longer."""
    scheme, width, pairs = Rotary(base=101.0, scaling=LLAMA3), 22, 11
    plain = np.array(reference.rotary_rates(pairs, scheme.base))
    with jax.enable_x64(True):
        slower = np.asarray(LLAMA3(jnp.asarray(plain), scheme.base)) / plain
    np.testing.assert_allclose(slower, np.array(rates(scheme, width)) / plain, rtol=1e-12)
    groups = [np.isclose(slower, 1), (slower > 1 / 3 + 1e-9) & (slower < 1 - 1e-9), np.isclose(slower, 1 / 3)]
    assert [int(group.sum()) for group in groups] == [2, 2, 7]
    assert (np.diff(slower) <= 1e-12).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *(
            (functools.partial(of, factor=0.5), r"^model\.positions\.scaling\.factor is 0\.5: it must be at least 1; ")
            for of in (LinearScaling, Llama3Scaling, YarnScaling)
        ),
        *(
            (
                functools.partial(Llama3Scaling, low_frequency_factor=low),
                rf"^model\.positions\.scaling\.low_frequency_factor is {low}: it must be {rule}",
            )
            for low, rule in ((0.0, "above 0"), (4.0, "less than .*high_frequency_factor, which is 4"))
        ),
        *(
            (
                functools.partial(of, original_length=0),
                r"^model\.positions\.scaling\.original_length is 0: it must be at least 1; ",
            )
            for of in (Llama3Scaling, YarnScaling)
        ),
        *(
            (
                functools.partial(YarnScaling, slow_turns=slow),
                rf"^model\.positions\.scaling\.slow_turns is {slow}: it must be {rule}",
            )
            for slow, rule in ((0.0, "above 0"), (33.0, "at most .*fast_turns, which is 32"))
        ),
        (
            functools.partial(YarnScaling, amplitude=0.0),
            r"^model\.positions\.scaling\.amplitude is 0\.0: it must be above 0 .*, or None",
        ),
    ],
)
def test_impossible_scalings_are_named(make, message):
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)
