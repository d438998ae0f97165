"""Contract: both kinds of hosts answer the same questions; `Checkpoints` asks no other."""

import jax
import numpy as np
import pytest

from flaxformer_lite.workdir.hosts import OneFolder, OwnFolders


@pytest.mark.parametrize("hosts", [OneFolder(), OwnFolders()], ids=["one", "own"])
def test_a_process_alone_writes_all_and_compares_all(hosts):
    assert hosts.writes and hosts.share == (0, 1)
    assert hosts.agreed(None) is None and hosts.agreed("damaged") == "damaged"
    state = {"kernel": jax.numpy.arange(3.0)}
    np.testing.assert_array_equal(hosts.to_save(state)["kernel"], [0.0, 1.0, 2.0])
    hosts.barrier("a place")


def test_the_second_process_writes_shards_into_one_folder_and_nothing_into_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    assert OneFolder().writes and OneFolder().share == (1, 3)
    assert not OwnFolders().writes and OwnFolders().share == (0, 1)
