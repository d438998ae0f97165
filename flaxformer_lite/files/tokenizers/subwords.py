"""Subwords by SentencePiece: plain models, models with added tokens, Marian's; and the settings to train one."""

import base64
import copy
import functools
import io
import itertools
import json
import operator
import random
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, SupportsIndex

import sentencepiece
import tokenizers
from annotated_types import Ge, Le
from tokenizers import AddedToken, models

from flaxformer_lite.core.base.bounds import Checked, PositiveInt
from flaxformer_lite.core.text.special_ids import BOS, EOS, PAD, UNK, EncodedText
from flaxformer_lite.core.text.tokenizer import MOST_IDS, Sealed, SpannedIds, Tokenizer, json_fields, training_lines
from flaxformer_lite.files.tokenizers.secret_names import secret_names


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model: subwords in which "▁" (U+2581) stands for a space. The model defines the special ids.

    `decode(encode(text)) == text` for known characters and `identity` normalization, with three exceptions. Spaces at
    both ends are dropped, several spaces become one, and "▁" in the text is read as a space.
    """

    extension = ".model"
    word_signs = ("▁",)

    def __init__(self, model: bytes) -> None:
        self._processor = sentencepiece.SentencePieceProcessor()
        self._processor.LoadFromSerializedProto(model)
        self.vocab_size = self._processor.get_piece_size()
        names = ("pad_id", "unk_id", "bos_id", "eos_id")
        ids = (getattr(self._processor, name)() for name in names)
        pad, self.unk_id, self.bos_id, self.eos_id = (None if i < 0 else i for i in ids)
        # Every model has an id for unknown text. It fills the rows of a model without padding, where nothing reads it.
        self.pad_id = int(self.unk_id or 0) if pad is None else pad

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return list(self._processor.encode(list(texts)))

    def encode_spans(self, texts: Sequence[str]) -> list[SpannedIds]:
        return spanned(self._processor, texts)

    def _text(self, ids: list[int]) -> str:
        return str(self._processor.decode(ids))

    def _piece(self, i: int) -> str:
        return str(self._processor.id_to_piece(i))

    def is_control(self, i: int) -> bool:
        """Returns whether an id stands for a special token of the model, which no text has."""
        return bool(self._processor.is_control(i))

    @property
    def model_type(self) -> str:
        """The kind of the model, by its scores: the ranks 0, -1, … of merges for "bpe", logarithms for "unigram"."""
        return "bpe" if all(score.is_integer() for _, score in self.scored_pieces().values()) else "unigram"

    def scored_pieces(self) -> dict[int, tuple[str, float]]:
        """Returns the pieces that spell text, with their scores, by id: all but special ids, single bytes and unused pieces."""
        processor = self._processor
        ids = range(self._processor.get_piece_size())
        kinds = (processor.is_control, processor.is_unknown, processor.is_byte, processor.is_unused)
        spelled = [i for i in ids if not any(is_kind(i) for is_kind in kinds)]
        return {i: (processor.id_to_piece(i), processor.get_score(i)) for i in spelled}

    def nbest(self, word: str, size: int) -> list[list[int]]:
        """Returns the ids of the `size` most probable segmentations of a word, whose first character is "▁"."""
        return list(self._processor.nbest_encode(word.replace("▁", " ").strip(), nbest_size=size))

    @property
    def model(self) -> bytes:
        """The content of the SentencePiece model's file."""
        return bytes(self._processor.serialized_model_proto())

    def to_bytes(self) -> bytes:
        return self.model

    @classmethod
    def from_bytes(cls, content: bytes) -> "Tokenizer":
        tokenizer = cls(content)
        if tokenizer.vocab_size == 0:
            raise ValueError("the model is empty: it has no pieces")
        return tokenizer


