"""Words with labels: as other programs write them, as pairs of texts, and as token ids with a label for each token.

| a record has | the label of its pair, in JSON |
|---|---|
| a list of words and one of labels | `{"words": [[0, 4, "B-PER"], …]}`: the place of each word in the text, and its label |
| a text and spans of it | `{"spans": [[0, 10, "PER"], …]}`: the place of each entity, and its type |

A place is the number of the first character, from 0, and that of the character behind the last.
"""

import ast
import contextlib
import functools
import itertools
import json
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from flaxformer_lite.base.sealed_files import text_digest
from flaxformer_lite.core.reading.objectives import OUTSIDE, PIECE_LABELS, piece_label
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.core.text.pairs import EncodedPair, Extent, Pair
from flaxformer_lite.files.chats.messages import by_rows
from flaxformer_lite.files.records.base import BLANK, Field, FileRow, Reading, Record, text_field
from flaxformer_lite.files.text.files import in_utf8
from flaxformer_lite.files.text.json_objects import field_value
from flaxformer_lite.files.text.words import units_of

if TYPE_CHECKING:
    from flaxformer_lite.core.objectives.token_labels import TokenLabels  # with JAX

READS_WORDS = 2
"""Changes with the way in which labelled words are read: stores of their tokens are then made anew."""
LABEL_FIELDS = ("label", "type", "entity_group", "entity")
"""Names that other programs have for the type of a span."""
UNLABELLED = (None, "", -100, "-100")
"""Labels of a word that has none: neither the loss nor a figure counts it."""
NO_TOKEN = "has no token of its own, so the label does not count"
COUNTED = (("units of UTF-16, as browsers do", "utf-16-le"), ("bytes", "utf-8"))
"""Units that other programs count in the place of characters, each with its encoding."""
Place = tuple[int, int]


class Marked(NamedTuple):
    """A place in a text with its label, or with the type of its entity."""

    start: int
    stop: int
    label: str | int | None

    @property
    def shown(self) -> str:
        return f"({self.start}, {self.stop}, {self.label!r})"


# Records ----------------------------------------------------------------------------------------------------------


def joined_words(words: Sequence[str]) -> tuple[str, list[Place]]:
    """Returns the words in a text, with a space between two, and their places."""
    places = list[Place]()
    start = 0
    for word in words:
        stop = start + len(word)
        places.append((start, stop))
        start = stop + 1
    return " ".join(words), places


ITEM = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|-?\d+|None""", re.S)
"""An item of a list that Python or NumPy wrote."""
LIST = re.compile(rf"\[\s*((?:{ITEM.pattern})([\s,]+({ITEM.pattern}))*)?[\s,]*\]", re.S)


def spelled_list(value: object) -> Any:
    """Returns the list that a cell of a table spells; other values as they are. Raises: ValueError for brackets without a list.

    NumPy writes no commas, which Python would join: `['New' 'York']`.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    with contextlib.suppress(ValueError):
        given = json.loads(text)
        if isinstance(given, list):
            return given
    if LIST.fullmatch(text):
        return list(map(ast.literal_eval, ITEM.findall(text)))
    if text[:1] + text[-1:] == "[]":
        raise ValueError(
            f"{text[:60]!r} is no list that JSON, Python or NumPy writes whole: write it in JSON, without ..."
        )
    return text.split()


def check_items(name: str, items: object, kinds: set[type]) -> None:
    """Raises: ValueError if the words or the labels of a text are no list of such items."""
    wrong = [item for item in items if type(item) not in kinds] if isinstance(items, list) else [items]
    if wrong:
        what = "texts or whole numbers" if int in kinds else "texts"
        raise ValueError(f"the {name} have {str(wrong[0])[:60]!r}: they must be a list of {what}")


