"""Staircases: least time by memory, as falling steps. Knows nothing of chains."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Whole = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]


class Staircase:
    """`ticks[i]` is the least time from `nbytes[i]` on; `choices[i]` says how it is reached. Bytes rise, ticks fall."""

    __slots__ = ("choices", "lost", "nbytes", "ticks")

    def __init__(self, nbytes: Whole, ticks: Whole, choices: Whole, lost: int = 0) -> None:
        self.nbytes = nbytes
        self.ticks = ticks
        self.choices = choices
        self.lost = lost  # ticks by which no point is above the truth at its memory or at any up to the next point

    def at(self, nbytes: int) -> int:
        """The index of the best step for this much memory; -1 where there is none."""
        return int(self.nbytes.searchsorted(nbytes, "right")) - 1

    def counts(self, nbytes: Whole) -> Whole:
        """How many steps are at or below each of these memories."""
        return self.nbytes.searchsorted(nbytes, "right")

    def values(self, nbytes: Whole, beyond: int) -> Whole:
        """The least time at each of these memories; `beyond` where nothing fits."""
        return self.after(self.counts(nbytes), beyond)

    def after(self, counts: Whole, beyond: int) -> Whole:
        """The time of the last of so many steps; `beyond` where there is none."""
        found = self.ticks[counts - 1]  # -1 reads the last, and is overwritten
        found[: counts.searchsorted(0, "right")] = beyond
        return found


def single(nbytes: int, ticks: int, choice: int) -> Staircase:
    """One step."""
    columns = np.array([[nbytes], [ticks], [choice]], dtype=np.int64)
    return Staircase(columns[0], columns[1], columns[2])


def raised(one: Staircase, *, by: int, ticks: int, floor: int, choice: int) -> Staircase:
    """Every step with so many bytes and ticks more, and never below the floor: several may then stand at it."""
    return Staircase(
        np.maximum(one.nbytes + by, floor), one.ticks + ticks, np.full(len(one.ticks), choice, dtype=np.int64)
    )


def lowest(parts: list[tuple[Whole, Whole, Whole]]) -> Staircase:
    """The lower envelope of points (bytes, ticks, choices), as a staircase."""
    nbytes, ticks, choices = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = nbytes.argsort(kind="stable")  # they come in sorted pieces, which this sort makes use of
    nbytes, ticks, choices = nbytes[order], ticks[order], choices[order]
    falls = np.ones(len(ticks), dtype=bool)
    falls[1:] = ticks[1:] < np.minimum.accumulate(ticks)[:-1]
    nbytes, ticks, choices = nbytes[falls], ticks[falls], choices[falls]
    last = np.ones(len(ticks), dtype=bool)  # of several at the same memory
    last[:-1] = nbytes[1:] > nbytes[:-1]
    return Staircase(nbytes[last], ticks[last], choices[last])


def thinned(whole: Staircase, points: int | None) -> Staircase:
    """At most this many steps (never fewer than two), spread evenly over the time; `lost` grows by what that costs."""
    if points is None or len(whole.ticks) <= max(points, 2):
        return whole
    ticks = whole.ticks
    width = -(-int(ticks[0] - ticks[-1]) // (max(points, 2) - 1))
    bucket = (ticks[0] - ticks) // width
    chosen = np.ones(len(ticks), dtype=bool)
    chosen[1:] = bucket[1:] > bucket[:-1]
    chosen[-1] = True
    kept = chosen.nonzero()[0]
    worst = int((ticks[kept[:-1]] - ticks[kept[1:] - 1]).max())
    return Staircase(whole.nbytes[kept], ticks[kept], whole.choices[kept], whole.lost + worst)
