"""Tasks of models that read a text in one pass, a folder for each: `task.py` has the contract, and the part of a run that they ask.

A folder has `lines.py`, how the command reads and writes lines, which loads no
JAX; `answers.py`, the task itself; and `recipe.py`, the settings of a training on rows of data (`recipe.py` has that contract). A
new task is a folder, and its name in `TASK_FOLDERS`, in `tasks` and in `recipes`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flaxformer_lite.core.objectives import BaseObjective
    from flaxformer_lite.tasks.recipe import Examples, Recipe
    from flaxformer_lite.tasks.task import Task

TASK_FOLDERS = {
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


def recipes() -> "dict[str, Callable[[Examples], Recipe | None]]":
    """Returns the recipes of the tasks that `fit` trains, by their names; two names may have one recipe."""
    from flaxformer_lite.tasks.answer import recipe as answer  # with JAX
    from flaxformer_lite.tasks.classify import recipe as classify
    from flaxformer_lite.tasks.embed import recipe as embed
    from flaxformer_lite.tasks.label import recipe as label
    from flaxformer_lite.tasks.rank import recipe as rank

    rooms = {
        "classify": classify,
        "regression": classify,
        "label": label,
        "answer": answer,
        "embed": embed,
        "rank": rank,
    }
    return {name: room.recipe for name, room in rooms.items()}


def scored_by(objective: "BaseObjective") -> "Task[Any, Any] | None":
    """Returns the task whose answers as texts an objective has figures of; None: it has none, or its model translates."""
    is_scored = objective.text_metric_names and not objective.translates
    return next((one for one in tasks() if is_scored and one.reads == objective.reads), None)