def pair_of_words(words: Any, labels: Any) -> Pair:
    """Returns a text from its words, with their labels. Raises: ValueError if they are not lists of the same length."""
    check_items("words", words, {str})
    check_items("labels", labels, {str, int, type(None)})
    if len(words) != len(labels):
        raise ValueError(f"it has {len(words)} words and {len(labels)} labels: each word needs one label")
    text, places = joined_words(words)
    marked = [[*place, None if label in UNLABELLED else label] for place, label in zip(places, labels, strict=True)]
    return Pair("", in_utf8(text, "a word"), json.dumps({"words": marked}, ensure_ascii=False))


def pair_of_spans(text: str, spans: object) -> Pair:
    """Returns a text with its spans. Raises: ValueError if they are not spans of it, or two of them share a character."""
    spans = by_rows(spans) if isinstance(spans, Mapping) else spans
    if not isinstance(spans, list):
        raise ValueError(f"the spans are {str(spans)[:60]!r}: they must be a list, each with start, end and label")
    marked = sorted((read_span(span, text) for span in spans), key=lambda one: (one.start, -one.stop))
    for first, second in itertools.pairwise(marked):
        if second.start < first.stop:
            relation = "is nested in" if second.stop <= first.stop else "overlaps"
            raise ValueError(
                f"the span {second.shown} {relation} {first.shown}: each character belongs to one span at most, so keep one of them"
            )
    return Pair("", text, json.dumps({"spans": marked}, ensure_ascii=False))


def read_span(span: Any, text: str) -> Marked:
    """Returns a span of a text, from a list or an object. Raises: ValueError for another form or another text."""
    fields, said = span, None
    if isinstance(span, Mapping):
        said = span.get("text")
        label = next((span[name] for name in LABEL_FIELDS if span.get(name) is not None), None)
        fields = [span.get("start"), span.get("end"), label]
    types = [type(field) for field in fields] if isinstance(fields, list | tuple) else []
    if types != [int, int, str] or not fields[2]:
        raise ValueError(
            f"the span {str(span)[:60]} is not a span: it must have start and end, whole numbers, and a label, a text"
        )
    place = Marked(*fields)
    if place.start >= place.stop:
        raise ValueError(
            f"the span {place.shown} is empty: its end is the number of the character behind it, above its start"
        )
    there = text[max(place.start, 0) : place.stop]
    if isinstance(said, str) and there.split() != said.split():
        counted = [unit for unit, encoding in COUNTED if said == encoded_part(text, place, encoding)]
        remedy = f"its places count {counted[0]}: count" if counted else "correct one of them, counted in"
        raise ValueError(
            f"the span {place.shown} is {there[:60]!r}, but its text {said[:60]!r}: {remedy} characters from 0"
        )
    if place.start < 0 or place.stop > len(text):
        raise ValueError(
            f"the span {place.shown} crosses the text, which has {len(text)} characters: correct it, counted in characters from 0"
        )
    return place


def encoded_part(text: str, place: Marked, encoding: str) -> str:
    """Returns the part of a text at a place that counts the units of an encoding."""
    width = len("a".encode(encoding))
    return text.encode(encoding, "surrogatepass")[width * place.start : width * place.stop].decode(encoding, "replace")


class WordRecord(Record):
    """Base of the records whose words have labels."""

    reads = "words"

    @classmethod
    def reader(cls, tokenizers: Tokenizers, reading: Reading) -> Tokenizers:
        return LabelTokenizers(tokenizers.source, tokenizers.target, reading.objective, reading.whole)


