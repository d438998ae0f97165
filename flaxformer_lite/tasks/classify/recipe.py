"""The recipe for texts or pairs of texts with a class, several classes, or a number."""

import itertools
import math
from collections.abc import Iterable

from flaxformer_lite.core.objectives import Classification, Regression
from flaxformer_lite.core.objectives.classification import label_names
from flaxformer_lite.files.records import Classes
from flaxformer_lite.files.records.texts import NO, YES
from flaxformer_lite.tasks.recipe import TEXTS, Examples, Recipe, poolers_of_texts, with_poolers

PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("text", "text_pair"),
    ("question", "sentence"),
    ("question", "passage"),
)
"""Usual names of the fields of two texts."""
LABELS = ("label", "labels", "class", "category", "target", "intent", "sentiment", "emotion", "topic", "genre", "stars")
NUMBERS = ("score", "rating", "similarity", "similarity_score", "value")
"""Usual names of the field of a label, and of a number."""
MOST_CLASSES = 1_000
FEW = 20
"""Whole numbers of so many values are classes."""


def recipe(examples: Examples) -> Recipe | None:
    """Returns the recipe; None: the rows are no texts with labels. Raises: ValueError for a bad row, and for too few or
    too many classes in a field that was named."""
    record = record_of(examples)
    if record is None:
        return None
    source, found = examples.sources[0](record), [pair.label for pair in examples.pairs(record)]
    names = list(record.label) if isinstance(record.label, tuple) else [*{*itertools.chain(*map(label_names, found))}]
    several = isinstance(record.label, tuple) or any(label_names(label) != [label] for label in found if label)
    if examples.task == "regression" or (not several and examples.task != "classify" and are_measures(names)):
        models = with_poolers(poolers_of_texts(1))
        return Recipe(task="classify", source=source, objective=Regression(), models=models, best_metric="spearman")
    if not 1 < len(names) <= MOST_CLASSES:
        if not examples.labels and str(record.label).lower() not in (*LABELS, *NUMBERS):
            return None  # the field was taken for labels because its values repeat
        raise ValueError(
            f"the field {record.label} has {len(names):,} different labels, and a classifier needs 2 to {MOST_CLASSES:,}: name "
            "another field by --label"
        )
    classes = tuple(sorted(names, key=float) if all(map(is_number, names)) else sorted(names))
    return Recipe(
        task="classify",
        source=source,
        objective=Classification(classes=classes, labels="several" if several else "one"),
        models=with_poolers(poolers_of_texts(len(classes))),
        best_metric="micro_f1" if several else "macro_f1",
    )


def record_of(examples: Examples) -> Classes | None:
    """Returns the fields of the texts and of the labels; None if the rows have none."""
    texts, labels = examples.texts, examples.labels
    texts = texts or examples.all_of(PAIRS)
    if not texts and (text := examples.first(TEXTS, str)) is not None:
        texts = [text]
    if not labels and (label := examples.first((*LABELS, *NUMBERS), str, int, float, list)) is not None:
        labels = [label]
    others = examples.others(*texts, *labels)
    if labels and not texts and len(others) == 1 and examples.has(others[0], str):
        texts = others
    elif (
        texts
        and not labels
        and others
        and (are_marks(examples, others) or (len(others) == 1 and repeats(examples, *others)))
    ):
        labels = others
    if not texts or not labels or any(isinstance(one, dict) for name in labels for one in listed(examples, name)):
        return None
    source = texts[0] if len(texts) > 1 else None
    return Classes(source=source, text=texts[-1], label=labels[0] if len(labels) == 1 else tuple(labels))


def listed(examples: Examples, name: str) -> Iterable[object]:
    """Returns the items of the lists in a field."""
    return itertools.chain(*(value for value in examples.values(name) if isinstance(value, list)))


def are_marks(examples: Examples, names: Iterable[str]) -> bool:
    """Returns whether several fields have nothing but 0 and 1: each is a label by its name."""
    names = [*names]
    cells = [str(value).lower() for name in names for value in examples.values(name)]
    return len(names) > 1 and bool(cells) and {*cells} <= {*YES, *NO}


def repeats(examples: Examples, name: str) -> bool:
    """Returns whether a field has few values for its rows, as labels have."""
    values = [str(value) for value in examples.values(name)]
    return len({*values}) <= len(values) // 2


def are_measures(names: Iterable[str]) -> bool:
    """Returns whether labels measure something: fractions, or many whole numbers that do not count up from 0 or 1."""
    names = [*names]
    if not all(map(is_number, names)):
        return False
    numbers = sorted(map(float, names))
    counted = [numbers[0] + place for place in range(len(numbers))]
    is_counted = numbers == counted and numbers[0] in (0, 1)
    return not all(number.is_integer() for number in numbers) or (len(numbers) > FEW and not is_counted)


def is_number(text: str) -> bool:
    """Returns whether a text spells a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
