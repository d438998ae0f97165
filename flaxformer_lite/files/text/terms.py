"""Terms: a source that has the one text needs the other in its translation. Placeholders of a source stay as they are."""

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.core.search import NeededTokens
from flaxformer_lite.core.text import Tokenizer
from flaxformer_lite.files.text.files import line_chunks
from flaxformer_lite.files.text.normal_form import cased, comparable, located_form
from flaxformer_lite.files.text.words import HANGUL, UNSPACED, of_word

NAME = r"[^\W\d][\w.:\u00b7\u0300-\u036f-]*"
VALUE = r"""(?:"[^"<>]*+(?:[<>][^"<>]*+){0,50}"|'[^'<>]*+(?:[<>][^'<>]*+){0,50}'|[^\s"'<>`]++)"""
HOST_LETTER = r"[\w\u0300-\u036f\u0900-\u0dff\u0e00-\u0eff]"
WITHIN = r"""[^\s<>()"“”„«»。、，」』】）》]"""
AT_END = r"""[^\s<>()"“”„«»。、，」』】）》.,;:!?'’…\]}*]"""
IN_BRACKETS = r"\((?:[^\s<>()]++|\([^\s<>()]*+\))*+\)"
HOST = rf"(?:(?:{HOST_LETTER}|-){{1,63}}\.)+(?:{HOST_LETTER}|-){{1,63}}|\[(?:IPv6:)?[\da-fA-F.:]{{2,45}}\]"
MAIL = rf"(?:\w(?:{HOST_LETTER}|[.!#$%&'*+/=?^`{{|}}~-]){{0,63}}|\"[^\"\s]{{1,62}}\")@(?:{HOST})"
FORMS = {
    "comments, declarations, instructions of XML": (
        r"<!--.{0,1000}?-->|<!\[CDATA\[.{0,1000}?\]\]>|<\?[^\W\d].{0,1000}?\?>|<![A-Z][^<>]*>"
    ),
    "tags of HTML and XML": rf"</?(?::?{NAME}(?:\s+[^\s\"'<>/=]++(?:\s*=\s*{VALUE})?)*+\s*+/?|\d+\s*/?)>",
    "addresses of pages": (
        rf"(?<!\w)(?:[a-zA-Z][a-zA-Z\d+.-]{{1,20}}://|www\.)(?:{WITHIN}|{IN_BRACKETS})*(?:{AT_END}|{IN_BRACKETS}|\])"
    ),
    "addresses of mail": rf"mailto:{MAIL}(?:\?{WITHIN}*{AT_END})?|{MAIL}",
    "templates": r"\{\{\{?[^{}]{1,200}\}?\}\}|\{%[^{}]{1,200}%\}|\{#[^{}]{1,200}#\}",
    "names and formats in braces": (
        r"[$#%@]?\{(?:[^{}\s]*(?:\{[^{}\s]*\}[^{}\s]*)*| ?[\w.$-]+ ?|[\w.\[\]]*(?:![rsa])?:(?: |[^{}]?[<>=^])[^{}\s]*)\}"
    ),
    "conversions of printf and of Python": (
        r"%%|%\([^()]{1,64}\)[-+ #0]*\d*(?:\.\d+)?[diouxXeEfFgGcrsa]|(?<![\d%])%[sd@]"
        r"|%(?:\d+\$)?[-+#0']*(?:\*|\d+)?(?:\.(?:\*|\d+)?)?(?:hh|ll|[hljztLq])?[diouxXeEfFgGaAcCsSpn@](?!\w)"
    ),
}
"""The placeholders. References: XML 1.1, 2.3; HTML, 13.1; RFC 3986, 5322 and 6531; ISO C, 7.21.6; Python, format strings.

A per cent sign behind a number ("50 % d", "100%ig") is not one unless the conversion ends the word, and has no space in it.
"""
PLACEHOLDER = re.compile("|".join(FORMS.values()), re.DOTALL)


class Term(NamedTuple):
    """A text of a source, and the text that its translation then has."""

    source: str
    target: str
    place: str = "terms"
    """Place of the term, for messages."""


