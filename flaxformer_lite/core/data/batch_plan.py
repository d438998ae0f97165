"""The examples of batch s: a function of (seed, step) alone, without iterator state to save.

Every epoch has the same number of batches n, so `epoch, i = divmod(step, n)`. An epoch permutes the examples of each bucket, cuts
them into batches, and permutes the batches.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal, NamedTuple

import numpy as np
from annotated_types import Ge
from jaxtyping import Bool, Float, Int, Integer

from flaxformer_lite.core.base.annotations import Answers
from flaxformer_lite.core.base.bounds import Checked, PositiveInt
from flaxformer_lite.core.data.records import Lengths, RowMaker

PADDING_ROW = -1
"""The example index of a padding row of a batch; its weight is 0."""


Length = Annotated[int, Ge(2)]
"""Tokens in a row: at least one, and EOS."""
ANY_DATA = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Lengths for data that is not known."""


@dataclass(frozen=True, kw_only=True)
class BatchShapes(Checked, at="data"):
    """The settings that decide the shapes of batches."""

    tokens_per_batch: Annotated[PositiveInt, Answers.SAME] = 4096
    """The batch size, in tokens: intended number of source positions in a batch, and as many of the target, padding included. A
    batch of short texts has more rows than one of long texts: max(1, round(tokens_per_batch / length / rows_multiple)) *
    rows_multiple. So a long bucket holds more positions: at the defaults 64 rows of 256, which are 16,384."""
    rows_multiple: Annotated[PositiveInt, Answers.SAME] = 64
    """The rows of every batch are a multiple of this number, which is thus the smallest batch size in rows. The devices that share
    the rows must divide it."""
    rows: Annotated[PositiveInt | None, Answers.SAME] = None
    """The batch size, in rows: each batch has this number of rows, whatever its length. It takes the place of `tokens_per_batch`
    and `rows_multiple`, which count where it is None."""
    bucket_lengths: tuple[Length, ...] | Literal["auto"] = "auto"
    """Lengths to which pairs are padded, in tokens with EOS; each is one compiled shape. auto: as many as pay for their
    compilation, chosen from the lengths of the training data at the first start (docs/training.md). Packed documents have one
    length. Evaluation leaves out lengths that fill no batch, and pads their pairs to the next length."""
    max_source_length: Length = 256
    """Longest source, in tokens with EOS. Training drops longer pairs and reports their number; evaluation and translation
    truncate them with a warning. Also the length of an encoder row filled with documents, and the limit of texts to classify or
    embed."""
    max_target_length: Length = 256
    """Longest target, in tokens with EOS; also the length of a decoder row filled with documents."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.bucket_lengths:
            raise ValueError("data.bucket_lengths is (): it must have one or more lengths of at least 2")
        for name in ("tokens_per_batch", "rows_multiple"):
            value = getattr(self, name)
            if self.rows is not None and value != getattr(BatchShapes, name):
                raise ValueError(
                    f"data.rows is {self.rows} and data.{name} is {value}: a batch is counted in rows or in tokens; leave one out"
                )

    @property
    def rows_divisor(self) -> tuple[str, int]:
        """A setting whose value divides the rows of each batch, and the value."""
        return ("data.rows_multiple", self.rows_multiple) if self.rows is None else ("data.rows", self.rows)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths to which pairs are padded; where they are chosen from data, those that fit any while they are not known."""
        return ANY_DATA if self.bucket_lengths == "auto" else self.bucket_lengths

    @property
    def longest(self) -> Lengths:
        return Lengths(self.max_source_length, self.max_target_length)


class Bucket(NamedTuple):
    """One shape of a batch: `rows` sequences of up to `lengths` tokens."""

    lengths: Lengths
    rows: int


