"""Checks and cuts of token ids before they reach a model: an accelerator looks up wrong ids silently."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

Ids = TypeVar("Ids", list[int], np.ndarray)
TooLong = Callable[[str, int, int, str], None]
"""Receives the name of a text that is cut, its length and the maximum, in tokens, and the setting of `data` that is the maximum."""


def check_token_ids(ids: Iterable[int | None], vocab_size: int, where: str) -> None:
    """Checks that every id is one of a vocabulary; None is no id and is skipped.

    where: the beginning of the message, for example "objective.mask_token is" or "prompt 3 has".

    Raises: ValueError for the first id outside of the vocabulary.
    """
    for i in ids:
        if i is not None and not 0 <= i < vocab_size:
            raise ValueError(
                f"{where} {i}, which is no token id: ids must be between 0 and {vocab_size - 1}, one less than model.vocab_size"
            )


def cut(ids: Ids, most: int, name: str, setting: str, too_long: TooLong) -> Ids:
    """Returns the first `most` ids of a text; `too_long` is called if there are more."""
    if len(ids) > most:
        too_long(name, len(ids), most, setting)
    return ids[:most]


def cut_warning(warn: Callable[[str], None], line: int = 1) -> TooLong:
    """Returns a function for `cut` that warns of a text in a line of the input."""

    def too_long(name: str, length: int, most: int, setting: str) -> None:
        warn(f"line {line}: the {name} has {length} tokens and was cut to {most} (data.{setting})")

    return too_long
