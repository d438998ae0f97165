"""The examples of batch s: a function of (seed, step) alone, without iterator state to save.

Every epoch has the same number of batches n, so `epoch, i = divmod(step, n)`. An epoch permutes the examples of each bucket, cuts
them into batches, and permutes the batches.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from flaxformer_lite.data.records import Lengths

PADDING_ROW = -1
"""The example index of a row that only fills up a batch; its weight is 0."""


class Bucket(NamedTuple):
    """One shape of a batch: `rows` sequences of up to `lengths` tokens."""

    lengths: Lengths
    rows: int


def make_buckets(
    bucket_lengths: Sequence[int], longest: Lengths, *, tokens_per_batch: int, rows_multiple: int
) -> list[Bucket]:
    """Returns a bucket for each length up to `longest`, shortest first.

    A bucket has the positive multiple of `rows_multiple` rows that is nearest to `tokens_per_batch` positions a side.
    """
    buckets = []
    for length in sorted({min(length, max(longest)) for length in bucket_lengths} | {max(longest)}):
        rows = max(1, round(tokens_per_batch / length / rows_multiple)) * rows_multiple
        buckets.append(Bucket(Lengths(min(length, longest.source), min(length, longest.target)), rows))
    return buckets


def bucket_indices(lengths: Sequence[Lengths], buckets: Sequence[Bucket]) -> Int[np.ndarray, "I"]:
    """Returns for each example the index of the first bucket that holds both sides; `len(buckets)` if it fits none."""
    sides = np.asarray(lengths, np.int64).reshape(-1, 2)
    fits = [np.searchsorted([b.lengths[side] for b in buckets], sides[:, side]) for side in (0, 1)]
    return np.maximum(*fits)


class PlannedBatch(NamedTuple):
    """The shape of one batch and the example in each row; `PADDING_ROW` in rows that only fill up."""

    bucket: Bucket
    examples: Int[np.ndarray, "B"]


class BatchPlan:
    """The batches of every epoch, planned from the lengths of the examples and a seed."""

    def __init__(self, lengths: Sequence[Lengths], buckets: Sequence[Bucket], seed: int):
        which = bucket_indices(lengths, buckets)
        self.seed = seed
        self.members = [(bucket, np.flatnonzero(which == i)) for i, bucket in enumerate(buckets)]
        self.members = [(bucket, examples) for bucket, examples in self.members if len(examples)]
        self.batches_per_epoch = sum(-(-len(examples) // bucket.rows) for bucket, examples in self.members)
        self.epoch = functools.lru_cache(maxsize=2)(self._epoch)

    @property
    def buckets(self) -> list[Bucket]:
        """The shapes of batches that occur."""
        return [bucket for bucket, _ in self.members]

    def batch(self, step: int) -> PlannedBatch:
        """Returns the batch of optimizer step `step`, counted from 0."""
        epoch, i = divmod(step, self.batches_per_epoch)
        return self.epoch(epoch)[i]

    def _epoch(self, epoch: int) -> list[PlannedBatch]:
        generator = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
        batches = []
        for bucket, examples in self.members:
            order = generator.permutation(examples)
            order = np.concatenate([order, np.full(-len(order) % bucket.rows, PADDING_ROW)])
            batches += [PlannedBatch(bucket, rows) for rows in order.reshape(-1, bucket.rows)]
        return [batches[i] for i in generator.permutation(len(batches))]
