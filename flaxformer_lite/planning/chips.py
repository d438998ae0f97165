"""Published figures of TPU chips: what `plan` divides by. Nothing here was measured."""

from collections.abc import Iterable
from dataclasses import dataclass

GIB = 2**30

Coordinates = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One chip, not one core: where a chip shows itself as two devices, each has half of everything."""

    name: str
    flops: float
    """Peak bfloat16 operations a second."""
    hbm_bytes: int
    """Memory, as published; the compiler keeps some of it for itself."""
    hbm_bandwidth: float
    """Bytes a second."""
    link_bandwidth: float
    """Bytes a second over one link between chips, in one direction; the published figure is for all links, both ways."""
    dimensions: int
    """Of the torus that the links make: two links for each."""
    whole_turn: int
    """The length from which on a dimension closes to a ring: itself and, in three dimensions, its multiples."""
    pod: int
    """The most chips that are linked."""
    config_name: str = "default"
    """The compiler's name for the way the chip is used; "megacore": its two cores are one device."""
    source: tuple[str, ...]

    def bandwidth(self, group: Iterable[Coordinates], shape: Coordinates) -> float:
        """Bytes a second that a chip of the group can send to the others of it, at best, in a slice of that shape.

        Along each dimension that the group is spread over: both links where it is a whole ring, else the one that a chip at the
        end of a line has. Groups side by side share links where they are not neighbours; that is not counted.
        """
        links = 0
        for size, places in zip(shape, zip(*group, strict=True), strict=True):
            spread = len(set(places))
            links += 0 if spread == 1 else 2 if spread == size and self.is_ring(shape, size) else 1
        return max(links, 1) * self.link_bandwidth

    def is_ring(self, shape: Coordinates, size: int) -> bool:
        """Whether a dimension of that size closes to a ring in a slice of that shape."""
        if self.dimensions == 2:
            return size == self.whole_turn
        return all(side % self.whole_turn == 0 for side in shape)


DOCS = "https://docs.cloud.google.com/tpu/docs"

CHIPS = {
    chip.name: chip
    for chip in (
        Chip(
            name="v4",
            flops=275e12,
            hbm_bytes=32 * GIB,
            hbm_bandwidth=1200e9,
            link_bandwidth=50e9,
            dimensions=3,
            whole_turn=4,
            pod=4096,
            config_name="megacore",
            source=(f"{DOCS}/v4", "https://arxiv.org/abs/2304.01433 (six links of 50 GB/s)"),
        ),
        Chip(
            name="v5e",
            flops=197e12,
            hbm_bytes=16 * GIB,
            hbm_bandwidth=819e9,
            link_bandwidth=400e9 / 8,
            dimensions=2,
            whole_turn=16,
            pod=256,
            source=(f"{DOCS}/v5e",),
        ),
        Chip(
            name="v5p",
            flops=459e12,
            hbm_bytes=95 * GIB,
            hbm_bandwidth=2765e9,
            link_bandwidth=1200e9 / 12,
            dimensions=3,
            whole_turn=4,
            pod=8960,
            config_name="megacore",
            source=(f"{DOCS}/v5p",),
        ),
        Chip(
            name="v6e",
            flops=918e12,
            hbm_bytes=32 * GIB,
            hbm_bandwidth=1638e9,
            link_bandwidth=800e9 / 8,
            dimensions=2,
            whole_turn=16,
            pod=256,
            source=(f"{DOCS}/v6e",),
        ),
        Chip(
            name="tpu7x",
            flops=2307e12,
            hbm_bytes=192 * GIB,
            hbm_bandwidth=7380e9,
            link_bandwidth=1200e9 / 12,
            dimensions=3,
            whole_turn=4,
            pod=9216,
            source=(f"{DOCS}/tpu7x",),
        ),
    )
}
"""By the names that topologies start with. tpu7x shows each chip as two devices."""
