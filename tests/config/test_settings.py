"""Oracle: a small tree of settings whose paths, values, defaults and marks are written by hand."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from flaxformer_lite.config.settings import item_type, required_settings, settings_in, variants_in, walk
from flaxformer_lite.core.base.annotations import Answers, Resume, SavedAs, type_hints


@dataclass(frozen=True)
class Round:
    kind: Literal["round"] = "round"
    radius: Annotated[int, Ge(1), Resume.ON_REQUEST] = 1


@dataclass(frozen=True)
class Square:
    kind: Literal["square"] = "square"
    side: float = 2.0


@dataclass(frozen=True)
class Room:
    name: str
    shape: Annotated[Round | Square, Answers.SAME] = Round()
    others: tuple[Annotated[object, SavedAs(Round | Square)], ...] | None = None


def test_types_are_walked_with_every_variant_and_the_marks_of_their_group():
    assert [(path, marks) for path, _, marks in settings_in(Room)] == [
        ("name", frozenset()),
        ("shape", {Answers.SAME}),
        ("shape.kind", {Answers.SAME}),
        ("shape.radius", {Answers.SAME, Resume.ON_REQUEST}),
        ("shape.kind", {Answers.SAME}),
        ("shape.side", {Answers.SAME}),
        ("others", frozenset()),
        ("others.kind", frozenset()),
        ("others.radius", {Resume.ON_REQUEST}),
        ("others.kind", frozenset()),
        ("others.side", frozenset()),
    ]


def test_values_are_walked_with_the_defaults_of_their_variant():
    room = Room("hall", Square(side=3.0))
    assert [(node.path, node.value, node.default) for node in walk(room)] == [
        ("", room, dataclasses.MISSING),
        ("name", "hall", dataclasses.MISSING),
        ("shape", Square(side=3.0), Round()),
        ("shape.kind", "square", "square"),
        ("shape.side", 3.0, 2.0),
        ("others", None, None),
    ]
    assert [node.path for node in walk(room.shape, "shape")] == ["shape", "shape.kind", "shape.side"]
    wide = Room("hall", Round(radius=5))
    assert {node.path: node.default for node in walk(room, default=wide)}["shape.side"] == 2.0
    assert {node.path: node.default for node in walk(Room("hall"), default=wide)}["shape.radius"] == 5


def test_hints_have_their_bounds_and_no_marks():
    assert type_hints(Round)["radius"] == Annotated[int, Ge(1)] and type_hints(Room)["shape"] == Round | Square
    assert variants_in(type_hints(Room)["others"]) == {"round": Round, "square": Square}
    assert item_type(tuple[int, ...] | None) is int and item_type(int) is None
    assert required_settings(Room) == ["name"]
