"""A mistake of the user's: a sentence, and as fields what others know of it."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class Mistake(ValueError):
    """A mistake of the user's. Whoever knows a field sets it, and `str` puts all of them together.

    A sentence without fields is raised as a ValueError; it becomes a mistake where a field is known (`of`, `known`).
    """

    sentence: str
    file: str = ""
    """The file, or another place, such as "stdin, line 3"."""
    line: int = 0
    """The number of a line of the file, from 1; 0: the whole file."""
    setting: str = ""
    """The path of the setting with a wrong value, such as decode.beam_size; empty: it is not known, or there is none."""
    subject: str = ""
    """The subject of the sentence, such as "prompt 3", if it does not begin with its own; a place stands for it."""

    @classmethod
    def of(cls, error: ValueError, **fields: Any) -> "Mistake":
        """Returns an error with further fields."""
        mistake = error if isinstance(error, Mistake) else Mistake(str(error))
        vars(mistake).update(fields)
        return mistake

    def spelled(self, names: Mapping[str, str]) -> "Mistake":
        """Returns the mistake with other names of settings, such as options, in place of their paths."""
        for path, name in names.items():
            self.sentence = self.sentence.replace(path, name)
        return self

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        if self.subject:
            return f"{place}: it {self.sentence}" if self.line else f"{place or self.subject} {self.sentence}"
        return f"{place}: {self.sentence}" if place else self.sentence


@contextlib.contextmanager
def known(**fields: Any) -> Iterator[None]:
    """Sets fields of a mistake that is raised within."""
    try:
        yield
    except ValueError as error:
        raise Mistake.of(error, **fields) from None
