"""Characters and bytes as tokens."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from flaxformer_lite.core.text.special_ids import SPECIALS, UNK
from flaxformer_lite.core.text.tokenizer import SpannedIds, Tokenizer, json_fields, training_lines


class CharacterTokenizer(Tokenizer):
    """One id for each character (Unicode code point)."""

    extension = ".characters.json"

    def __init__(self, characters: Sequence[str]) -> None:
        self._characters = (*SPECIALS, *characters)
        self._ids = {character: i for i, character in enumerate(characters, len(SPECIALS))}
        self.vocab_size = len(self._characters)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._ids.get(character, UNK) for character in text] for text in texts]

    def encode_spans(self, texts: Sequence[str]) -> list[SpannedIds]:
        places = ([(i, i + 1) for i in range(len(text))] for text in texts)
        return list(map(SpannedIds, self.encode_batch(texts), places))

    def _text(self, ids: list[int]) -> str:
        return "".join(map(self._piece, ids))

    def _piece(self, i: int) -> str:
        return self._characters[i]

    def to_bytes(self) -> bytes:
        content = {"kind": "characters", "characters": self._characters[len(SPECIALS) :]}
        return json.dumps(content, ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Tokenizer":
        (characters,) = json_fields(content, "characters", characters=list)
        are_characters = all(isinstance(text, str) and len(text) == 1 for text in characters)
        if not are_characters or len(set(characters)) < len(characters):
            raise ValueError('"characters" has other items: each must be a string of length 1, and be in the list once')
        return cls(characters)


SINGLE_BYTES = [bytes([byte]) for byte in range(256)]
BYTE_LABELS = (*SPECIALS, *(chr(byte) if ord(" ") < byte < 127 else f"<0x{byte:02X}>" for byte in range(256)))
"""Visible ASCII characters as they are, any other byte in hexadecimal, as SentencePiece has it."""


def byte_spans(text: str) -> list[tuple[int, int]]:
    """Returns for each byte of a text the span of its character."""
    spans = list[tuple[int, int]]()
    for i, character in enumerate(text):
        spans += [(i, i + 1)] * len(character.encode())
    return spans


class ByteTokenizer(Tokenizer):
    """One id for each byte of the text's UTF-8, `byte + 4`: 260 ids, no training, no unknown text."""

    extension = ".bytes.json"
    vocab_size = len(BYTE_LABELS)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[byte + len(SPECIALS) for byte in text.encode()] for text in texts]

    def encode_spans(self, texts: Sequence[str]) -> list[SpannedIds]:
        return list(map(SpannedIds, self.encode_batch(texts), map(byte_spans, texts)))

    def _text(self, ids: list[int]) -> str:
        """Returns the text of the bytes. A model may predict invalid UTF-8, which becomes U+FFFD."""
        return b"".join(SINGLE_BYTES[i - len(SPECIALS)] for i in ids).decode(errors="replace")

    def _piece(self, i: int) -> str:
        return BYTE_LABELS[i]

    def to_bytes(self) -> bytes:
        return json.dumps({"kind": "bytes"}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Tokenizer":
        json_fields(content, "bytes")
        return cls()


@dataclass(frozen=True, kw_only=True)
class Characters:
    """The most frequent characters of the training text; all others are unknown."""

    kind: Literal["characters"] = "characters"

    def train(self, lines: Iterable[str], vocab_size: int) -> CharacterTokenizer:
        """Trains a tokenizer of at most `vocab_size` ids, by frequency and then by code point."""
        counts: Counter[str] = Counter()
        for line in training_lines(lines, vocab_size):
            counts.update(line)
        frequent_first = sorted(counts, key=lambda character: (-counts[character], character))
        return CharacterTokenizer(frequent_first[: vocab_size - len(SPECIALS)])


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """The bytes of the text's UTF-8: always 260 ids, no unknown characters."""

    kind: Literal["bytes"] = "bytes"

    def train(self, lines: Iterable[str], vocab_size: int) -> ByteTokenizer:
        """Returns the byte tokenizer; the lines are not used. Raises: ValueError if `vocab_size` is below 260."""
        needed = ByteTokenizer.vocab_size
        if vocab_size < needed:
            raise ValueError(
                f"model.vocab_size is {vocab_size}: bytes need {needed} ids, 256 and 4 special ones; set it to {needed}"
            )
        return ByteTokenizer()