def spanned(processor: sentencepiece.SentencePieceProcessor, texts: Sequence[str]) -> list[SpannedIds]:
    """Returns the ids of a model for each text, with their places.

    The library counts bytes. It gives a character that several pieces read, as bytes or ½ as 1/2, to the last of them; a piece
    before that may have nothing but spaces and dropped characters.
    """
    from sentencepiece.sentencepiece_pb2 import SentencePieceText  # type: ignore[attr-defined]

    encoded = []
    for text, read in zip(texts, processor.encode(list(texts), out_type="serialized_proto"), strict=True):
        begins = [0, *itertools.accumulate(byte & 0xC0 != 0x80 for byte in text.encode())]  # characters, by bytes
        pieces = SentencePieceText.FromString(read).pieces
        spans = list[tuple[int, int]]()
        for piece in reversed(pieces):
            start, stop = begins[piece.begin], begins[piece.end]
            if spans and spans[-1][0] == start == stop:
                stop = spans[-1][1]
            elif (
                spans
                and not (processor.is_byte(piece.id) or is_shown(text[start:stop]))
                and is_shown(piece.piece.strip("▁"))
            ):
                stop = spans[-1][0] + 1
            spans.append((start, stop))
        encoded.append(SpannedIds([piece.id for piece in pieces], spans[::-1]))
    return encoded


def is_shown(text: str) -> bool:
    """Returns whether a text has more than spaces, control characters and characters without a shape."""
    return any(unicodedata.category(character)[0] not in "CZ" for character in text)


@dataclass(frozen=True, kw_only=True)
class SentencePiece(Checked, at="data.tokenizer"):
    """Subwords, learned by SentencePiece from nothing but the training text.

    Reference: Kudo and Richardson 2018, arXiv:1808.06226; Sennrich et al. 2016, arXiv:1508.07909 (bpe); Kudo 2018,
    arXiv:1804.10959 (unigram).
    """

    kind: Literal["sentence_piece"] = "sentence_piece"
    model_type: Literal["bpe", "unigram"] = "bpe"
    """bpe merges frequent neighbours; unigram keeps the pieces that make the text most probable."""
    character_coverage: Annotated[float, Ge(0.98), Le(1)] = 1.0
    """Fraction of the text's characters that get a piece; the rarest ones become unknown. Usual for Chinese: 0.9995."""
    normalization: Literal["identity", "nmt_nfkc"] = "identity"
    """identity keeps characters as they are; nmt_nfkc replaces full-width letters, ligatures and the like, irreversibly."""

    byte_fallback: bool = False
    """Whether a character without a piece becomes the bytes of its UTF-8, which are 256 of the ids, and not unknown."""
    split_digits: bool = False
    """Whether each digit is a piece of its own, so that numbers are read digit by digit."""
    user_symbols: tuple[str, ...] = ()
    """Texts that are always one piece, such as "<sep>" or "<2de>". They must be without white space."""
    sample_characters: PositiveInt = 100_000_000
    """Most characters of the training text from which the pieces are learned: a random sample of its lines if it has more."""

    def __post_init__(self) -> None:
        super().__post_init__()
        symbols = self.user_symbols
        if any(symbol.split() != [symbol] for symbol in symbols) or len({*symbols}) < len(symbols):
            raise ValueError(
                f"data.tokenizer.user_symbols is {symbols!r}: each must be a text without white space, such as '<sep>', and "
                "be in the list once"
            )

    def train(self, lines: Iterable[str], vocab_size: int) -> SentencePieceTokenizer:
        """Trains a tokenizer with exactly `vocab_size` ids; the same lines in the same order give the same tokenizer.

        Raises: ValueError if the text has more characters than ids, or is too small for that many ids.
        """
        lines = sample_lines(training_lines(lines, vocab_size), self.sample_characters)
        model = io.BytesIO()
        # An option at its default is left out: the model has a copy of all that were given.
        chosen: dict[str, Any] = {name: True for name in ("byte_fallback", "split_digits") if getattr(self, name)}
        if self.user_symbols:
            chosen["user_defined_symbols"] = list(self.user_symbols)
        try:
            sentencepiece.SentencePieceTrainer.train(
                **chosen,
                sentence_iterator=iter(lines),
                model_writer=model,
                vocab_size=vocab_size,
                model_type=self.model_type,
                character_coverage=self.character_coverage,
                normalization_rule_name=self.normalization,
                pad_id=PAD,
                unk_id=UNK,
                bos_id=BOS,
                eos_id=EOS,
                num_threads=16,  # fixed, not the number of cores: it decides how unigram's sums are split
                max_sentence_length=2**30,  # in bytes; the default silently leaves out lines over 4,192
                minloglevel=2,  # errors only
            )
        except RuntimeError as error:
            reason = f"SentencePiece cannot be trained on this text ({error})"
            too_high = re.search(r"set it to a value <= (\d+)", str(error))
            too_low = re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error))
            if too_high:
                reason = f"the training text is too small for it; the largest possible is {too_high[1]}"
            if too_low:
                reason = f"the single characters of the training text need {too_low[1]}; set it to that or more"
            raise ValueError(f"model.vocab_size is {vocab_size}: {reason}") from error
        return SentencePieceTokenizer(model.getvalue())


