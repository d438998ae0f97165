"""The table of classes on the test: what the texts of each class were taken for, made once."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from flaxformer_lite.base.atomic_files import write_json
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.objectives.classification import label_names
from flaxformer_lite.run import Run

MOST_SHOWN = 10
"""Classes of which a line is shown: those with the most mistakes."""


def confusion_once(run: Run, pairs: Sequence[Pair], file: Path, tell: Callable[[str], None]) -> None:
    """Writes a table with a row for each true class and a number for each predicted one, and tells the classes of most mistakes.

    A text with several labels counts for each of them. A label that the text lacks is counted in the last row, and a label that
    was not found in the last number of its row.
    """
    classes = run.config.objective.class_names
    if not file.is_file():
        texts = [(pair.source, pair.target) if pair.source else pair.target for pair in pairs]
        answers = run.classify(texts, warn=lambda line: None)
        counts = Counter(
            one for pair, answer in zip(pairs, answers, strict=True) for one in compared(pair.label, answer.labels)
        )
        both = (*classes, None)
        write_json(file, {"classes": classes, "counts": [[counts[true, one] for one in both] for true in both]})
    table = np.array(json.loads(file.read_bytes())["counts"])[: len(classes)]
    wrong = table.copy()
    np.fill_diagonal(wrong, 0)
    named = (*classes, "no class")
    for place in np.argsort(-wrong.sum(1), kind="stable")[:MOST_SHOWN].tolist():
        most = np.argsort(-wrong[place], kind="stable")[:3].tolist()
        taken = ", ".join(f"{named[one]} {wrong[place, one]}" for one in most if wrong[place, one])
        tell(
            f"  {classes[place]}: {table[place, place]} of {table[place].sum()} right{'; taken for ' if taken else ''}{taken}"
        )


def compared(label: str, predicted: Sequence[str]) -> list[tuple[str | None, str | None]]:
    """Returns each true label of a text with what it was taken for: itself, or of the others the only one on each side.

    None stands for no class.
    """
    true = label_names(label)
    missed, added = [name for name in true if name not in predicted], [name for name in predicted if name not in true]
    if len(missed) == len(added) == 1:
        return [*((name, name) for name in true if name in predicted), (missed[0], added[0])]
    return [*((name, name if name in predicted else None) for name in true), *((None, name) for name in added)]
