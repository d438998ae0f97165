"""The contract of data sources, and the base classes of sources of written text."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from flaxformer_lite.base.console import warn_once
from flaxformer_lite.core.base.bounds import Checked
from flaxformer_lite.core.base.mistake import Mistake
from flaxformer_lite.core.data import Pair
from flaxformer_lite.files.records import Pairs, Record, RecordKinds
from flaxformer_lite.files.records.base import BLANK, FileRow
from flaxformer_lite.files.text.files import ReadProgress, file_versions, ignore_progress

MOST_LISTED = 10
"""Bad rows that an error lists."""


class LocatedPair(NamedTuple):
    pair: Pair | Mistake
    """The pair, with blank sides for a blank row; or the mistake in a row that is no pair."""
    files: tuple[str, str]
    """The names of the files of the source and of the target."""
    number: int
    """The number of the row in them, from 1."""


class DataSource(ABC):
    """Sentence pairs, documents or labelled texts from anywhere: files, a hub, a generator.

    A new source is a frozen dataclass with a field `kind` (a `Literal` with its name) and the method `open`, or `stream` if it may
    be large. Two calls give the same pairs in the same order, on every machine: batches are functions of (seed, step). A config
    file may hold it as it is; a source that is listed in `MixedKinds` (mixture.py) can be chosen on the command line too.
    """

    kind: str
    record: Record = Pairs()
    """The kind of a row. Any objective reads pairs and documents; another record needs an objective with the same `reads`."""

    def open(self, setting: str | None = None) -> Sequence[Pair]:
        """Returns all pairs; a document is a pair with an empty source.

        `setting` is the path of this source in the config, such as "data.eval", for messages with a remedy.

        Raises: ValueError for anything wrong with the data.
        """
        return list(self.stream(setting))

    def stream(self, setting: str | None = None, progress: ReadProgress = ignore_progress) -> Iterator[Pair]:
        """Yields the pairs of `open`, with a few at a time in memory."""
        yield from self.open(setting)

    def located(self, setting: str | None = None, progress: ReadProgress = ignore_progress) -> Iterator[LocatedPair]:
        """Yields the pairs of `stream`, each with its file and line number; this base class numbers the pairs themselves."""
        for number, pair in enumerate(self.stream(setting, progress), 1):
            yield LocatedPair(pair, (self.kind, self.kind), number)

    def parts(self, setting: str) -> list[tuple[str, "DataSource"]]:
        """Returns the sources of a mixture, each with its path in the config; a source of another kind returns itself."""
        return [(setting, self)]

    def bad_row_rule(self, setting: str | None) -> tuple[str | None, str]:
        """Returns the setting in the config that sets the treatment of bad rows (None if none sets it), and the treatment."""
        return None, "error"

    def text_names(self, setting: str) -> tuple[str, str]:
        """Returns the names of the source texts and of the target texts in messages: the setting, and the file if there is one."""
        name = f"{setting} {getattr(self, 'path', self.kind)}"
        return name, name

    def target_names(self) -> list[str]:
        """Returns the names of the files or fields of the target texts, which may end in their language: `train.zh`."""
        return []

    def versions(self) -> list[str] | None:
        """Returns the facts that the pairs depend on besides the settings, such as the size and time of change of each file.

        Equal versions promise equal pairs, so what was made of the pairs is used again. None: unknown; all texts are read and
        compared at each start.
        """
        return None


class LocatedSource(DataSource):
    """A source whose pairs have files and lines. A subclass implements `located`."""

    def stream(self, setting: str | None = None, progress: ReadProgress = ignore_progress) -> Iterator[Pair]:
        for row in self.located(setting, progress):
            assert isinstance(row.pair, Pair)
            yield row.pair


def tell_bad_rows(treatment: str, number: int, listed: Sequence[Mistake], setting: str | None) -> None:
    """Warns of bad rows if the treatment is to drop them. listed: the first of them. Raises: Mistake for another treatment."""
    if not listed:
        return
    if treatment == "drop":
        warn_once(f"{number} bad rows were left out, the first of them: {listed[0]}")
        return
    mistake = listed[0]
    if number > 1:
        mistake = Mistake(f"{number} bad rows, the first of them: {'; '.join(map(str, listed))}")
    if setting:
        mistake.sentence += f"; or leave out such rows (--{setting}.bad-rows drop)"
    raise mistake


@dataclass(frozen=True, kw_only=True)
class TextSource(LocatedSource):
    """A source of written text, with a rule for empty lines. A subclass implements `_rows`."""

    kind: str
    empty_lines: Literal["error", "drop"] = "error"
    """Treatment of a pair with an empty or blank side. error: stop and report its line; drop: leave it out."""
    languages: tuple[str, ...] = ()
    """Codes of the languages of source and target, of `data.languages`; (): those of `data.languages.direction`."""
    bad_rows: Literal["error", "drop"] = "error"
    """Treatment of rows that are not a pair, such as one without a column or field, or that the chat template refuses. error: stop
    and list the first ten; drop: leave them out, with a warning that has their number."""

    def bad_row_rule(self, setting: str | None) -> tuple[str | None, str]:
        return setting, self.bad_rows

    @property
    def _origin(self) -> str:
        """The name of the data in messages, such as a pattern of files."""
        return getattr(self, "path", self.kind)

    @abstractmethod
    def _rows(self, progress: ReadProgress) -> Iterator[LocatedPair]:
        """Yields all rows, also blank and bad ones."""

    def versions(self) -> list[str] | None:
        return file_versions(self._origin)

    def located(self, setting: str | None = None, progress: ReadProgress = ignore_progress) -> Iterator[LocatedPair]:
        has_pairs = False
        num_bad = 0
        bad = list[Mistake]()
        for row in self._rows(progress):
            pair, files, number = row
            if isinstance(pair, Mistake):
                num_bad += 1
                if len(bad) < MOST_LISTED:
                    bad.append(pair)
                if number == 1 and self.bad_rows == "error":
                    raise pair  # the settings are wrong: all rows would be listed as bad
                continue
            if bad and self.bad_rows == "error":
                continue  # the other bad rows are to be listed too
            no_source = self.record.has_source and not pair.source.strip()
            if not no_source and pair.target.strip():
                has_pairs = True
                if self.languages:
                    row = row._replace(pair=pair._replace(languages=self.languages))
                yield row
            elif self.empty_lines == "error":
                file_of_source, file_of_target = files
                file = file_of_source if no_source else file_of_target
                raise Mistake(self._empty_side(no_source, setting), file, number)
        tell_bad_rows(self.bad_rows, num_bad, bad, setting)
        if not has_pairs:
            raise ValueError(f"{self._origin}: no {'pair of sentences' if self.record.has_source else 'text'} in it")

    def _empty_side(self, no_source: bool, setting: str | None) -> str:
        """Returns the message for a pair with an empty side."""
        side = "text"
        if no_source:
            side = "source"
        elif self.record.has_source:
            side = "target"
        other = f", or drop such pairs (--{setting}.empty-lines drop)" if setting else ""
        return f"the {side} is empty; correct the data{other}"


@dataclass(frozen=True, kw_only=True)
class RecordSource(Checked, TextSource, at="data"):
    """Rows with fields or columns, each a record. In the name of a field a dot descends into a nested one: `translation.en`.

    A subclass implements `_fields`.
    """

    path: str
    record: RecordKinds = Pairs()
    """The kind of a row, and the fields that are read of it."""

    def target_names(self) -> list[str]:
        return [str(self.record.texts[-1][0])] if self.record.texts else []

    @abstractmethod
    def _fields(self, progress: ReadProgress) -> Iterator[FileRow]:
        """Yields all rows of all files."""

    def _rows(self, progress: ReadProgress) -> Iterator[LocatedPair]:
        for file, number, pair in self._read(self.record.pair, progress):
            yield LocatedPair(pair, (file, file), number)

    def asked(self, progress: ReadProgress = ignore_progress) -> Iterator[FileRow]:
        """Yields what commands ask of each row (`Record.asked`), or its error; `BLANK` for a blank one."""
        return self._read(self.record.asked, progress)

    def _read(self, read: Callable[[object], object], progress: ReadProgress) -> Iterator[FileRow]:
        """Yields what is read of each row, or its error; `BLANK` for a blank one."""
        for file, number, row in self.record.rows(self._fields(progress)):
            try:
                if isinstance(row, ValueError):
                    raise row
                if row is not BLANK:
                    row = read(row)
            except ValueError as error:
                row = Mistake.of(error, file=file, line=number)
            yield file, number, row
