"""A user's mistake: a sentence, and fields for what callers know about it."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class Mistake(ValueError):
    """A user's mistake. Code that knows a field sets the field; `str` joins all of them.

    A sentence without fields is raised as a ValueError; it becomes a mistake where a field is known (`of`, `known`).
    """

    sentence: str
    file: str = ""
    """The file, or another place, such as "stdin, line 3"."""
    line: int = 0
    """The number of a line of the file, from 1; 0: the whole file."""
    setting: str = ""
    """The path of the setting with a wrong value, such as decode.beam_size; empty if no setting is known."""
    subject: str = ""
    """The subject of a sentence that begins with its verb, such as "prompt 3". If `file` is set, the place takes its position."""

    @classmethod
    def of(cls, error: ValueError, **fields: Any) -> "Mistake":
        """Sets fields of an error and returns it; another ValueError becomes a new mistake."""
        mistake = error if isinstance(error, Mistake) else Mistake(str(error))
        vars(mistake).update(fields)
        return mistake

    def spelled(self, names: Mapping[str, str]) -> "Mistake":
        """Replaces the paths of settings in the sentence by other names, such as options. Returns the mistake."""
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
