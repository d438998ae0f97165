"""Predicts the token at each [MASK] of each line.

Results are lines `index ||| mask ||| token ||| probability`, the most probable first. index counts input lines and mask the masks
of a line, both from 0. A line without a mask, or one that is not UTF-8, gets no result but a warning on stderr.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flaxformer_lite.tasks.lines import TaskLines

if TYPE_CHECKING:
    from flaxformer_lite.tasks.fill_mask.answers import TokenPrediction
    from flaxformer_lite.tasks.task import TextModel


@dataclass(frozen=True)
class Lines(TaskLines["list[list[TokenPrediction]]"]):
    top: int
    """Number of tokens for each mask."""

    verb = "fill the [MASK] of"
    doing = "filling"
    file = None
    by_engine = False
    numbered = True

    @classmethod
    def add_arguments(cls, add: Callable[..., None]) -> None:
        add("--top", type=int, default=5, metavar="K", help="number of tokens for each mask; default: 5")

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ValueError(f"--top is {self.top}: it must be at least 1")

    def task(self, usual: Any) -> Any:
        return replace(usual, top=self.top)

    def written(self, read: str, answer: "list[list[TokenPrediction]]", model: "TextModel") -> list[list[str]]:
        rows = list[list[str]]()
        for number, predictions in enumerate(answer):
            for token, probability, _ in predictions:
                rows.append([f"{number} ||| {visible(token)} ||| {probability:.6f}"])
        return rows


def visible(token: str) -> str:
    """Returns a token, white space as the sign that Python writes for it."""
    return token.encode("unicode_escape").decode() if token.isspace() else token
