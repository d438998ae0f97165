"""Batches of records, each made on demand."""

import bisect
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from flaxformer_lite.core.data.batch_plan import (
    PADDING_ROW,
    BatchPlan,
    BatchShapes,
    Bucket,
    Mixing,
    Shares,
    batch_shapes,
    fewer_buckets,
)
from flaxformer_lite.core.data.padded_lengths import Cost, candidate_lengths, paying_lengths
from flaxformer_lite.core.data.records import Example, Lengths, RowMaker, TokenPair
from flaxformer_lite.core.data.token_arrays import Rows, Spans, TokenArrays
from flaxformer_lite.core.text import DEFAULT_SPECIAL_IDS, SpecialIds, Tokenizer
from flaxformer_lite.core.text.special_ids import BOS


def row_generator(seed: int, step: int, row: int) -> np.random.Generator:
    """Returns random numbers for one row of one batch: they depend on seed, step and row only."""
    # BatchPlan uses the same keys with counters from 0: words 2 and 3 of the counter separate the two streams.
    return np.random.Generator(np.random.Philox(key=[seed, step], counter=[0, 0, row, 1]))


def example_generator(made_row: object) -> np.random.Generator:
    """Returns random numbers for a row that the objective made: they depend on its arrays only."""
    digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(made_row))).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest[:16], np.uint64)))


Sampler = Callable[[Int[np.ndarray, "T"], int, np.random.Generator], Int[np.ndarray, "T2"]]
"""Called with ids of a text, the most tokens that may be added, and random numbers: returns another segmentation of the text."""


class Samplers(NamedTuple):
    """Functions that segment source and target anew in each row of a batch."""

    source: Sampler
    target: Sampler
    room: float
    """Tokens to plan for beyond those of the usual segmentation, as a fraction of them."""


LocalRows = Callable[[int], Int[np.ndarray, "R"]]
"""Maps the number of rows in a batch to the row indices this process reads."""
Draw = Callable[[Any, int, int], np.random.Generator]
"""Returns the random numbers of a row that the objective made, by that row, the batch and the row in it."""


