"""Tokenizers: text to ids and back, as settings that are trained and as trained tokenizers that are saved and loaded.

The settings (`SentencePiece`, `Characters`, `Bytes`, `FromRun`) are frozen dataclasses; `setting.train(lines, vocab_size)` gives
a `Tokenizer`. Each says which of its ids stand for no text (`special`), so nothing outside this file asks which kind it is.
"""

import io
import json
import operator
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, SupportsIndex

import sentencepiece
from pydantic import Discriminator

from flaxformer_lite.atomic_files import written_whole
from flaxformer_lite.text.special_ids import BOS, EOS, PAD, SPECIALS, UNK, Special, Wrapped


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
    def special(self) -> Special:
        """The ids that stand for no text."""
        return Special(self.pad_id, self.unk_id, self.bos_id, self.eos_id, self.mask_id, size=self.vocab_size)

    def wrapped(self, first: Sequence[int], second: Sequence[int] | None = None) -> Wrapped:
        """What a model of whole texts reads: BOS, the first text, EOS, and for a pair the second text and EOS."""
        special = self.special
        tokens = special.between(first)
        if second is None:
            return Wrapped(tokens, [0] * len(tokens))
        more = special._replace(bos=None).between(second)
        return Wrapped(tokens + more, [0] * len(tokens) + [1] * len(more))

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special ids other than UNK."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of every text, in order."""
        return [self.encode(text) for text in texts]

    def unknown(self, texts: Iterable[str]) -> list[str]:
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
        return self.special._replace(bos=None).between(tokens)

    def save(self, folder: Path, stem: str = "tokenizer") -> Path:
        """Writes the tokenizer into the folder, all or nothing, and returns its file; makes the folder if need be."""
        path = folder / (stem + self.extension)
        with written_whole(path) as unfinished:
            unfinished.write_bytes(self.to_bytes())
        return path


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model: subwords, in which "▁" (U+2581) stands for a space. Special ids are those of the model.

    Spaces at both ends are dropped and several in a row become one, "▁" in the text is read as a space; apart from that
    `decode(encode(text)) == text` for text of known characters and `identity` normalization.
    """

    extension = ".model"

    def __init__(self, model: bytes) -> None:
        self._processor = sentencepiece.SentencePieceProcessor()
        self._processor.LoadFromSerializedProto(model)
        self.vocab_size = self._processor.get_piece_size()
        names = ("pad_id", "unk_id", "bos_id", "eos_id")
        pad, self.unk_id, self.bos_id, self.eos_id = (
            None if (i := getattr(self._processor, name)()) < 0 else i for name in names
        )
        # Every model has an id for the unknown. Where there is no padding it fills the rows, unread.
        self.pad_id = int(self.unk_id or 0) if pad is None else pad

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._processor.encode(text)
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of every text, in order, on all cores."""
        batch: list[list[int]] = self._processor.encode(list(texts))
        return batch

    def _text(self, ids: list[int]) -> str:
        text: str = self._processor.decode(ids)
        return text

    def _piece(self, i: int) -> str:
        piece: str = self._processor.id_to_piece(i)
        return piece

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """Which tokens begin a word: the first, and those that begin with "▁"."""
        return [number == 0 or self._piece(i).startswith("▁") for number, i in enumerate(ids)]

    def to_bytes(self) -> bytes:
        model: bytes = self._processor.serialized_model_proto()
        return model

    @classmethod
    def from_bytes(cls, content: bytes) -> "Tokenizer":
        tokenizer = cls(content)
        if tokenizer.vocab_size == 0:
            raise ValueError("it has no pieces")
        return tokenizer


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


def json_fields(content: bytes, kind: str) -> dict[str, Any]:
    """The fields of a tokenizer file in JSON, after a look at its kind. Raises: ValueError."""
    fields = json.loads(content)
    if not isinstance(fields, dict) or fields.get("kind") != kind:
        raise ValueError(f'"kind" is not "{kind}"')
    return fields


def _kinds() -> tuple[type[Tokenizer], ...]:
    from flaxformer_lite.text.json_tokenizer import JsonTokenizer
    from flaxformer_lite.text.marian import MarianTokenizer

    return SentencePieceTokenizer, CharacterTokenizer, ByteTokenizer, JsonTokenizer, MarianTokenizer


