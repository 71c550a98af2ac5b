"""The largest whole number that fits: knows nothing of what grows with it."""

from __future__ import annotations

from collections.abc import Callable

MOST = 2**24
FARTHEST = 8  # how many times the last number that fitted is tried next
PATIENCE = 2  # guesses in turn that may narrow it down by less than half: a line crawls along a bend


def largest(needed: Callable[[int], int | None], *, limit: int, start: int) -> int:
    """The largest n from 1 on with needed(n) <= limit, where `needed` grows; 0 where none has it.

    None is more than any limit. The next guess is where a line through the two nearest known points meets the limit,
    and the middle where that does not narrow it down.
    """
    known: dict[int, int] = {}
    low, high, guess, slow = 0, MOST + 1, min(start, MOST), 0
    while high - low > 1:
        width, before = high - low, low
        found = needed(guess)
        if found is not None:
            known[guess] = found
        if found is not None and found <= limit:
            low = guess
        else:
            high = guess
        is_narrow = 2 * (high - low) <= width or low >= 2 * before > 0
        slow = 0 if is_narrow else slow + 1
        guess = _next(known if slow < PATIENCE else {}, low, high, limit)
    return low


def _next(known: dict[int, int], low: int, high: int, limit: int) -> int:
    middle = (low + high) // 2 if high <= MOST else low * FARTHEST
    line = _meets(known, low, high, limit)
    if line is None:
        return max(low + 1, min(middle, high - 1))
    farthest = min(low * FARTHEST or high - 1, high - 1)
    return max(low + 1, min(line, farthest))


def _meets(known: dict[int, int], low: int, high: int, limit: int) -> int | None:
    """Where the line through the nearest two points meets the limit: below it by one, where it was tried already."""
    nearest = sorted(known, key=lambda number: min(abs(number - low), abs(number - high)))[:2]
    if len(nearest) < 2:
        return None
    one, other = sorted(nearest)
    rise = (known[other] - known[one]) / (other - one)
    if rise <= 0:
        return None
    return int(one + (limit - known[one]) / rise)
