"""A SentencePiece model with the tokens that other files of its folder add to it, and with the folder's special tokens."""

import base64
import itertools
import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, SupportsIndex

import sentencepiece
import tokenizers
from tokenizers import AddedToken, models

from flaxformer_lite.text.special_ids import EncodedText
from flaxformer_lite.text.subwords import SentencePieceTokenizer
from flaxformer_lite.text.tokenizer import Tokenizer, json_fields

NO_DUMMY_PREFIX = b"\x1a\x02\x18\x00"
"""Appended to a model, it sets `normalizer_spec.add_dummy_prefix` to false: fields of a protobuf message are merged."""
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class Part(NamedTuple):
    """A part of a text: an added token, or the text between two of them."""

    text: str
    id: int | None
    """The id of an added token; None: the model cuts the text into pieces."""
    first: bool
    """Whether the whole text begins here."""


class AddedPieces(SentencePieceTokenizer):
    """A SentencePiece model and added tokens, which are found in a text before the model reads what is between them.

    Args:
        model: The SentencePiece model.
        added: By id, the text and the flags of each token, as `tokenizers.AddedToken` has them; ids of the model itself too. An
            attribute too.
        special: Ids that the folder names, by role (pad, unk, bos, eos, mask); the model's own where it names none.
        around: Whether BOS begins a text, and whether EOS ends it.
        prefix: Whether the text after an added token begins with the model's dummy prefix, or only a text's beginning.
    """

    extension = ".pieces.json"

    def __init__(
        self,
        model: bytes,
        added: Mapping[int, Mapping[str, Any]],
        special: Mapping[str, int],
        around: tuple[bool, bool],
        prefix: bool,
    ) -> None:
        super().__init__(model)
        self._special, self.around, self.prefix = dict(special), around, prefix
        self._pieces_of_model = self.vocab_size
        self.added = {i: {name: added[i][name] for name in ("content", *FLAGS)} for i in sorted(added)}
        self.vocab_size = max(self.vocab_size, *(i + 1 for i in self.added), 0)
        for role, i in special.items():
            setattr(self, f"{role}_id", i)
        self._inner = sentencepiece.SentencePieceProcessor()
        self._inner.LoadFromSerializedProto(model if prefix else model + NO_DUMMY_PREFIX)
        # Its only other token is the text between two added tokens.
        self._splitter = tokenizers.Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        self._splitter.add_tokens([AddedToken(**token) for token in self.added.values()])
        self._ids = {self._splitter.token_to_id(token["content"]): i for i, token in self.added.items()}
        roles = (self.unk_id, self.bos_id, self.eos_id, self.mask_id, special.get("pad"))
        self._dropped = {i for i, token in self.added.items() if token["special"]} | {i for i in roles if i is not None}

    def has_piece(self, i: int) -> bool:
        return i < self._pieces_of_model or i in self.added

    def _parts(self, texts: Sequence[str]) -> list[list[Part]]:
        found = self._splitter.encode_batch(list(texts), add_special_tokens=False)
        return [
            [
                Part(text[start:end], self._ids.get(i), start == 0)
                for i, (start, end) in zip(row.ids, row.offsets, strict=True)
            ]
            for text, row in zip(texts, found, strict=True)
        ]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        rows = self._parts(texts)
        between = [part for row in rows for part in row if part.id is None]
        outer = iter(self._processor.encode([part.text for part in between if part.first]))
        inner = iter(self._inner.encode([part.text for part in between if not part.first]))

        def ids(part: Part) -> list[int]:
            return [part.id] if part.id is not None else next(outer if part.first else inner)

        return [[i for part in row for i in ids(part)] for row in rows]

    def unknown_parts(self, texts: Iterable[str]) -> list[str]:
        """Returns the characters outside of added tokens that the vocabulary lacks, in order, each once."""
        return super().unknown_parts(part.text for row in self._parts([*texts]) for part in row if part.id is None)

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """Returns the text of the ids; special ids and every added token with the flag `special` are dropped."""
        return self._text([i for i in map(operator.index, ids) if i not in self._dropped])

    def _text(self, ids: list[int]) -> str:
        """Returns the text of the ids. SentencePiece keeps pieces that it does not know as they are."""
        text: str = self._processor.decode_pieces([self._piece(i) for i in ids])
        return text

    def _piece(self, i: int) -> str:
        return str(self.added[i]["content"]) if i in self.added else super()._piece(i)

    def scored_pieces(self) -> dict[int, tuple[str, float]]:
        return {i: piece for i, piece in super().scored_pieces().items() if i not in self.added}

    def with_special_tokens(self, first: Sequence[int], second: Sequence[int] | None = None) -> EncodedText:
        """Returns one text, or two, each between the special ids that the folder adds."""
        rows = [self._one(text) for text in (first, second) if text is not None]
        return EncodedText([*itertools.chain(*rows)], [side for side, row in enumerate(rows) for _ in row])

    def _one(self, tokens: Sequence[int]) -> list[int]:
        bos, eos = (id_ if on else None for id_, on in zip((self.bos_id, self.eos_id), self.around, strict=True))
        return self.special._replace(bos=bos, eos=eos).with_bos_eos(tokens)

    def as_source(self, tokens: Sequence[int]) -> list[int]:
        """Returns a source text for the encoder of an encoder–decoder: as every text."""
        return self._one(tokens)

    def as_prompt(self, tokens: Sequence[int]) -> list[int]:
        return self.special._replace(bos=self.bos_id if self.around[0] else None, eos=None).with_bos_eos(tokens)

    def to_bytes(self) -> bytes:
        fields = {"special": self._special, "around": self.around, "prefix": self.prefix}
        model = base64.b64encode(self.model).decode()
        return json.dumps({"kind": "added_pieces", "added": self.added, **fields, "model": model}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Tokenizer":
        model, added, special, around, prefix = json_fields(
            content, "added_pieces", model=str, added=dict, special=dict, around=list, prefix=bool
        )
        tokens = {int(i): {name: token.get(name) for name in ("content", *FLAGS)} for i, token in added.items()}
        if any(token["content"] in (None, "") or None in token.values() for token in tokens.values()):
            raise ValueError("an added token is not whole: it must have a text and five flags")
        return cls(base64.b64decode(model, validate=True), tokens, special, tuple(around), prefix)
