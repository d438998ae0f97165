"""Oracles: links counted by hand, and figures of chips copied by hand from where they are published."""

import importlib.util

import jax
import pytest

from flaxformer_lite.tools.planning.topology import CHIPS, describe_slice
from tests.support import needs


@pytest.mark.parametrize(
    ("chip", "shape", "group", "links"),
    [
        ("v5e", (4, 4), [(0, 0), (0, 1)], 1),
        ("v5e", (4, 4), [(0, j) for j in range(4)], 1),  # no ring below 16
        ("v5e", (16, 16), [(0, j) for j in range(16)], 2),
        ("v5e", (16, 16), [(i, j) for i in range(16) for j in range(16)], 4),
        ("v5e", (8, 16), [(i, j) for i in range(8) for j in range(16)], 3),
        ("v5p", (4, 4, 4), [(0, 0, k) for k in range(4)], 2),
        ("v5p", (2, 4, 4), [(0, 0, k) for k in range(4)], 1),  # no whole cube
    ],
)
def test_links_that_a_group_can_use(chip: str, shape: tuple[int, ...], group: list[tuple[int, ...]], links: int):
    figures = CHIPS[chip]
    assert figures.bandwidth(group, shape) == links * figures.link_bandwidth


def test_every_figure_has_a_source():
    for name, chip in CHIPS.items():
        assert chip.name == name and all("https://" in source for source in chip.sources)


PUBLISHED = {
    "v4": (275, 32, 1200, 600, 50, 3, 4, 4096),
    "v5e": (197, 16, 819, 400, 25, 2, 16, 256),  # the network: 6.4 Tb/s a pod
    "v5p": (459, 95, 2765, 1200, 50, 3, 4, 8960),
    "v6e": (918, 32, 1638, 800, 100, 2, 16, 256),
    "tpu7x": (2307, 192, 7380, 1200, 100, 3, 4, 9216),
}
"""Copied by hand: TFLOP/s in bfloat16, GiB and GB/s of HBM, GB/s of all links both ways, Gb/s of the network, the torus' dimensions
and the length from which one closes, chips in a pod."""


def test_figures_are_those_published():
    assert set(CHIPS) == set(PUBLISHED)
    for name, (tera, gib, hbm, links, network, dimensions, whole_turn, pod) in PUBLISHED.items():
        chip = CHIPS[name]
        assert (chip.flops, chip.hbm_bytes, chip.hbm_bandwidth) == (tera * 1e12, gib * 2**30, hbm * 1e9)
        assert 2 * 2 * chip.dimensions * chip.link_bandwidth == links * 1e9
        assert 8 * chip.network_bandwidth == network * 1e9
        assert (chip.dimensions, chip.whole_turn, chip.pod) == (dimensions, whole_turn, pod)


@pytest.mark.parametrize(
    ("topology", "says"),
    [
        ("v9:2x2", "the chips are v4, v5e"),
        ("v5e", "must be a chip and the sides"),
        ("v5e:2x2x2", "have 2 sides"),
        ("v5p:4x4", "have 3 sides"),
        ("v5e:32x32", "a pod of v5e has 256"),
    ],
)
def test_an_impossible_slice_is_refused(topology: str, says: str):
    with pytest.raises(ValueError, match=says):
        describe_slice(topology)


@needs.libtpu
def test_a_slice_that_the_compiler_refuses():
    with pytest.raises(ValueError, match=r"v5e:3x3.*does not know.*even"):
        describe_slice("v5e:3x3")


def test_without_the_compiler_the_way_to_it_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "__version_info__", (0, 10, 2))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install .flaxformer-lite\[tpu\]"):
        describe_slice("v5e:2x2")


def test_an_old_jax_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "__version_info__", (0, 7, 2))
    message = r"compiling for TPUs needs JAX 0\.10 or newer, and this is .*: use an environment"
    with pytest.raises(ValueError, match=message):
        describe_slice("v5e:1x1")
