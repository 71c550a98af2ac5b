"""Words -> whole numbers within limits: knows nothing of what is counted by them."""

from __future__ import annotations

import re
from typing import NamedTuple

from profiler.core.errors import UserError

LARGEST = 1_000_000  # segments; more than any chain has modules


class Numbers(NamedTuple):
    """What the numbers of an axis are, for messages about a wrong word, and their largest value."""

    noun: str
    example: str
    most: int


SIZES = Numbers("a batch size", "64 or 8,16,32, up to 1,000,000,000", 10**9)
RANKS = Numbers("a number of ranks", "4 or 8,64,512, up to 65,536", 65_536)
MICRO_BATCHES = Numbers("a number of micro-batches", "4 or 1,2,4, up to 10,000", 10_000)


def whole(text: str, *, option: str, kind: Numbers) -> list[int]:
    """`8,16,32` as numbers from 1. Raises UserError that names the option and the bad word."""
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not _is_within(word, kind.most):
            raise UserError(f"{option}: '{word}' is not {kind.noun}", hint=f"whole numbers from 1, like {kind.example}")
    return [int(word) for word in words]


def segments(text: str) -> list[int]:
    """`1,2,4`, `1..32` or `1..32:x2` as numbers. Raises UserError that names the bad item."""
    return [count for item in text.split(",") for count in _counts(item.strip())]


def _counts(item: str) -> list[int]:
    span = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})(?::x(\d{1,9}))?", item, flags=re.ASCII)
    if not span:
        return [_segment_count(item, item)]
    first, last = _segment_count(span[1], item), _segment_count(span[2], item)
    factor = int(span[3]) if span[3] else None
    if last < first or factor in (0, 1) or (factor is None and last - first >= 1000):
        message = f"--segments: '{item}' is not a range"
        raise UserError(message, hint="write first..last, up to 1000 long, or first..last:x2")
    counts = list(range(first, last + 1)) if factor is None else [first]
    while factor and counts[-1] * factor <= last:
        counts.append(counts[-1] * factor)
    return counts


def _segment_count(word: str, item: str) -> int:
    if not _is_within(word, LARGEST):
        message = f"--segments: '{item}' is not a number of segments"
        raise UserError(message, hint=f"whole numbers from 1 to {LARGEST}, like 1,2,4 or 1..32 or 1..32:x2")
    return int(word)


def _is_within(word: str, most: int) -> bool:
    return bool(re.fullmatch(r"\d{1,9}", word, flags=re.ASCII)) and 1 <= int(word) <= most
