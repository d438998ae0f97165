"""Groups of things that are treated alike, such as the pairs of one direction between languages."""

from collections.abc import Hashable, Iterable
from typing import TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)


def groups_of(keys: Iterable[KeyT]) -> dict[KeyT, list[int]]:
    """Returns for each key the numbers of the things that have it, from 0; the keys in the order in which they come first."""
    groups: dict[KeyT, list[int]] = {}
    for number, key in enumerate(keys):
        groups.setdefault(key, []).append(number)
    return groups
