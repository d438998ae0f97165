"""The table of classes on the test: what the texts of each class were taken for, made once."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from flaxformer_lite.base.atomic_files import write_whole
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.objectives.classification import label_names
from flaxformer_lite.run import Run

MOST_SHOWN = 10
"""Classes of which a line is shown: those with the most mistakes."""


def confusion_once(run: Run, pairs: Sequence[Pair], file: Path, tell: Callable[[str], None]) -> None:
    """Writes a table with a row for each true class and a column for each predicted one, and tells the classes of most mistakes.

    A text with several labels counts for each of them; a label that it lacks, or that was not found, is in the row, or the column,
    of no class, `-`.
    """
    classes = run.config.objective.class_names
    if not file.is_file():
        texts = [(pair.source, pair.target) if pair.source else pair.target for pair in pairs]
        answers = run.classify(texts, warn=lambda line: None)
        counts = Counter(
            one for pair, answer in zip(pairs, answers, strict=True) for one in compared(pair.label, answer.labels)
        )
        rows = [[*(str(counts[true, one]) for one in (*classes, "-"))] for true in (*classes, "-")]
        lines = [
            ["true \\ predicted", *classes, "-"],
            *([name, *row] for name, row in zip((*classes, "-"), rows, strict=True)),
        ]
        write_whole(file, "".join("\t".join(line) + "\n" for line in lines))
    _, *table = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
    numbers = {name: dict(zip((*classes, "-"), map(int, row), strict=True)) for name, *row in table}
    wrong = {name: {one: count for one, count in numbers[name].items() if one != name and count} for name in classes}
    worst = sorted(classes, key=lambda name: -sum(wrong[name].values()))[:MOST_SHOWN]
    for name in worst:
        taken = ", ".join(f"{one} {count}" for one, count in sorted(wrong[name].items(), key=lambda item: -item[1])[:3])
        tell(
            f"  {name}: {numbers[name][name]} of {sum(numbers[name].values())} right{'; taken for ' if taken else ''}{taken}"
        )


def compared(label: str, predicted: Sequence[str]) -> list[tuple[str, str]]:
    """Returns each true label of a text with what it was taken for: itself, or of the others the only one on each side."""
    true = label_names(label)
    missed, added = [name for name in true if name not in predicted], [name for name in predicted if name not in true]
    if len(missed) == len(added) == 1:
        return [(name, name) for name in true if name in predicted] + [(missed[0], added[0])]
    return [(name, name if name in predicted else "-") for name in true] + [("-", name) for name in added]
