"""Tasks of models that read a text in one pass, a folder for each: `task.py` has the contract, and the part of a run that they ask.

A folder has `lines.py`, how the command reads and writes lines, which loads no
JAX; and `answers.py`, the task itself. A new task is a folder, and its name in `NAMES` and in `tasks`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flaxformer_lite.core.objectives import BaseObjective
    from flaxformer_lite.tasks.task import Task

NAMES = {
    "classify": "classify",
    "label": "label",
    "embed": "embed",
    "rank": "rank",
    "answer": "answer",
    "fill-mask": "fill_mask",
}
"""The commands of the tasks, each with its folder."""


def tasks() -> "tuple[Task[Any, Any], ...]":
    """Returns all tasks that have a command, with their default options."""
    from flaxformer_lite.tasks.answer.answers import Answer  # with JAX
    from flaxformer_lite.tasks.classify.answers import Classify
    from flaxformer_lite.tasks.embed.answers import Embed
    from flaxformer_lite.tasks.fill_mask.answers import FillMask
    from flaxformer_lite.tasks.label.answers import Label
    from flaxformer_lite.tasks.rank.answers import Rank

    return FillMask(), Classify(), Label(), Answer(), Embed(), Rank()


def scored_by(objective: "BaseObjective") -> "Task[Any, Any] | None":
    """Returns the task whose answers as texts an objective has figures of; None: it has none, or its model translates."""
    is_scored = objective.text_metric_names and not objective.translates
    return next((one for one in tasks() if is_scored and one.reads == objective.reads), None)
