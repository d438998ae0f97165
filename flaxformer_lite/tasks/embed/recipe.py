"""The recipe for vectors of texts: from pairs that belong together, or queries with candidates."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace

from flaxformer_lite.core.model import ModelConfig, SentenceEmbedding
from flaxformer_lite.core.objectives import SentenceEmbeddings
from flaxformer_lite.files.records import Candidates
from flaxformer_lite.tasks.recipe import Examples, Recipe

QUERIES = ("query", "anchor", "question", "queries")
POSITIVES = ("positive", "pos", "positives", "positive_passages", "answer", "document", "passage")
NEGATIVE = re.compile(r"(hard_)?neg(ative)?s?(_passages)?(_?\d+)?")
"""Usual names of the fields of a query, of a text that answers it, and of those that do not."""
MOST_NEGATIVES = 4
"""The most negatives of a query in a step."""


def recipe(examples: Examples) -> Recipe | None:
    """Returns the recipe; None: the rows have no texts that belong together."""
    record = record_of(examples)
    if record is None:
        return None
    number = negatives_in(examples, record)
    return Recipe(
        task="embed",
        source=examples.sources[0](record),
        objective=SentenceEmbeddings(directions="forward" if number else "both", num_negatives=number),
        models=models,
        best_metric="accuracy",
        rate=2e-5,
        rows=32,
        epochs=(1, 3),
        kept=("prompts", "query_prompt", "document_prompt", "default_prompt", "temperature"),
    )


def record_of(examples: Examples) -> Candidates | None:
    """Returns the fields of the query and of its candidates; None if the rows have none."""
    query = examples.texts[0] if examples.texts else examples.first(QUERIES, str)
    positives = examples.texts[1] if len(examples.texts) > 1 else examples.first(POSITIVES, str, list)
    if not query or not positives or examples.labels:
        return None
    negatives = tuple(
        name for name in examples.fields if NEGATIVE.fullmatch(name.lower()) and examples.has(name, str, list)
    )
    return Candidates(query=query, positives=positives, negatives=negatives)


def negatives_in(examples: Examples, record: Candidates) -> int:
    """Returns the most negatives that a step reads of a query."""
    fields = [examples.values(str(name)) for name in record.negatives]
    most = 0
    for row in itertools.zip_longest(*fields, fillvalue=[]):
        most = max(most, sum(len(value) if isinstance(value, list) else 1 for value in row))
    return min(most, MOST_NEGATIVES)


def models(base: ModelConfig) -> Sequence[ModelConfig]:
    """Returns models of vectors that begin as another one: as it makes them, or by the mean or the last token."""
    usual = SentenceEmbedding(pooling="mean" if base.num_encoder_layers else "last")
    pooler = base.pooler and replace(base.pooler, num_classes=0)
    embedding = base.sentence_embedding or usual
    return [replace(base, head=None, pooler=one, sentence_embedding=embedding) for one in (None, pooler)]