def make_buckets(
    bucket_lengths: Sequence[int], longest: Lengths, tokens_per_batch: int, rows_multiple: int, rows: int | None = None
) -> list[Bucket]:
    """Returns a bucket for each length up to `longest`, shortest first.

    A bucket has `rows` rows; None: the positive multiple of `rows_multiple` that is nearest to `tokens_per_batch` positions a side.
    """
    buckets = []
    for length in sorted({min(length, max(longest)) for length in bucket_lengths} | {max(longest)}):
        of_length = rows or max(1, round(tokens_per_batch / length / rows_multiple)) * rows_multiple
        buckets.append(Bucket(Lengths(min(length, longest.source), min(length, longest.target)), of_length))
    return buckets


def batch_shapes(objective: RowMaker[object], config: BatchShapes) -> list[Bucket]:
    """Returns the shapes of an objective's batches: a single one if documents fill the rows."""
    packed = objective.packed_row(config.longest)
    sizes = (config.tokens_per_batch, config.rows_multiple, config.rows)
    if packed is not None:
        return make_buckets((), packed, *sizes)
    buckets = make_buckets(config.lengths, objective.longest_row(config.longest), *sizes)
    return [bucket._replace(lengths=objective.longest_row(bucket.lengths)) for bucket in buckets]


def bucket_indices(
    lengths: Sequence[Lengths] | Integer[np.ndarray, "I 2"], buckets: Sequence[Bucket]
) -> Integer[np.ndarray, "I"]:
    """Returns for each example the index of the first bucket that holds both sides; `len(buckets)` if it fits none."""
    sides = np.asarray(lengths).reshape(-1, 2)
    indices = np.empty(len(sides), np.min_scalar_type(len(buckets)))
    sources = [bucket.lengths.source for bucket in buckets]
    targets = [bucket.lengths.target for bucket in buckets]
    for chunk in slices(len(sides)):
        first_for_source = np.searchsorted(sources, sides[chunk, 0])
        first_for_target = np.searchsorted(targets, sides[chunk, 1])
        indices[chunk] = np.maximum(first_for_source, first_for_target)
    return indices


def fewer_buckets(lengths: Sequence[Lengths] | Integer[np.ndarray, "I 2"], buckets: Sequence[Bucket]) -> list[Bucket]:
    """Returns the buckets without those whose examples fill no batch, if the next one in use is at most twice as long.

    Their examples join that next bucket: an evaluation then compiles fewer shapes, and pads fewer rows.
    """
    counts = np.bincount(bucket_indices(lengths, buckets), minlength=len(buckets))[: len(buckets)]
    used = np.flatnonzero(counts).tolist()
    kept, waiting = [], 0
    for i, after in zip(used, [*used[1:], None], strict=False):
        bucket = buckets[i]
        waiting = waiting + int(counts[i])
        if after is None or waiting >= bucket.rows or max(buckets[after].lengths) > 2 * max(bucket.lengths):
            kept.append(bucket)
            waiting = 0
    return kept or list(buckets)


def slices(number: int, most: int = 2**20) -> Iterator[slice]:
    """Yields slices of at most `most` items that cover `number` items: temporary arrays stay small."""
    for start in range(0, number, most):
        yield slice(start, min(start + most, number))


class PlannedBatch(NamedTuple):
    """The shape of one batch and the example in each row; `PADDING_ROW` in padding rows."""

    bucket: Bucket
    examples: Int[np.ndarray, "B"]


class Epoch(NamedTuple):
    """The rows of all batches, bucket after bucket, and for each step of the epoch the number of its batch."""

    examples: Int[np.ndarray, "R"]
    batches: Int[np.ndarray, "N"]


class Shares(NamedTuple):
    """The sizes of the sources, whose examples follow each other, and each source's share of the rows of an epoch."""

    sizes: Sequence[int]
    shares: Float[np.ndarray, "P"]


