"""Marian's tokenizers: a SentencePiece model cuts text into pieces, and a vocabulary of its own numbers them."""

import base64
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sentencepiece

from flaxformer_lite.text.tokenizer import MOST_IDS, Tokenizer, json_fields

LANGUAGE = re.compile(r">>.*?<<", re.DOTALL)
"""The language of the answer, at the beginning of a text; one piece."""


class MarianTokenizer(Tokenizer):
    """One side of a Marian model. Both sides may share the vocabulary, each with a SentencePiece model of its own.

    Pieces outside the vocabulary are unknown. The names of special tokens in a text are ordinary text.
    """

    extension = ".marian.json"
    word_signs = ("▁",)

    def __init__(
        self, model: bytes, ids: Mapping[str, Any], *, pad: str = "<pad>", unk: str = "<unk>", eos: str = "</s>"
    ) -> None:
        self._processor = sentencepiece.SentencePieceProcessor()
        self._processor.LoadFromSerializedProto(model)
        if (
            not ids
            or not all(type(i) is int and 0 <= i < MOST_IDS for i in ids.values())
            or len({*ids.values()}) < len(ids)
        ):
            raise ValueError(
                f"ids of the vocabulary are not unique: each piece needs an id of its own, from 0 to {MOST_IDS - 1}"
            )
        if missing := [piece for piece in (pad, unk, eos) if piece not in ids]:
            raise ValueError(f"the vocabulary lacks a special token: {missing[0]}")
        self._ids, self._names = dict(ids), {"pad": pad, "unk": unk, "eos": eos}
        self.vocab_size = max(ids.values()) + 1
        self._pieces = [""] * self.vocab_size
        for piece, i in ids.items():
            self._pieces[i] = piece
        self.pad_id, self.eos_id, self.bos_id = ids[pad], ids[eos], None
        self._unknown = self.unk_id = ids[unk]

    def _pieces_of(self, texts: Sequence[str]) -> list[list[str]]:
        codes = [found[0] if (found := LANGUAGE.match(text)) else "" for text in texts]
        rest = [text[len(code) :] for text, code in zip(texts, codes, strict=True)]
        batch: list[list[str]] = self._processor.encode(rest, out_type=str)
        return [[code, *pieces] if code else pieces for code, pieces in zip(codes, batch, strict=True)]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._ids.get(piece, self._unknown) for piece in pieces] for pieces in self._pieces_of(texts)]

    def unknown_parts(self, texts: Iterable[str]) -> list[str]:
        """Returns the pieces of the texts that the vocabulary lacks, in order."""
        pieces = itertools.chain.from_iterable(self._pieces_of([*texts]))
        return [piece.strip("▁") for piece in pieces if piece.strip("▁") and piece not in self._ids]

    def _text(self, ids: list[int]) -> str:
        """Returns the text of the pieces. SentencePiece keeps "▁" in pieces of the other side, so it is replaced here."""
        text: str = self._processor.decode_pieces([piece for i in ids if (piece := self._pieces[i])])
        return text.replace("▁", " ").strip()

    def _piece(self, i: int) -> str:
        return self._pieces[i]

    def to_bytes(self) -> bytes:
        model = base64.b64encode(self._processor.serialized_model_proto()).decode()
        return json.dumps({"kind": "marian", "special": self._names, "ids": self._ids, "model": model}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Tokenizer":
        model, ids, special = json_fields(content, "marian", model=str, ids=dict, special=dict)
        return cls(base64.b64decode(model, validate=True), ids, **special)
