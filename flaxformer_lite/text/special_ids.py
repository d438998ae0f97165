"""Token ids that stand for no text: padding, unknown, beginning, end, mask."""

from collections.abc import Iterable
from typing import NamedTuple, SupportsIndex

PAD, UNK, BOS, EOS = 0, 1, 2, 3
"""The special ids of tokenizers trained here. A tokenizer from elsewhere has its own."""
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
"""Their labels in `Tokenizer.pieces`, in the order of the ids."""


class SpecialIds(NamedTuple):
    """The special ids of a tokenizer; None: the tokenizer has no such id."""

    pad: int = PAD
    """Fills up rows."""
    unk: int | None = UNK
    """Stands for text that the vocabulary lacks."""
    bos: int | None = BOS
    """Begins a text; BERT calls it [CLS]."""
    eos: int | None = EOS
    """Ends a text; BERT calls it [SEP]."""
    mask: int | None = None
    """Covers a token in masked language models. For tokenizers without one it is a setting of the objective."""
    start: int | None = BOS
    """The first token that the decoder of an encoder–decoder reads (`decode.bos_id`), which has one."""
    size: int | None = None
    """Number of ids in the vocabulary, special ones included; None: unknown."""

    def with_bos_eos(self, tokens: Iterable[SupportsIndex]) -> list[int]:
        """Returns BOS, the tokens and EOS; an id that the tokenizer lacks is left out."""
        return [int(i) for i in (self.bos, *tokens, self.eos) if i is not None]


DEFAULT_SPECIAL_IDS = SpecialIds()
"""The special ids of tokenizers trained here."""


class EncodedText(NamedTuple):
    """One text, or a pair, as token ids with special ids."""

    tokens: list[int]
    types: list[int]
    """Token types: 0 for the first text, 1 for the second."""
