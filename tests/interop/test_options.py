"""Laws of two-way tables, on a table written by hand; the systems and families hold them on their own files."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest

from flaxformer_lite.interop.options import (
    OPTIONAL_NUMBER,
    Draft,
    Entry,
    Options,
    choice,
    constant,
    ignored,
    only,
    option,
    read_table,
    replaced,
    required,
    write_table,
)


@dataclass(frozen=True)
class Round:
    radius: float = 1.0


@dataclass(frozen=True)
class Square:
    side: int = 2


@dataclass(frozen=True)
class Toy:
    size: int = 3
    copies: int = 3
    name: str = "red"
    shape: Round | Square | None = Round()
    cap: float | None = 5.0


TABLE = (
    required("SIZE", "size", "copies"),
    option("COLOUR", "name", kind=choice({"crimson": "red", "navy": "blue"})),
    option("RADIUS", "shape.radius"),
    option("CAP", "cap", kind=OPTIONAL_NUMBER),
    Entry(read=lambda options, draft: draft.set("copies", draft["copies"] * options.integer("TIMES", 1))),
    only("MODE", "plain"),
    ignored("AUTHOR"),
    constant("VERSION", 7),
)


def read(**values: Any) -> Toy:
    options = Options({"SIZE": 4} | values, "toy: ")
    toy: Toy = read_table(TABLE, options, Toy()).build()
    options.finish()
    return toy


def test_absent_options_are_the_templates_values_and_later_entries_see_earlier_ones() -> None:
    assert read() == Toy(size=4, copies=4)
    assert read(COLOUR="navy", RADIUS=3, TIMES=2, AUTHOR=object, MODE="plain") == Toy(4, 8, "blue", Round(3.0))
    assert read(CAP=None).cap is None and read(CAP=2).cap == 2.0


@pytest.mark.parametrize("toy", [Toy(4, 4), Toy(9, 9, "blue", Round(0.5), None)])
def test_written_options_read_as_the_same_config(toy: Toy) -> None:
    options = write_table(TABLE, toy)
    assert options["VERSION"] == 7 and read(**options) == toy


def test_a_variant_without_the_setting_is_written_without_the_option() -> None:
    assert "RADIUS" not in write_table(TABLE, Toy(shape=Square()))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"SIZE": None}, r"^toy: SIZE is missing: "),
        ({"SIZE": 1.5}, r"^toy: SIZE is 1\.5: it should be a whole number\Z"),
        ({"COLOUR": "pink"}, r'^toy: COLOUR is "pink": it should be one of crimson, navy\Z'),
        ({"MODE": "wild"}, r'^toy: MODE is "wild": only "plain" is implemented\Z'),
        ({"EXTRA": 0}, r"^toy: EXTRA is 0: this option is not implemented here"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(**values)


def test_settings_of_a_missing_part_are_dropped_and_all_are_set_at_once() -> None:
    assert replaced(Toy(), {"shape": None, "shape.radius": 2.0}).shape is None
    assert replaced(Toy(), {"shape.radius": 2.0, "shape": Round(9.0)}) == dataclasses.replace(Toy(), shape=Round(2.0))
    draft = Draft(Toy())
    draft["shape.radius"] = 2.0
    assert (draft["shape.radius"], draft["size"], draft.build().shape) == (2.0, 3, Round(2.0))
