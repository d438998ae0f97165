"""Token ids: those that stand for no text, their checks before they reach a model, and cuts of texts that are too long."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, SupportsIndex, TypeVar, runtime_checkable

PAD, UNK, BOS, EOS = 0, 1, 2, 3
"""The special ids of tokenizers trained here; one from elsewhere has its own."""
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
"""Their labels in `Tokenizer.pieces`, in the order of the ids."""


@runtime_checkable
class Sliced(Protocol):
    """A list of token ids, or an array of them. A translation by another library than JAX needs no array."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: Any) -> Any: ...


Ids = TypeVar("Ids", bound=Sliced)
ReportCut = Callable[[str, int, int, str], None]
"""Receives the name of a text that is cut, its length and the maximum, in tokens, and the setting of `data` that is the maximum."""


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
    """The first token that the decoder of an encoder–decoder reads (`decode.bos_id`), which has one; None: pairs have theirs."""
    size: int | None = None
    """Number of ids in the vocabulary, special ones included; None: unknown."""

    def with_bos_eos(self, tokens: Iterable[SupportsIndex]) -> list[int]:
        """Returns BOS, the tokens and EOS; an id that the tokenizer lacks is left out."""
        return [int(i) for i in (self.bos, *tokens, self.eos) if i is not None]


DEFAULT_SPECIAL_IDS = SpecialIds()


class EncodedText(NamedTuple):
    """One text, or a pair, as token ids with special ids."""

    tokens: list[int]
    types: list[int]
    """Token types: 0 for the first text, 1 for the second."""


def check_token_ids(ids: Iterable[int | None], vocab_size: int, where: str) -> None:
    """Checks that every id is one of a vocabulary, as an accelerator looks up wrong ids silently. None is not an id.

    where: the beginning of the message, for example "objective.mask_token is" or "prompt 3 has".

    Raises: ValueError for the first id outside of the vocabulary.
    """
    for i in ids:
        if i is not None and not 0 <= i < vocab_size:
            raise ValueError(
                f"{where} {i}, which is no token id: ids must be between 0 and {vocab_size - 1}, one less than model.vocab_size"
            )


def check_length(length: int, max_positions: int | None) -> None:
    """Raises: ValueError, in words that follow the text's name, if it is longer than `max_positions`."""
    if max_positions is not None and length > max_positions:
        raise ValueError(f"has {length} tokens, but model.positions.max_positions is {max_positions}: shorten it")


def truncated(ids: Ids, most: int, name: str, setting: str, too_long: ReportCut) -> Ids:
    """Returns the first `most` ids of a text; `too_long` is called if there are more."""
    if len(ids) > most:
        too_long(name, len(ids), most, setting)
    cut: Ids = ids[:most]
    return cut


def cut_warning(warn: Callable[[str], None], line: int = 1) -> ReportCut:
    """Returns a function for `truncated` that warns of a text in a line of the input."""
    return lambda name, length, most, setting: warn(
        f"line {line}: the {name} has {length} tokens and was cut to {most} (data.{setting})"
    )
