"""Dates in 14 languages: generated data for the quick start, without any files.

    Freitag, 20. November 2026  ->  2026-11-20
    2026年11月20日              ->  2026-11-20

Names and patterns come from CLDR through Babel; a newer CLDR may write a date slightly differently. No string stands for
two dates: the all-number formats of these languages are day-month-year or year-month-day.
"""

import datetime
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import babel
from annotated_types import Ge, Lt
from babel import Locale
from babel.dates import get_date_format

from flaxformer_lite.base.bounds import Checked, PositiveInt
from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.source import DataSource
from flaxformer_lite.data.token_arrays import Lazy

LANGUAGES = ("cs", "de", "en", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "sv", "tr", "zh")
"""CLDR's names of the languages, each in its most common region, with the Gregorian calendar and the digits 0-9."""
FORMATS: tuple[Literal["full", "long", "medium"], ...] = ("full", "long", "medium")
"""CLDR's names of the formats. Without "short", which has two-digit years and, in English, the month first."""


@dataclass(frozen=True, kw_only=True)
class Dates(Checked, DataSource, at="dates"):
    """Dates in 14 languages and their ISO form; example i is a function of (seed, split, i) alone."""

    kind: Literal["dates"] = "dates"
    split: Literal["train", "held_out"] = "train"
    """The part of the days. About one day in ten is held out, for every seed, and occurs in no training example."""
    num_examples: PositiveInt = 76_800
    """Number of examples; the default is 1,200 batches of 64."""
    seed: Annotated[int, Ge(0), Lt(2**64)] = 0
    """Seed of the random examples."""
    first_year: int = 1950
    """First year of the dates, 1000 or later: every year has four digits."""
    last_year: int = 2049
    """Last year of the dates, inclusive, at most 9999."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1000 <= self.first_year <= self.last_year <= 9999:
            years = f"{self.first_year} and {self.last_year}"
            rule = "years must have four digits, and the last must not be before the first"
            raise ValueError(f"dates.first_year and dates.last_year are {years}: {rule}")

    def open(self, setting: str | None = None) -> Sequence[Pair]:
        """Returns the examples, each computed on access. Nothing can be wrong with them, so `setting` is not used."""
        first_day = datetime.date(self.first_year, 1, 1).toordinal()
        num_days = datetime.date(self.last_year, 12, 31).toordinal() - first_day + 1
        styles = [
            (get_date_format(format, locale), locale) for locale in map(Locale.parse, LANGUAGES) for format in FORMATS
        ]

        def example(i: int) -> Pair:
            for attempt in itertools.count():  # it ends: every year has days of both splits
                draw = split_mix_64(self.seed, i, attempt)
                day = datetime.date.fromordinal(first_day + draw % num_days)
                if held_out(day) == (self.split == "held_out"):
                    break
            pattern, locale = styles[draw // num_days % len(styles)]
            return Pair(pattern.apply(day, locale), day.isoformat())

        return Lazy(self.num_examples, example)

    def versions(self) -> list[str] | None:
        return [f"Babel {babel.__version__}"]


def held_out(day: datetime.date) -> bool:
    """Returns whether a day is held out from training: `split_mix_64(n) % 10 == 0` for day n, 1 being 1 January of year 1."""
    return split_mix_64(day.toordinal()) % 10 == 0


def split_mix_64(*numbers: int) -> int:
    """Hashes whole numbers into 0 to 2**64 - 1: h = f((h + number + step) mod 2**64), starting at h = 0.

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
