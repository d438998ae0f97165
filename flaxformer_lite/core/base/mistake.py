"""A mistake of the user's: a sentence, and as fields what others know of it."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False, repr=False)
class Mistake(ValueError):
    """A mistake of the user's. Whoever knows a field sets it, and `str` puts all of them together.

    A sentence without fields is raised as a ValueError; it becomes a mistake where a field is known (`of`, `known`).
    """

    sentence: str
    setting: str = ""
    """The path of the setting with a wrong value, such as decode.beam_size; empty: it is not known, or there is none."""
    subject: str = ""
    """The subject of the sentence, such as "prompt 3", if it does not begin with its own; a place stands for it."""
    file: str = ""
    line: int = 0
    """The number of a line of the file, from 1; 0: the whole file."""
    unit: str = ""
    """The name of what is counted in place of lines, such as "row"."""
    spelled: Mapping[str, str] = field(default_factory=dict)
    """Other spellings of settings, such as options, by their paths."""

    @classmethod
    def of(cls, error: ValueError, **fields: Any) -> "Mistake":
        """Returns an error with further fields."""
        mistake = error if isinstance(error, Mistake) else Mistake(str(error))
        vars(mistake).update(fields)
        return mistake

    def __str__(self) -> str:
        sentence = self.sentence
        for path, spelling in self.spelled.items():
            sentence = sentence.replace(path, spelling)
        number = f", {self.unit} {self.line}" if self.unit else f":{self.line}"
        place = self.file + (number if self.line else "")
        if not place:
            return f"{self.subject} {sentence}".lstrip()
        return place + (": " if not self.subject else " " if self.unit else ": it ") + sentence


@contextlib.contextmanager
def known(**fields: Any) -> Iterator[None]:
    """Sets fields of a mistake that is raised within."""
    try:
        yield
    except ValueError as error:
        raise Mistake.of(error, **fields) from None
