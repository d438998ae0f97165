"""From records to batches: makes any batch on demand."""

import bisect
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
from flaxformer_lite.core.data.records import Example, Lengths, RowMaker, TokenPair
from flaxformer_lite.core.data.token_arrays import Origins, Rows, TokenArrays
from flaxformer_lite.core.text import DEFAULT_SPECIAL_IDS, SpecialIds, Tokenizer
from flaxformer_lite.core.text.special_ids import BOS


def row_generator(seed: int, step: int, row: int) -> np.random.Generator:
    """Returns random numbers for one row of one batch: a function of seed, step and row alone."""
    # BatchPlan uses the same keys with counters from 0: words 2 and 3 of the counter separate the two streams.
    return np.random.Generator(np.random.Philox(key=[seed, step], counter=[0, 0, row, 1]))


def example_generator(record: Any) -> np.random.Generator:
    """Returns random numbers for one example: a function of its tokens alone."""
    digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(record))).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest[:16], np.uint64)))


Sampler = Callable[[Int[np.ndarray, "T"], int, np.random.Generator], Int[np.ndarray, "T2"]]
"""Returns another segmentation of the ids of a text, with at most so many tokens more."""


class Samplers(NamedTuple):
    """Functions that segment source and target anew in each row of a batch."""

    source: Sampler
    target: Sampler
    room: float
    """Tokens to plan for beyond those of the usual segmentation, as a fraction of them."""


LocalRows = Callable[[int], Int[np.ndarray, "R"]]
"""Maps the number of rows in a batch to the row indices this process reads."""


class Dataset(Generic[Example]):
    """Batches by step number, made by `training` or `evaluation`.

    `records` has the rows that the objective made, `lengths` the positions of each `[I, 2]`; `dropped` counts those longer than
    the longest bucket, and `notes` tell what the objective cut or left out. `fingerprint` changes with the data. `start_id` is the
    first token that a decoder reads. `samplers` segment source and target anew in each row of a batch, whose length is planned from
    the usual segmentation.
    """

    def __init__(
        self,
        records: Sequence[TokenPair],
        objective: RowMaker[Example],
        config: BatchShapes,
        seed: int | None,
        tokenizer: Tokenizer | None = None,
        start_id: int | None = BOS,
        samplers: Samplers | None = None,
    ):
        if not len(records):
            raise ValueError("the data has no records: at least one is needed to make batches")
        records = TokenArrays.of(records)
        made = [objective.make_rows(part, config.longest, seed or 0, tokenizer) for part in records.parts]
        rows = made[0] if len(made) == 1 else concat_rows(made, objective)
        self._made, self._sizes = made, [len(part) for part in records.parts]
        self.records: Sequence[Any] = rows if seed is None else objective.training_rows(rows)
        self.objective, self.seed = objective, seed
        special = DEFAULT_SPECIAL_IDS if tokenizer is None else tokenizer.special
        self.special = special._replace(start=None if tokenizer is not None and tokenizer.ends_pairs else start_id)
        self.lengths = lengths = lengths_of(rows, objective)
        self.samplers, planned = samplers, lengths
        if samplers is not None:
            more = lengths + np.ceil(lengths * samplers.room).astype(lengths.dtype)
            # No record is dropped for the room of samples.
            planned = np.maximum(lengths, np.minimum(more, config.longest))
        shares = None
        if isinstance(records, MixedRecords) and seed is not None:
            sizes = [len(part) for part in made]
            shares = Shares(sizes, records.mixing.shares(sizes))
        shapes = batch_shapes(objective, config)
        self.plan = BatchPlan(planned, fewer_buckets(planned, shapes) if seed is None else shapes, seed or 0, shares)
        placed = self.plan.placed
        self.dropped = len(rows) - int(placed.sum())
        self.notes = [part.note for part in made if isinstance(part, Rows) and part.note]
        if not placed.any():
            shortest = Lengths(*lengths[np.maximum(lengths - config.longest, 0).sum(-1).argmin()].tolist())
            raise ValueError(
                f"none of the {len(records)} records fits in data.max_source_length {config.max_source_length} and "
                f"data.max_target_length {config.max_target_length}: the shortest needs {shortest.source} and {shortest.target}; "
                "raise them, or check the data"
            )
        self.fingerprint = f"{records.fingerprint()} {getattr(self.records, 'fingerprint', '')}".rstrip()
        if shares is not None:  # a row comes several times, or not in each epoch: the first epoch stands for all
            first = self.plan.epoch(0).examples
            placed = first[first != PADDING_ROW]
        self.padding = 1 - int(lengths[placed].sum(dtype=np.int64)) / self.plan.positions_per_epoch

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
    ) -> "Dataset[Example]":
        """Returns batches in another order in each epoch, segmented anew by `samplers`."""
        return cls(records, objective, config, seed, tokenizer, start_id, samplers)

    @classmethod
    def evaluation(
        cls,
        records: Sequence[TokenPair],
        objective: RowMaker[Example],
        config: BatchShapes,
        tokenizer: Tokenizer,
        start_id: int | None = BOS,
    ) -> "Dataset[Example]":
        """Returns the same batches in every run, with random numbers that are functions of the examples."""
        return cls(records, objective, config, None, tokenizer, start_id)

    def batch(self, step: int, local_rows: LocalRows = np.arange) -> Example:
        """Returns batch `step`, or its local rows, as NumPy arrays `[B, …]`. Rows that only fill up are all zeros."""
        planned = self.plan.batch(step)
        lengths, examples = planned.bucket.lengths, planned.examples.tolist()
        local = local_rows(len(examples)).tolist()
        zeros = None
        if any(examples[row] == PADDING_ROW for row in local):
            zeros = jax.tree.map(np.zeros_like, self.example(examples[0], lengths, step, 0))
        rows = [
            zeros if examples[row] == PADDING_ROW else self.example(examples[row], lengths, step, row) for row in local
        ]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)

    def example(self, i: int, lengths: Lengths, step: int, row: int) -> Example:
        """Returns record i as the given row of batch `step`."""
        record = self.records[i]
        generator = self.generator(record, step, row)
        if self.samplers is not None:
            source, target = (
                sampler(tokens, there - least, generator)
                for sampler, tokens, there, least in zip(
                    self.samplers[:2], record[:2], lengths, self.lengths[i].tolist(), strict=True
                )
            )
            record = record._replace(source=source, target=target)
        return self.objective.example(record, lengths, generator, self.special)

    @functools.cached_property
    def origins(self) -> Origins:
        """The records in all rows, those of a mixture numbered one source after the other. Raises: ValueError if nothing tells."""
        return join_origins(self._made, self._sizes)

    def generator(self, record: Any, step: int, row: int) -> np.random.Generator:
        return example_generator(record) if self.seed is None else row_generator(self.seed, step, row)

    def records_read(self, i: int, step: int, row: int) -> list[int]:
        """Returns the record of each piece that the given row of batch `step` reads of row i."""
        records, record = self.origins.records_of(i), self.records[i]
        read = self.objective.pieces_read(record, self.generator(record, step, row))
        return records if read is None else [records[number] for number in read]


