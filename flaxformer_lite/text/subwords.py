"""Subwords by SentencePiece."""

import io
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import sentencepiece
from annotated_types import Ge, Le

from flaxformer_lite.base.bounds import Checked, PositiveInt
from flaxformer_lite.text.special_ids import BOS, EOS, PAD, UNK
from flaxformer_lite.text.tokenizer import Tokenizer, training_lines


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
        pad, self.unk_id, self.bos_id, self.eos_id = (
            None if (i := getattr(self._processor, name)()) < 0 else i for name in names
        )
        # Every model has an id for unknown text. It fills the rows of a model without padding, where nothing reads it.
        self.pad_id = int(self.unk_id or 0) if pad is None else pad

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        batch: list[list[int]] = self._processor.encode(list(texts))
        return batch

    def _text(self, ids: list[int]) -> str:
        text: str = self._processor.decode(ids)
        return text

    def _piece(self, i: int) -> str:
        piece: str = self._processor.id_to_piece(i)
        return piece

    def is_control(self, i: int) -> bool:
        """Returns whether an id stands for a special token of the model, which no text has."""
        return bool(self._processor.is_control(i))

    @property
    def model_type(self) -> str:
        """The kind of the model, by its scores: the ranks 0, -1, … of merges for "bpe", logarithms for "unigram"."""
        return "bpe" if all(score.is_integer() for _, score in self.scored_pieces().values()) else "unigram"

    def scored_pieces(self) -> dict[int, tuple[str, float]]:
        """Returns the pieces that spell text, with their scores, by id: all but special ids, single bytes and unused pieces."""
        processor, ids = self._processor, range(self._processor.get_piece_size())
        kinds = (processor.is_control, processor.is_unknown, processor.is_byte, processor.is_unused)
        spelled = [i for i in ids if not any(is_kind(i) for is_kind in kinds)]
        return {i: (processor.id_to_piece(i), processor.get_score(i)) for i in spelled}

    def nbest(self, word: str, size: int) -> list[list[int]]:
        """Returns the ids of the `size` most probable segmentations of a word, of which "▁" is the first character."""
        segmentations: list[list[int]] = self._processor.nbest_encode(word.replace("▁", " ").strip(), nbest_size=size)
        return segmentations

    @property
    def model(self) -> bytes:
        """The content of the SentencePiece model's file."""
        model: bytes = self._processor.serialized_model_proto()
        return model

    def to_bytes(self) -> bytes:
        return self.model

    @classmethod
    def from_bytes(cls, content: bytes) -> "Tokenizer":
        tokenizer = cls(content)
        if tokenizer.vocab_size == 0:
            raise ValueError("the model is empty: it has no pieces")
        return tokenizer


@dataclass(frozen=True, kw_only=True)
class SentencePiece(Checked, at="data.tokenizer"):
    """Subwords, learned by SentencePiece from the training text alone.

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
                f"data.tokenizer.user_symbols is {symbols!r}: each must be a text without white space, such as '<sep>', and be "
                "there once"
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
            if too_high := re.search(r"set it to a value <= (\d+)", str(error)):
                reason = f"the training text is too small for it; the largest possible is {too_high[1]}"
            if too_low := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
                reason = f"the characters of the training text alone need {too_low[1]}; set it to that or more"
            raise ValueError(f"model.vocab_size is {vocab_size}: {reason}") from error
        return SentencePieceTokenizer(model.getvalue())


def sample_lines(lines: Iterable[str], most_characters: int) -> list[str]:
    """Returns all lines, or a random sample of at most so many characters; always the same one of the same lines.

    Every line has the same chance, and no more than the sample is held. A single longer line is returned whole.
    """
    generator, share, characters = random.Random(0), 1.0, 0
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
