"""The recipe for words with labels, and for texts with entities."""

import itertools
import json
from typing import Any

from flaxformer_lite.core.objectives import TokenLabels
from flaxformer_lite.core.objectives.kinds import scheme_of
from flaxformer_lite.core.reading.objectives import OUTSIDE
from flaxformer_lite.files.records import Entities, Words
from flaxformer_lite.files.records.words import in_scheme
from flaxformer_lite.tasks.recipe import TEXT_FIELDS, Examples, Recipe, poolers_of_tokens, with_poolers

WORD_FIELDS = ("tokens", "words", "token", "word")
WORD_LABEL_FIELDS = ("ner_tags", "tags", "labels", "ner", "label", "pos_tags", "pos", "upos")
SPANS = ("spans", "entities", "label", "labels")
"""Usual names of the fields of words, of their labels, and of entities."""


def recipe(examples: Examples) -> Recipe | None:
    """Returns the recipe; None: no words have labels. Raises: ValueError for a bad row."""
    record = record_of(examples)
    if record is None:
        return None
    marked = [json.loads(pair.label) for pair in examples.pairs(record)]
    seen = set[Any]()
    for row in marked:
        for items in row.values():
            seen.update(label for *_, label in items if label is not None)
    if isinstance(record, Entities):
        seen = set().union(*(in_scheme(kind, 2, "bio") for kind in seen))
    elif seen and all(isinstance(label, int) for label in seen):
        seen = {str(number) for number in range(max(seen) + 1)}
    scheme = scheme_of([*seen])
    outside = {OUTSIDE} if scheme != "plain" or OUTSIDE in seen else set[str]()
    inside = sorted(seen - outside)
    if scheme != "plain":  # by their types
        inside.sort(key=lambda label: label[2:])
    labels = (*outside, *inside)
    return Recipe(
        task="label",
        source=examples.sources[0](record),
        objective=TokenLabels(labels=labels, scheme=scheme),
        models=with_poolers(poolers_of_tokens(len(labels))),
        best_metric="accuracy" if scheme == "plain" else "f1",
    )


def record_of(examples: Examples) -> Words | Entities | None:
    """Returns the fields of the words or of the text, and of their labels; None if the rows have none."""
    texts = examples.texts[0] if examples.texts else None
    labels = examples.labels[0] if examples.labels else None
    words = texts or examples.first(WORD_FIELDS, list)
    spans = labels or examples.first(SPANS, list)
    if words and examples.has(words, list):
        of_words = labels or examples.first(WORD_LABEL_FIELDS, list)
        if of_words:
            return Words(words=words, labels=of_words)
    text = texts or examples.first(TEXT_FIELDS, str)
    lists = [value for value in examples.values(spans or "") if isinstance(value, list)]
    items = list(itertools.chain.from_iterable(lists))
    if text and spans and items and all(isinstance(item, dict | list) for item in items):
        return Entities(text=text, spans=spans)
    return None