class MixedRecords(TokenArrays):
    """The records of all sources of a mixture, one source after the other."""

    def __init__(self, parts: Sequence[TokenArrays], mixing: Mixing) -> None:
        super().__init__([shard for part in parts for shard in part.shards])
        self._parts, self.mixing = parts, mixing

    @property
    def parts(self) -> Sequence[TokenArrays]:
        return self._parts

    def fingerprint(self) -> str:
        """Returns a hash of the sources' fingerprints and of what decides their shares."""
        settings = [[part.fingerprint() for part in self._parts], *self.mixing]
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()


def concat_rows(made: Sequence[Sequence[Any]], objective: RowMaker[Any]) -> Rows:
    """Returns the rows of all sources, one source after the other."""
    firsts = np.cumsum([0, *map(len, made)]).tolist()

    def make(i: int) -> Any:
        part = bisect.bisect_right(firsts, i) - 1
        return made[part][i - firsts[part]]

    return Rows(np.concatenate([lengths_of(part, objective).reshape(-1, 2) for part in made]), make)


def join_origins(made: Sequence[Sequence[Any]], sizes: Sequence[int]) -> Origins:
    """Returns the records in the rows of all sources, which have these numbers of records.

    Raises: ValueError if the objective does not tell, and has not as many rows as there are records.
    """
    records, ends, first, pieces = list[Any](), list[Any](), 0, 0
    for rows, number in zip(made, sizes, strict=True):
        tell = getattr(rows, "origins", None)
        if tell is None and len(rows) != number:
            raise ValueError(
                "the objective does not tell which records are in a row: let its make_rows return Rows with origins"
            )
        found = Origins(np.arange(number), np.arange(1, number + 1)) if tell is None else tell()
        records.append(found.records + first)
        ends.append(found.ends + pieces)
        first, pieces = first + number, pieces + len(found.records)
    return Origins(np.concatenate(records), np.concatenate(ends))


def lengths_of(rows: Sequence[Any], objective: RowMaker[Any]) -> Int[np.ndarray, "..."]:
    """Returns the lengths of the rows that an objective made, `[I, 2]`."""
    return rows.lengths if isinstance(rows, Rows) else np.array([objective.lengths(row) for row in rows], np.int32)


def zero_batch(objective: RowMaker[Example], bucket: Bucket) -> Example:
    """Returns a batch of zeros with the bucket's shape."""
    nothing = TokenPair(np.zeros(0, np.int32), np.zeros(0, np.int32))
    rows = objective.make_rows([nothing], bucket.lengths, 0)
    row = objective.example(rows[0], bucket.lengths, row_generator(0, 0, 0), SpecialIds(mask=0))
    return jax.tree.map(lambda leaf: np.zeros((bucket.rows, *leaf.shape), leaf.dtype), row)