@dataclass(frozen=True, kw_only=True)
class Words(WordRecord):
    """The words of a text with a label each. For the objective `token_labels`."""

    kind: Literal["words"] = "words"
    words: Field = "tokens"
    """Field of the words: a list, its text as JSON, Python or NumPy write it, or words with spaces between. `a.b` is a nested
    field. In a table a column: a number from 0, or a name in the header."""
    labels: Field = "ner_tags"
    """Field of their labels, in the same forms: texts, or numbers, which are places in `objective.labels`. A word with null, an
    empty text or -100 has no label, and does not count."""

    sentence: Field | None = None
    """Field of the number or the name of a word's text, for rows of one word each; the rows of a text may leave it empty behind
    the first one. None: a row has all words of its text."""

    def rows(self, rows: Iterator[FileRow]) -> Iterator[FileRow]:
        return rows if self.sentence is None else self._joined(rows)

    def _joined(self, rows: Iterator[FileRow]) -> Iterator[FileRow]:
        """Yields a row of two lists for each text whose words have a row each."""
        names = list[Any]()

        def text(one: FileRow) -> tuple[str, int]:
            name = one[2].get(self.sentence) if isinstance(one[2], dict) else None
            if name not in (None, "", *names[-1:]):
                names.append(name)
            return one[0], len(names)

        for _, group in itertools.groupby((one for one in rows if one[2] is not BLANK), text):
            files, numbers, words = zip(*group, strict=True)
            try:
                lists = {name: [self._cell(word, name) for word in words] for name in (self.words, self.labels)}
                yield files[0], numbers[0], lists
            except ValueError as error:
                yield files[0], numbers[0], error

    def _cell(self, row: object, field: Field) -> object:
        if isinstance(row, ValueError):
            raise row
        return field_value(row, field)

    def asked(self, row: object) -> tuple[Any, ...]:
        words = spelled_list(field_value(row, self.words))
        check_items("words", words, {str})
        return (words,)

    def pair(self, row: object) -> Pair:
        return pair_of_words(*(spelled_list(field_value(row, field)) for field in (self.words, self.labels)))


@dataclass(frozen=True, kw_only=True)
class Entities(WordRecord):
    """A text with its entities. For the objective `token_labels`."""

    kind: Literal["entities"] = "entities"
    text: Field = "text"
    """Field of the text; `a.b` for a nested one."""
    spans: Field = "spans"
    """Field of the entities: a list of objects with `start`, `end` and `label`, or of lists of these three. Characters count from
    0; `end` is behind the last; a field `text` must be the text there."""

    names = ("text",)

    def pair(self, row: object) -> Pair:
        return pair_of_spans(text_field(row, self.text), field_value(row, self.spans))


# Words and tokens -------------------------------------------------------------------------------------------------------


def units_in(text: str, word: Place) -> list[Place]:
    """Returns the places of the units of a word of a text."""
    return [(word[0] + start, word[0] + stop) for start, stop in word_units(text[slice(*word)])]


word_units = functools.lru_cache(2**16)(units_of)
"""The units of each word: a text has most of its words again and again."""


def words_of_tokens(text: str, words: Sequence[Place], tokens: Sequence[Place]) -> list[int]:
    """Returns for each token the number of its word; -1 if it has no character of any. Words are in their order, and share none.

    A tokenizer may count spaces and characters that it drops to the token behind them. So the word of a token is the first word
    that shares a character with the token's visible part; without such a word, the last word that shares any character with the
    token.
    """
    owners = overlapped([(start, visible_stop(text, start, stop)) for start, stop in words], tokens, last=False)
    if -1 not in owners:
        return owners
    return [
        last if owner < 0 else owner for owner, last in zip(owners, overlapped(words, tokens, last=True), strict=True)
    ]


def visible_stop(text: str, start: int, stop: int) -> int:
    """Returns the end of a place without the spaces and the invisible characters at its end."""
    while start < stop and unicodedata.category(text[stop - 1])[0] in "CZ":
        stop -= 1
    return stop


def overlapped(words: Sequence[Place], tokens: Sequence[Place], *, last: bool) -> list[int]:
    """Returns for each token the number of the first or of the last word that it has a character of; -1 if it has none of any."""
    filled = [number for number, (start, stop) in enumerate(words) if start < stop]
    if not filled:
        return [-1] * len(tokens)
    starts = [words[number][0] for number in filled]
    stops = [words[number][1] for number in filled]
    owners = []
    for begin, end in tokens:
        nearest = min(bisect_right(stops, begin), len(filled) - 1)
        if last:
            nearest = max(bisect_left(starts, end) - 1, 0)
        owners.append(filled[nearest] if starts[nearest] < end and begin < stops[nearest] else -1)
    return owners