class Dataset(Generic[Example]):
    """Batches by step number. `training` and `evaluation` make one.

    `rows` has the rows that the objective made, `lengths` the positions of each `[I, 2]`. `dropped` counts the rows longer than the
    longest bucket, and `notes` say which records the objective cut or left out. `fingerprint` changes with the data.
    """

    def __init__(
        self,
        made: "MadeRows",
        rows: Sequence[Any],
        objective: RowMaker[Example],
        special: SpecialIds,
        plan: BatchPlan,
        draw: Draw,
        samplers: Samplers | None = None,
        bucket_lengths: tuple[int, ...] = (),
    ):
        self.made, self.rows, self.objective, self.special, self.plan = made, rows, objective, special, plan
        self.draw, self.samplers, self.bucket_lengths = draw, samplers, bucket_lengths
        self.lengths, self.notes = made.rows.lengths, made.notes
        self.dropped = len(self.lengths) - int(plan.placed.sum())
        self.fingerprint = made.fingerprint
        read = plan.placed
        if plan.shares is not None:  # a row comes several times, or not in each epoch: the first epoch stands for all
            read = plan.epoch(0).examples
            read = read[read != PADDING_ROW]
        self.padding = 1 - int(self.lengths[read].sum(dtype=np.int64)) / plan.positions_per_epoch

    @classmethod
    def training(
        cls,
        records: Sequence[TokenPair],
        objective: RowMaker[Example],
        config: BatchShapes,
        seed: int,
        tokenizer: Tokenizer | None = None,
        start_id: int | None = BOS,
        samplers: Samplers | None = None,
        cost: Cost | None = None,
    ) -> "Dataset[Example]":
        """Returns batches in another order in each epoch.

        `start_id` is the first token that a decoder reads. `samplers` segment source and target anew in each row of a batch, whose
        length is planned from the usual segmentation. `cost` chooses `data.bucket_lengths` where they are "auto".
        """
        made = make_rows(records, objective, config, seed, tokenizer)
        objective.check_training(records)
        shares = None if made.mixing is None else Shares(made.sizes, made.mixing.shares(made.sizes))
        lengths = planned_lengths(made.rows.lengths, samplers, config.longest)
        config, plan = plan_training(lengths, objective, config, seed, cost, shares)
        check_some_fit(made, plan, config)
        special = special_ids(tokenizer, start_id)
        draw = functools.partial(draw_in_step, seed)
        return cls(made, made.rows, objective, special, plan, draw, samplers, config.lengths)

    @classmethod
    def evaluation(
        cls,
        records: Sequence[TokenPair],
        objective: RowMaker[Example],
        config: BatchShapes,
        tokenizer: Tokenizer | None = None,
        start_id: int | None = BOS,
        first: int = 0,
    ) -> "Dataset[Example]":
        """Returns the same batches in every run, with random numbers that are functions of the examples.

        first: the number of the first record among those of all sources that are evaluated together.
        """
        made = make_rows(records, objective, config, 0, tokenizer)
        made = made._replace(rows=objective.evaluated_rows(made.rows, first))
        lengths = made.rows.lengths
        plan = BatchPlan(lengths, fewer_buckets(lengths, batch_shapes(objective, config)), 0)
        check_some_fit(made, plan, config)
        return cls(made, made.rows, objective, special_ids(tokenizer, start_id), plan, draw_by_example)

    def batch(self, step: int, local_rows: LocalRows = np.arange) -> Example:
        """Returns batch `step`, or its local rows, as NumPy arrays `[B, …]`. Padding rows are all zeros."""
        planned = self.plan.batch(step)
        lengths = planned.bucket.lengths
        examples = planned.examples.tolist()
        local = local_rows(len(examples)).tolist()
        zeros = None
        if any(examples[row] == PADDING_ROW for row in local):
            zeros = jax.tree.map(np.zeros_like, self.example(examples[0], lengths, step, 0))
        rows = [
            zeros if examples[row] == PADDING_ROW else self.example(examples[row], lengths, step, row) for row in local
        ]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)

    def example(self, i: int, lengths: Lengths, step: int, row: int) -> Example:
        """Returns item i of `rows` as the given row of batch `step`."""
        made_row = self.rows[i]
        generator = self.draw(made_row, step, row)
        if self.samplers is not None:
            source, target = (
                sampler(tokens, there - least, generator)
                for sampler, tokens, there, least in zip(
                    self.samplers[:2], made_row[:2], lengths, self.lengths[i].tolist(), strict=True
                )
            )
            made_row = made_row._replace(source=source, target=target)
        return self.objective.example(made_row, lengths, generator, self.special)

    def records_read(self, i: int, step: int, row: int) -> list[int]:
        """Returns the record of each piece of item i that the given row of batch `step` reads."""
        made_row = self.rows[i]
        records = self.made.records_of(i)
        read = self.objective.pieces_read(made_row, self.draw(made_row, step, row))
        return records if read is None else [records[number] for number in read]


def plan_training(
    lengths: Int[np.ndarray, "I 2"],
    objective: RowMaker[object],
    config: BatchShapes,
    seed: int,
    cost: Cost | None = None,
    shares: Shares | None = None,
) -> tuple[BatchShapes, BatchPlan]:
    """Returns the config with the padded lengths of a training on rows of these lengths, and its batches."""
    if config.bucket_lengths == "auto" and cost is not None:
        config = with_paying_lengths(config, objective, lengths, cost, shares)
    return config, BatchPlan(lengths, batch_shapes(objective, config), seed, shares)


