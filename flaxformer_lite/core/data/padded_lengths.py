"""Lengths to which rows are padded, chosen from the data: as many as pay for their compilation."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Integer

from flaxformer_lite.core.data.batch_plan import BatchPlan, Bucket, Shares

MOST_CANDIDATES = 256
"""The most lengths that a choice is made from."""
MOST_LENGTHS = 16


class Cost(NamedTuple):
    """The work of a training, and its seconds by a table: no clock is read, so each start chooses the same lengths."""

    of_length: float
    """Seconds in which the programs of one more length are compiled."""
    of_position: float
    """Seconds in which a step computes one position."""
    steps: int
    """The optimizer steps of the training, where it is not counted in epochs."""
    epochs: float | None = None
    multiple: int = 2
    """The lengths are multiples of it."""


def paying_lengths(
    lengths: Integer[np.ndarray, "I 2"], candidates: Sequence[Bucket], cost: Cost, shares: Shares | None = None
) -> list[int]:
    """Returns the numbers of the candidates that make a training cheapest, compilation included; at least one.

    lengths: the positions of both sides of each row. candidates: shapes of batches, the shortest first.
    """
    plan = BatchPlan(lengths, candidates, 0, shares)
    if not plan.buckets:
        return [len(candidates) - 1]
    rows = np.array([bucket.rows for bucket in plan.buckets], float)
    sizes = np.array([sum(bucket.lengths) for bucket in plan.buckets], float)
    epochs = cost.steps / max(1.0, float(sum(plan.counts / rows))) if cost.epochs is None else cost.epochs
    seconds = {
        tuple(chosen): len(chosen) * cost.of_length + epochs * positions * cost.of_position
        for positions, chosen in divisions(plan.counts.astype(float), rows, sizes, MOST_LENGTHS)
    }
    return [plan.filled[place] for place in min(seconds, key=seconds.__getitem__)]


def divisions(
    counts: Float[np.ndarray, "N"], rows: Float[np.ndarray, "N"], sizes: Float[np.ndarray, "N"], most: int
) -> Iterator[tuple[float, list[int]]]:
    """Yields for 1, 2, … `most` shapes the fewest positions of an epoch, and the numbers of these shapes, the last one included.

    By dynamic programming: `fewest[j]` is the number of positions of all rows up to shape j, if j is the last. counts: the rows
    that fit no shorter shape. rows: those of a batch, which the last batch of a shape has too. sizes: the positions of a row.
    """
    total = np.cumsum(counts)
    places = np.arange(len(counts))
    between = np.ceil((total - total[:, None]) / rows) * rows * sizes
    between = np.where(places[:, None] < places, between, np.inf)
    fewest = np.ceil(total / rows) * rows * sizes
    before = list[Int[np.ndarray, "_"]]()
    for _ in range(min(most, len(counts))):
        chosen = [len(counts) - 1]
        for choice in reversed(before):
            chosen.append(int(choice[chosen[-1]]))
        yield float(fewest[-1]), [place for place in chosen[::-1] if total[place]]
        positions = fewest[:, None] + between
        before.append(positions.argmin(0))
        fewest = positions.min(0)


def padded_lengths(lengths: Int[np.ndarray, "N"], longest: int, most: int) -> tuple[int, ...]:
    """Returns even lengths to which rows are padded with the fewest positions: at most `most` lengths, `longest` the last."""
    ends = np.arange(2, longest + 1, 2)
    counts = np.bincount(np.searchsorted(ends, lengths), minlength=len(ends))[: len(ends)].astype(float)
    *_, (_, chosen) = divisions(counts, np.ones(len(ends)), ends.astype(float), most)
    return tuple(int(ends[place]) for place in chosen)


def candidate_lengths(longest: int, step: int) -> tuple[int, ...]:
    """Returns the lengths to choose from, multiples of `step` where they are few enough, and the longest one."""
    step *= -(-longest // (step * MOST_CANDIDATES))
    return (*range(step, longest, step), longest)