def sample_lines(lines: Iterable[str], most_characters: int) -> list[str]:
    """Returns all lines, or a random sample of at most `most_characters`; equal lines give an equal sample.

    Every line has the same chance, and no more than the sample is in memory. A single longer line is returned whole.
    """
    generator = random.Random(0)
    share = 1.0
    characters = 0
    kept: list[tuple[float, str]] = []
    for line in lines:
        draw = generator.random()
        if draw >= share:
            continue
        kept.append((draw, line))
        characters += len(line)
        while characters > most_characters and len(kept) > 1:
            share /= 2
            kept = [(draw, line) for draw, line in kept if draw < share] or kept[:1]
            characters = sum(len(line) for _, line in kept)
    return [line for _, line in kept]


NO_DUMMY_PREFIX = b"\x1a\x02\x18\x00"
"""Appended to a model, it sets `normalizer_spec.add_dummy_prefix` to false: fields of a protobuf message are merged."""
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


TextParts = list[list[tuple[str, int | None, bool]]]
"""The parts of every text: the text, the id of an added token or None, and whether the whole text begins here."""


class AddedPieces(SentencePieceTokenizer):
    """A SentencePiece model and added tokens, which are found in a text before the model reads what is between them.

    Args:
        model: The SentencePiece model.
        added: By id, the text and the flags of each token, as `tokenizers.AddedToken` has them; ids of the model itself too. It is
            an attribute too.
        special: Ids that the folder names, by role (pad, unk, bos, eos, mask), None for a role without an id. The model has the
            other roles.
        around: Whether BOS begins a text, and whether EOS ends it.
        prefix: Whether the text after an added token begins with the model's dummy prefix, or only a text's beginning.
    """

    extension = ".pieces.json"

    def __init__(
        self,
        model: bytes,
        added: Mapping[int, Mapping[str, Any]],
        special: Mapping[str, int | None],
        around: tuple[bool, bool],
        prefix: bool,
    ) -> None:
        super().__init__(model)
        self._special = dict(special)
        self.around = around
        self.prefix = prefix
        self._pieces_of_model = self.vocab_size
        self.added = {i: {name: added[i][name] for name in ("content", *FLAGS)} for i in sorted(added)}
        self.vocab_size = max(self.vocab_size, *(i + 1 for i in self.added), 0)
        for role, i in special.items():
            setattr(self, f"{role}_id", i)
        self._inner = sentencepiece.SentencePieceProcessor()
        self._inner.LoadFromSerializedProto(model if prefix else model + NO_DUMMY_PREFIX)
        self._split_at({})
        roles = (self.unk_id, self.bos_id, self.eos_id, self.mask_id, special.get("pad"))
        self._dropped = {i for i in roles if i is not None}
        self._dropped |= {i for i, token in self.added.items() if token["special"]}

    def _split_at(self, names: Mapping[str, str]) -> None:
        """Makes the splitter that finds added tokens in texts, some of them by another name."""
        # Its only other token is the text between two added tokens.
        self._splitter = tokenizers.Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        tokens = dict(self.added)
        for i, token in tokens.items():
            if token["content"] in names:
                tokens[i] = token | {"content": names[token["content"]], "single_word": False}
        self._splitter.add_tokens([AddedToken(**token) for token in tokens.values()])
        self._ids = {self._splitter.token_to_id(token["content"]): i for i, token in tokens.items()}

    @functools.cached_property
    def sealed(self) -> Sealed:
        tokenizer = copy.copy(self)
        names = secret_names(self.special_texts)
        tokenizer._split_at(names)
        return Sealed(tokenizer, names)

    def has_piece(self, i: int) -> bool:
        return i < self._pieces_of_model or i in self.added

    def _parts(self, texts: Sequence[str]) -> TextParts:
        encodings = self._splitter.encode_batch(list(texts), add_special_tokens=False)
        rows = []
        for text, row in zip(texts, encodings, strict=True):
            spans = zip(row.ids, row.offsets, strict=True)
            rows.append([(text[start:stop], self._ids.get(i), start == 0) for i, (start, stop) in spans])
        return rows

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        rows = self._encoded(self._parts(texts), lambda model, batch: model.encode(batch))
        return [list(itertools.chain.from_iterable(row)) for row in rows]

    def encode_spans(self, texts: Sequence[str]) -> list[SpannedIds]:
        rows = self._parts(texts)
        joined = list[SpannedIds]()
        for row, encoded in zip(rows, self._encoded(rows, spanned), strict=True):
            whole = SpannedIds([], [])
            start = 0
            for (text, i, _), read in zip(row, encoded, strict=True):
                ids, spans = read if i is None else ([i], [(0, len(text))])
                whole.ids.extend(ids)
                whole.spans.extend((start + a, start + b) for a, b in spans)
                start += len(text)
            joined.append(whole)
        return joined

    @property
    def special_texts(self) -> tuple[str, ...]:
        return tuple(token["content"] for token in self.added.values() if token["special"])

    def _encoded(self, rows: TextParts, encode: Callable[[Any, list[str]], Any]) -> list[list[Any]]:
        """Returns each part of `_parts` as `encode` has it, an added token as a list of its id."""
        parts = list(itertools.chain.from_iterable(rows))
        outer = iter(encode(self._processor, [text for text, i, first in parts if i is None and first]))
        inner = iter(encode(self._inner, [text for text, i, first in parts if i is None and not first]))
        encoded: list[list[Any]] = []
        for row in rows:
            encoded.append([])
            for _, i, first in row:
                if i is not None:
                    encoded[-1].append([i])
                else:
                    encoded[-1].append(next(outer if first else inner))
        return encoded

    def unknown_parts(self, texts: Iterable[str]) -> list[str]:
        """Returns the characters outside of added tokens that the vocabulary lacks, in order, each once."""
        parts = itertools.chain.from_iterable(self._parts(list(texts)))
        return super().unknown_parts(text for text, i, _ in parts if i is None)

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """Returns the text of the ids; special ids and every added token with the flag `special` are dropped."""
        return self._text([i for i in map(operator.index, ids) if i not in self._dropped])

    def _text(self, ids: list[int]) -> str:
        """Returns the text of the ids. SentencePiece keeps pieces that it does not know as they are."""
        return str(self._processor.decode_pieces([self._piece(i) for i in ids]))

    def _piece(self, i: int) -> str:
        return str(self.added[i]["content"]) if i in self.added else super()._piece(i)

    def scored_pieces(self) -> dict[int, tuple[str, float]]:
        return {i: piece for i, piece in super().scored_pieces().items() if i not in self.added}

    def with_special_tokens(self, first: Sequence[int], second: Sequence[int] | None = None) -> EncodedText:
        """Returns one text, or two, each between the special ids that the folder adds."""
        tokens, sides = list[int](), list[int]()
        for side, text in enumerate((first, second)):
            if text is not None:
                row = self.as_source(text)
                tokens += row
                sides += [side] * len(row)
        return EncodedText(tokens, sides)

    def own_source(self, tokens: Sequence[int]) -> list[int]:
        row = self.as_prompt(tokens)
        if self.around[1] and self.eos_id is not None:
            row.append(self.eos_id)
        return row

    def as_prompt(self, tokens: Sequence[int]) -> list[int]:
        row = list(map(int, tokens))
        if self.around[0] and self.bos_id is not None:
            row.insert(0, self.bos_id)
        return row

    def to_bytes(self) -> bytes:
        fields = {"special": self._special, "around": self.around, "prefix": self.prefix}
        model = base64.b64encode(self.model).decode()
        return json.dumps({"kind": "added_pieces", "added": self.added, **fields, "model": model}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Tokenizer":
        model, added, special, around, prefix = json_fields(
            content, "added_pieces", model=str, added=dict, special=dict, around=list, prefix=bool
        )
        return cls(base64.b64decode(model, validate=True), whole_tokens(added), special, tuple(around), prefix)


def whole_tokens(added: Mapping[str, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Returns added tokens by their ids, as a file has them. Raises: ValueError for one without its text or a flag."""
    tokens = {int(i): {name: token.get(name) for name in ("content", *FLAGS)} for i, token in added.items()}
    if any(not token["content"] or None in token.values() for token in tokens.values()):
        raise ValueError("an added token is not whole: it must have a text and five flags")
    return tokens


class VocabularyPieces(AddedPieces):
    """A SentencePiece model whose pieces have ids of a vocabulary, with added tokens, as in fairseq.

    `ids` has for each piece of the model its id; those of pieces that the vocabulary lacks are the unknown id.
    """

    extension = ".vocabulary.json"

    def __init__(
        self, model: bytes, ids: Sequence[int], added: Mapping[int, Mapping[str, Any]], special: Mapping[str, int]
    ) -> None:
        super().__init__(model, added, special, (False, True), prefix=True)
        if len(ids) != self._pieces_of_model or not all(type(i) is int and 0 <= i < MOST_IDS for i in ids):
            raise ValueError(f"the vocabulary has {len(ids)} ids: there must be one for each piece of the model")
        self.ids = list(ids)
        self._numbers = {i: number for number, i in enumerate(ids) if i != self.unk_id}
        self.vocab_size = max(*ids, *self.added) + 1

    def has_piece(self, i: int) -> bool:
        return i in self._numbers or i in self.added

    def _encoded(self, rows: TextParts, encode: Callable[[Any, list[str]], Any]) -> list[list[Any]]:
        def mapped(model: object, texts: list[str]) -> list[object]:
            rows = list[object]()
            for row in encode(model, texts):
                if isinstance(row, SpannedIds):
                    rows.append(row._replace(ids=[self.ids[i] for i in row.ids]))
                else:
                    rows.append([self.ids[i] for i in row])
            return rows

        return super()._encoded(rows, mapped)

    def _piece(self, i: int) -> str:
        return str(self.added[i]["content"] if i in self.added else self._processor.id_to_piece(self._numbers[i]))

    def scored_pieces(self) -> dict[int, tuple[str, float]]:
        pieces = SentencePieceTokenizer.scored_pieces(self)
        return {self.ids[number]: piece for number, piece in pieces.items() if self.ids[number] in self._numbers}

    def nbest(self, word: str, size: int) -> list[list[int]]:
        return [[self.ids[number] for number in numbers] for numbers in super().nbest(word, size)]

    def to_bytes(self) -> bytes:
        model = base64.b64encode(self.model).decode()
        fields = {"added": self.added, "special": self._special, "ids": self.ids, "model": model}
        return json.dumps({"kind": "vocabulary_pieces", **fields}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Tokenizer":
        model, ids, added, special = json_fields(
            content, "vocabulary_pieces", model=str, ids=list, added=dict, special=dict
        )
        return cls(base64.b64decode(model, validate=True), ids, whole_tokens(added), special)


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
        whole = all(type(i) is int and 0 <= i < MOST_IDS for i in ids.values())
        if not ids or not whole or len({*ids.values()}) < len(ids):
            raise ValueError(
                f"ids of the vocabulary are not unique: each piece needs an id of its own, from 0 to {MOST_IDS - 1}"
            )
        missing = [piece for piece in (pad, unk, eos) if piece not in ids]
        if missing:
            raise ValueError(f"the vocabulary lacks a special token: {missing[0]}")
        self._ids = dict(ids)
        self._names = {"pad": pad, "unk": unk, "eos": eos}
        self.vocab_size = max(ids.values()) + 1
        self._pieces = [""] * self.vocab_size
        for piece, i in ids.items():
            self._pieces[i] = piece
        self.pad_id = ids[pad]
        self.eos_id = ids[eos]
        self.bos_id = None
        self._unknown = self.unk_id = ids[unk]

    def _pieces_of(self, texts: Sequence[str]) -> list[list[str]]:
        codes = ["" if match is None else match[0] for match in map(LANGUAGE.match, texts)]
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
        text = str(self._processor.decode_pieces([self._pieces[i] for i in ids if self._pieces[i]]))
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
