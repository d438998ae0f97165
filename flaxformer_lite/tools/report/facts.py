"""Facts in the files of a run folder: rows of metrics, translations through training, all hypotheses of a split,
and the lengths of its training texts."""

import itertools
import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from flaxformer_lite.config import Config
from flaxformer_lite.core.data.batch_plan import batch_shapes, bucket_indices
from flaxformer_lite.core.data.dataset import as_rows
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.files.data.reading import tokenize
from flaxformer_lite.files.data.refused import Origin
from flaxformer_lite.run.scoring import Ratings
from flaxformer_lite.workdir import RunFolder
from flaxformer_lite.workdir.samples import Sample, evaluation_files, read_samples

MOST_READ = 10_000
"""The first records of the training data that are read: enough for a histogram."""
MOST_EVALUATIONS = 12
"""The most evaluations whose translations the page shows."""


@dataclass(frozen=True)
class RunFacts:
    """A run of the report, under a name that no other run of it has."""

    name: str
    path: str
    """The folder or URL, as it was typed."""
    folder: RunFolder

    @cached_property
    def config(self) -> Config:
        """The settings. Raises: ValueError if the folder holds no run."""
        return self.folder.config()

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl."""
        return self.folder.rows()

    @cached_property
    def samples(self) -> dict[int, list[Sample]]:
        """The translations of the first evaluation sentences, by step."""
        return {step: read_samples(path) for step, path in evaluation_files(self.folder.path / "samples").items()}

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """The reports of the command `evaluate`."""
        return self.folder.reports()

    def hypotheses(self, split: str) -> tuple[str, list[str]] | None:
        """Returns the name and the lines of the newest file of hypotheses for a split: of `evaluate`, else of training."""
        folder = self.folder.path / "hypotheses"
        files = [folder / f"{split}.txt"]
        if split == "eval":
            files += reversed(evaluation_files(folder).values())
        for path in files:
            if path.is_file():
                return path.stem, path.read_text(encoding="utf-8").split("\n")[:-1]
        return None

    def ratings(self, name: str, sentences: int) -> Ratings:
        """Returns the ratings of hypotheses by `evaluate --metric`; empty without them, or for another number of sentences."""
        file = self.folder.path / "evaluations" / f"{name}-ratings.jsonl"
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []
        return {} if len(rows) != sentences else {metric: [row[metric] for row in rows] for metric in rows[0]}


def shown_steps(steps: list[int]) -> list[int]:
    """Returns at most `MOST_EVALUATIONS` of the steps, the first and the last among them."""
    return [steps[place] for place in evenly(len(steps), MOST_EVALUATIONS)]


def evenly(number: int, most: int) -> list[int]:
    """Returns at most `most` of `number` places, evenly spaced, including the first and the last."""
    return np.linspace(0, number - 1, min(number, most)).round().astype(int).tolist()


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
    pairs = list(itertools.islice(source.open("data.train"), MOST_READ))
    records = tokenize(pairs, tokenizers, Origin(source, "data.train"))
    sides = {"source": [len(record.source) for record in records], "target": [len(record.target) for record in records]}
    rows = config.objective.make_rows(records, config.data.longest, config.train.seed, tokenizers.target)
    sizes = as_rows(rows, config.objective).lengths
    buckets = batch_shapes(config.objective, config.data)
    which = bucket_indices(sizes, buckets)
    padding = {}
    for i, bucket in enumerate(buckets):
        inside = sizes[which == i]
        if len(inside):
            name = " x ".join(str(length) for length in bucket.lengths if length)
            padding[name] = 1 - float(inside.sum()) / (len(inside) * sum(bucket.lengths))
    counts = {side: dict(sorted(Counter(lengths).items())) for side, lengths in sides.items() if any(lengths)}
    return TextLengths(len(records), counts, padding, int((which == len(buckets)).sum()))
