"""Staircases: least time by memory, as falling steps. Knows nothing of chains."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

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

    def after(self, counts: Whole, beyond: int) -> Whole:
        """The time of the last of so many steps; `beyond` where there is none."""
        found = self.ticks[counts - 1]  # -1 reads the last, and is overwritten
        found[: counts.searchsorted(0, "right")] = beyond
        return found


def single(nbytes: int, ticks: int, choice: int) -> Staircase:
    """One step."""
    columns = np.array([[nbytes], [ticks], [choice]], dtype=np.int64)
    return Staircase(columns[0], columns[1], columns[2])


class Points(Struct, frozen=True, kw_only=True):
    """Memory and time of plans that were reached by one choice, or by one each; in any order."""

    nbytes: Whole
    ticks: Whole
    choice: int | Whole


def lowest(parts: list[Points]) -> Staircase:
    """The lower envelope of points as a staircase."""
    nbytes = np.concatenate([one.nbytes for one in parts])
    order = nbytes.argsort(kind="stable")  # most come in sorted pieces, which this sort makes use of
    nbytes, ticks = nbytes[order], np.concatenate([one.ticks for one in parts])[order]
    falls = np.ones(len(ticks), dtype=bool)
    falls[1:] = ticks[1:] < np.minimum.accumulate(ticks)[:-1]
    (found,) = falls.nonzero()
    last = np.ones(len(found), dtype=bool)  # of several at the same memory
    last[:-1] = nbytes[found[1:]] > nbytes[found[:-1]]
    found = found[last]
    choices = np.concatenate([np.broadcast_to(one.choice, one.nbytes.shape) for one in parts])
    return Staircase(nbytes[found], ticks[found], choices[order[found]])


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
