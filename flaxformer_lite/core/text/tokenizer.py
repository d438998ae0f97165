"""The base class of tokenizers. A tokenizer reports its own special ids (`special`), so no other code asks for its kind."""

import copy
import itertools
import json
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, SupportsIndex

from flaxformer_lite.core.text.pairs import EncodedPair, Pair
from flaxformer_lite.core.text.special_ids import BOS, EOS, PAD, SPECIALS, UNK, EncodedText, SpecialIds, check_token_ids

MOST_IDS = 2**24
"""Larger vocabularies are refused: some readers make a list as long as the largest id."""
MAX_LISTED, MAX_REPORTED = 10, 10_000
"""The most unknown parts of texts that one warning lists, and the most that are remembered."""


class SpannedIds(NamedTuple):
    """The token ids of a text with their places."""

    ids: list[int]
    spans: list[tuple[int, int]]
    """The place of each token's first character, and of the one after its last. Tokens of one character's bytes have one place."""


class Sealed(NamedTuple):
    """A tokenizer whose special tokens have names that no text contains. So the usual names of these tokens are ordinary text."""

    tokenizer: "Tokenizer"
    names: dict[str, str]
    """The secret names by the names that templates write."""

    @property
    def pattern(self) -> re.Pattern[str]:
        """Finds the names that templates write, the longest at a place, and the marks of `chat`, as a group.

        A name of one character has no place for a mark inside: a mark behind it makes it text.
        """
        longest_first = sorted(self.names, key=len, reverse=True)
        names = [re.escape(name) + ("(?!\ufdd5)" if len(name) == 1 else "") for name in longest_first]
        return re.compile("|".join(["([\ufdd0-\ufdef]", *names]) + ")")


class Frame(NamedTuple):
    """The special ids around a source, in one direction of a translation."""

    before: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    ends_pairs: bool = False
    """Whether pairs already have the special ids of their rows."""


