"""How large a number of a file may be, so that arithmetic with it stays finite, and how deep it may be nested.

Knows nothing of what is counted, nor of how files are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

LARGEST = 2**63  # bytes, FLOPs, seconds: more than there is; whole numbers below it are of 64 bits
Whole = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]  # two of them add up within 64 bits
Real = Annotated[float, msgspec.Meta(ge=-1e100, le=1e100)]  # no measurement is larger; its square is still finite


def levels(found: Any, *, most: int) -> Iterator[list[Any]]:
    """What is in nested data, one list a level, the outermost first. Raises RecursionError beyond `most` levels."""
    level = [found]
    for _ in range(most):
        level = [inner for one in level if isinstance(one, dict | list) for inner in _inside(one)]
        yield level
        if not level:
            return
    raise RecursionError


def _inside(one: dict[str, Any] | list[Any]) -> list[Any]:
    return one if isinstance(one, list) else list(one.values())