def first_tokens(words: Sequence[int]) -> dict[int, int]:
    """Returns the first token of each word that has one, in the order of the words, from the number of each token's word."""
    firsts = {word: len(words) - place for place, word in enumerate(reversed(words), 1) if word >= 0}
    return dict(sorted(firsts.items()))


def with_tokens(text: str, words: Sequence[Place], tokens: Sequence[Place]) -> list[Place]:
    """Returns the words; one without a token of its own is a part of the word before it whose token reads both, as "()" may be."""
    owners = words_of_tokens(text, words, tokens)
    lasts = overlapped(words, tokens, last=True)
    firsts = first_tokens(owners)
    stops = [stop for _, stop in words]
    inner = set[int]()
    for owner, last in zip(owners, lasts, strict=True):
        behind = itertools.takewhile(lambda word: word not in firsts, range(owner + 1, last + 1))
        for word in behind if owner >= 0 else ():
            stops[owner] = stops[word]
            inner.add(word)
    return [(start, stops[number]) for number, (start, _) in enumerate(words) if number not in inner]


@dataclass(frozen=True)
class LabelTokenizers(Tokenizers):
    """Reads texts whose words have labels; they have targets and no sources.

    The labels of their tokens are the `PIECE_LABELS` of `TokenLabels`.

    A text is read in its `units_of`, as `Run.label` reads it: those of a list's words, each with a label of its word, and those of
    a text with spans, each with the span that it shares a character with. A word without a token has no label: the labels of all
    others stay.
    """

    objective: "TokenLabels"
    whole: bool = False
    """Whether each word of a list is read as it is, by its first piece: for models from elsewhere, which have learned that."""

    @property
    def reading(self) -> str:
        return text_digest(json.dumps([READS_WORDS, self.objective.labels, self.objective.scheme]))

    def refusal(self, pair: Pair) -> str | None:
        try:
            _, lost = self._piece_labels(pair, self.target.encode_spans([pair[1]])[0].spans)
        except ValueError as error:
            return str(error)
        more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        return lost[0] + more if lost else None

    def encode_pairs(self, pairs: Sequence[Pair]) -> Iterator[EncodedPair]:
        encoded = self.target.encode_spans([pair.target for pair in pairs])
        for pair, (ids, spans) in zip(pairs, encoded, strict=True):
            try:
                labels, lost = self._piece_labels(pair, spans)
            except ValueError:  # reported with its file and line, by `refusal`
                yield EncodedPair([], [], extent=Extent.REFUSED)
                continue
            arrays = {PIECE_LABELS: np.array(labels, np.uint16)}
            yield EncodedPair([], ids, extent=Extent.PARTLY if lost else Extent.WHOLE, arrays=arrays)

    def _piece_labels(self, pair: Pair, tokens: Sequence[Place]) -> tuple[list[int], list[str]]:
        """Returns the `piece_label` of each token, and what of the pair is not read. Raises: ValueError without labels."""
        marked = {name: [Marked(*one) for one in items] for name, items in json.loads(pair.label or "{}").items()}
        if "words" in marked:
            units = [[one[:2]] if self.whole else units_in(pair[1], one[:2]) for one in marked["words"]]
            words = list(itertools.chain.from_iterable(units))
            owners = words_of_tokens(pair[1], words, tokens)
            firsts = first_tokens(owners)
            labels = list[int | None]()
            lost = list[str]()
            for number, (one, of_word) in enumerate(zip(marked["words"], units, strict=True), 1):
                has_token = [unit in firsts for unit in range(len(labels), len(labels) + len(of_word))]
                known = one.label, sum(has_token)
                if known not in self._known_labels or not any(has_token):
                    name = f"word {number}, {pair[1][one.start : one.stop]!r}"
                    self._known_labels[known] = self._labels_of_units(one.label, f"{name},", known[1])
                    if one.label is not None and not any(has_token):
                        lost.append(f"{name} {NO_TOKEN}")
                read = iter(self._known_labels[known])
                labels += [next(read) if has else None for has in has_token]
        elif "spans" in marked:
            words = units_of(pair[1])
            owners = words_of_tokens(pair[1], words, tokens)
            firsts = first_tokens(owners)
            labels, lost = self._labels_of_spans(pair[1], words, firsts, marked["spans"])
        else:
            raise ValueError("it has no labels of words: set the record of its source to Words or Entities")
        of_tokens = [0] * len(tokens)
        for token, word in enumerate(owners):
            label = labels[word] if word >= 0 else None
            if label is not None:
                is_first = firsts[word] == token
                of_tokens[token] = piece_label(label if is_first else self._further_labels[label], is_first)
        return of_tokens, lost

    @functools.cached_property
    def _known_labels(self) -> dict[tuple[str | int | None, int], Sequence[int | None]]:
        """The labels of units, by the label of their word and by their number: there are few of either."""
        return {}

    @functools.cached_property
    def _further_labels(self) -> list[int]:
        return list(map(self.objective.further_label, range(len(self.objective.labels))))

    def _labels_of_units(self, given: str | int | None, word: str, number: int) -> Sequence[int | None]:
        """Returns the labels of a word's units that have tokens: of an entity's first word B-, I-, …, of its last one …, I-, E-.

        Raises: ValueError for a label that the objective lacks.
        """
        if given is None:
            return [None] * number
        labels = self.objective.labels
        scheme = self.objective.scheme
        label = self.objective.label_number(given, word)
        prefix = labels[label][:1]
        kind = self.objective.type_of(labels[label])
        if number == 1 or scheme == "plain" or not kind:
            return [label] * number
        before, behind = prefix not in "BS", prefix not in "ES"
        names = in_scheme(kind, before + number + behind, scheme)[before : before + number]
        return [labels.index(name) if name in labels else label for name in names]

    def _labels_of_spans(
        self, text: str, words: Sequence[Place], firsts: Mapping[int, int], spans: Sequence[Marked]
    ) -> tuple[list[int | None], list[str]]:
        """Returns the label of each word by the scheme, and the spans that are not read as they are. Raises: ValueError.

        A word belongs to the first span that has a character of it.
        """
        outside = self.objective.label_number(OUTSIDE, "a word outside of all spans") if len(firsts) else 0
        labels: list[int | None] = [outside] * len(words)
        lost, free = list[str](), 0
        starts, stops = np.array(words, np.int64).reshape(-1, 2).T
        for span in spans:
            if span.label in self.objective.labels:
                kind = self.objective.type_of(str(span.label))
                if kind not in ("", span.label):
                    raise ValueError(
                        f"the span {span.shown} has the label of a word: a span has the type of its entity, {kind!r}"
                    )
            low = max(free, int(np.searchsorted(stops, span.start, side="right")))
            free = max(low, int(np.searchsorted(starts, span.stop)))
            inside = [word for word in range(low, free) if word in firsts]
            if not inside:
                lost.append(f"the span {span.shown} {NO_TOKEN}")
            elif starts[low] < span.start or stops[free - 1] > span.stop:
                learned = text[starts[low] : stops[free - 1]]
                lost.append(
                    f"the span {span.shown} cuts a word, and is learned as {learned[:60]!r}, as a text is labelled"
                )
            for word, label in zip(inside, in_scheme(str(span.label), len(inside), self.objective.scheme), strict=True):
                labels[word] = self.objective.label_number(label, f"the span {span.shown}")
        return labels, lost


def in_scheme(kind: str, number: int, scheme: str) -> list[str]:
    """Returns the labels of the words of an entity."""
    if scheme == "plain":
        return [kind] * number
    prefixes = ["B", *"I" * (number - 1)]
    if scheme == "bioes":
        prefixes = ["S"] if number == 1 else [*prefixes[:-1], "E"]
    return [f"{prefix}-{kind}" for prefix in prefixes[:number]]
