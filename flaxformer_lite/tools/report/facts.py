"""Facts in the files of a run folder: translations through training, all hypotheses of a split, and the environment."""

import platform
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flaxformer_lite.base.hardware import installed_versions
from flaxformer_lite.config import Config
from flaxformer_lite.workdir import RunFolder
from flaxformer_lite.workdir.samples import Sample, evaluation_files, read_samples

MOST_EVALUATIONS = 12
"""The most evaluations whose translations the page shows."""
PACKAGES = ("flaxformer-lite", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "sacrebleu", "altair")
"""Distributions whose versions the page shows."""


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

    @cached_property
    def first_lines(self) -> list[str]:
        """The lines of train.log before the first step, those of progress left out: data, parameters, devices, kernels."""
        log = self.folder.path / "train.log"
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
        steps = (i for i, line in enumerate(lines) if re.search(r"  step +\d+  ", line))
        progress = re.compile(r"  [\w. ]+: [\d,/]+, ")
        return [line for line in lines[: next(steps, None)] if not progress.search(line)][:12]


def shown_steps(steps: list[int]) -> list[int]:
    """Returns at most `MOST_EVALUATIONS` of the steps, the first and the last among them."""
    last = len(steps) - 1
    places = {round(i * last / (MOST_EVALUATIONS - 1)) for i in range(MOST_EVALUATIONS)}
    return steps if last < MOST_EVALUATIONS else [steps[place] for place in sorted(places)]


def environment() -> dict[str, str]:
    """Returns the system and the versions under which the report is written."""
    system = {"system": platform.platform(), "Python": platform.python_version()}
    return system | installed_versions(PACKAGES)
