"""Lengths of training texts in tokens, and the padding of the batches that they make."""

import itertools
from collections import Counter
from dataclasses import dataclass

from flaxformer_lite.config import Config
from flaxformer_lite.data.batch_plan import bucket_indices
from flaxformer_lite.data.config import batch_shapes
from flaxformer_lite.data.dataset import lengths_of, tokenize
from flaxformer_lite.text import Tokenizers

MOST_RECORDS = 10_000
"""The first records of the training data that are read: enough for a histogram."""


@dataclass(frozen=True)
class TextLengths:
    """Counts over the first training records. A record is a pair or a document, a row is what the objective makes of it."""

    records: int
    """Records that were read."""
    counts: dict[str, dict[int, int]]
    """By side (source, target) how many records have each number of tokens, without special ids; sides without text are missing."""
    padding: dict[str, float]
    """By shape of a batch, "source x target", the share of padding in its rows."""
    dropped: int
    """Rows that fit no shape."""


def text_lengths(config: Config, tokenizers: Tokenizers) -> TextLengths:
    """Returns the lengths of the first training records. Raises: ValueError if there is no data, or it cannot be read."""
    source = config.data.source("train")
    if source is None:
        raise ValueError("data.train is None: lengths are counted in training data")
    pairs = list(itertools.islice(source.open("data.train"), MOST_RECORDS))
    records = tokenize(pairs, tokenizers)
    sides = {"source": [len(record.source) for record in records], "target": [len(record.target) for record in records]}
    rows = config.objective.make_rows(records, config.data.longest, config.train.seed, tokenizers.target)
    sizes = lengths_of(rows, config.objective)
    buckets = batch_shapes(config.objective, config.data)
    which, padding = bucket_indices(sizes, buckets), {}
    for i, bucket in enumerate(buckets):
        inside = sizes[which == i]
        if len(inside):
            name = " x ".join(str(length) for length in bucket.lengths if length)
            padding[name] = 1 - float(inside.sum()) / (len(inside) * sum(bucket.lengths))
    counts = {side: dict(sorted(Counter(lengths).items())) for side, lengths in sides.items() if any(lengths)}
    return TextLengths(len(records), counts, padding, int((which == len(buckets)).sum()))
