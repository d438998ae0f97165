"""Oracle: messages written by hand, for one dataclass that has a field of every form."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from annotated_types import Ge, Gt, Le

from flaxformer_lite.core.base.annotations import Resume
from flaxformer_lite.core.base.bounds import Checked, FiniteFloat, NonNegativeFloat, NonNegativeInt, PositiveInt, Rate


@dataclass(frozen=True)
class Settings(Checked, at="part"):
    width: PositiveInt
    depth: Annotated[int, Ge(2), "6 is usual"]
    count: PositiveInt = 8
    window: Annotated[PositiveInt | None, Resume.FREE] = None
    rate: Rate = 0.1
    share: Annotated[float, Gt(0), Le(1)] = 1.0
    weight: NonNegativeFloat = 0.0
    ids: tuple[NonNegativeInt, ...] = ()
    devices: PositiveInt | Literal[-1] = -1
    stop: bool | Literal["never"] = True
    kind: Literal["a", "b"] = "a"
    name: str = "x"
    slope: FiniteFloat = 0.0
    cap: Annotated[float, Ge(1)] | None = 5.0


@pytest.mark.parametrize(
    "legal",
    [
        {"width": 1},
        {"window": 1},
        {"rate": 0},
        {"share": 1},
        {"weight": 1e30},
        {"ids": (0, 7)},
        {"devices": -1},
        {"stop": False},
        {"stop": "never"},
        {"cap": None},
    ],
)
def test_legal_values_pass(legal: dict[str, object]):
    assert dataclasses.replace(Settings(width=3, depth=4), **legal)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("width", 0, "part.width is 0: it must be at least 1"),
        ("depth", 1, "part.depth is 1: it must be at least 2; 6 is usual"),
        ("count", 0, "part.count is 0: it must be at least 1; the default is 8"),
        ("count", "9", "part.count is '9': it must be a whole number, at least 1; the default is 8"),
        ("count", None, "part.count is None: it must be a whole number, at least 1; the default is 8"),
        ("window", 0, "part.window is 0: it must be at least 1, or None; the default is None"),
        ("width", 2**31, "part.width is 2147483648: it must be at least 1 and at most 2147483647"),
        (
            "ids",
            (1, 2**40),
            "part.ids is (1, 1099511627776): it must be values that are each at least 0 and at most 2147483647; the default is ()",
        ),
        ("rate", 1.0, "part.rate is 1.0: it must be at least 0 and below 1; the default is 0.1"),
        ("rate", math.nan, "part.rate is nan: it must be at least 0 and below 1; the default is 0.1"),
        ("share", 0, "part.share is 0: it must be above 0 and at most 1; the default is 1.0"),
        ("weight", math.inf, "part.weight is inf: it must be at least 0 and finite; the default is 0.0"),
        ("ids", (3, -1), "part.ids is (3, -1): it must be values that are each at least 0; the default is ()"),
        ("devices", 0, "part.devices is 0: it must be at least 1, or -1; the default is -1"),
        (
            "stop",
            "nver",
            "part.stop is 'nver': it must be True or False, or 'never'; the default is True; perhaps you meant never",
        ),
        ("name", 3, "part.name is 3: it must be a text; the default is 'x'"),
        ("width", True, "part.width is True: it must be a whole number, at least 1"),
        ("kind", "c", "part.kind is 'c': it must be 'a' or 'b'; the default is 'a'"),
        ("slope", 1e39, "part.slope is 1e+39: it must be a finite number of float32's range; the default is 0.0"),
        ("rate", 1e-320, "part.rate is 1e-320: it must be a finite number of float32's range; the default is 0.1"),
        ("slope", -math.inf, "part.slope is -inf: it must be finite; the default is 0.0"),
        ("cap", 0.5, "part.cap is 0.5: it must be at least 1, or None; the default is 5.0"),
    ],
)
def test_an_illegal_value_is_answered_with_the_legal_ones(name: str, value: object, message: str):
    with pytest.raises(ValueError) as caught:
        dataclasses.replace(Settings(width=3, depth=4), **{name: value})
    assert str(caught.value) == message


def test_a_subclass_checks_its_own_fields_at_the_path_that_it_names_or_inherits():
    @dataclass(frozen=True)
    class Wider(Settings):
        height: PositiveInt = 1

    @dataclass(frozen=True)
    class Elsewhere(Settings, at="other.part"):
        pass

    with pytest.raises(ValueError, match=r"^part\.height is 0"):
        Wider(width=3, depth=4, height=0)
    with pytest.raises(ValueError, match=r"^other\.part\.width is 0"):
        Elsewhere(width=0, depth=4)
