"""The plan: which examples make batch s, as a function of (seed, step) alone.

There is no iterator state to save. Every epoch has the same number of batches, so `epoch, i = divmod(step, n)`; the plan of an
epoch permutes the examples inside each bucket, cuts them into batches, and permutes the batches.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from flaxformer_lite.data.records import Lengths

PADDING_ROW = -1
"""The example index of a row that only fills up a batch and counts nothing."""


class Bucket(NamedTuple):
    """One shape of a batch: sequences of up to `lengths` tokens, `rows` of them."""

    lengths: Lengths
    rows: int


def make_buckets(
    bucket_lengths: Sequence[int], longest: Lengths, *, tokens_per_batch: int, rows_multiple: int
) -> list[Bucket]:
    """A bucket for each length, with the multiple of `rows_multiple` rows (not 0) that is nearest to `tokens_per_batch`
    positions.

    A pair belongs to the first bucket that holds its longer side; lengths beyond `longest` are not needed and cut off.
    """
    buckets = []
    for length in sorted({min(length, max(longest)) for length in bucket_lengths} | {max(longest)}):
        rows = max(1, round(tokens_per_batch / length / rows_multiple)) * rows_multiple
        buckets.append(Bucket(Lengths(min(length, longest.source), min(length, longest.target)), rows))
    return buckets


def bucket_of(lengths: Sequence[Lengths], buckets: Sequence[Bucket]) -> Int[np.ndarray, "I"]:
    """For each example the index of its bucket, `len(buckets)` where it fits none."""
    sides = np.asarray(lengths, np.int64).reshape(-1, 2)
    fits = [np.searchsorted([b.lengths[side] for b in buckets], sides[:, side]) for side in (0, 1)]
    return np.maximum(*fits)


class Planned(NamedTuple):
    """One batch: its shape, and the example in each row (EMPTY in rows that only fill up)."""

    bucket: Bucket
    examples: Int[np.ndarray, "B"]


class BatchPlan:
    """The batches of every epoch, from the examples' lengths and a seed."""

    def __init__(self, lengths: Sequence[Lengths], buckets: Sequence[Bucket], seed: int):
        which = bucket_of(lengths, buckets)
        self.seed = seed
        self.members = [(bucket, np.flatnonzero(which == i)) for i, bucket in enumerate(buckets)]
        self.members = [(bucket, examples) for bucket, examples in self.members if len(examples)]
        self.batches_per_epoch = sum(-(-len(examples) // bucket.rows) for bucket, examples in self.members)
        self.epoch = functools.lru_cache(maxsize=2)(self._epoch)

    @property
    def buckets(self) -> list[Bucket]:
        """The shapes that occur."""
        return [bucket for bucket, _ in self.members]

    def batch(self, step: int) -> Planned:
        """The batch of optimizer step `step` (0-based)."""
        epoch, i = divmod(step, self.batches_per_epoch)
        return self.epoch(epoch)[i]

    def _epoch(self, epoch: int) -> list[Planned]:
        generator = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
        batches = []
        for bucket, examples in self.members:
            order = generator.permutation(examples)
            order = np.concatenate([order, np.full(-len(order) % bucket.rows, PADDING_ROW)])
            batches += [Planned(bucket, rows) for rows in order.reshape(-1, bucket.rows)]
        return [batches[i] for i in generator.permutation(len(batches))]
