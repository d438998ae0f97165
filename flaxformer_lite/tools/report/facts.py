"""Facts in the files of a run folder: rows of metrics, translations through training, all hypotheses of a split."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flaxformer_lite.config import Config
from flaxformer_lite.workdir import RunFolder
from flaxformer_lite.workdir.samples import Sample, evaluation_files, read_samples

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


def shown_steps(steps: list[int]) -> list[int]:
    """Returns at most `MOST_EVALUATIONS` of the steps, the first and the last among them."""
    last = len(steps) - 1
    places = {round(i * last / (MOST_EVALUATIONS - 1)) for i in range(MOST_EVALUATIONS)}
    return steps if last < MOST_EVALUATIONS else [steps[place] for place in sorted(places)]
