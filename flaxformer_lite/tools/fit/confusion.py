"""The table of classes on the test: what the texts of each class were taken for, made once."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from flaxformer_lite.base.atomic_files import write_json
from flaxformer_lite.core.data import Pair
from flaxformer_lite.run import Run

MOST_SHOWN = 10
"""The number of classes that are shown: those with the most mistakes."""


def confusion_once(run: Run, pairs: Sequence[Pair], file: Path, tell: Callable[[str], None]) -> None:
    """Writes a table with a row for each true class and a number for each predicted one, and tells the classes of most mistakes."""
    classes = run.config.objective.class_names
    if not file.is_file():
        texts = [(pair.source, pair.target) if pair.source else pair.target for pair in pairs]
        answers = run.classify(texts, warn=lambda line: None)
        counts = Counter((pair.label, answer.label) for pair, answer in zip(pairs, answers, strict=True))
        write_json(file, {"classes": classes, "counts": [[counts[true, one] for one in classes] for true in classes]})
    table = np.array(json.loads(file.read_bytes())["counts"])
    wrong = table.copy()
    np.fill_diagonal(wrong, 0)
    for place in np.argsort(-wrong.sum(1), kind="stable")[:MOST_SHOWN].tolist():
        most = np.argsort(-wrong[place], kind="stable")[:3].tolist()
        taken = ", ".join(f"{classes[one]} {wrong[place, one]}" for one in most if wrong[place, one])
        tell(
            f"  {classes[place]}: {table[place, place]} of {table[place].sum()} right{'; taken for ' if taken else ''}{taken}"
        )