class WantedTerm(NamedTuple):
    """A term as it is looked for."""

    form: str
    """The normal form of the source's text."""
    exact: str
    """The same with its case; empty where it is found in any case."""
    target: str

    @classmethod
    def of(cls, term: Term) -> "WantedTerm":
        exact = cased(term.source)
        return cls(comparable(term.source), "" if exact == exact.lower() else exact, term.target)


class Needed(NamedTuple):
    """A text that a translation must have."""

    text: str
    glued: bool = False
    """Whether it stands behind a character without a space."""


@dataclass(frozen=True)
class Terms:
    """Terms, and whether placeholders count as such: the `FORMS`, such as tags, {names}, %s, addresses.

    A term stands in a source as whole words, compared in the form of `normal_form.py`; one in small letters is found in any case.
    The longest of overlapping terms counts, and the words in it are not terms.
    """

    terms: tuple[Term, ...] = ()
    placeholders: bool = False
    known: dict[tuple[Tokenizer, Needed], tuple[int, ...]] = field(default_factory=dict, compare=False, repr=False)
    """Token ids of texts that were needed before."""

    def __post_init__(self) -> None:
        first: dict[tuple[str, str], Term] = {}
        for term in self.terms:
            form, exact, _ = WantedTerm.of(term)
            if not (form and cased(term.target)):
                raise ValueError(f"{term.place}: {term.source!r} → {term.target!r}: neither text may be empty")
            other = first.setdefault((form, exact), term)
            if cased(other.target) != cased(term.target):
                raise ValueError(
                    f"{term.place}: {cut(term.source)!r} is {cut(term.target)!r} here and {cut(other.target)!r} in {other.place}: "
                    "keep one of them"
                )

    def __bool__(self) -> bool:
        return bool(self.terms or self.placeholders)

    @classmethod
    def of(cls, terms: "Terms | Mapping[str, str] | None", placeholders: bool = False) -> "Terms":
        """Returns the terms of a mapping from texts of sources to texts of translations."""
        if isinstance(terms, Terms):
            if placeholders and not terms.placeholders:
                return replace(terms, placeholders=True)
            return terms
        pairs = (terms or {}).items()
        return cls(tuple(Term(source.strip(), target.strip()) for source, target in pairs), placeholders)

    @classmethod
    def read(cls, path: str) -> "Terms":
        """Returns the terms of a file: in each line a text of a source, a tab, and the text of the translation.

        Raises: ValueError with the line if it has other columns.
        """
        terms = []
        for number, line in enumerate(itertools.chain.from_iterable(line_chunks(path)), 1):
            texts = [text.strip() for text in line.split("\t")]
            place = f"{path}, line {number}"
            if line.strip():
                if len(texts) != 2:
                    raise ValueError(f"{place}: {len(texts) - 1} tabs: write a term, one tab, and its translation")
                terms.append(Term(texts[0], texts[1], place))
        return cls(tuple(terms))

    @cached_property
    def by_start(self) -> dict[str, list[WantedTerm]]:
        """The terms by the first character of their normal form: the longest first, then those with capitals."""
        groups: dict[str, list[WantedTerm]] = {}
        wanted = dict.fromkeys(map(WantedTerm.of, self.terms))
        for term in sorted(wanted, key=lambda term: (-len(term.form), not term.exact)):
            groups.setdefault(term.form[0], []).append(term)
        return groups

    def needed(self, source: str) -> dict[Needed, int]:
        """Returns the texts that the translation of a source must have, and how often: a term once."""
        form, places = located_form(source)
        ends = {m.start(): m.end() for m in PLACEHOLDER.finditer(source)} if self.placeholders else {}
        needed, at = Counter[Needed](), 0
        while at < len(form):
            start = places[at]
            if start in ends:
                text = source[start : ends[start]]
                before = form[at - 1 : at]
                needed[Needed(text, bool(before.strip()) and not of_word(text[0]))] += 1
                while places[at] < ends[start]:
                    at += 1
                continue
            here = (term for term in self.by_start.get(form[at], ()) if stands(term, source, form, places, at))
            term = next(here, None)
            if term is not None:
                first = term.target[0]
                needed[Needed(term.target, UNSPACED.match(first) is not None and HANGUL.match(first) is None)] = 1
            at += 1 if term is None else len(term.form)
        return needed

    def check(self, tokenizer: Tokenizer) -> None:
        """Raises: ValueError with its place for a term that the tokenizer cannot write."""
        for term in self.terms:
            try:
                ids_of_text(tokenizer, term.target)
            except ValueError as error:
                raise ValueError(f"{term.place}: {error}") from None

    def tokens(self, source: str, tokenizer: Tokenizer) -> tuple[tuple[NeededTokens, ...], str]:
        """Returns the token ids that the translation of a source must have, and the texts that the tokenizer cannot write."""
        by_ids, wrong = dict[tuple[int, ...], NeededTokens](), list[str]()
        for needed, times in self.needed(source).items():
            try:
                if (tokenizer, needed) not in self.known:
                    self.known[tokenizer, needed] = inner_ids(tokenizer, needed)
                ids = self.known[tokenizer, needed]
                before = by_ids.get(ids, NeededTokens(ids, 0, False))
                by_ids[ids] = NeededTokens(ids, before.times + times, before.whole or of_word(needed.text[-1]))
            except ValueError as error:
                wrong.append(str(error))
        return tuple(by_ids.values()), "; ".join(wrong)


