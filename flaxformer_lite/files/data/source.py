"""The contract of data sources, and the base classes of sources of written text."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from flaxformer_lite.base.console import warn_once
from flaxformer_lite.core.base.bounds import Checked
from flaxformer_lite.core.data.records import Pair
from flaxformer_lite.files.records.candidates import TextCandidates
from flaxformer_lite.files.records.words import pair_of_spans, pair_of_words
from flaxformer_lite.files.text.files import ReadProgress, file_versions, ignore_progress, in_utf8
from flaxformer_lite.files.text.json_objects import field_value
from flaxformer_lite.files.text.messages import BESIDE, Conversation

MOST_LISTED = 10
"""Bad rows that an error lists."""


class LocatedPair(NamedTuple):
    pair: Pair | str
    """The pair, with blank sides for a blank row; a string says why the row is not a pair."""
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
        """Returns the path of the source that sets the treatment of bad rows, None without one, and the treatment."""
        return None, "error"

    def text_names(self, setting: str) -> tuple[str, str]:
        """Returns the names of the source texts and of the target texts in messages: the setting, and the file if there is one."""
        name = f"{setting} {getattr(self, 'path', self.kind)}"
        return name, name

    @property
    def labels_words(self) -> bool:
        """Whether the label of a pair has the labels of the words of its target (`files/records/words.py`)."""
        return False

    def target_names(self) -> list[str]:
        """Returns the names of the files or fields of the target texts, which may end in their language: `train.zh`."""
        return []

    def text_columns(self) -> tuple[tuple[int | str, ...], ...]:
        """Returns for each text of a row its column, then the column of a text that follows it, if any; () without columns."""
        return ()

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


def tell_bad_rows(treatment: str, number: int, listed: Sequence[str], setting: str | None) -> None:
    """Warns of bad rows if the treatment is to drop them. listed: the first of them. Raises: ValueError for another treatment."""
    if not listed:
        return
    if treatment == "drop":
        warn_once(f"{number} bad rows were left out, the first of them: {listed[0]}")
        return
    count = f"{number} bad rows, the first of them: " if number > 1 else ""
    other = f"; or leave out such rows (--{setting}.bad-rows drop)" if setting else ""
    raise ValueError(count + "; ".join(listed) + other)


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

    @property
    def _has_source(self) -> bool:
        return True

    @abstractmethod
    def _rows(self, progress: ReadProgress) -> Iterator[LocatedPair]:
        """Yields all rows, also blank and bad ones."""

    def versions(self) -> list[str] | None:
        return file_versions(self._origin)

    def located(self, setting: str | None = None, progress: ReadProgress = ignore_progress) -> Iterator[LocatedPair]:
        has_pairs, num_bad, bad = False, 0, list[str]()
        for row in self._rows(progress):
            pair, files, number = row
            if isinstance(pair, str):
                num_bad += 1
                if len(bad) < MOST_LISTED:
                    bad.append(f"{files[1]}:{number}: {pair}")
                if number == 1 and self.bad_rows == "error":
                    raise ValueError(bad[-1])  # the settings are wrong, rather than all rows
                continue
            if bad and self.bad_rows == "error":
                continue  # the other bad rows are to be listed too
            no_source = self._has_source and not pair.source.strip()
            if not no_source and pair.target.strip():
                has_pairs = True
                labelled = pair._replace(label=" ".join(self.languages)) if self.languages else pair
                yield row._replace(pair=labelled)
            elif self.empty_lines == "error":
                side = "source" if no_source else "target" if self._has_source else "text"
                other = f", or drop such pairs (--{setting}.empty-lines drop)" if setting else ""
                raise ValueError(f"{files[not no_source]}:{number}: the {side} is empty; correct the data{other}")
        tell_bad_rows(self.bad_rows, num_bad, bad, setting)
        if not has_pairs:
            raise ValueError(f"{self._origin}: no {'pair of sentences' if self._has_source else 'text'} in it")


@dataclass(frozen=True, kw_only=True)
class FieldSource(Checked, TextSource, at="data"):
    """Records with named fields. In a field name a dot descends into a nested field: `translation.en`."""

    path: str
    source_field: str | None = "source"
    """Field of the source sentences, `a.b` for a nested one; None: each record is a document."""
    target_field: str = "target"
    """Field of the target sentences, or of the documents; `a.b` for a nested one."""
    label_field: str | None = None
    """Field of the labels: strings, numbers, or lists of them for any number of labels a text; None: no labels."""
    input_field: str | None = None
    """Field of a text that belongs to the source, such as `input` beside `instruction`: it follows after an empty line, unless it
    is blank or null. None: no such text."""
    messages_field: str | None = None
    """Field of conversations, lists of messages with `role` and `content`, in the place of source and target; the fields `tools`
    and `system` go with them. For the objective `instruction`. None: no conversations."""
    negatives_fields: tuple[str, ...] | None = None
    """Fields of texts that do not answer the source, each a text or a list of texts; `target_field` then has the text that does, or
    a list of them. For embeddings and rerankers. (): there are none, but lists in `target_field`. None: plain pairs."""
    scores_fields: tuple[str, ...] = ()
    """Fields of the scores of these texts by a teacher, each a number or a list of numbers: first those of `target_field`. (): no
    scores."""
    words_field: str | None = None
    """Field of the words of a text, a list, in the place of source and target; `word_labels_field` has a label for each. For the
    objective `token_labels`. None: no words."""
    word_labels_field: str | None = None
    """Field of the labels of `words_field`, a list of texts, or of numbers, which are places in `objective.labels`. A word with
    null, an empty text or -100 has no label, and does not count."""
    spans_field: str | None = None
    """Field of the entities in the text of `target_field`: a list of objects with `start`, `end` and `label`, or of lists of these
    three. Characters count from 0; `end` is behind the last; a field `text` must be the text there. For the objective
    `token_labels`. None: no spans."""

    def __post_init__(self) -> None:
        """Raises: ValueError for fields of labelled words that do not go together."""
        super().__post_init__()
        of_words = (self.words_field is not None, self.word_labels_field is not None)
        if len({*of_words}) > 1 or (self.spans_field is not None and any(of_words)):
            raise ValueError(
                f"{self.kind}.words_field is {self.words_field!r}, word_labels_field {self.word_labels_field!r} and spans_field "
                f"{self.spans_field!r}: set the first two alone, or the last one alone"
            )

    @property
    def labels_words(self) -> bool:
        return any(field is not None for field in (self.words_field, self.word_labels_field, self.spans_field))

    @property
    def _has_source(self) -> bool:
        return self.source_field is not None and self.messages_field is None and not self.labels_words

    def target_names(self) -> list[str]:
        return [self.target_field]

    def text_columns(self) -> tuple[tuple[int | str, ...], ...]:
        if self.messages_field is not None or self.words_field is not None:
            return ()
        return texts_of(self.source_field if self._has_source else None, self.target_field, self.input_field)

    @property
    def _top_fields(self) -> set[str]:
        """The outermost names of the fields that are read."""
        if self.messages_field is not None:
            return {self.messages_field.split(".")[0], *BESIDE}
        of_pairs = (self.source_field, self.target_field, self.label_field, self.input_field)
        fields = (*of_pairs, *(self.negatives_fields or ()), *self.scores_fields)
        if self.labels_words:
            fields = (self.target_field if self.words_field is None else self.words_field,)
            fields += (self.word_labels_field, self.spans_field)
        return {field.split(".")[0] for field in fields if field is not None}

    def _pair(self, record: object) -> Pair | str:
        """Returns the fields of a record, or what is wrong with it."""
        try:
            if self.messages_field is not None:
                messages = field_value(record, self.messages_field)
                assert isinstance(record, dict)  # it has the field
                return Pair("", Conversation.of_record(record, messages).text)
            if self.labels_words:
                return self._labelled(record)
            source = "" if self.source_field is None else text_field(record, self.source_field)
            more = "" if self.input_field is None else text_field(record, self.input_field)
            source = with_input(source, more)
            if self.negatives_fields is not None:
                return self._candidates(record).pair(source)
            target = text_field(record, self.target_field)
            label = "" if self.label_field is None else label_of(record, self.label_field)
        except ValueError as error:
            return str(error)
        return Pair(source, target, label)

    def _candidates(self, record: object) -> TextCandidates:
        """Returns the candidates of a record. Raises: ValueError if it has no such fields, or other things in them."""
        fields = ((self.target_field,), self.negatives_fields or (), self.scores_fields)
        return TextCandidates.read(*([field_value(record, field) for field in some] for some in fields))

    def _labelled(self, record: object) -> Pair:
        """Returns a text whose words have labels. Raises: ValueError for a record that is none."""
        if self.spans_field is not None:
            return pair_of_spans(text_field(record, self.target_field), field_value(record, self.spans_field))
        assert self.words_field is not None and self.word_labels_field is not None
        return pair_of_words(field_value(record, self.words_field), field_value(record, self.word_labels_field))


def texts_of(source: Any, target: Any, more: Any) -> tuple[tuple[int | str, ...], ...]:
    """Returns the columns or fields of each text, as `DataSource.text_columns`."""
    first = tuple(column for column in (source, more) if column is not None)
    return ((target,),) if source is None else (first, (target,))


def with_input(source: str, more: str) -> str:
    return f"{source}\n\n{more}" if more.strip() else source


def label_of(record: object, field: str) -> str:
    """Returns the label in a field of a record, a list as JSON. Raises: ValueError for anything but strings and numbers."""
    value = field_value(record, field)
    if not isinstance(value, list):
        return as_text(value, field, numbers=True)
    return json.dumps([as_text(one, field, numbers=True) for one in value], ensure_ascii=False)


def text_field(record: object, field: str, numbers: bool = False) -> str:
    """Returns the string in a field of a record, an empty one for null.

    numbers: a number counts too, as JSON writes it, and null does not.

    Raises: ValueError for anything else.
    """
    return as_text(field_value(record, field), field, numbers)


def as_text(value: object, field: str, numbers: bool) -> str:
    """Returns the string that a field holds, as `text_field` does."""
    if value is None and not numbers:
        return ""
    if numbers and (isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))):
        return json.dumps(value)
    if not isinstance(value, str):
        raise ValueError(f"field {field} holds {type(value).__name__} {str(value)[:60]!r}: it must be a string")
    return in_utf8(value, f"field {field}")
