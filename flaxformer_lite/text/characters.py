"""Characters and bytes as tokens."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from flaxformer_lite.text.special_ids import SPECIALS, UNK
from flaxformer_lite.text.subwords import _training_text
from flaxformer_lite.text.tokenizer import Tokenizer, json_fields


class CharacterTokenizer(Tokenizer):
    """One id for each character (Unicode code point)."""

    extension = ".characters.json"

    def __init__(self, characters: Sequence[str]) -> None:
        self._characters = (*SPECIALS, *characters)
        self._ids = {character: i for i, character in enumerate(characters, len(SPECIALS))}
        self.vocab_size = len(self._characters)

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(character, UNK) for character in text]

    def _text(self, ids: list[int]) -> str:
        return "".join(map(self._piece, ids))

    def _piece(self, i: int) -> str:
        return self._characters[i]

    def to_bytes(self) -> bytes:
        content = {"kind": "characters", "characters": self._characters[len(SPECIALS) :]}
        return json.dumps(content, ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Tokenizer":
        characters = json_fields(content, "characters").get("characters")
        if not isinstance(characters, list) or not all(isinstance(c, str) and len(c) == 1 for c in characters):
            raise ValueError('"characters" is not a list of single characters')
        if len(set(characters)) < len(characters):
            raise ValueError('"characters" holds a character twice')
        return cls(characters)


class ByteTokenizer(Tokenizer):
    """One id for each byte of the text's UTF-8, `byte + 4`: 260 ids, nothing to learn, nothing unknown."""

    extension = ".bytes.json"
    vocab_size = len(SPECIALS) + 256

    def encode(self, text: str) -> list[int]:
        return [byte + len(SPECIALS) for byte in text.encode()]

    def _text(self, ids: list[int]) -> str:
        """The text of some bytes; what is not UTF-8, as a model may write it, becomes U+FFFD."""
        return bytes(map(self._byte, ids)).decode(errors="replace")

    def _piece(self, i: int) -> str:
        """A visible ASCII character as it is, another byte in hexadecimal, as SentencePiece writes bytes."""
        if i < len(SPECIALS):
            return SPECIALS[i]
        byte = self._byte(i)
        return chr(byte) if ord(" ") < byte < 127 else f"<0x{byte:02X}>"

    def _byte(self, i: int) -> int:
        if i >= self.vocab_size:
            raise IndexError(f"id {i} of {self.vocab_size}")
        return i - len(SPECIALS)

    def to_bytes(self) -> bytes:
        return json.dumps({"kind": "bytes"}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Tokenizer":
        json_fields(content, "bytes")
        return cls()


@dataclass(frozen=True, kw_only=True)
class Characters:
    """The most frequent characters of the training text; the others are unknown."""

    kind: Literal["characters"] = "characters"

    def train(self, lines: Iterable[str], vocab_size: int) -> CharacterTokenizer:
        """A tokenizer of at most `vocab_size` ids; equally frequent characters come in the order of code points."""
        counts: Counter[str] = Counter()
        for line in _training_text(lines, vocab_size):
            counts.update(line)
        frequent_first = sorted(counts, key=lambda character: (-counts[character], character))
        return CharacterTokenizer(frequent_first[: vocab_size - len(SPECIALS)])


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """The bytes of the text's UTF-8: always 260 ids, and no character is unknown."""

    kind: Literal["bytes"] = "bytes"

    def train(self, lines: Iterable[str], vocab_size: int) -> ByteTokenizer:
        """The byte tokenizer, which the lines do not change. Raises: ValueError if `vocab_size` is under 260."""
        needed = ByteTokenizer.vocab_size
        if vocab_size < needed:
            rule = f"bytes need {needed} ids, 256 and 4 special ones"
            raise ValueError(f"model.vocab_size is {vocab_size}: {rule}; set it to {needed}")
        return ByteTokenizer()
