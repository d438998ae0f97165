"""Contract: what processes agree on. `Checkpoints` asks nothing else."""

import jax
import pytest

from flaxformer_lite.workdir.hosts import agreed, barrier, share


def test_a_process_alone_compares_all_and_agrees_with_itself():
    assert share() == (0, 1)
    assert agreed(None) is None and agreed("damaged") == "damaged"
    barrier("a place")


def test_each_of_several_processes_compares_its_share(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    assert share() == (1, 3)
