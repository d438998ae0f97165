"""Tokenized records as a few arrays, in memory or in files, without a Python object for each record."""

import bisect
import hashlib
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, SupportsIndex, TypeVar, overload

import numpy as np
from jaxtyping import Int, Integer

from flaxformer_lite.core.data.records import NOTHING, TokenPair
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.core.text.pairs import EncodedPair, Extent, Pair

PAIRS_AT_ONCE = 4096
"""Pairs that are tokenized at once, by the library of the tokenizer on all cores."""
Item = TypeVar("Item", covariant=True)


class Lazy(Sequence[Item], Generic[Item]):
    """A sequence of `number` items, each made by `make` on every access."""

    def __init__(self, number: int, make: Callable[[int], Item]) -> None:
        self._number, self._make = number, make

    def __len__(self) -> int:
        return self._number

    @overload
    def __getitem__(self, index: SupportsIndex) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self._make(i) for i in range(*index.indices(self._number))]
        i = operator.index(index)
        if not -self._number <= i < self._number:
            raise IndexError(f"item {i} of {self._number}")
        return self._make(i % self._number)


class Spans(NamedTuple):
    """The pieces of all rows, row after row: P pieces, of I rows."""

    record: Int[np.ndarray, "P"]
    """The number of the record that each piece is from."""
    start: Int[np.ndarray, "P"]
    stop: Int[np.ndarray, "P"]
    """A piece has the tokens from `start` to before `stop` of its record's target."""
    ends: Int[np.ndarray, "I"]
    """For each row, the index after its last piece."""

    @classmethod
    def one_each(cls, record: Int[np.ndarray, "P"], start: Int[np.ndarray, "P"], stop: Int[np.ndarray, "P"]) -> "Spans":
        """Returns rows of one piece each."""
        return cls(record, start, stop, np.arange(1, len(record) + 1))

    def row(self, i: int) -> list[tuple[int, int, int]]:
        """Returns record, start and stop of the pieces of a row."""
        places = slice(self.ends[i - 1] if i else 0, self.ends[i])
        pieces = self.record[places].tolist(), self.start[places].tolist(), self.stop[places].tolist()
        return list(zip(*pieces, strict=True))


class Rows(Lazy[Any]):
    """Rows of an objective with the lengths of all. So batches can be planned before any row is made.

    lengths: the positions of source and target that each row needs, special tokens included.
    spans: the pieces of each row; None: row i is record i, as a whole.
    note: says which records were cut or left out; empty if none was.
    """

    def __init__(
        self,
        lengths: Integer[np.ndarray, "I 2"],
        make: Callable[[int], Any],
        spans: Spans | None = None,
        note: str = "",
    ) -> None:
        super().__init__(len(lengths), make)
        self.lengths, self.spans, self.note = lengths, spans, note

    @classmethod
    def source_only(
        cls, lengths: Integer[np.ndarray, "I"], make: Callable[[int], Any], spans: Spans | None = None, note: str = ""
    ) -> "Rows":
        return cls(np.stack([lengths, np.zeros_like(lengths)], 1), make, spans, note=note)

    @classmethod
    def truncated(
        cls, num_special: Any, sizes: Int[np.ndarray, "I"], longest: int, make: Callable[[int], Any], note: str = ""
    ) -> "Rows":
        """Returns rows of texts that `make` cuts to `longest` positions; `num_special` positions hold special tokens."""
        number = int((num_special + sizes > longest).sum())
        cut = f"{number:,} of {len(sizes):,} rows have texts that were cut, as data.max_source_length is {longest}"
        used = num_special + np.minimum(sizes, np.maximum(longest - num_special, 0))
        return cls.source_only(used, make, note="; ".join(filter(None, [note, cut if number else ""])))


class Column(NamedTuple):
    """The arrays of all records by one name: that of record i is `values[starts[i] : starts[i + 1]]`, empty if it has none."""

    values: np.ndarray
    starts: Int[np.ndarray, "K"]

    def sizes(self) -> Int[np.ndarray, "I"]:
        """Returns the length of each array."""
        return np.diff(self.starts)

    def largest(self) -> Int[np.ndarray, "I"]:
        """Returns the largest number of each array; 0 of an empty one."""
        numbers = np.zeros(len(self.starts) - 1, np.int64)
        filled = self.sizes() > 0
        numbers[filled] = np.maximum.reduceat(self.values, self.starts[:-1][filled])
        return numbers

    def sums_behind(self, number: int) -> Int[np.ndarray, "I"]:
        """Returns the sum of each array without its first `number` values."""
        before = np.concatenate([[0], np.cumsum(self.values, dtype=np.int64)])
        stops = self.starts[1:]
        return before[stops] - before[np.minimum(self.starts[:-1] + number, stops)]


