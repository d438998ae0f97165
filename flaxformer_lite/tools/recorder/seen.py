"""Records of the training data by their text or their line, each with the steps that read it, or why none does."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

from flaxformer_lite.base.console import counted
from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.core.data import Pair
from flaxformer_lite.files.data.held_out import LEFT_OUT, PARTS, SplitOrLeftOut
from flaxformer_lite.files.text.normal_form import comparable
from flaxformer_lite.run.recording import Recording, RecordPlace, RecordReading, State, located

MOST_FOUND = 10_000
"""Records that one question may find."""
READINGS_SHOWN = 10
"""Readings of a record that are shown."""

Matches = Callable[[RecordPlace, Pair], bool]
"""Whether a record is looked for."""


@dataclass(frozen=True)
class Seen:
    """A record, and the rows that read it."""

    place: RecordPlace
    pair: Pair
    readings: list[RecordReading]
    never: str
    """The reason why the run reads it in no step; empty if it does."""

    def in_words(self) -> str:
        """Returns the record in a line, and its readings in another."""
        text = shorten(" → ".join(filter(None, self.pair[:2])), 100, placeholder=" …")
        groups = dict[State, list[str]]()
        for r in self.readings:
            groups.setdefault(r.state, []).append(
                f"step {r.step} row {r.row}" if r.step else f"batch {r.batch} row {r.row}"
            )
        lines = []
        for state, names in groups.items():
            shown = names if len(names) <= READINGS_SHOWN else [*names[:READINGS_SHOWN], "…"]
            lines.append(f"  {WORDS[state]} in {counted(len(names), 'row')}: {', '.join(shown)}")
        return "\n".join([f"{self.place}\t{text}", *(lines or [f"  never: {self.never}"])])

    def as_json(self) -> dict[str, object]:
        readings = [reading._asdict() for reading in self.readings]
        return self.place._asdict() | self.pair.as_json() | {"readings": readings, "never": self.never}


class Sightings(NamedTuple):
    """The records that a question finds."""

    records: dict[SplitOrLeftOut, list[tuple[RecordPlace, Pair]]]
    """Records of each split that was looked through."""
    seen: list[Seen]
    """Records of the training data, with all that reads them."""

    def in_words(self) -> list[str]:
        """Returns a text for each record, first of those that no step reads since they belong to no training data."""
        reasons: dict[SplitOrLeftOut, str] = {split: f"it belongs to data.{split}" for split in PARTS[1:]}
        reasons[LEFT_OUT] = "left out, as data.eval or data.test has one of its texts"
        lines = list[str]()
        for split, reason in reasons.items():
            lines += [f"{place}\tnever: {reason}" for place, _ in self.records[split]]
        lines += [record.in_words() for record in self.seen]
        return lines


RecordQuestion = Callable[[Recording, Sequence[SplitOrLeftOut]], dict[SplitOrLeftOut, list[tuple[RecordPlace, Pair]]]]
"""Returns the records of each of some splits that are looked for."""


def question(text: str | None, pattern: str | None, file: str | None, line: int | None) -> RecordQuestion:
    """Returns the question for a text, or else a regular expression, or else a line of a file.

    Raises: ValueError for a blank text, and for what is no regular expression.
    """
    if text is None and pattern is None:
        return lambda recording, splits: find_line(recording, file or "", line or 0)
    matches = by_text(text) if text is not None else by_pattern(pattern or "")
    return lambda recording, splits: {split: list(find(recording, matches, split)) for split in splits}


def look_for(recording: Recording, asked: RecordQuestion, text: str = "", *, train_alone: bool = False) -> Sightings:
    """Returns the records that a question finds, in all data or only in the training data. text: as in `Recording.readings`."""
    records = asked(recording, PARTS[:1] if train_alone else PARTS)
    return Sightings(records, seen(recording, records["train"], text))


WORDS: dict[State, str] = {
    "read": "read",
    "skipped": "read, without an update,",
    "left out": "left out by a rollback",
    "not yet": "not reached yet",
}
"""The states of a reading in words."""


def by_text(text: str) -> Matches:
    """Finds records whose source or target contains a text, compared in the form of `normal_form.py`.

    Raises: ValueError for a blank one.
    """
    form = comparable(text)
    if not form:
        raise ValueError("the text to look for is blank: give some words of a record")
    return lambda place, pair: any(form in comparable(side) for side in pair[:2])


def by_pattern(pattern: str) -> Matches:
    """Finds records by a regular expression, anywhere in source or target. Raises: ValueError if it is not a regular expression."""
    try:
        search = re.compile(pattern).search
    except re.error as error:
        raise ValueError(f"--pattern is {pattern!r}: correct the regular expression ({error})") from None
    return lambda place, pair: search(pair.source) is not None or search(pair.target) is not None


def by_line(file: str, line: int, files: set[str]) -> Matches:
    """Finds records that may have a line of a file, whose name is that of the config or another path to it.

    Adds the names of the files of all records to `files`.

    A text with line breaks is several lines of some files, and one line of others: of several records the last one has it.
    """
    path = Path(file).resolve()

    def matches(place: RecordPlace, pair: Pair) -> bool:
        files.update(place.files)
        last = place.line + max(pair.source.count("\n"), pair.target.count("\n"))
        return place.line <= line <= last and any(name == file or Path(name).resolve() == path for name in place.files)

    return matches


def find(recording: Recording, matches: Matches, split: SplitOrLeftOut = "train") -> Iterator[tuple[RecordPlace, Pair]]:
    """Yields the records of a split that match, from one pass over its texts. Raises: ValueError if they are too many."""
    for number, (place, pair) in enumerate(filter(lambda record: matches(*record), located(recording.config, split))):
        if number == MOST_FOUND:
            raise ValueError(f"more than {MOST_FOUND:,} records match: look for something longer")
        yield place, pair


def find_line(recording: Recording, file: str, line: int) -> dict[SplitOrLeftOut, list[tuple[RecordPlace, Pair]]]:
    """Returns the record that has a line of a file, in its split; several where sources share the file, or none.

    Raises: ValueError if the run has no data of this file.
    """
    files = set[str]()
    records_of = {split: list(find(recording, by_line(file, line, files), split)) for split in PARTS}
    if not any(records_of.values()) and Path(file).resolve() not in {Path(name).resolve() for name in files}:
        raise ValueError(f"{file} is not a file of this run's data: give one of {cut(', '.join(sorted(files)))}")
    last = max((place.line for records in records_of.values() for place, _ in records), default=0)
    return {split: [one for one in records if one[0].line == last] for split, records in records_of.items()}


def seen(recording: Recording, records: Sequence[tuple[RecordPlace, Pair]], text: str = "") -> list[Seen]:
    """Returns records of the training data with all that reads them. text: as in `Recording.readings`."""
    readings = dict[int, list[RecordReading]]()
    for reading in recording.readings([place.record for place, _ in records], text) if records else ():
        readings.setdefault(reading.record, []).append(reading)
    return [
        Seen(place, pair, readings[place.record], "")
        if place.record in readings
        else Seen(place, pair, [], recording.why_never(place.record))
        for place, pair in records
    ]
