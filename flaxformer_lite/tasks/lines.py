"""The contract of a task's lines: how its command reads what is asked, and writes an answer. It loads no JAX."""

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    from flaxformer_lite.tasks.task import Task, TextModel

AnswerT = TypeVar("AnswerT")
Columns = Mapping[str, Callable[[AnswerT], str]]
"""The columns that an answer has in a table, by their names: each with the function that returns its cell."""


@dataclass(frozen=True)
class TaskLines(ABC, Generic[AnswerT]):
    """A way to read and to write lines.

    A subclass is a frozen dataclass of options, by their names, and raises ValueError for options that do not go together.
    """

    verb: ClassVar[str]
    """The work, as the prompt for typed lines has it."""
    doing: ClassVar[str]
    """The work, in the display of progress."""
    of_objects: ClassVar[bool] = False
    """Whether each line is a JSON object, in files of all names; the command then has no columns of tables."""
    at_once: ClassVar[int | None] = None
    """Lines of a file that are answered together; None: as many as all commands take."""
    file: ClassVar[str | None] = ""
    """The name of the one file that `-o` may be, beside a folder, such as FILE.npy; "": it is a folder; None: no `-o`."""
    by_engine: ClassVar[bool] = True
    """Whether CTranslate2 may answer too."""
    numbered: ClassVar[bool] = False
    """Whether the number of the input line stands before each line of an answer; a bad line then has none."""

    @classmethod
    def add_arguments(cls, add: Callable[..., None]) -> None:
        """Adds the options that this command has beside those of all tasks: `add` takes what `add_argument` takes."""

    def task(self, usual: "Task[Any, Any]") -> "Task[Any, Any]":
        """Returns the task with these options, from the one with the usual options."""
        return usual

    @property
    def texts(self) -> int | None:
        """Texts in a line or in a row of a table; None: one or two; 0: the line is read as it is, whatever its file."""
        return 1

    def check(self, model: "TextModel") -> None:
        """Raises: ValueError for options that are not for this model."""

    def columns(self, model: "TextModel") -> Columns[AnswerT]:
        """Returns the columns of an answer, which stand behind the row of a table; {}: it has lines of its own (`written`)."""
        return {}

    def read(self, texts: Sequence[str]) -> Any:
        """Returns what is read of a line, or of the texts of a row of a table. Raises: ValueError if it has no answer."""
        return texts[0]

    def asked(self, read: Any) -> Any:
        """Returns what is asked in what was read."""
        return read

    def written(self, read: Any, answer: AnswerT, model: "TextModel") -> Sequence[Sequence[str]]:
        """Returns the answer to what was read as it is printed, each line as its cells: by default one, of its columns."""
        return [[cell(answer) for cell in self.columns(model).values()]]

    def save(self, file: IO[bytes], answers: Sequence[AnswerT | None], model: "TextModel") -> None:
        """Writes answers into the file that `-o` names; None stands for a bad line."""
        raise NotImplementedError
