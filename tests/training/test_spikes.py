"""Oracle: losses worked by hand, 2 and 4 in turn, so of mean 3 and deviation 1."""

from flaxformer_lite.training.spikes import WINDOW, SpikeWatch


def test_a_spike_is_six_deviations_above_the_steps_before():
    watch = SpikeWatch()
    assert [watch.describe(loss) for loss in [1000.0, *[2.0, 4.0] * (WINDOW // 2)]] == [None] * (WINDOW + 1)
    assert watch.describe(9.1) == "9.1000, where the 100 steps before had 3.0000 ± 1.0000"
    assert watch.describe(9.0) is None  # the last spike has made the deviation larger
    assert SpikeWatch().describe(9.1) is None
