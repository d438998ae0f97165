"""Tokenizers: text to ids and back, as settings that are trained and as trained tokenizers that are saved and loaded.

The settings (`SentencePiece`, `Characters`, `Bytes`, `FromRun`) are frozen dataclasses; `setting.train(lines, vocab_size)` gives
a `Tokenizer`. Each says which of its ids stand for no text (`special`), so nothing outside this file asks which kind it is.
"""

import json
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, SupportsIndex

from flaxformer_lite.atomic_files import atomic_write
from flaxformer_lite.text.special_ids import BOS, EOS, PAD, UNK, EncodedText, SpecialIds


class Tokenizer(ABC):
    """A trained tokenizer. `encode` adds no special ids, `decode` leaves them out."""

    extension: ClassVar[str]
    """What follows the stem in the file name; it tells the kinds apart."""
    vocab_size: int
    """Number of ids, special ones included."""
    pad_id: int = PAD
    unk_id: int | None = UNK
    bos_id: int | None = BOS
    eos_id: int | None = EOS
    mask_id: int | None = None

    @property
    def special(self) -> SpecialIds:
        """The ids that stand for no text."""
        return SpecialIds(self.pad_id, self.unk_id, self.bos_id, self.eos_id, self.mask_id, size=self.vocab_size)

    def with_special_tokens(self, first: Sequence[int], second: Sequence[int] | None = None) -> EncodedText:
        """What a model of whole texts reads: BOS, the first text, EOS, and for a pair the second text and EOS."""
        special = self.special
        tokens = special.with_bos_eos(first)
        if second is None:
            return EncodedText(tokens, [0] * len(tokens))
        more = special._replace(bos=None).with_bos_eos(second)
        return EncodedText(tokens + more, [0] * len(tokens) + [1] * len(more))

    def truncated(self, texts: Sequence[Sequence[int]], max_length: int) -> EncodedText:
        """Returns one text, or two, with special tokens, cut to `max_length` tokens: the longer text loses its end first."""
        num_special = len(self.with_special_tokens(*([] for _ in texts)).tokens)
        return self.with_special_tokens(*truncate_longest_first(texts, max_length - num_special))

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special ids other than UNK."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of every text, in order."""
        return [self.encode(text) for text in texts]

    def unknown_parts(self, texts: Iterable[str]) -> list[str]:
        """What of some texts the vocabulary does not have, in order: here it is characters, each once."""
        characters = dict.fromkeys(character for text in texts for character in text)
        return [character for character in characters if self.unk_id in self.encode(character)]

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """The text of some ids; special ones, UNK among them, are skipped. Raises: IndexError past the vocabulary."""
        special = self.special[:5]
        return self._text([i for i in map(operator.index, ids) if i not in special])

    @abstractmethod
    def _text(self, ids: list[int]) -> str:
        """The text of ids that are not special."""

    def pieces(self, ids: Iterable[SupportsIndex]) -> list[str]:
        """A readable label for each id, special ids included, for example along the axes of an attention picture."""
        return [self._piece(i) for i in map(operator.index, ids)]

    @abstractmethod
    def _piece(self, i: int) -> str:
        """The label of an id."""

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """Which tokens begin a word: the first, white space, each character of it a word, and what follows it."""
        special = self.special[:5]
        white = [i not in special and self._text([i]).isspace() for i in ids]
        return [here or before for here, before in zip(white, [True, *white], strict=False)]

    @abstractmethod
    def to_bytes(self) -> bytes:
        """The content of the tokenizer's file."""

    @classmethod
    @abstractmethod
    def from_bytes(cls, content: bytes) -> "Tokenizer":
        """The tokenizer of `to_bytes`. Raises: ValueError or RuntimeError if it is damaged."""

    def as_source(self, tokens: Sequence[int]) -> list[int]:
        """What the encoder of an encoder–decoder reads of a text: the tokens and EOS."""
        return self.special._replace(bos=None).with_bos_eos(tokens)

    def save(self, folder: Path, stem: str = "tokenizer") -> Path:
        """Writes the tokenizer into the folder, all or nothing, and returns its file; makes the folder if need be."""
        path = folder / (stem + self.extension)
        with atomic_write(path) as unfinished:
            unfinished.write_bytes(self.to_bytes())
        return path


def json_fields(content: bytes, kind: str) -> dict[str, Any]:
    """The fields of a tokenizer file in JSON, after a look at its kind. Raises: ValueError."""
    fields = json.loads(content)
    if not isinstance(fields, dict) or fields.get("kind") != kind:
        raise ValueError(f'"kind" is not "{kind}"')
    return fields


@dataclass(frozen=True)
class Tokenizers:
    """The two sides' tokenizers; one object for both where the vocabulary is joint."""

    source: Tokenizer
    target: Tokenizer

    def target_text(self, tokens: Sequence[int]) -> str:
        """The target text of some ids. Ids that the model has and the tokenizer does not, as young models say, are left out,
        and line breaks become spaces: an answer is one line.
        """
        text = self.target.decode([token for token in tokens if token < self.target.vocab_size])
        return text.replace("\n", " ").replace("\r", " ")


def truncate_longest_first(pieces: Sequence[Sequence[int]], room: int) -> list[list[int]]:
    """The pieces with the longest cut at its end, a token at a time, until they have at most `room` tokens together."""
    lengths = [len(piece) for piece in pieces]
    while sum(lengths) > max(room, 0):
        longest = max(range(len(pieces)), key=lambda i: lengths[i])
        others = max((n for i, n in enumerate(lengths) if i != longest), default=0)
        # Down to the next longest at once, and from there one by one.
        lengths[longest] -= max(1, min(lengths[longest] - others, sum(lengths) - max(room, 0)))
    return [list(piece[:length]) for piece, length in zip(pieces, lengths, strict=True)]
