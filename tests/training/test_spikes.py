"""Oracle: losses worked by hand, 2 and 4 in turn, so of mean 3 and deviation 1."""

from flaxformer_lite.training.spikes import WINDOW, describe_spike


def test_a_spike_is_six_deviations_above_the_steps_before():
    losses: list[float] = []
    usual = [1000.0, *[2.0, 4.0] * (WINDOW // 2)]
    assert [describe_spike(losses, loss) for loss in usual] == [None] * (WINDOW + 1)
    assert losses == usual[1:]
    assert describe_spike(losses, 9.1) == "9.1000, where the 100 steps before had 3.0000 ± 1.0000"
    assert describe_spike(losses, 9.0) is None  # the last spike has made the deviation larger
    assert describe_spike([], 9.1) is None


def test_losses_that_are_nearly_equal_have_no_spike_below_a_hundredth():
    """Their deviation is 0, so six of them are nothing."""
    assert describe_spike([2.0] * WINDOW, 2.019) is None
    assert describe_spike([2.0] * WINDOW, 2.021) is not None
