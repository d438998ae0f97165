"""Worked by hand: marks stand beside the type and the bounds of a field, and are left out where only these count."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from flaxformer_lite.core.base.annotations import (
    Answers,
    Resume,
    SavedAs,
    alternatives,
    declared_hints,
    marks_of,
    type_hints,
)

Kind = int | None


@dataclass(frozen=True)
class Setting:
    free: Annotated[int, Ge(1), Resume.FREE, Answers.SAME] = 1
    marked: Annotated[str, Resume.ON_REQUEST] = ""
    plain: bool = False


def test_marks_are_read_and_left_out():
    assert marks_of(declared_hints(Setting)["free"]) == [Resume.FREE, Answers.SAME]
    assert type_hints(Setting) == {"free": Annotated[int, Ge(1)], "marked": str, "plain": bool}


def test_the_alternatives_of_a_value_are_its_types_and_choices():
    hint = Annotated[tuple[Literal["a", "b"] | float, ...], Ge(1)]
    assert [*alternatives(hint)] == ["a", "b", float]
    assert [*alternatives(Annotated[object, SavedAs(Kind)])] == [int, type(None)]
