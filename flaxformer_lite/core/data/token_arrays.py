"""Tokenized records as a few arrays, in memory or in files, without a Python object for each record."""

import bisect
import hashlib
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, SupportsIndex, TypeVar, overload

import numpy as np
from jaxtyping import Bool, Int, Integer

from flaxformer_lite.core.data.records import Pair, TokenPair
from flaxformer_lite.core.text import Tokenizers

AT_ONCE = 4096
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


class TokenShard(NamedTuple):
    """The tokens of consecutive records: side k, source and target in turn, is `ids[starts[k] : starts[k + 1]]`."""

    ids: Integer[np.ndarray, "N"]
    starts: Int[np.ndarray, "K"]
    """Two for each record, and the number of all tokens."""
    labels: np.ndarray | None = None
    """The label of each record, a text; None if none has one."""
    marks: Integer[np.ndarray, "N"] | Bool[np.ndarray, "N"] | None = None
    """The mark of each token, 0 for those of sources; None: no marks."""

    @classmethod
    def of(
        cls,
        pairs: Sequence[Pair],
        tokenizers: Tokenizers,
        dtype: type = np.int32,
        report: Callable[[int], None] = lambda done: None,
    ) -> "TokenShard":
        """Returns the tokens of the pairs; `report` gets the number of pairs that are done, now and then, and may raise."""
        starts, labels, marks = [0], list[str](), dict[int, np.ndarray]()

        def sides() -> Iterator[Sequence[int]]:
            for start in range(0, len(pairs), AT_ONCE):
                report(start)
                for record in tokenizers.encode_pairs(pairs[start : start + AT_ONCE]):
                    for side in record[:2]:
                        starts.append(starts[-1] + len(side))
                        yield side
                    labels.append(record.label)
                    if record.marks is not None:
                        marks[starts[-2]] = np.asarray(record.marks, np.uint16)

        ids: np.ndarray = np.fromiter(itertools.chain.from_iterable(sides()), dtype)
        return cls(ids, np.array(starts), np.array(labels) if any(labels) else None, all_marks(marks, len(ids)))


class TokenArrays(Lazy[TokenPair]):
    """Records in shards. A record's sides are slices of the shard's array of ids, as 32-bit numbers."""

    def __init__(self, shards: Sequence[TokenShard], fingerprint: str | None = None) -> None:
        self.shards, self._fingerprint = shards, fingerprint
        self._firsts = np.cumsum([0, *(len(shard.starts) // 2 for shard in shards)]).tolist()
        super().__init__(self._firsts[-1], self._record)

    @classmethod
    def of(cls, records: Sequence[TokenPair]) -> "TokenArrays":
        """Returns the records as arrays: unchanged if they are arrays already, else a copy."""
        if isinstance(records, cls):
            return records
        sides = [side for record in records for side in record[:2]]
        starts = np.cumsum([0, *map(len, sides)], dtype=np.int64)
        ids = np.concatenate([np.zeros(0, np.int32), *sides], dtype=np.int32, casting="unsafe")
        labels = [record.label for record in records]
        targets = zip(starts[1::2].tolist(), records, strict=True)
        marks = {start: record.marks for start, record in targets if record.marks is not None}
        all_labels = np.array(labels) if any(labels) else None
        return cls([TokenShard(ids, starts, all_labels, all_marks(marks, len(ids)))])

    @property
    def parts(self) -> Sequence["TokenArrays"]:
        """The records of each source of a mixture; without one, these records."""
        return (self,)

    @property
    def sizes(self) -> Int[np.ndarray, "I 2"]:
        """The number of source and target tokens of every record."""
        return np.concatenate([np.diff(shard.starts).reshape(-1, 2).astype(np.int32) for shard in self.shards])

    @property
    def num_answers(self) -> Int[np.ndarray, "I"]:
        """The number of predicted tokens in the answers of every record: all but a first token. Raises: ValueError for pairs."""
        counts = []
        for shard in self.shards:
            if shard.marks is None and len(shard.ids):
                raise ValueError("these records are pairs of token ids: conversations need the tokens of answers too")
            before = np.concatenate([[0], np.cumsum([] if shard.marks is None else shard.marks, dtype=np.int64)])
            starts, stops = shard.starts[1::2], shard.starts[2::2]
            counts.append(before[stops] - before[np.minimum(starts + 1, stops)])
        return np.concatenate(counts)

    @property
    def longest_candidates(self) -> Int[np.ndarray, "I"]:
        """The most tokens of a target of every record that follow each other and have the same mark; without marks all."""
        longest = []
        for shard in self.shards:
            starts, stops = shard.starts[1::2], shard.starts[2::2]
            if shard.marks is None or not len(shard.ids):
                longest.append(stops - starts)
                continue
            changes = np.flatnonzero(np.diff(shard.marks.astype(np.int32))) + 1
            borders = np.unique(np.concatenate([shard.starts, changes]))
            runs = np.append(np.diff(borders), 0)
            places = np.searchsorted(borders, np.stack([starts, stops], 1).ravel())
            longest.append(np.where(stops > starts, np.maximum.reduceat(runs, places)[::2], 0))
        return np.concatenate(longest)

    @property
    def labels(self) -> Iterator[str]:
        """Yields the label of every record, "" for none."""
        for shard in self.shards:
            yield from [""] * (len(shard.starts) // 2) if shard.labels is None else map(str, shard.labels)

    def labelled(self, label: str) -> Int[np.ndarray, "_"]:
        """Returns the numbers of the records with a label, ascending."""
        places = [np.zeros(0, np.int64)]
        for first, shard in zip(self._firsts, self.shards, strict=False):
            if shard.labels is not None:
                places.append(first + np.flatnonzero(shard.labels == label))
        return np.concatenate(places)

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
        label = "" if shard.labels is None else str(shard.labels[k])
        both = shard.ids[start:stop].astype(np.int32)
        marks = None if shard.marks is None else shard.marks[middle:stop]
        return TokenPair(both[: middle - start], both[middle - start :], label, marks)

    def fingerprint(self) -> str:
        """Returns the SHA-256 of the records: the lengths of all sides, all tokens, and the labels if there are any."""
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
        for shard in self.shards:
            if shard.marks is not None:
                bits = np.packbits(shard.marks) if shard.marks.dtype == np.bool else shard.marks.astype(np.uint16)
                digest.update(bits.tobytes())
        return digest.hexdigest()


def all_marks(targets: Mapping[int, Any], number: int) -> Integer[np.ndarray, "N"] | Bool[np.ndarray, "N"] | None:
    """Returns the marks of so many tokens, 16 bits each, or 1 where none is above 1; None if no target has marks.

    targets: the marks of targets by their first token. All other tokens have the mark 0.
    """
    if not targets:
        return None
    marks = np.zeros(number, np.uint16)
    for start, of_target in targets.items():
        marks[start : start + len(of_target)] = of_target
    return marks.astype(np.bool) if marks.max(initial=0) <= 1 else marks
