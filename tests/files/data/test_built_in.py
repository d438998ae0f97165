"""Oracles: Babel; dates written by hand; published SplitMix64 outputs. Laws: one date a string, nothing held out is trained on."""

import datetime
import re
import sys
from collections import Counter

import numpy as np
import pytest

from flaxformer_lite.files.data.built_in import (
    Dates,
    PythonDocs,
    date_languages,
    is_held_out,
    split_mix_64,
    written_date,
)
from flaxformer_lite.files.data.text_files import paragraphs

STYLES = [(pattern, names) for names in date_languages().values() for pattern in names["patterns"]]


def days(year: int) -> list[datetime.date]:
    first = datetime.date(year, 1, 1)
    return [first + datetime.timedelta(n) for n in range((datetime.date(year + 1, 1, 1) - first).days)]


def test_dates_are_written_as_babel_writes_them() -> None:
    dates = pytest.importorskip("babel.dates", reason="needs the package babel")
    styles = [(language, format) for language in date_languages() for format in ("full", "long", "medium")]
    for day in days(2012):
        expected = [dates.format_date(day, format, locale=language) for language, format in styles]
        assert [written_date(day, *style) for style in STYLES] == expected


def test_no_string_stands_for_two_dates() -> None:
    # Within a year by trying all its days; across years because the year is there, as the only group of four digits.
    assert len(STYLES) == 3 * 14
    for year in (1953, 2012):  # a common year and a leap year
        meaning: dict[str, datetime.date] = {}
        for style in STYLES:
            for day in days(year):
                text = written_date(day, *style)
                assert meaning.setdefault(text, day) == day, text
                assert re.findall(r"[0-9]{4,}", text) == [str(year)]


@pytest.mark.slow
def test_examples_are_written_as_people_do() -> None:
    by_hand = {
        "2026-11-13": "Freitag, 13. November 2026|13 de noviembre de 2026|2026年11月13日|Friday, November 13, 2026",
        "2026-02-28": "28.02.2026|samedi 28 février 2026|28 lutego 2026|2026년 2월 28일 토요일|28 feb 2026",
        "2026-03-01": "1 Mart 2026 Pazar|domenica 1 marzo 2026|1 mrt 2026|söndag 1 mars 2026|1. března 2026",
        "2026-12-06": "domingo, 6 de dezembro de 2026|2026/12/06|2026年12月6日星期日|Dec 6, 2026|6. 12. 2026",
    }
    meanings = {text: target for target, texts in by_hand.items() for text in texts.split("|")}
    examples = Dates(num_examples=20_011, first_year=2026, last_year=2026).open()
    met = {pair.source: pair.target for pair in examples if pair.source in meanings}
    assert met.items() <= meanings.items()
    assert len(met) >= len(meanings) / 2  # a given day is written in a given way about 1.4 times


@pytest.mark.slow
def test_days_and_ways_to_write_are_drawn_evenly() -> None:
    examples = list(Dates(num_examples=10_007).open())
    years = Counter(pair.target[:4] for pair in examples)
    assert set(years) == {str(year) for year in range(1950, 2050)}
    # Bounds of five standard deviations around the expected counts: 100 a year, and a 42nd part for each way.
    assert all(50 <= count <= 150 for count in years.values())
    english = sum(bool(re.search(r"^[A-Z][a-z]+day, [A-Z]", pair.source)) for pair in examples)
    german_medium = [pair for pair in examples if re.fullmatch(r"\d\d\.\d\d\.\d{4}", pair.source)]
    chinese_or_japanese = sum("年" in pair.source for pair in examples)
    for count, ways in ((english, 1), (len(german_medium), 1), (chinese_or_japanese, 5)):
        expected = len(examples) * ways / 42
        assert abs(count - expected) < 5 * expected**0.5
    # A way to write is not tied to some of the days, though 42 and the number of days have a divisor of 3 in common.
    remainders = Counter(datetime.date.fromisoformat(pair.target).toordinal() % 3 for pair in german_medium)
    assert all(count > 40 for count in remainders.values())
    assert len(remainders) == 3


@pytest.mark.slow
def test_held_out_days_never_occur_in_training() -> None:
    year = {"first_year": 2003, "last_year": 2003}
    train = {pair.target for seed in (0, 1) for pair in Dates(seed=seed, num_examples=2_503, **year).open()}
    kept = {pair.target for pair in Dates(seed=2, split="held_out", num_examples=503, **year).open()}
    assert not train & kept
    assert train | kept == {day.isoformat() for day in days(2003)}
    share = sum(is_held_out(day) for year in range(1950, 2050) for day in days(year)) / 36_525
    assert 0.092 < share < 0.108  # five standard deviations


def test_an_example_depends_on_seed_split_and_index_only() -> None:
    short, long = Dates(num_examples=11).open(), Dates(num_examples=1_009).open()
    assert list(short) == long[:11] == [long[i] for i in range(11)]
    assert long[np.int64(7)] == long[7]
    assert [long[i] for i in (10, 3)] == [short[10], short[3]]
    others = [Dates(num_examples=11, seed=1), Dates(num_examples=11, split="held_out")]
    assert all(list(other.open()) != list(short) for other in others)


def test_hash_is_split_mix_64() -> None:
    # The first outputs of SplitMix64 from seed 1234567; output n+1 mixes the seed n golden steps further on.
    outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert [split_mix_64(1234567 + n * 0x9E3779B97F4A7C15) for n in range(5)] == outputs
    assert split_mix_64(3, 5) == split_mix_64(split_mix_64(3) + 5)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"num_examples": 0}, r"dates\.num_examples is 0: "),
        ({"seed": -1}, r"dates\.seed is -1: "),
        ({"first_year": 999}, r"dates\.first_year and dates\.last_year are 999 and 2049: "),
        ({"last_year": 10_000}, r"are 1950 and 10000: "),
        ({"first_year": 2000, "last_year": 1999}, r"are 2000 and 1999: "),
    ],
)
def test_impossible_settings_are_explained(setting: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dates(**setting)


def texts(source: PythonDocs) -> list[str]:
    return [pair.target for pair in source.open()]


def test_topics_are_held_out_by_their_name():
    """Oracle: the hash of the name, worked out once; about one in twenty."""
    from pydoc_data.topics import topics

    held = {name for name in topics if split_mix_64(3, *name.encode()) % 20 == 0}
    assert {"comparisons", "dict", "yield"} <= held and "for" not in held
    train, rest = texts(PythonDocs()), texts(PythonDocs(split="held_out"))
    assert (len(train), len(rest)) == (len(topics) - len(held), len(held))
    assert 0.04 < sum(map(len, rest)) / sum(map(len, train)) < 0.08
    assert sum(map(len, train)) > 400_000


def test_no_paragraph_is_in_both_splits():
    """Law; topics repeat each other, so a split by topic alone would not keep it (the `if` statement is described twice)."""
    train, rest = (
        {paragraph for text in texts(PythonDocs(split=split)) for paragraph in paragraphs(text.split("\n"))}
        for split in ("train", "held_out")
    )
    assert rest and train and not rest & train


def test_a_python_without_topics_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ValueError, match="lacks pydoc_data"):
        PythonDocs().open()
