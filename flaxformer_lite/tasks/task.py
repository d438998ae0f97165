"""The contract of a task: what is asked of a model, and what it answers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, TypeVar, Unpack

import numpy as np
from annotated_types import MaxLen

from flaxformer_lite.core.data import Pair
from flaxformer_lite.engine.texts import check_list
from flaxformer_lite.tasks.model import Report, Reporting, TextModel

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
Text = Annotated[str, MaxLen(1_000_000)]
"""A text of a server's request."""


@dataclass(frozen=True)
class Task(ABC, Generic[Asked, Answer]):
    """Something that people do with a model. `Run`, the commands and the server have it by its name.

    A subclass is a frozen dataclass; its fields are options, which a server's request may have too.
    """

    name: ClassVar[str]
    """The command, and the server's path behind `/api/`."""
    reads: ClassVar[str]
    """The records of the objectives whose models do the task (`BaseObjective.reads`)."""
    asked: ClassVar[Any]
    """The type of what is asked, as JSON has it: a text, a text or a list, or a named tuple, which is an object there."""
    field: ClassVar[str] = "texts"
    """The field of a server's request that has one of what is asked, or several; "": a request is one itself."""
    parts: ClassVar[int] = 1
    """The most lengths of training texts that one text may have, in a server."""
    warns: ClassVar[bool] = False
    """Whether what has no answer (`refusal`) gets an empty one and a warning, by `answered`; False: it is an error."""

    @abstractmethod
    def check(self, model: TextModel) -> None:
        """Raises: ValueError if the model does not do the task, or not with these options."""

    @abstractmethod
    def answered(self, model: TextModel, asked: Sequence[Asked], report: Report) -> list[Answer]:
        """Returns the answer to each, after the checks of `answers`."""

    @abstractmethod
    def lengths(self, model: TextModel, asked: Asked) -> list[int]:
        """Returns the number of tokens of each text that the model reads, for a server's limit."""

    def count(self, asked: Asked) -> int:
        """Returns as how many texts this counts, for a server's limit."""
        return 1

    def refusal(self, model: TextModel, asked: Asked) -> str:
        """Returns why this has no answer, as the end of a sentence that begins with its place; "": it has one."""
        return ""

    def check_asked(self, model: TextModel, asked: Asked, line: int) -> None:
        """Raises: ValueError if this has no answer, and must have one."""
        if (reason := self.refusal(model, asked)) and not self.warns:
            message = f"line {line} {reason}"
            raise ValueError(message)

    def answers(self, model: TextModel, asked: Sequence[Asked], **reporting: Unpack[Reporting]) -> list[Answer]:
        """Returns the answer to each. Raises: ValueError as `check`, and if one has no answer."""
        check_list(self.field or "what is asked", asked)
        self.check(model)
        report = Report.of(len(asked), reporting)
        for line, one in zip(report.lines, asked, strict=True):
            self.check_asked(model, one, line)
        return self.answered(model, asked, report)

    # Figures of answers as texts, for an objective with `text_metric_names`; for all others its own figures suffice.

    def texts(self, model: TextModel, pairs: Sequence[Pair], **report: Unpack[Reporting]) -> list[str]:
        """Returns the answers to what labelled pairs ask, as texts."""
        raise NotImplementedError

    def figures(self, pairs: Sequence[Pair], texts: Sequence[str]) -> dict[str, float]:
        """Returns the figures of answers to labelled pairs, under the objective's `text_metric_names`."""
        raise NotImplementedError

    def scores(self, pairs: Sequence[Pair], texts: Sequence[str], parts: Mapping[str, slice]) -> dict[str, float]:
        """Returns the figures over all pairs, and over each part of a mixture under its name."""
        found = self.figures(pairs, texts)
        for part, where in parts.items():
            found |= {f"{part}/{name}": value for name, value in self.figures(pairs[where], texts[where]).items()}
        return found


def plain(answer: Any) -> Any:
    """Returns an answer as JSON has it: a named tuple is an object, an array a list."""
    if hasattr(answer, "_asdict"):
        return {name: plain(value) for name, value in answer._asdict().items()}
    if isinstance(answer, np.ndarray):
        return answer.tolist()
    return [plain(one) for one in answer] if isinstance(answer, list | tuple) else answer