def load_tokenizer(folder: Path, stem: str = "tokenizer") -> Tokenizer:
    """The tokenizer that `save` wrote into the folder, whichever kind it is.

    Raises: ValueError if there is none, more than one, or a damaged one.
    """
    files = {folder / (stem + kind.extension): kind for kind in _kinds()}
    there = [path for path in files if path.is_file()]
    if not there:
        raise ValueError(f"{folder}: no tokenizer here; one of {', '.join(path.name for path in files)} is needed")
    if len(there) > 1:
        names = ", ".join(path.name for path in there)
        raise ValueError(f"{folder}: more than one tokenizer, {names}; keep the right one")
    path = there[0]
    try:
        return files[path].from_bytes(path.read_bytes())
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path}: not a whole tokenizer file ({error}); copy it again or train anew") from error


@dataclass(frozen=True, kw_only=True)
class SentencePiece:
    """Subwords, found by SentencePiece in the training text alone.

    Reference: Kudo and Richardson 2018, arXiv:1808.06226; Sennrich et al. 2016, arXiv:1508.07909 (bpe); Kudo 2018,
    arXiv:1804.10959 (unigram).
    """

    kind: Literal["sentence_piece"] = "sentence_piece"
    model_type: Literal["bpe", "unigram"] = "bpe"
    """bpe joins frequent neighbours; unigram keeps the pieces that make the text most probable."""
    character_coverage: float = 1.0
    """Share of the text's characters that get a piece, 0.98 to 1; the rarest are unknown. Usual for Chinese: 0.9995."""
    normalization: Literal["identity", "nmt_nfkc"] = "identity"
    """identity leaves characters alone; nmt_nfkc folds full-width letters, ligatures and the like, for good."""

    def __post_init__(self) -> None:
        if not 0.98 <= self.character_coverage <= 1:
            got = f"data.tokenizer.character_coverage is {self.character_coverage}"
            raise ValueError(f"{got}: SentencePiece takes 0.98 to 1; 1 keeps every character")

    def train(self, lines: Iterable[str], vocab_size: int) -> SentencePieceTokenizer:
        """A tokenizer with exactly `vocab_size` ids; the same lines in the same order give the same tokenizer.

        Raises: ValueError if the text has too many characters, or too little text, for that many ids.
        """
        lines = _training_text(lines, vocab_size)
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
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
                num_threads=16,  # fixed, not the number of cores: the sums of unigram are split by it
                max_sentence_length=2**30,  # in bytes; the default silently leaves out lines over 4,192
                minloglevel=2,  # errors only
            )
        except RuntimeError as error:
            raise _training_error(error, vocab_size) from error
        return SentencePieceTokenizer(model.getvalue())


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


@dataclass(frozen=True, kw_only=True)
class FromRun:
    """The tokenizer of another run, with its own special ids: for going on with the weights of that run (`train.init_from`)."""

    kind: Literal["from_run"] = "from_run"
    path: str
    """The run folder, or any folder with a tokenizer's file. A copy goes into the new run folder."""
    side: Literal["source", "target"] = "source"
    """Which of the two where that run's target has a tokenizer of its own."""

    def train(self, lines: Iterable[str], vocab_size: int) -> Tokenizer:
        """That tokenizer, which the lines do not change. Raises: ValueError if there is none, or it has too many ids."""
        tokenizer = load_tokenizer(Path(self.path), "tokenizer" if self.side == "source" else "target_tokenizer")
        if tokenizer.vocab_size > vocab_size:
            raise ValueError(
                f"model.vocab_size leaves {vocab_size} ids for text, but the tokenizer of {self.path} has {tokenizer.vocab_size}: "
                "make it as large as that run's"
            )
        return tokenizer


def _training_text(lines: Iterable[str], vocab_size: int) -> list[str]:
    """The lines with something on them. Raises: ValueError if there are none, or no ids for them."""
    if vocab_size <= len(SPECIALS):
        raise ValueError(f"model.vocab_size is {vocab_size}: {len(SPECIALS)} ids are special, so it has to be larger")
    text = [line for line in lines if line.strip()]
    if not text:
        raise ValueError("the tokenizer has no text to learn from: every line of the training text is empty")
    return text


def _training_error(error: RuntimeError, vocab_size: int) -> ValueError:
    """What SentencePiece's refusal means for the user, who set `model.vocab_size`."""
    got = f"model.vocab_size is {vocab_size}:"
    if too_high := re.search(r"set it to a value <= (\d+)", str(error)):
        return ValueError(f"{got} the training text is too small for that; the largest possible is {too_high[1]}")
    if too_low := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
        rule = f"the characters of the training text alone need {too_low[1]}"
        return ValueError(f"{got} {rule}; set it to that or more")
    return ValueError(f"{got} SentencePiece cannot learn from this training text ({error})")


Tokenizers = SentencePiece | Characters | Bytes | FromRun
TokenizerConfig = Annotated[Tokenizers, Discriminator("kind")]
OptionalTokenizerConfig = Annotated[Tokenizers | None, Discriminator("kind")]