class TokenShard(NamedTuple):
    """The tokens of consecutive records: side k, source and target in turn, is `ids[starts[k] : starts[k + 1]]`."""

    ids: Integer[np.ndarray, "N"]
    starts: Int[np.ndarray, "K"]
    """Two for each record, and the number of all tokens."""
    labels: np.ndarray | None = None
    """The label of each record, a text; None if none has one."""
    extents: Integer[np.ndarray, "I"] | None = None
    """The `Extent` of each record; None if all are whole."""
    columns: Mapping[str, Column] = {}
    """The further arrays of the records by their names."""

    @classmethod
    def of(cls, records: Iterable[EncodedPair | TokenPair], dtype: type = np.int32) -> "TokenShard":
        """Returns a copy of the records."""
        sides, labels = list[np.ndarray](), list[str]()
        extents, arrays = list[Extent](), list[Mapping[str, Any]]()
        for record in records:
            sides += (np.asarray(side, dtype) for side in record[:2])
            labels.append(record.label)
            extents.append(record.extent)
            arrays.append(record.arrays)
        columns = {}
        for name in dict.fromkeys(itertools.chain.from_iterable(arrays)):
            sizes = [len(of_record.get(name, ())) for of_record in arrays]
            values = np.concatenate([of_record[name] for of_record in arrays if name in of_record])
            columns[name] = Column(values, np.cumsum([0, *sizes]))
        return cls(
            np.concatenate([np.zeros(0, dtype), *sides]),
            np.cumsum([0, *map(len, sides)], dtype=np.int64),
            np.array(labels) if any(labels) else None,
            np.array(extents, np.uint8) if any(extents) else None,
            columns,
        )

    @classmethod
    def of_pairs(
        cls,
        pairs: Sequence[Pair],
        tokenizers: Tokenizers,
        dtype: type = np.int32,
        report: Callable[[int], None] = lambda done: None,
    ) -> "TokenShard":
        """Returns the tokens of the pairs; `report` gets the number of pairs that are done, now and then, and may raise."""

        def encoded() -> Iterator[EncodedPair]:
            for start in range(0, len(pairs), PAIRS_AT_ONCE):
                report(start)
                yield from tokenizers.encode_pairs(pairs[start : start + PAIRS_AT_ONCE])

        return cls.of(encoded(), dtype)

    @property
    def num_records(self) -> int:
        return len(self.starts) // 2


class TokenArrays(Lazy[TokenPair]):
    """Records in shards. A record's sides are slices of the shard's array of ids, as 32-bit numbers."""

    def __init__(self, shards: Sequence[TokenShard], fingerprint: str | None = None) -> None:
        self.shards, self._fingerprint = shards, fingerprint
        self._firsts = np.cumsum([0, *(shard.num_records for shard in shards)]).tolist()
        super().__init__(self._firsts[-1], self._record)

    @classmethod
    def of(cls, records: Sequence[TokenPair]) -> "TokenArrays":
        """Returns the records as arrays: unchanged if they are arrays already, else a copy."""
        return records if isinstance(records, cls) else cls([TokenShard.of(records)])

    @property
    def parts(self) -> Sequence["TokenArrays"]:
        """The records of each source of a mixture; without one, these records."""
        return (self,)

    @property
    def sizes(self) -> Int[np.ndarray, "I 2"]:
        """The number of source and target tokens of every record."""
        return np.concatenate([np.diff(shard.starts).reshape(-1, 2).astype(np.int32) for shard in self.shards])

    @property
    def labels(self) -> Iterator[str]:
        """Yields the label of every record, "" for none."""
        for shard in self.shards:
            yield from [""] * shard.num_records if shard.labels is None else map(str, shard.labels)

    @property
    def extents(self) -> Integer[np.ndarray, "I"]:
        """The `Extent` of every record."""
        return np.concatenate(
            [np.zeros(shard.num_records, np.uint8) if shard.extents is None else shard.extents for shard in self.shards]
        )

    def columns(self, name: str) -> Iterator[Column]:
        """Yields the arrays of a name, shard by shard."""
        for shard in self.shards:
            yield shard.columns.get(name, Column(NOTHING, np.zeros(shard.num_records + 1, np.int64)))

    def each(self, name: str, number: Callable[[Column], Int[np.ndarray, "_"]]) -> Int[np.ndarray, "I"]:
        """Returns a number for every record, of its array of a name: `Column.sizes`, `Column.largest`, …"""
        return np.concatenate([*map(number, self.columns(name))])

    def view(self, i: int, side: int) -> Integer[np.ndarray, "_"]:
        """Returns the tokens of one side of record i, 0 the source, 1 the target, in the type in which they are stored."""
        shard, k = self._find(i)
        start, stop = shard.starts[2 * k + side : 2 * k + side + 2].tolist()
        return shard.ids[start:stop]

    def _find(self, i: int) -> tuple[TokenShard, int]:
        number = bisect.bisect_right(self._firsts, i) - 1
        return self.shards[number], i - self._firsts[number]

    def _record(self, i: int) -> TokenPair:
        shard, k = self._find(i)
        start, middle, stop = shard.starts[2 * k : 2 * k + 3].tolist()
        both = shard.ids[start:stop].astype(np.int32)
        return TokenPair(
            both[: middle - start],
            both[middle - start :],
            "" if shard.labels is None else str(shard.labels[k]),
            Extent.WHOLE if shard.extents is None else Extent(shard.extents[k]),
            {name: values[starts[k] : starts[k + 1]] for name, (values, starts) in shard.columns.items()},
        )

    def fingerprint(self) -> str:
        """Returns the SHA-256 of the records: the lengths of all sides, all tokens, and all else that a record has."""
        if self._fingerprint is not None:
            return self._fingerprint
        digest = hashlib.sha256()
        for shard in self.shards:
            digest.update(np.diff(shard.starts).astype(np.int64).tobytes())
        for shard in self.shards:
            for start in range(0, len(shard.ids), 2**20):
                digest.update(shard.ids[start : start + 2**20].astype(np.int32).tobytes())
        if any(shard.labels is not None for shard in self.shards):
            for label in self.labels:
                digest.update(f"{label}\n".encode())
        if any(shard.extents is not None for shard in self.shards):
            digest.update(self.extents.tobytes())
        names = set[str]().union(*(shard.columns for shard in self.shards))
        for name in sorted(names):
            digest.update(name.encode() + self.each(name, Column.sizes).tobytes())
            for values, _ in self.columns(name):
                digest.update(values.tobytes())
        return digest.hexdigest()
