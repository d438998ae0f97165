"""The tokens that an answer must have: terms, and a beginning."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

MOST_TERMS, MOST_TOKENS = 16, 64
"""The most terms of an answer, and the most tokens of a term: they decide the size of the compiled search."""


class NeededTokens(NamedTuple):
    """A text that a translation must have, as token ids."""

    ids: tuple[int, ...]
    times: int
    whole: bool
    """Whether its last word must end with it."""


@dataclass(frozen=True)
class Forced:
    """The tokens that an answer must have."""

    terms: tuple[NeededTokens, ...] = ()
    beginning: tuple[int, ...] = ()
    going_on: Any = field(default=None, compare=False)
    """`Bool[np.ndarray, "V"]`, True for the ids that go on with the word before them, which `NeededTokens.whole` asks of; None: no
    id does."""

    @property
    def length(self) -> int:
        """The number of tokens, without the end."""
        return len(self.beginning) + sum(len(term.ids) * term.times for term in self.terms)

    @property
    def room(self) -> int:
        """The number of terms that a compiled search for these has room for: a power of two; 0 without terms."""
        return 1 << (len(self.terms) - 1).bit_length() if self.terms else 0
