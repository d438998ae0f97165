"""The recipe for texts or pairs of texts with a class, several classes, or a number."""

import itertools
import math
from collections.abc import Sequence
from contextlib import suppress

from flaxformer_lite.core.objectives import Classification, Regression
from flaxformer_lite.core.objectives.classification import label_names
from flaxformer_lite.files.records import Classes
from flaxformer_lite.tasks.recipe import TEXT_FIELDS, Examples, Recipe, poolers_of_texts, with_poolers

PAIR_FIELDS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("text", "text_pair"),
    ("question", "sentence"),
    ("question", "passage"),
)
"""Usual names of the fields of two texts."""
CLASS_FIELDS = (
    "label",
    "labels",
    "class",
    "category",
    "target",
    "intent",
    "sentiment",
    "emotion",
    "topic",
    "genre",
    "stars",
)
NUMBERS = ("score", "rating", "similarity", "similarity_score", "value")
"""Usual names of the field of a label, and of a number."""
MOST_CLASSES = 1_000
MOST_NUMBERED_CLASSES = 20
"""Labels that are whole numbers are classes if they have at most this many values."""


def recipe(examples: Examples) -> Recipe | None:
    """Returns the recipe; None: the rows are no texts with labels. Raises: ValueError for a bad row, and for too few or
    too many classes in a field that was named."""
    record = record_of(examples)
    if record is None:
        return None
    source = examples.sources[0](record)
    found = [pair.label for pair in examples.pairs(record)]
    names = list(record.label) if isinstance(record.label, tuple) else [*{*itertools.chain(*map(label_names, found))}]
    several = isinstance(record.label, tuple) or any(label_names(label) != [label] for label in found if label)
    numbers = numbers_of(names)
    if examples.task == "regression" or (not several and examples.task != "classify" and are_measures(numbers)):
        models = with_poolers(poolers_of_texts(1))
        return Recipe(task="classify", source=source, objective=Regression(), models=models, best_metric="spearman")
    if not 1 < len(names) <= MOST_CLASSES:
        raise ValueError(
            f"the field {record.label} has {len(names):,} different labels, and a classifier needs 2 to {MOST_CLASSES:,}: name "
            "another field by --label"
        )
    classes = tuple(sorted(names, key=float if numbers else str))
    return Recipe(
        task="classify",
        source=source,
        objective=Classification(classes=classes, labels="several" if several else "one"),
        models=with_poolers(poolers_of_texts(len(classes))),
        best_metric="micro_f1" if several else "macro_f1",
    )


def record_of(examples: Examples) -> Classes | None:
    """Returns the fields of the texts and of the labels; None if the rows have none."""
    text, label = examples.first(TEXT_FIELDS, str), examples.first((*CLASS_FIELDS, *NUMBERS), str, int, float, list)
    texts = examples.texts or examples.all_of(PAIR_FIELDS) or [name for name in [text] if name]
    labels = examples.labels or [name for name in [label] if name]
    others = examples.others(*texts, *labels)
    if labels and not texts and len(others) == 1 and examples.has(others[0], str):
        texts = others
    values = itertools.chain(*map(examples.values, labels))
    items = itertools.chain(*(value for value in values if isinstance(value, list)))
    if not texts or not labels or any(isinstance(item, dict) for item in items):
        return None
    source = texts[0] if len(texts) > 1 else None
    return Classes(source=source, text=texts[-1], label=labels[0] if len(labels) == 1 else tuple(labels))


def numbers_of(names: Sequence[str]) -> list[float]:
    """Returns the numbers that names spell, the smallest first; none unless all are finite numbers."""
    with suppress(ValueError):
        numbers = sorted(map(float, names))
        return numbers if all(map(math.isfinite, numbers)) else []
    return []


def are_measures(numbers: Sequence[float]) -> bool:
    """Returns whether numbers measure something: fractions, or many whole numbers that do not count up from 0 or 1."""
    is_counted = numbers[:1] in ([0], [1]) and numbers == [numbers[0] + place for place in range(len(numbers))]
    return not all(map(float.is_integer, numbers)) or (len(numbers) > MOST_NUMBERED_CLASSES and not is_counted)
