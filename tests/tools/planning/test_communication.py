"""Oracle: links counted by hand."""

import pytest

from flaxformer_lite.parallel.mesh import MeshConfig, make_mesh
from flaxformer_lite.tools.planning.communication import exchange_seconds
from flaxformer_lite.tools.planning.program import Collective
from flaxformer_lite.tools.planning.topology import describe_slice
from tests.support import needs


@needs.libtpu
def test_the_least_time_of_an_exchange():
    """By hand: v5e has 50 GB/s a link, and a square of 2 × 2 chips one along each side."""
    square = describe_slice("v5e:2x2")
    mesh = make_mesh(MeshConfig(data=1, fsdp=4), square.devices)
    everyone = ((0, 1, 2, 3),)

    def seconds(kind: str, groups: tuple[tuple[int, ...], ...]) -> float:
        return exchange_seconds(Collective(kind, 1e9, groups, 1), groups, mesh, square)

    assert seconds("all-gather", everyone) == pytest.approx(0.75 / 100)
    assert seconds("all-reduce", everyone) == pytest.approx(1.5 / 100)
    assert seconds("collective-permute", ((0, 1), (1, 2), (2, 3), (3, 0))) == pytest.approx(1 / 100)
    assert seconds("collective-permute", ((0, 0), (1, 1))) == 0
