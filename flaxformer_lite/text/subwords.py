"""Subwords by SentencePiece."""

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import sentencepiece
from annotated_types import Ge, Le

from flaxformer_lite.bounds import check_bounds
from flaxformer_lite.text.special_ids import BOS, EOS, PAD, SPECIALS, UNK
from flaxformer_lite.text.tokenizer import Tokenizer


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


@dataclass(frozen=True, kw_only=True)
class SentencePiece:
    """Subwords, found by SentencePiece in the training text alone.

    Reference: Kudo and Richardson 2018, arXiv:1808.06226; Sennrich et al. 2016, arXiv:1508.07909 (bpe); Kudo 2018,
    arXiv:1804.10959 (unigram).
    """

    kind: Literal["sentence_piece"] = "sentence_piece"
    model_type: Literal["bpe", "unigram"] = "bpe"
    """bpe joins frequent neighbours; unigram keeps the pieces that make the text most probable."""
    character_coverage: Annotated[float, Ge(0.98), Le(1)] = 1.0
    """Share of the text's characters that get a piece, 0.98 to 1; the rarest are unknown. Usual for Chinese: 0.9995."""
    normalization: Literal["identity", "nmt_nfkc"] = "identity"
    """identity leaves characters alone; nmt_nfkc folds full-width letters, ligatures and the like, for good."""

    def __post_init__(self) -> None:
        check_bounds(self, "data.tokenizer")

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