class Mixing(NamedTuple):
    """The weights, or the temperature, that decide each source's share of the rows in a mixture."""

    weights: tuple[float, ...] | None = None
    """One for each source; None: by the temperature."""
    temperature: float = 1.0
    """Shares are proportional to size^(1/temperature)."""

    def shares(self, sizes: Sequence[int]) -> Float[np.ndarray, "P"]:
        """Returns each source's share of the rows; `sizes`: the number of rows of each."""
        if self.weights is not None:
            wanted = np.array(self.weights, np.float64)
        else:
            wanted = (np.array(sizes, np.float64) / max(1, *sizes)) ** (1 / self.temperature)
        return wanted / wanted.sum()


class BatchPlan:
    """The batches of every epoch, planned from the lengths of the examples and a seed. It holds arrays, no list of batches.

    With `shares` an epoch has as many rows as there are examples that fit a bucket, drawn from each source by its share.
    """

    def __init__(
        self,
        lengths: Sequence[Lengths] | Integer[np.ndarray, "I 2"],
        buckets: Sequence[Bucket],
        seed: int,
        shares: Shares | None = None,
    ):
        self.seed = seed
        self._which = bucket_indices(lengths, buckets)
        self._num_shapes = len(buckets)
        counts = np.bincount(self._which, minlength=len(buckets))[: len(buckets)]
        self.shares = shares
        self._weights = None if shares is None else part_weights(self._which, shares, len(buckets))
        if self._weights is not None:
            of_buckets = np.array([float(sum(row)) for row in self._weights])
            # At least one row for each bucket with examples.
            counts = np.maximum(apportion(int(counts.sum()), of_buckets), of_buckets > 0)
        self._parts = [] if shares is None else np.cumsum([0, *shares.sizes]).tolist()
        self.filled = np.flatnonzero(counts).tolist()
        """The numbers of the buckets that have examples."""
        self.counts = counts[self.filled]
        """The rows of an epoch in each of them."""
        self.buckets = [buckets[i] for i in self.filled]
        """The shapes of batches that occur."""
        rows = np.array([bucket.rows for bucket in self.buckets], np.int64)
        batches = -(-self.counts // rows)
        self._first_batch = np.concatenate([[0], np.cumsum(batches)])
        self._first_row = np.concatenate([[0], np.cumsum(batches * rows)])
        self.batches_per_epoch = int(self._first_batch[-1])
        self.positions_per_epoch = sum(
            int(n) * bucket.rows * sum(bucket.lengths) for n, bucket in zip(batches, self.buckets, strict=True)
        )
        """Positions of both sides in the batches of an epoch, padding included."""
        self.epoch = functools.lru_cache(maxsize=2)(self._epoch)

    @property
    def placed(self) -> Bool[np.ndarray, "I"]:
        """Whether each example fits a bucket, and so is in a batch."""
        return self._which < self._num_shapes

    def batch(self, step: int) -> PlannedBatch:
        """Returns the batch of optimizer step `step`, counted from 0."""
        epoch, i = divmod(step, self.batches_per_epoch)
        examples, batches = self.epoch(epoch)
        number = batches[i]
        which = int(np.searchsorted(self._first_batch, number, side="right")) - 1
        bucket = self.buckets[which]
        start = self._first_row[which] + (number - self._first_batch[which]) * bucket.rows
        return PlannedBatch(bucket, examples[start : start + bucket.rows])

    def find(self, examples: Int[np.ndarray, "_"], epoch: int) -> list[tuple[int, int]]:
        """Returns the step and the row of every occurrence of the examples in an epoch, in the order of the steps."""
        rows, batches = self.epoch(epoch)
        marks = np.zeros(len(self._which) + 1, bool)  # the last one is that of PADDING_ROW
        marks[examples] = True
        places = np.flatnonzero(marks[rows])
        which = np.searchsorted(self._first_row, places, side="right") - 1
        number, row = np.divmod(places - self._first_row[which], [self.buckets[i].rows for i in which] or 1)
        steps = epoch * self.batches_per_epoch + np.argsort(batches)[self._first_batch[which] + number]
        return sorted(zip(steps.tolist(), row.tolist(), strict=True))

    def _epoch(self, epoch: int) -> Epoch:
        generator = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
        dtype = np.int32 if len(self._which) < 2**31 else np.int64
        examples = np.full(self._first_row[-1], PADDING_ROW, dtype)
        for i, count, start in zip(self.filled, self.counts, self._first_row, strict=False):
            members = examples[start : start + count]
            if self._weights is None:
                self._all_members(i, members)
            else:
                members[:] = self._drawn_members(epoch, i, int(count), self._weights[i])
            generator.shuffle(members)
        return Epoch(examples, generator.permutation(self.batches_per_epoch))

    def _all_members(self, bucket: int, members: Int[np.ndarray, "M"]) -> None:
        """Writes the examples of a bucket into `members`, slice by slice, so that no other array is as long."""
        filled = 0
        for chunk in slices(len(self._which)):
            examples = np.flatnonzero(self._which[chunk] == bucket) + chunk.start
            members[filled : filled + len(examples)] = examples
            filled += len(examples)

    def _drawn_members(self, epoch: int, bucket: int, number: int, weights: Sequence[Fraction]) -> Int[np.ndarray, "M"]:
        """Returns `number` examples of a bucket in one epoch of a mixture, source after source.

        A source's examples form an endless line of permutations; each epoch takes the next ones.
        """
        drawn = [np.zeros(0, np.int64)]
        lines = zip(allot(epoch * number, weights), allot((epoch + 1) * number, weights), strict=True)
        for source, (at, end) in enumerate(lines):
            start, stop = self._parts[source : source + 2]
            members = np.flatnonzero(self._which[start:stop] == bucket) + start
            while at < end:
                turn, offset = divmod(at, len(members))
                key, counter = [self.seed, turn], [0, bucket, source, 4]
                order = np.random.Generator(np.random.Philox(key=key, counter=counter)).permutation(members)
                drawn.append(order[offset : offset + end - at])
                at += len(drawn[-1])
        return np.concatenate(drawn)


def part_weights(which: Integer[np.ndarray, "I"], shares: Shares, num_buckets: int) -> list[list[Fraction]]:
    """Returns for each bucket the weight of every source: its share, times the fraction of its examples in the bucket."""
    sources = np.split(which, np.cumsum(shares.sizes)[:-1])
    counts = [np.bincount(source, minlength=num_buckets)[:num_buckets].tolist() for source in sources]
    of_sources: list[list[Fraction]] = []
    for share, row in zip(shares.shares.tolist(), counts, strict=True):
        of_sources.append([Fraction(share) * Fraction(count, sum(row) or 1) for count in row])
    return [list(weights) for weights in zip(*of_sources, strict=True)]


def apportion(number: int, weights: Float[np.ndarray, "P"]) -> Int[np.ndarray, "P"]:
    """Returns whole numbers in the ratio of the weights, whose sum is `number`. Reference: Hamilton's method of apportionment."""
    if not weights.any():
        return np.zeros(len(weights), np.int64)
    exact = number * weights / weights.sum()
    counts = np.floor(exact).astype(np.int64)
    most = np.argsort(counts - exact, kind="stable")[: number - int(counts.sum())]
    counts[most] += 1
    return counts


def allot(number: int, weights: Sequence[Fraction]) -> list[int]:
    """Returns whole numbers in the ratio of the weights, whose sum is `number`; none is lower for a higher `number`.

    So what a source once received stays with it as more rows are dealt, one epoch after the other. The weights are exact
    because a rounded tie could break this.

    Reference: Webster's method of apportionment; Balinski & Young 1982, "Fair Representation".
    """
    total = sum(weights)
    counts = [int(number * weight / total + Fraction(1, 2)) for weight in weights]
    places = range(len(weights))
    while sum(counts) < number:
        _, i = max((weights[i] / (2 * counts[i] + 1), -i) for i in places)
        counts[-i] += 1
    while sum(counts) > number:
        _, i = min((weights[i] / (2 * counts[i] - 1), -i) for i in places if counts[i])
        counts[-i] -= 1
    return counts
