"""Laws of the protocol between data and objectives: every objective keeps it, and nothing else is needed."""

from typing import NamedTuple

import numpy as np

from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.data.dataset import Dataset
from flaxformer_lite.core.data.records import Lengths, RowMaker, TokenPair
from flaxformer_lite.core.text.characters import ByteTokenizer
from flaxformer_lite.core.text.tokenizer import Tokenizers
from flaxformer_lite.files.data.config import DataConfig
from flaxformer_lite.files.data.reading import tokenize


class Both(NamedTuple):
    tokens: np.ndarray


class Joined(RowMaker[Both]):
    """A row maker that is no objective: source and target in one row."""

    def packed_row(self, longest: Lengths) -> None:
        return None

    def longest_row(self, longest: Lengths) -> Lengths:
        return Lengths(longest.source + longest.target, 0)

    def make_rows(self, records, longest, seed, tokenizer=None):
        return [np.concatenate(record[:2]) for record in records]

    def lengths(self, record) -> Lengths:
        return Lengths(len(record), 0)

    def example(self, record, lengths, generator, special) -> Both:
        return Both(np.pad(record, (0, lengths.source - len(record)), constant_values=special.pad))


def test_a_row_maker_from_outside_the_package_makes_batches() -> None:
    """Oracle: rows built here by hand; the last two of the 4 rows only fill up."""
    tokenizer = ByteTokenizer()
    records = tokenize([Pair("ab", "c"), Pair("d", "efg")], Tokenizers(tokenizer, tokenizer))
    config = DataConfig(
        max_source_length=4, max_target_length=4, bucket_lengths=(8,), rows_multiple=4, tokens_per_batch=8
    )
    batch = Dataset.evaluation(records, Joined(), config, tokenizer).batch(0)
    rows = {tuple(row) for row in batch.tokens.tolist()}
    expected = [tokenizer.encode("abc"), tokenizer.encode("defg"), []]
    assert rows == {tuple(ids + [0] * (8 - len(ids))) for ids in expected}
    assert batch.tokens.shape == (4, 8) and isinstance(records[0], TokenPair)
