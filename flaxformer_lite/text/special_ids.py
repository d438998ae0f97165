"""The ids that stand for no text: those of the tokenizers that are trained here, and those of any other."""

from collections.abc import Iterable
from typing import NamedTuple, SupportsIndex

PAD, UNK, BOS, EOS = 0, 1, 2, 3
"""The special ids of the tokenizers that are trained here; those from elsewhere have their own."""
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
"""How these are written in `Tokenizer.pieces`, in the order of their ids."""


class SpecialIds(NamedTuple):
    """The ids of a tokenizer that stand for no text; None: it has no such id."""

    pad: int = PAD
    """Fills up rows."""
    unk: int | None = UNK
    """Stands for what is unknown."""
    bos: int | None = BOS
    """Begins a text; BERT calls it [CLS]."""
    eos: int | None = EOS
    """Ends a text; BERT calls it [SEP]."""
    mask: int | None = None
    """Covers a token in masked language models; for tokenizers without one it is a setting of the objective."""
    start: int = BOS
    """What the decoder of an encoder–decoder reads first, by `decode.bos_id`."""
    size: int | None = None
    """How many ids there are in all, where a tokenizer is known."""

    def with_bos_eos(self, tokens: Iterable[SupportsIndex]) -> list[int]:
        """BOS, the tokens and EOS, as far as there are such ids."""
        return [int(i) for i in (self.bos, *tokens, self.eos) if i is not None]


DEFAULT_SPECIAL_IDS = SpecialIds()
"""Those of the tokenizers that are trained here."""


class EncodedText(NamedTuple):
    """A text, or two, with the special ids that a model reads with them."""

    tokens: list[int]
    types: list[int]
    """0 at the tokens of the first text, 1 at those of the second."""
