"""Dates as people write them, in 14 languages: data that needs no files, for the quick start.

    Freitag, 20. November 2026  ->  2026-11-20
    2026年11月20日              ->  2026-11-20

Names and patterns come from CLDR through Babel; a newer CLDR may write a date a little differently. No string stands
for two dates: the formats of these languages that are all numbers go day-month-year or year-month-day.
"""

import datetime
import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, SupportsIndex, overload

from annotated_types import Ge, Lt
from babel import Locale
from babel.dates import format_date

from flaxformer_lite.bounds import PositiveInt, check_bounds
from flaxformer_lite.data.records import Pair

LANGUAGES = ("cs", "de", "en", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "sv", "tr", "zh")
"""CLDR's names of the languages, each as in its most common region; all with the Gregorian calendar, digits 0-9."""
FORMATS = ("full", "long", "medium")
"""CLDR's names of the formats; not "short", which has two-digit years and, in English, the month first."""


@dataclass(frozen=True, kw_only=True)
class Dates:
    """Dates in 14 languages and their ISO form; example i is a function of (seed, split, i) alone."""

    kind: Literal["dates"] = "dates"
    split: Literal["train", "held_out"] = "train"
    """About one day in ten is held out, whatever the seed, and never written in a training example."""
    num_examples: PositiveInt = 76_800
    """How many examples there are; the default is 1,200 batches of 64."""
    seed: Annotated[int, Ge(0), Lt(2**64)] = 0
    """Which examples they are, 0 to 2**64 - 1."""
    first_year: int = 1950
    """First year of the dates, 1000 or later, so that every year has four digits."""
    last_year: int = 2049
    """Last year of the dates, itself included, at most 9999."""

    def __post_init__(self) -> None:
        check_bounds(self, "dates")
        if not 1000 <= self.first_year <= self.last_year <= 9999:
            years = f"{self.first_year} and {self.last_year}"
            rule = "years have four digits, and the last is not before the first"
            raise ValueError(f"dates.first_year and dates.last_year are {years}: {rule}")

    def open(self, setting: str | None = None) -> Sequence[Pair]:
        """The examples, each computed when it is asked for; nothing can be wrong with them, so no message names `setting`."""
        return _Examples(self)


class _Examples(Sequence[Pair]):
    """The examples of a `Dates`: nothing is stored, so any index costs the same."""

    def __init__(self, dates: Dates) -> None:
        self._dates = dates
        self._first_day = datetime.date(dates.first_year, 1, 1).toordinal()
        self._num_days = datetime.date(dates.last_year, 12, 31).toordinal() - self._first_day + 1
        self._styles = [(format, Locale.parse(language)) for language in LANGUAGES for format in FORMATS]

    def __len__(self) -> int:
        return self._dates.num_examples

    @overload
    def __getitem__(self, index: SupportsIndex) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> list[Pair]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Pair | list[Pair]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = operator.index(index)
        if not 0 <= i < len(self):
            raise IndexError(f"example {i} of {len(self)}")
        draw = next(draw for draw in self._draws(i) if self._in_split(draw))
        day = self._day(draw)
        format, locale = self._styles[draw // self._num_days % len(self._styles)]
        return Pair(format_date(day, format, locale=locale), day.isoformat())

    def _draws(self, index: int) -> Iterator[int]:
        """Random numbers for an example, to try one after the other; every year has days of both splits."""
        return (mix(self._dates.seed, index, attempt) for attempt in itertools.count())

    def _day(self, draw: int) -> datetime.date:
        return datetime.date.fromordinal(self._first_day + draw % self._num_days)

    def _in_split(self, draw: int) -> bool:
        return held_out(self._day(draw)) == (self._dates.split == "held_out")


def held_out(day: datetime.date) -> bool:
    """Whether a day is kept from training: `mix(n) % 10 == 0` for day n, counted from 1 January of year 1."""
    return mix(day.toordinal()) % 10 == 0


def mix(*numbers: int) -> int:
    """A hash of whole numbers, 0 to 2**64 - 1, that looks random: h = f((h + number + step) mod 2**64), from h = 0.

    f is SplitMix64's mixing function, in integer arithmetic only: the same on every machine and in every version.

    Reference: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", figures 13 and 14 (with the
    constants of Stafford's variant 13).
    """
    h = 0
    for number in numbers:
        h = (h + number + 0x9E3779B97F4A7C15) % 2**64
        h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        h = (h ^ (h >> 27)) * 0x94D049BB133111EB % 2**64
        h ^= h >> 31
    return h
