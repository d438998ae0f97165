"""Queries with candidates as texts: read from records, and by tokenizers. `core/objectives/candidates.py` has them as tokens.

The candidates of a query are its positives, texts that answer it, then its negatives. A `Pair` that `has_candidates` has the query
as its source, and the candidates in JSON as its target. Another pair is plain: its target answers its source.
"""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from flaxformer_lite.base.sealed_files import text_digest
from flaxformer_lite.core.data.records import candidate_arrays
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.core.text.pair_template import pair_text
from flaxformer_lite.core.text.pairs import EncodedPair, Pair
from flaxformer_lite.files.records.base import Field, Reading, Record, text_field
from flaxformer_lite.files.text.files import in_utf8
from flaxformer_lite.files.text.json_objects import field_value
from flaxformer_lite.files.text.normal_form import comparable


class TextCandidates(NamedTuple):
    """The candidates of a query."""

    positives: Sequence[str]
    negatives: Sequence[str] = ()
    scores: Sequence[float] = ()
    """The score of each candidate by a teacher, those of the positives first; (): no scores."""

    @classmethod
    def read(
        cls, positives: Sequence[object], negatives: Sequence[object], scores: Sequence[object] = ()
    ) -> "TextCandidates":
        """Returns the candidates of a record, from the values of its fields or columns: each is an item, a list of items or None.

        Raises: ValueError for anything else, and for candidates without a positive.
        """
        given = cls(*map(items, (positives, negatives, scores)))
        if not given.positives:
            raise ValueError("no text answers the query: give at least one positive")
        for number, text in enumerate(given.texts, 1):
            if not isinstance(text, str) or not text.strip():
                raise ValueError(
                    f"candidate {number} of the query is {str(text)[:60]!r}: it must be a text that is not blank"
                )
        answers = set(map(comparable, given.positives))
        both = [text for text in given.negatives if comparable(text) in answers]
        if both:
            raise ValueError(f"{both[0][:60]!r} is a positive and a negative of the query: leave out one of them")
        number = len(given.texts)
        wrong = [score for score in given.scores if isinstance(score, bool) or not isinstance(score, int | float)]
        if wrong or not all(map(math.isfinite, given.scores)):
            raise ValueError(f"the scores are {str(list(given.scores))[:60]}: each must be a finite number")
        if len(given.scores) not in (0, number):
            raise ValueError(
                f"the query has {number} candidates but {len(given.scores)} scores: give each candidate one"
            )
        return given

    def pair(self, query: str) -> Pair:
        """Returns the query with these candidates as a pair. Raises: ValueError for half a surrogate pair."""
        text = in_utf8(json.dumps(self._asdict(), ensure_ascii=False), "a candidate")
        return Pair(query, text, has_candidates=True)

    @classmethod
    def of_pair(cls, pair: Pair) -> "TextCandidates":
        """Returns the candidates in a pair, or the target of a plain pair as the only one."""
        return cls(**json.loads(pair.target)) if pair.has_candidates else cls([pair.target])

    @property
    def texts(self) -> list[str]:
        return [*self.positives, *self.negatives]


@dataclass(frozen=True, kw_only=True)
class Candidates(Record):
    """A query with texts that answer it, and texts that do not. For embeddings and rerankers, which also read plain pairs."""

    kind: Literal["candidates"] = "candidates"
    query: Field = "query"
    """Field of the query; `a.b` for a nested one. In a table a column: a number from 0, or a name in the header."""
    positives: Field = "positive"
    """Field of a text that answers it, or of a list of them."""
    negatives: tuple[Field, ...] = ("negatives",)
    """Fields of texts that do not answer it, each a text or a list of texts. (): no such texts."""
    scores: tuple[Field, ...] = ()
    """Fields of the scores of all these texts by a teacher, each a number or a list of numbers: first those of the positives. ():
    no scores."""

    reads, names = "candidates", ("query", "positives")

    def pair(self, row: object) -> Pair:
        fields = ((self.positives,), self.negatives, self.scores)
        given = TextCandidates.read(*([field_value(row, field) for field in some] for some in fields))
        return given.pair(text_field(row, self.query))

    @classmethod
    def reader(cls, tokenizers: Tokenizers, reading: Reading) -> Tokenizers:
        (query, document), template = reading.objective.prompt_texts, reading.objective.pair_template
        return CandidateTokenizers(tokenizers.source, tokenizers.target, query, document, template)

    @classmethod
    def learned(cls, objective: Any, pairs: Iterable[Pair]) -> Iterator[Pair]:
        query, document = objective.prompt_texts
        added = Pair(query, document + objective.pair_template)
        if any(added[:2]):
            yield added
        yield from map(in_lines, pairs)


def in_lines(pair: Pair) -> Pair:
    """Returns a query's pair with each of its candidates in a line of the target, another pair as it is."""
    if not pair.has_candidates:
        return pair
    return Pair(pair.source, "\n".join(TextCandidates.of_pair(pair).texts))


def items(values: Sequence[object]) -> list[Any]:
    """Returns the items of values. A value is an item, a list of items or None."""
    lists = (value if isinstance(value, list) else [value] for value in values if value is not None)
    return list(itertools.chain.from_iterable(lists))


@dataclass(frozen=True)
class CandidateTokenizers(Tokenizers):
    """Reads queries with candidates, and plain pairs, each text behind the prompt of its side.

    With a template a candidate is the text of the template, with the query and the candidate in their places.
    """

    query_prompt: str = ""
    document_prompt: str = ""
    template: str = ""

    @property
    def reading(self) -> str:
        prompts = self.query_prompt + "\n" + self.document_prompt + self.template
        return text_digest(prompts) if prompts.strip("\n") else ""

    def encode_pairs(self, pairs: Sequence[Pair]) -> Iterator[EncodedPair]:
        read = [TextCandidates.of_pair(pair) for pair in pairs]
        texts = [[self.as_read(pair[0], text) for text in one.texts] for pair, one in zip(pairs, read, strict=True)]
        queries = self.source.encode_batch([self.query_prompt + pair[0] for pair in pairs])
        encoded = iter(self.target.encode_batch(list(itertools.chain.from_iterable(texts))))
        for pair, query, one, of_query in zip(pairs, queries, read, texts, strict=True):
            ids = list(itertools.islice(encoded, len(of_query)))
            arrays = candidate_arrays([*map(len, ids)], len(one.positives), one.scores) if pair.has_candidates else {}
            yield EncodedPair(query, [*itertools.chain.from_iterable(ids)], arrays=arrays)

    def as_read(self, query: str, text: str) -> str:
        """Returns the text of a candidate as it is tokenized."""
        return pair_text(self.template, query, text) if self.template else self.document_prompt + text