class Tokenizer(ABC):
    """A trained tokenizer. `encode` adds no special ids, `decode` drops them.

    A new kind sets `extension`, `vocab_size`, and any special id that differs from the default. It implements `encode_batch`,
    `_text`, `_piece`, `to_bytes` and `from_bytes`. `TOKENIZER_CLASSES` in kinds.py lists it, so that a saved one is loaded.
    """

    extension: ClassVar[str]
    """End of the file name, different for each kind."""
    word_signs: ClassVar[tuple[str, ...]] = ()
    """Signs for a space at the start of a piece that begins a word; (): pieces have white space itself."""
    vocab_size: int
    """Number of ids, special ones included."""
    pad_id: int = PAD
    unk_id: int | None = UNK
    bos_id: int | None = BOS
    eos_id: int | None = EOS
    mask_id: int | None = None
    frame: Frame | None = None
    """The special ids around a source; None: the tokenizer's own."""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of every text, without special ids other than UNK. A library's tokenizer computes them on all cores."""

    @abstractmethod
    def _text(self, ids: list[int]) -> str:
        """Returns the text of ids that are not special."""

    @abstractmethod
    def _piece(self, i: int) -> str:
        """Returns the label of an id."""

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Returns the content of the tokenizer's file."""

    @classmethod
    @abstractmethod
    def from_bytes(cls, content: bytes) -> "Tokenizer":
        """Returns the tokenizer saved by `to_bytes`. Raises: ValueError, TypeError or RuntimeError for a damaged file."""

    def encode_spans(self, texts: Sequence[str]) -> list[SpannedIds]:
        """Returns the ids of every text as `encode_batch`, and the characters of the text that each id stands for.

        Raises: ValueError for a kind of tokenizer that cannot tell.
        """
        raise ValueError(
            f"{type(self).__name__} does not tell which characters a token stands for: choose another tokenizer"
        )

    @property
    def special_texts(self) -> tuple[str, ...]:
        """The texts that are read as special ids wherever they stand in a text."""
        return ()

    @property
    def sealed(self) -> "Sealed":
        """The same tokenizer with secret names of its special tokens, which no text contains."""
        return Sealed(self, {})

    @property
    def special(self) -> SpecialIds:
        """The ids that stand for no text."""
        return SpecialIds(self.pad_id, self.unk_id, self.bos_id, self.eos_id, self.mask_id, size=self.vocab_size)

    @property
    def largest_id(self) -> int:
        """The largest id that a text may get: of the pieces, the special ids and the template."""
        return max(self.vocab_size - 1, *(i for i in self.special[:5] if i is not None))

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text, without special ids other than UNK."""
        return self.encode_batch([text])[0]

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """Returns the text of the ids; special ids, UNK included, are dropped. Raises: IndexError past the vocabulary."""
        special = self.special[:5]
        return self._text([i for i in map(operator.index, ids) if i not in special])

    def with_special_tokens(self, first: Sequence[int], second: Sequence[int] | None = None) -> EncodedText:
        """Returns BOS, the first text, EOS and, for a pair, the second text and EOS."""
        tokens = self.special.with_bos_eos(first)
        more = [] if second is None else self.special._replace(bos=None).with_bos_eos(second)
        return EncodedText(tokens + more, [0] * len(tokens) + [1] * len(more))

    def truncated(self, texts: Sequence[Sequence[int]], max_length: int) -> EncodedText:
        """Returns one text, or two, with special tokens, cut to `max_length` tokens: the longer text is cut at its end first."""
        num_special = len(self.with_special_tokens(*([] for _ in texts)).tokens)
        return self.with_special_tokens(*truncate_longest_first(texts, max_length - num_special))

    def as_source(self, tokens: Sequence[int]) -> list[int]:
        """Returns a source text for the encoder of an encoder–decoder: the tokens in the frame, by default with EOS."""
        if self.frame is None:
            return self.own_source(tokens)
        return [*self.frame.before, *map(int, tokens), *self.frame.behind]

    def own_source(self, tokens: Sequence[int]) -> list[int]:
        """Returns a source text without a frame: here the tokens and EOS."""
        return self.special._replace(bos=None).with_bos_eos(tokens)

    def framed(self, frame: Frame) -> "Tokenizer":
        """Returns a tokenizer with this frame that is otherwise the same."""
        other = copy.copy(self)
        other.frame = frame
        return other

    @property
    def ends_pairs(self) -> bool:
        """Whether pairs have the special ids of their rows: text … EOS [from], and [to] text … EOS, as mBART reads them."""
        return self.frame is not None and self.frame.ends_pairs

    def as_prompt(self, tokens: Sequence[int]) -> list[int]:
        """Returns the beginning of a text that a decoder continues: the special ids that begin a text, and the tokens."""
        return self.special._replace(eos=None).with_bos_eos(tokens)

    def unknown_parts(self, texts: Iterable[str]) -> list[str]:
        """Returns the parts of the texts that the vocabulary lacks, in order: here characters, each once."""
        characters = list(dict.fromkeys(itertools.chain.from_iterable(texts)))
        encoded = self.encode_batch(characters)
        return [character for character, ids in zip(characters, encoded, strict=True) if self.unk_id in ids]

    def has_piece(self, i: int) -> bool:
        """Returns whether an id stands for a piece of text."""
        return i < self.vocab_size

    def piece(self, i: int, other: str = "") -> str:
        """Returns the label of an id, `other` for one that stands for no piece."""
        return self._piece(i) if self.has_piece(i) else other

    def pieces(self, ids: Iterable[SupportsIndex]) -> list[str]:
        """Returns a readable label for each id, special ids included, for example for the axes of an attention plot."""
        return [self._piece(i) for i in map(operator.index, ids)]

    def with_pieces(self, ids: Iterable[int]) -> list[int]:
        """Returns the ids that stand for a piece: a model may have more."""
        return [i for i in ids if self.has_piece(i)]

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """Returns whether each token begins a word: the first one, and each that begins with one of `word_signs`.

        Without signs: the first one, each white-space character, and the token after it.
        """
        if self.word_signs:
            return [number == 0 or self._piece(i).startswith(self.word_signs) for number, i in enumerate(ids)]
        special = self.special[:5]
        white = [i not in special and self._text([i]).isspace() for i in ids]
        return [here or before for here, before in zip(white, [True, *white], strict=False)]


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of source and target; the same object twice for a joint vocabulary."""

    source: Tokenizer
    target: Tokenizer

    @property
    def reading(self) -> str:
        """A name for the way in which pairs are read; "": only the tokenizers read them."""
        return ""

    def refusal(self, pair: Pair) -> str | None:
        """Returns why a pair cannot be read, or which part of it is left out; None if the whole pair is read."""
        return None

    def encode_pairs(self, pairs: Sequence[Pair]) -> Iterator[EncodedPair]:
        """Yields each pair as token ids of its source and its target, with its label."""
        sources = self.source.encode_batch([pair[0] for pair in pairs])
        targets = self.target.encode_batch([pair[1] for pair in pairs])
        yield from (EncodedPair(*row) for row in zip(sources, targets, (pair.label for pair in pairs), strict=True))

    def check_ids(self, vocab_sizes: tuple[int, int]) -> None:
        """Raises: ValueError if a text of the source or the target may get an id past the model's table of embeddings."""
        for side, size in zip(("source", "target"), vocab_sizes, strict=True):
            check_token_ids([getattr(self, side).largest_id], size, f"the {side}'s tokenizer has the id")

    def target_text(self, tokens: Sequence[int]) -> str:
        """Returns an answer as one line of text: line breaks become spaces.

        Ids past the tokenizer's vocabulary are dropped: the model may have more ids, and an untrained one predicts them.
        """
        text = self.target.decode(self.target.with_pieces(tokens))
        return text.replace("\n", " ").replace("\r", " ")