def with_paying_lengths(
    config: BatchShapes, objective: RowMaker[object], lengths: Int[np.ndarray, "I 2"], cost: Cost, shares: Shares | None
) -> BatchShapes:
    """Returns the config with the lengths that make a training on rows of these lengths cheapest."""
    packed = objective.packed_row(config.longest)
    if packed is not None:
        return dataclasses.replace(config, bucket_lengths=(max(packed),))
    candidates = candidate_lengths(max(objective.longest_row(config.longest)), cost.multiple)
    shapes = batch_shapes(objective, dataclasses.replace(config, bucket_lengths=candidates))
    chosen = paying_lengths(lengths, shapes, cost, shares)
    return dataclasses.replace(config, bucket_lengths=tuple(candidates[i] for i in chosen))


def draw_in_step(seed: int, made_row: object, step: int, row: int) -> np.random.Generator:
    """Returns the random numbers of a row in a training: those of `row_generator`."""
    return row_generator(seed, step, row)


def draw_by_example(made_row: object, step: int, row: int) -> np.random.Generator:
    """Returns the random numbers of a row in an evaluation: those of `example_generator`."""
    return example_generator(made_row)


def special_ids(tokenizer: Tokenizer | None, start_id: int | None) -> SpecialIds:
    """Returns the special ids of rows; without a start if the tokenizer ends both texts of a pair itself."""
    special = DEFAULT_SPECIAL_IDS if tokenizer is None else tokenizer.special
    return special._replace(start=None if tokenizer is not None and tokenizer.ends_pairs else start_id)


def planned_lengths(
    lengths: Int[np.ndarray, "I 2"], samplers: Samplers | None, longest: Lengths
) -> Int[np.ndarray, "I 2"]:
    """Returns the positions to plan for each row. The room for samples never makes a record too long."""
    if samplers is None:
        return lengths
    more = lengths + np.ceil(lengths * samplers.room).astype(lengths.dtype)
    return np.maximum(lengths, np.minimum(more, longest))


class MadeRows(NamedTuple):
    """The rows that an objective made of all records, source after source of a mixture."""

    rows: Rows
    sizes: list[int]
    """The number of rows of each source."""
    num_records: int
    is_told: bool
    """Whether it is known which records are in a row: the rows of each source have spans, or row i is record i."""
    fingerprint: str
    """The fingerprint of the records."""
    notes: list[str]
    mixing: Mixing | None
    """Decides the shares of the sources; None: one source."""

    @property
    def spans(self) -> Spans:
        """The pieces of all rows. Raises: ValueError as `check_told` does."""
        self.check_told()
        return whole_records(self.num_records) if self.rows.spans is None else self.rows.spans

    def check_told(self) -> None:
        """Raises: ValueError if the objective does not tell which records are in a row, and a row is not a record."""
        if not self.is_told:
            raise ValueError(
                "the objective does not tell which records are in a row: let its make_rows return Rows with spans"
            )

    def records_of(self, row: int) -> list[int]:
        """Returns the number of the record of each piece of a row."""
        self.check_told()
        return [row] if self.rows.spans is None else [record for record, _, _ in self.rows.spans.row(row)]

    def rows_of(self, records: Sequence[int]) -> Int[np.ndarray, "_"]:
        """Returns the rows that hold a piece of one of the records, ascending."""
        spans = self.spans
        return np.unique(np.searchsorted(spans.ends, np.flatnonzero(np.isin(spans.record, records)), side="right"))


def make_rows(
    records: Sequence[TokenPair],
    objective: RowMaker[object],
    config: BatchShapes,
    seed: int,
    tokenizer: Tokenizer | None,
) -> MadeRows:
    """Returns the objective's rows of all records. Raises: ValueError without records."""
    if not len(records):
        raise ValueError("the data has no records: at least one is needed to make batches")
    arrays = TokenArrays.of(records)
    made = [as_rows(objective.make_rows(source, config.longest, seed, tokenizer), objective) for source in arrays.parts]
    num_records = [len(source) for source in arrays.parts]
    are_told = [rows.spans is not None or len(rows) == number for rows, number in zip(made, num_records, strict=True)]
    return MadeRows(
        rows=made[0] if len(made) == 1 else join_rows(made, num_records),
        sizes=[len(rows) for rows in made],
        num_records=sum(num_records),
        is_told=all(are_told),
        fingerprint=arrays.fingerprint(),
        notes=[rows.note for rows in made if rows.note],
        mixing=arrays.mixing if isinstance(arrays, MixedRecords) else None,
    )


