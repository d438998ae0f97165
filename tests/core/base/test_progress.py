"""Contract: what shows progress is a `ProgressCallback`, on the main bar or within the work."""

import pytest

from flaxformer_lite.base.console import Progress
from flaxformer_lite.core.base.progress import ProgressCallback, no_progress
from flaxformer_lite.core.placement.batches import InputBatch
from flaxformer_lite.core.placement.placement import ONE_DEVICE, Prepared

VIEW = Progress(silent=True)


@pytest.mark.parametrize("progress", [no_progress, VIEW.of, VIEW.within], ids=["none", "main", "within"])
def test_a_work_of_the_core_reports_to_it(progress: ProgressCallback):
    prepared = Prepared(InputBatch([1, 0], 2, 8), ())
    assert ONE_DEVICE.map(lambda call: call[0].batch.members, [prepared], "counting", 2, progress) == {0: 0, 1: 1}
    if progress is not no_progress:
        assert VIEW.bars.last_in_words().startswith("counting: 2/2, 100%")
