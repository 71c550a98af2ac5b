"""Plain data and what every room needs: cases, records, plan files, GPU specifications, units, errors, safe files."""

from collections.abc import Iterable
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")


def by_key(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Return values by their keys, which are in the order in which they first appear."""
    groups: dict[K, list[T]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