def as_rows(rows: Sequence[object], objective: RowMaker[object]) -> Rows:
    """Returns the rows that an objective made, with the lengths of all rows. Raises: ValueError for lengths of another form."""
    if isinstance(rows, Rows):
        return rows
    lengths = np.array([objective.lengths(row) for row in rows], np.int32)
    if len(rows) and lengths.shape[1:] != (2,):
        raise ValueError(
            f"objective is a {type(objective).__name__}, whose lengths returns {objective.lengths(rows[0])!r}: it must return "
            "Lengths(source, target)"
        )
    return Rows(lengths.reshape(-1, 2), rows.__getitem__)


def check_some_fit(made: MadeRows, plan: BatchPlan, config: BatchShapes) -> None:
    """Raises: ValueError if no row is short enough for any batch."""
    if not plan.placed.any():
        lengths = made.rows.lengths
        shortest = Lengths(*lengths[np.maximum(lengths - config.longest, 0).sum(-1).argmin()].tolist())
        raise ValueError(
            f"none of the {made.num_records} records fits in data.max_source_length {config.max_source_length} and "
            f"data.max_target_length {config.max_target_length}: the shortest needs {shortest.source} and {shortest.target}; "
            "raise them, or check the data"
        )


class MixedRecords(TokenArrays):
    """The records of all sources of a mixture, one source after the other."""

    def __init__(self, parts: Sequence[TokenArrays], mixing: Mixing) -> None:
        super().__init__([shard for source in parts for shard in source.shards])
        self._parts, self.mixing = parts, mixing

    @property
    def parts(self) -> Sequence[TokenArrays]:
        return self._parts

    def fingerprint(self) -> str:
        """Returns a hash of the sources' fingerprints and of the values that decide their shares."""
        settings = [[source.fingerprint() for source in self._parts], *self.mixing]
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()


def join_rows(made: Sequence[Rows], sizes: Sequence[int]) -> Rows:
    """Returns the rows of all sources, one source after the other. sizes: the number of records of each source."""
    firsts = np.cumsum([0, *map(len, made)]).tolist()
    first_records = np.cumsum([0, *sizes]).tolist()

    def make(i: int) -> Any:
        source = bisect.bisect_right(firsts, i) - 1
        return made[source][i - firsts[source]]

    spans = None
    if any(rows.spans is not None for rows in made):
        spans = join_spans([rows.spans or whole_records(len(rows)) for rows in made], first_records)
    lengths = np.concatenate([rows.lengths for rows in made])
    return Rows(lengths, make, spans)


def join_spans(of_sources: Sequence[Spans], first_records: Sequence[int]) -> Spans:
    """Returns the spans of all sources, one source after the other, each with the number of its first record."""
    moved: list[Spans] = []
    number = 0
    for spans, first in zip(of_sources, first_records, strict=False):
        moved.append(Spans(spans.record + first, spans.start, spans.stop, spans.ends + number))
        number += len(spans.record)
    return Spans(*map(np.concatenate, zip(*moved, strict=True)))


def whole_records(number: int) -> Spans:
    """Returns the spans of rows that are a record each; their starts and stops are unknown, and 0."""
    nothing = np.zeros(number, np.int32)
    return Spans.one_each(np.arange(number), nothing, nothing)


def zero_batch(objective: RowMaker[Example], bucket: Bucket) -> Example:
    """Returns a batch of zeros with the bucket's shape."""
    nothing = TokenPair(np.zeros(0, np.int32), np.zeros(0, np.int32))
    rows = objective.make_rows([nothing], bucket.lengths, 0)
    row = objective.example(rows[0], bucket.lengths, row_generator(0, 0, 0), SpecialIds(mask=0))
    return jax.tree.map(lambda leaf: np.zeros((bucket.rows, *leaf.shape), leaf.dtype), row)
