"""The stages of an example before a batch: text, token ids, a row; and the part of an objective that makes rows."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int

from flaxformer_lite.core.text import EncodedText, SpecialIds, Tokenizer
from flaxformer_lite.core.text.pairs import Extent

NOTHING: Int[np.ndarray, "0"] = np.zeros(0, np.int32)


class TokenPair(NamedTuple):
    """A pair as token ids, without special tokens. A conversation is a target with the special tokens of its template."""

    source: Int[np.ndarray, "S"]
    target: Int[np.ndarray, "T"]
    label: str = ""
    extent: Extent = Extent.WHOLE
    """The part of the pair that was read."""
    arrays: Mapping[str, np.ndarray] = {}
    """Numbers that belong to the pair, of any length, by a name that says what they mean."""

    def array(self, name: str) -> np.ndarray:
        """Returns the numbers of a name; an empty array for a name that the pair does not have."""
        return self.arrays.get(name, NOTHING)


class Pack(NamedTuple):
    """Pieces of documents that share a row, as token ids."""

    pieces: tuple[Int[np.ndarray, "_"], ...]
    words: tuple[Int[np.ndarray, "_"], ...] = ()
    """For each piece the word number of every token; empty unless the objective masks whole words."""
    answers: tuple[Bool[np.ndarray, "_"], ...] = ()
    """For each piece whether its tokens belong to an answer; empty unless the pieces are conversations."""


class LabelledText(NamedTuple):
    """One text, or two, as the model reads them, with the number of their class, or of each of several or token, or their value."""

    tokens: Int[np.ndarray, "S"]
    """Special ids included."""
    types: Int[np.ndarray, "S"]
    label: Any
    """A number, a tuple of whole numbers, or an array `[S]`."""

    @classmethod
    def of(cls, read: EncodedText, label: object) -> "LabelledText":
        """Returns texts that a tokenizer has read, with their label."""
        return cls(np.array(read.tokens, np.int32), np.array(read.types, np.int32), label)


class Lengths(NamedTuple):
    """Numbers of source and target tokens, special tokens included."""

    source: int
    target: int


Example = TypeVar("Example")
"""A tree of arrays: one row of a batch, or a whole batch `[B, …]`."""
MadeExample = TypeVar("MadeExample", covariant=True)


@runtime_checkable
class RowMaker(Protocol[MadeExample]):
    """The part of an objective that the data needs: from records to rows, and from a row, a value of any type, to arrays."""

    def packed_row(self, longest: Lengths) -> Lengths | None:
        """Returns the one shape of all rows if documents fill them; None if each row has its own length."""
        return None

    def longest_row(self, longest: Lengths) -> Lengths:
        """Returns the longest row within these lengths, of all rows or of a bucket's; 0 for a side that the model does not read."""
        return self.packed_row(longest) or longest

    @abstractmethod
    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> Sequence[Any]:
        """Returns the rows of all records, one or several records a row.

        longest: `data.max_source_length` and `data.max_target_length`.
        tokenizer: None if the rows are used for their shapes only; the records may then be empty. One empty record must give at
            least one row.

        Raises: ValueError for records that the objective cannot use, with their number.
        """

    def check_training(self, records: Sequence[TokenPair]) -> None:
        """Raises: ValueError for records, of all sources together, that evaluation can use, and training cannot."""
        return

    def evaluated_rows(self, rows: Any, first: int) -> Any:
        """Returns the rows of an evaluation, from those of `make_rows`, both of them `Rows`.

        first: the number of the first record, which no other source has.
        """
        return rows

    def lengths(self, record: Any) -> Lengths:
        """Returns the positions that a row needs, special tokens included; not called if `make_rows` returns `Rows`."""

    def pieces_read(self, record: Any, generator: np.random.Generator) -> Sequence[int] | None:
        """Returns the numbers of the pieces of a row that `example` reads with the same generator; None: all of them."""
        return None

    @abstractmethod
    def example(
        self, record: Any, lengths: Lengths, generator: np.random.Generator, special: SpecialIds
    ) -> MadeExample:
        """Returns a row as NumPy arrays without the axis B, padded to `lengths`.

        generator: the only source of randomness. It depends on seed, step and row; in evaluation on the row only.
        """


POSITIVES, NEGATIVES, SCORES = "positives", "negatives", "scores"
"""The names of the arrays of a record."""


def candidate_arrays(sizes: Sequence[int], positives: int, scores: Sequence[float]) -> dict[str, np.ndarray]:
    """Returns the arrays of a record whose candidates have these numbers of tokens, those of the positives first."""
    each = np.array(sizes, np.int32)
    return {POSITIVES: each[:positives], NEGATIVES: each[positives:], SCORES: np.array(scores, np.float32)}
