"""Windows over the tokens of a text that is longer than a row. Each window is a row; two neighbours share half of their tokens."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class Windows(NamedTuple):
    starts: list[int]
    """The first token of each window."""
    room: int
    """Tokens in a window."""

    @classmethod
    def over(cls, length: int, room: int) -> "Windows":
        """Returns the windows over a text of `length` tokens: one window if they have room in it."""
        last = max(length - room, 0)
        return cls([*range(0, last, max(room // 2, 1)), last], room)

    def parts(self, ids: Sequence[int]) -> list[Sequence[int]]:
        """Returns the tokens of each window."""
        return [ids[start : start + self.room] for start in self.starts]

    def best(self, token: int) -> int:
        """Returns the window in which the side of a token with fewer neighbours has the most.

        A window at an end of the text has the most of its tokens anyway.
        """

        def context(window: int) -> int:
            before = token - self.starts[window]
            return min(before, self.room - 1 - before)

        last = bisect_right(self.starts, token)
        return max(range(max(last - 4, 0), last), key=context)