def truncate_longest_first(texts: Sequence[Sequence[int]], max_length: int) -> list[list[int]]:
    """Cuts the longest text at its end, token by token, until all texts together have at most `max_length` tokens."""
    lengths = [len(text) for text in texts]
    for _ in range(sum(lengths) - max(max_length, 0)):
        lengths[lengths.index(max(lengths))] -= 1
    return [list(text[:length]) for text, length in zip(texts, lengths, strict=True)]


class UnknownText:
    """Reports the parts of texts that a tokenizer's vocabulary lacks: the model cannot tell them apart."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.reported: set[str] = set()

    def report(self, texts: Iterable[str], warn: Callable[[str], None]) -> None:
        """Passes the parts that were not reported before to `warn`, in one line."""
        if len(self.reported) >= MAX_REPORTED:
            return
        unknown = [text for text in dict.fromkeys(self.tokenizer.unknown_parts(texts)) if text not in self.reported]
        if unknown:
            self.reported.update(unknown)
            more = f" and {len(unknown) - MAX_LISTED} more" if len(unknown) > MAX_LISTED else ""
            shown = ", ".join(map(repr, unknown[:MAX_LISTED]))
            warn(f"not in the vocabulary, so the model cannot read it: {shown}{more}")


def training_lines(lines: Iterable[str], vocab_size: int) -> Iterator[str]:
    """Yields the lines that are not blank. Raises: ValueError if all are blank, or `vocab_size` leaves no id for text."""
    if vocab_size <= len(SPECIALS):
        raise ValueError(
            f"model.vocab_size is {vocab_size}: it must be above {len(SPECIALS)}, the number of special ids"
        )
    has_text = False
    for line in lines:
        if line.strip():
            has_text = True
            yield line
    if not has_text:
        raise ValueError("every line of the training text is blank: a tokenizer needs text to be trained on")


def json_fields(content: bytes, kind: str, **types: type) -> list[Any]:
    """Returns fields of a JSON tokenizer file, in the order of `types` (name=type).

    Raises: ValueError for another kind of file, or a field that is missing or of another type.
    """
    fields = json.loads(content)
    file_kind = fields.get("kind") if isinstance(fields, dict) else None
    if file_kind != kind:
        raise ValueError(f'"kind" is {file_kind!r}: it must be {kind!r}')
    for name, type_ in types.items():
        if not isinstance(fields.get(name), type_):
            raise ValueError(f'"{name}" is missing or of another type: it must be a {type_.__name__}')
    return [fields[name] for name in types]
