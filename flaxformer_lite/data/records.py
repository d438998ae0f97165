"""Records: one example, as text and as token ids."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int


class Pair(NamedTuple):
    """A text and what it should become, or what it is compared with; a text on its own, a document, has an empty source."""

    source: str
    target: str
    label: str = ""
    """What there is to say about them, a class or a number, where the data has labels."""


class TokenPair(NamedTuple):
    """A pair as token ids, without special tokens."""

    source: Int[np.ndarray, "S"]
    target: Int[np.ndarray, "T"]
    label: str = ""


class Pack(NamedTuple):
    """Pieces of documents that share a row, as token ids."""

    pieces: tuple[Int[np.ndarray, "_"], ...]
    words: tuple[Int[np.ndarray, "_"], ...] = ()
    """For each piece the number of the word that each token belongs to, where the objective asks for it."""


class LabelledText(NamedTuple):
    """A text or two as the model reads them, special ids included, and the number of their class or their value."""

    tokens: Int[np.ndarray, "S"]
    types: Int[np.ndarray, "S"]
    label: float


class Lengths(NamedTuple):
    """Room for source and target tokens, special tokens included."""

    source: int
    target: int
