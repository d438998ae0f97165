import threading

import chex
import numpy as np
import pytest

from flaxformer_lite.core.data.dataset import Dataset
from flaxformer_lite.core.data.records import TokenPair
from flaxformer_lite.training.ahead import batches_ahead
from tests.support.experiments import tiny_config

CONFIG = tiny_config()


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    texts = np.arange(5, 405, dtype=np.int32).reshape(100, 4) % 30 + 4
    return Dataset.training([TokenPair(text, text) for text in texts], CONFIG.objective, CONFIG.data, seed=7)


def test_prefetched_batches_come_in_order(dataset: Dataset):
    for step, batch in enumerate(batches_ahead(dataset, 2, 7), start=2):
        chex.assert_trees_all_equal(batch, dataset.batch(step))
    assert step == 6


def test_batches_that_nobody_reads_are_not_made_to_the_end(dataset: Dataset):
    """The thread that makes them ends with the loop; a mistake in it is raised where its batch is read."""
    threads = threading.active_count()
    batches = batches_ahead(dataset, 0, 10**9)
    next(batches)
    batches.close()
    assert threading.active_count() == threads
    with pytest.raises(IndexError):
        list(batches_ahead(dataset, 0, 2, lambda rows: np.array([10**9])))
