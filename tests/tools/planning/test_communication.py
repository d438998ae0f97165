"""Oracle: links counted by hand."""

import pytest

from flaxformer_lite.core.parallel.mesh import MeshConfig, make_mesh
from flaxformer_lite.tools.planning.communication import exchange_seconds, exchanges_of
from flaxformer_lite.tools.planning.program import Collective, Program
from flaxformer_lite.tools.planning.topology import CHIPS, Slice
from tests.support.slices import stand_ins


def test_the_least_time_of_an_exchange():
    """By hand: v5e has 50 GB/s a link, and a square of 2 × 2 chips one along each side."""
    square = Slice("v5e:2x2", CHIPS["v5e"], (2, 2), 1, stand_ins("v5e:2x2"))
    mesh = make_mesh(MeshConfig(data=1, fsdp=4), square.devices)
    everyone = ((0, 1, 2, 3),)

    def seconds(kind: str, groups: tuple[tuple[int, ...], ...]) -> float:
        return exchange_seconds(Collective(kind, 1e9, groups, 1), groups, mesh, square)

    assert seconds("all-gather", everyone) == pytest.approx(0.75 / 100)
    assert seconds("all-reduce", everyone) == pytest.approx(1.5 / 100)
    assert seconds("collective-permute", ((0, 1), (1, 2), (2, 3), (3, 0))) == pytest.approx(1 / 100)
    assert seconds("collective-permute", ((0, 0), (1, 1))) == 0


def test_between_slices_the_network_counts():
    """By hand: 3.125 GB/s for a chip of a v5e; of 1 GB three slices lack a quarter each, and an all-reduce sends it twice."""
    slices = Slice("v5e:2x2", CHIPS["v5e"], (2, 2), 4, stand_ins("v5e:2x2", 4))
    mesh = make_mesh(MeshConfig(data=-1, fsdp=2), slices.devices)
    sent = [Collective("all-reduce", 1e9, (), 3, True), Collective("all-gather", 1e9, ((0, 2), (1, 3)), 1)]
    sent += [Collective("all-gather", 1e9, (), 1)]
    found = {(e.kind, e.axes): e for e in exchanges_of(Program(collectives=sent), mesh, slices)}
    assert set(found) == {("all-reduce", "between slices"), ("all-gather", "data"), ("all-gather", "data+fsdp")}
    network = found["all-reduce", "between slices"]
    assert (network.count, network.bytes) == (3, 3e9)
    both = [Collective("all-gather", 1e9, (), 1), Collective("all-gather", 2e9, (), 1, hidden=True)]
    found = [(e.bytes, e.hidden) for e in exchanges_of(Program(collectives=both), mesh, slices)]
    assert found == [(2e9, True), (1e9, False)]
    assert network.seconds == pytest.approx(3 * 2 * 0.75 / 3.125)
