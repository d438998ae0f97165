"""Files of samples/ and hypotheses/: their names, and the layout of samples."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

LAYOUT = re.compile(r"^source:     (.*)\nreference:  (.*)\nhypothesis: (.*)$", re.MULTILINE)
"""One sentence in a file of samples/."""


class Sample(NamedTuple):
    """A sentence of the evaluation data and its answer; ⏎ stands for a line break."""

    source: str
    reference: str
    hypothesis: str


def format_samples(samples: Iterable[Sample]) -> str:
    return "\n".join(
        "source:     {}\nreference:  {}\nhypothesis: {}\n".format(*(re.sub(r"[\r\n]+", "⏎", text) for text in sample))
        for sample in samples
    )


def read_samples(path: Path) -> list[Sample]:
    return [Sample(*texts) for texts in LAYOUT.findall(path.read_text(encoding="utf-8"))]


def evaluation_name(step: int) -> str:
    """Returns the name under which an evaluation in training writes its answers."""
    return f"eval-step-{step:08}"


def evaluation_files(folder: Path) -> dict[int, Path]:
    """Returns the files that evaluations in training wrote, by step, ascending."""
    files = {path: re.fullmatch(r"eval-step-(\d+)\.txt", path.name) for path in folder.glob("eval-step-*.txt")}
    return dict(sorted((int(match[1]), path) for path, match in files.items() if match))
