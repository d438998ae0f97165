"""Data without any file: dates in 14 languages, and the documentation topics of Python itself."""

import datetime
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt

from flaxformer_lite.core.base.bounds import Checked, PositiveInt
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.data.token_arrays import Lazy
from flaxformer_lite.files.data.source import DataSource
from flaxformer_lite.files.data.text_files import paragraphs
from flaxformer_lite.files.records import Documents


@dataclass(frozen=True, kw_only=True)
class Dates(Checked, DataSource, at="dates"):
    """Dates in 14 languages and their ISO form; example i is a function of (seed, split, i) alone.

    The names and three formats of each language are those of the Unicode CLDR 47, in dates.json. Its short format is left out: it
    has years of two digits and, in English, the month first.
    """

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
        """Returns the examples, each computed on access."""
        first_day = datetime.date(self.first_year, 1, 1).toordinal()
        num_days = datetime.date(self.last_year, 12, 31).toordinal() - first_day + 1
        languages = date_languages()
        styles = list[tuple[Any, Any]]()
        for language in languages.values():
            styles += [(pattern, language) for pattern in language["patterns"]]

        def example(i: int) -> Pair:
            for attempt in itertools.count():  # it ends: every year has days of both splits
                draw = split_mix_64(self.seed, i, attempt)
                day = datetime.date.fromordinal(first_day + draw % num_days)
                if is_held_out(day) == (self.split == "held_out"):
                    break
            return Pair(written_date(day, *styles[draw // num_days % len(styles)]), day.isoformat())

        return Lazy(self.num_examples, example)

    def versions(self) -> list[str] | None:
        return ["CLDR 47"]


def date_languages() -> dict[str, Any]:
    """Returns the patterns and names of dates by language, each in its most common region, as in dates.json."""
    return json.loads(Path(__file__).with_name("dates.json").read_bytes())["languages"]


def written_date(day: datetime.date, pattern: str, names: dict[str, Any]) -> str:
    return pattern.format(
        y=day.year,
        M=day.month,
        d=day.day,
        weekday=names["weekdays"][day.weekday()],
        month=names["months"][day.month - 1],
        mon=names["short_months"][day.month - 1],
    )


def is_held_out(day: datetime.date) -> bool:
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


@dataclass(frozen=True, kw_only=True)
class PythonDocs(Checked, DataSource, at="python_docs"):
    """The topics of Python's own `help()`: about 470,000 characters of English and code, without any download.

    Another version of Python has a slightly different text. Topics repeat each other, so the training topics leave out every
    paragraph that occurs in a held-out topic.
    """

    kind: Literal["python_docs"] = "python_docs"
    split: Literal["train", "held_out"] = "train"
    """The part of the topics. A hash of its name holds out about one topic in twenty."""

    record = Documents()

    def versions(self) -> list[str] | None:
        return [f"Python {sys.version}"]

    def open(self, setting: str | None = None) -> Sequence[Pair]:
        """Returns a document for each topic, by name. Raises: ValueError if this Python lacks its documentation topics."""
        try:
            from pydoc_data.topics import topics
        except ImportError:
            raise ValueError(
                "this Python lacks pydoc_data, its documentation topics: use a Python that has it, or the source PlainText"
            ) from None
        texts = {name: list(paragraphs(topics[name].split("\n"))) for name in sorted(topics)}
        # With 3 as its first number, the hash holds out 5 to 6 % of the text, in topics of many sizes.
        kept = [name for name in texts if split_mix_64(3, *name.encode()) % 20 == 0]
        if self.split == "held_out":
            chosen = [texts[name] for name in kept]
        else:
            excluded = set(itertools.chain.from_iterable(texts[name] for name in kept))
            others = [texts[name] for name in texts if name not in kept]
            chosen = [[text for text in paragraphs if text not in excluded] for paragraphs in others]
        return [Pair("", "\n\n".join(parts) + "\n") for parts in chosen]
