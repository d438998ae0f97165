"""The part of an objective that the data needs: from records to rows, and from a row to arrays."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from flaxformer_lite.data.records import Lengths, TokenPair
from flaxformer_lite.text.special_ids import SpecialIds
from flaxformer_lite.text.tokenizer import Tokenizer

Example = TypeVar("Example")
"""A tree of arrays: one row of a batch, or a batch `[B, …]`."""
Made = TypeVar("Made", covariant=True)


@runtime_checkable
class RowMaker(Protocol[Made]):
    """Makes the rows of batches. Every objective is one.

    A row is any value that a batch can hold in one row: a pair, or several pieces of documents. Only the row maker looks into it.
    """

    @property
    def truncates_records(self) -> bool:
        """Whether evaluation cuts each record to the longest lengths, with a warning; otherwise `make_rows` cuts."""

    def packed_row(self, longest: Lengths) -> Lengths | None:
        """Returns the one shape of all rows where documents fill them, None where each row has its own length."""

    def longest_row(self, longest: Lengths) -> Lengths:
        """Returns the longest row possible; 0 for a side that the model does not read."""

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> Sequence[Any]:
        """Returns the rows of all records. Without a tokenizer the rows are only used for their shapes.

        Raises: ValueError for records that the objective cannot use.
        """

    def lengths(self, record: Any) -> Lengths:
        """Returns the positions that a row needs, special tokens included."""

    def example(self, record: Any, lengths: Lengths, generator: np.random.Generator, special: SpecialIds) -> Made:
        """Returns a row as NumPy arrays (no leading axis), padded to `lengths`. All randomness comes from `generator`."""