def stands(term: WantedTerm, source: str, form: str, places: Sequence[int], at: int) -> bool:
    """Returns whether a term stands as whole words at this place of the normal form of a source; places: see `Located`."""
    end = at + len(term.form)
    if not form.startswith(term.form, at) or min(places[at], places[end]) < 0:
        return False
    if term.exact and cased(source[places[at] : places[end]]) != term.exact:
        return False
    edges = (form[at - 1 : at], form[at]), (form[end - 1], form[end : end + 1])
    return not any(a and b and of_word(a) and of_word(b) for a, b in edges)


def inner_ids(tokenizer: Tokenizer, needed: Needed) -> tuple[int, ...]:
    """Returns the ids of a text as it goes on behind other text, with a space before it unless it is glued.

    Raises: ValueError if the vocabulary lacks a part of it, or the tokenizer writes it otherwise.
    """
    for before in "a.1。":
        space = "" if needed.glued else " "
        ids, ids_before = tokenizer.encode(before + space + needed.text), tokenizer.encode(before)
        if ids[: len(ids_before)] == ids_before and tokenizer.unk_id not in ids_before:
            break
    return ids_of_text(tokenizer, needed.text, ids[len(ids_before) :])


def ids_of_text(tokenizer: Tokenizer, text: str, ids: Sequence[int] | None = None) -> tuple[int, ...]:
    """Returns the ids of a text, its own or those given.

    Raises: ValueError if the vocabulary lacks a part of it, or the tokenizer writes it otherwise.
    """
    ids = tokenizer.encode(text) if ids is None else ids
    if tokenizer.unk_id in ids:
        raise ValueError(f"{cut(text)!r} is not in the vocabulary: the model cannot write it, choose another text")
    written = tokenizer.decode(ids).strip()
    if cased(written) != cased(text):
        raise ValueError(f"{cut(text)!r} is written {cut(written)!r} by the tokenizer: choose that, or another text")
    return tuple(ids)


def going_on(tokenizer: Tokenizer, size: int) -> Bool[np.ndarray, "V"]:
    """Returns True for the ids that go on with the word before them; and for special ids but EOS, which no text shows."""
    ids = tokenizer.with_pieces(range(min(size, tokenizer.largest_id + 1)))
    starts = tokenizer.word_starts([ids[0], *ids])[1:] if tokenizer.word_signs else [False] * len(ids)
    goes_on = np.zeros(size, bool)
    special = tokenizer.special[:5]
    for i, begins in zip(ids, starts, strict=True):
        first = tokenizer.piece(i).lstrip("#")[:1]
        word = not begins and first != "" and of_word(first)
        goes_on[i] = i != tokenizer.eos_id if i in special else word
    return goes_on
