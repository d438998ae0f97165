"""Marian's tokenizers: pieces as a SentencePiece model cuts them, ids as a vocabulary of the model's own numbers them."""

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sentencepiece

from flaxformer_lite.text.tokenizer import Tokenizer, json_fields

LANGUAGE = re.compile(r">>.*?<<", re.DOTALL)
"""At the beginning of a text it says which language the answer should be in; one piece."""


class MarianTokenizer(Tokenizer):
    """One side of a Marian model. Both sides may share the vocabulary, in which each knows the pieces of its SentencePiece model.

    Pieces that are not in the vocabulary are unknown. Special tokens that are written in a text are text.
    """

    extension = ".marian.json"

    def __init__(
        self, model: bytes, ids: Mapping[str, Any], *, pad: str = "<pad>", unk: str = "<unk>", eos: str = "</s>"
    ) -> None:
        self._processor = sentencepiece.SentencePieceProcessor()
        self._processor.LoadFromSerializedProto(model)
        if not ids or not all(type(i) is int and i >= 0 for i in ids.values()) or len(set(ids.values())) < len(ids):
            raise ValueError("the vocabulary does not give each piece an id of its own")
        if missing := [piece for piece in (pad, unk, eos) if piece not in ids]:
            raise ValueError(f"the vocabulary has no {missing[0]}, which is one of the special tokens")
        self._ids, self._names = dict(ids), {"pad": pad, "unk": unk, "eos": eos}
        self.vocab_size = max(ids.values()) + 1
        self._pieces = [""] * self.vocab_size
        for piece, i in ids.items():
            self._pieces[i] = piece
        self.pad_id, self.eos_id, self.bos_id = ids[pad], ids[eos], None
        self._unknown = self.unk_id = ids[unk]

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of every text, in order, on all cores."""
        codes = [found[0] if (found := LANGUAGE.match(text)) else "" for text in texts]
        rest = [text[len(code) :] for text, code in zip(texts, codes, strict=True)]
        batch: list[list[str]] = self._processor.encode(rest, out_type=str)
        return [
            [self._ids.get(piece, self._unknown) for piece in ([code, *pieces] if code else pieces)]
            for code, pieces in zip(codes, batch, strict=True)
        ]

    def unknown_parts(self, texts: Iterable[str]) -> list[str]:
        """What is in no piece of the vocabulary."""
        found = []
        for text in texts:
            code = match[0] if (match := LANGUAGE.match(text)) else ""
            pieces = [code, *self._processor.encode(text[len(code) :], out_type=str)]
            found += [piece.strip("▁") for piece in pieces if piece.strip("▁") and piece not in self._ids]
        return found

    def _text(self, ids: list[int]) -> str:
        """The text of pieces, those of the other side among them, whose "▁" SentencePiece leaves as it is."""
        text: str = self._processor.decode_pieces([piece for i in ids if (piece := self._pieces[i])])
        return text.replace("▁", " ").strip()

    def _piece(self, i: int) -> str:
        return self._pieces[i]

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """Which tokens begin a word: the first, and those that begin with "▁"."""
        return [number == 0 or self._piece(i).startswith("▁") for number, i in enumerate(ids)]

    def to_bytes(self) -> bytes:
        model = base64.b64encode(self._processor.serialized_model_proto()).decode()
        return json.dumps({"kind": "marian", "special": self._names, "ids": self._ids, "model": model}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Tokenizer":
        fields = json_fields(content, "marian")
        try:
            return cls(base64.b64decode(fields["model"], validate=True), fields["ids"], **fields["special"])
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"its fields make no sense: {error}") from None
