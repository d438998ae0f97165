"""Oracle: all products at once in float64, sorted; whatever the chunks and the devices."""

import numpy as np
import pytest

from flaxformer_lite.core.placement.placement import ONE_DEVICE
from flaxformer_lite.core.retrieval import nearest
from flaxformer_lite.core.retrieval.nearest import NO_DOCUMENT, NearestSearch
from tests.support.placements import placed


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("size", [5, 37, 101])
def test_the_best_of_all_chunks_are_the_best_of_all(devices: int, size: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nearest, "QUERIES_AT_ONCE", 3)
    rng = np.random.default_rng(size)
    queries, documents = (rng.normal(size=(n, 7)).astype(np.float32) for n in (11, 101))
    chunks = (documents[start : start + size] for start in range(0, 101, size))
    found = NearestSearch(13, ONE_DEVICE if devices == 1 else placed(devices, 1)).search(queries, chunks)
    products = queries.astype(np.float64) @ documents.astype(np.float64).T
    wanted = np.argsort(-products, axis=1)[:, :13]
    assert (found.numbers == wanted).all()
    np.testing.assert_allclose(found.scores, np.take_along_axis(products, wanted, 1), rtol=1e-5)


def test_what_fills_the_shares_of_devices_is_no_document():
    """Three documents on eight devices, all with a negative product."""
    documents = -np.arange(1, 4, dtype=np.float32)[:, None]
    found = NearestSearch(5, placed(8, 1)).search(np.ones((1, 1), np.float32), [documents])
    assert found.numbers.tolist() == [[0, 1, 2, NO_DOCUMENT, NO_DOCUMENT]]
    assert found.scores.tolist() == [[-1, -2, -3, -np.inf, -np.inf]]


def test_equal_documents_keep_their_order_and_missing_ones_have_no_number():
    found = NearestSearch(4).search(
        np.ones((1, 2), np.float32), [np.ones((2, 2), np.float32), np.zeros((1, 2), np.float32)]
    )
    assert found.numbers.tolist() == [[0, 1, 2, NO_DOCUMENT]] and found.scores.tolist() == [[2, 2, 0, -np.inf]]
    assert NearestSearch(2).search(np.ones((1, 2), np.float32), []).numbers.tolist() == [[NO_DOCUMENT] * 2]
