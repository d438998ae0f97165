"""Settings of decoding: lengths by hand, and the messages."""

import math

import pytest

from flaxformer_lite.core.base.bounds import LARGEST
from flaxformer_lite.core.search.settings import DecodeConfig, Sampling


def test_max_length():
    """Oracle: worked by hand."""
    settings = DecodeConfig(max_length_ratio=1.5, max_length_extra=2)
    assert [settings.max_length(n) for n in (0, 1, 2, 7)] == [2, 3, 5, 12]
    assert DecodeConfig(max_length_ratio=0.25, max_length_extra=0).max_length(3) == 1
    assert DecodeConfig(max_new_tokens=5).max_length(3) == DecodeConfig(max_new_tokens=5).max_length(99) == 5
    assert (
        DecodeConfig(max_length_ratio=3e38).max_length(9)
        == DecodeConfig(max_length_extra=LARGEST).max_length(1)
        == LARGEST
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam_size": 0}, "decode.beam_size is 0: it must be at least 1"),
        ({"alpha": math.nan}, "decode.alpha is nan: it must be finite"),
        ({"alpha": 0.6, "length_penalty": "none"}, "decode.alpha is 0.6, but decode.length_penalty 'none'"),
        (
            {"num_hypotheses": 2},
            "decode.num_hypotheses is 2 but decode.beam_size is 1: decode.num_hypotheses must be between 1 and decode.beam",
        ),
        ({"num_hypotheses": 0}, "decode.num_hypotheses is 0"),
        ({"max_length_ratio": math.inf}, "decode.max_length_ratio is inf"),
        ({"max_length_extra": -1}, "decode.max_length_extra is -1"),
        (
            {"max_length_ratio": 0.0, "max_length_extra": 0},
            "decode.max_length_ratio and decode.max_length_extra are both 0",
        ),
        ({"batch_tokens": 0}, "decode.batch_tokens is 0"),
        ({"max_new_tokens": 0}, "decode.max_new_tokens is 0: it must be at least 1, or None"),
        ({"suppress_ids": (3, -1)}, "decode.suppress_ids is (3, -1): it must be values that are each at least 0"),
        ({"repetition_penalty": 0.0}, "decode.repetition_penalty is 0.0: it must be above 0"),
        (
            {"beam_size": 2, "sampling": Sampling()},
            "decode.beam_size is 2 but decode.sampling is set: set decode.beam_size to 1",
        ),
    ],
)
def test_wrong_settings(settings, message):
    """Oracle: the messages, one line each."""
    with pytest.raises(ValueError) as error:
        DecodeConfig(**settings)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.1}, "decode.sampling.temperature is -0.1: it must be at least 0"),
        ({"temperature": math.inf}, "decode.sampling.temperature is inf"),
        ({"top_k": -1}, "decode.sampling.top_k is -1: it must be at least 0; the default is 0"),
        ({"top_p": 0.0}, "decode.sampling.top_p is 0.0: it must be above 0 and at most 1"),
        ({"top_p": 1.1}, "decode.sampling.top_p is 1.1"),
        ({"min_p": math.nan}, "decode.sampling.min_p is nan: it must be at least 0 and at most 1"),
    ],
)
def test_wrong_settings_of_sampling(settings, message):
    """Oracle: the messages, one line each."""
    with pytest.raises(ValueError) as error:
        Sampling(**settings)
    assert message in str(error.value) and "\n" not in str(error.value)
