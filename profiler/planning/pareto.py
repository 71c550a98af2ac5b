"""Pareto fronts of time and memory as falling step functions; and sums of two, merged over every place to cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

LARGEST = 1 << 61  # the sum of two fits 64 bits
Whole = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]


class ParetoFront:
    """A step function: `ticks[i]` is the least time from `nbytes[i]` on, by `choices[i]`. Bytes rise, ticks fall."""

    __slots__ = ("choices", "lost", "nbytes", "ticks")

    def __init__(self, nbytes: Whole, ticks: Whole, choices: Whole, lost: int = 0) -> None:
        self.nbytes = nbytes
        self.ticks = ticks
        self.choices = choices
        self.lost = lost  # bound in ticks on how far a point is above the optimum, at any memory up to the next point

    def at(self, nbytes: int) -> int:
        """Return the index of the best point for this much memory; -1 if there is none."""
        return int(self.nbytes.searchsorted(nbytes, "right")) - 1

    def counts(self, nbytes: Whole) -> Whole:
        """Return how many points are at or below each of these memory sizes."""
        return self.nbytes.searchsorted(nbytes, "right")

    def points(self, less: int = 0) -> Points:
        """Return its points, with so many bytes less."""
        return Points(nbytes=self.nbytes - less, ticks=self.ticks, choice=self.choices)

    def after(self, counts: Whole, beyond: int) -> Whole:
        """Return the time of the last of so many points, for ascending counts; `beyond` where the count is 0."""
        ticks = self.ticks[counts - 1]  # -1 reads the last, and is overwritten
        ticks[: counts.searchsorted(0, "right")] = beyond
        return ticks


def single(nbytes: int, ticks: int, choice: int) -> ParetoFront:
    """Return a front of one point."""
    columns = np.array([[nbytes], [ticks], [choice]], dtype=np.int64)
    return ParetoFront(columns[0], columns[1], columns[2])


class Points(Struct, frozen=True, kw_only=True):
    """Memory and time of plans reached by one common choice, or by one choice each; in any order."""

    nbytes: Whole
    ticks: Whole
    choice: int | Whole


def lowest(parts: list[Points]) -> ParetoFront:
    """Return the lower envelope of points as a front."""
    nbytes = np.concatenate([part.nbytes for part in parts])
    order = nbytes.argsort(kind="stable")  # most pieces are sorted, which this sort exploits
    nbytes, ticks = nbytes[order], np.concatenate([part.ticks for part in parts])[order]
    falls = np.ones(len(ticks), dtype=bool)
    falls[1:] = ticks[1:] < np.minimum.accumulate(ticks)[:-1]
    (kept,) = falls.nonzero()
    last = np.ones(len(kept), dtype=bool)  # keep the last of several at the same memory
    last[:-1] = nbytes[kept[1:]] > nbytes[kept[:-1]]
    kept = kept[last]
    choices = np.concatenate([np.broadcast_to(part.choice, part.nbytes.shape) for part in parts])
    return ParetoFront(nbytes[kept], ticks[kept], choices[order[kept]])


def thinned(whole: ParetoFront, points: int | None) -> ParetoFront:
    """Return at most this many points (but at least two), spread evenly over time; `lost` grows by what that costs."""
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
    return ParetoFront(whole.nbytes[kept], ticks[kept], whole.choices[kept], whole.lost + worst)


class Sides(Struct, frozen=True, kw_only=True):
    """One of the two fronts to be summed, for every cut."""

    fronts: Sequence[ParetoFront]
    numbers: Whole  # (cut): the index of its front
    counts: Counts  # (front, edge): how many of its points are at or below the edge, with what is held
    held: Whole  # (cut): bytes that are held in addition


class Cuts(Struct, frozen=True, kw_only=True):
    """The segments that begin at one stage, one for each end."""

    outer: Sides  # what follows the segment, run backward
    inner: Sides | None  # the segment, run backward; None if that is one point, in floors and ticks
    floors: Whole  # (cut): bytes below which it is not possible
    ticks: Whole  # (cut): time in addition to the fronts'
    times: Whole  # (cut, edge): sum of the ticks of both fronts
    lost: Whole  # (cut)


def merged(cuts: Cuts, kept: list[Whole], edges: Whole) -> list[Points]:
    """Return for every cut its points in those grid cells where it may be below all other cuts and `kept` (edge).

    In the cell from one edge to the next, a cut is never below its own time at the next edge, and the best is never
    above its time at the first: where the former is no less than the latter, the cut need not be merged.
    """
    times = cuts.times + cuts.ticks[:, None]
    times[edges < cuts.floors[:, None]] = LARGEST
    least = np.minimum(times.min(axis=0), LARGEST)  # LARGEST and more: nothing fits
    for times_kept in kept:
        np.minimum(least, times_kept, out=least)
    alive = times[:, 1:] < least[:-1]
    (alive_cuts,) = alive.any(axis=1).nonzero()
    if cuts.inner is None:
        return [_one_sided(cuts, cut, np.where(alive[cut], least[:-1], -1)) for cut in alive_cuts.tolist()]
    return [_two_sided(cuts, cuts.inner, alive_cuts, alive[alive_cuts], edges)] if len(alive_cuts) else []


def _one_sided(cuts: Cuts, cut: int, limits: Whole) -> Points:
    """Return the points of one cut that are below the limits of their cells, and the one at the floor."""
    outer, number = cuts.outer, cuts.outer.numbers[cut]
    steps, counts, held = outer.fronts[number], outer.counts[number], int(outer.held[cut])
    floor = max(int(cuts.floors[cut]), int(steps.nbytes[0]) + held)
    above = steps.at(floor - held) + 1
    span = slice(max(above, int(counts[0])), int(counts[-1]))
    ticks = steps.ticks[span] + cuts.ticks[cut]
    below = ticks < limits.repeat(np.diff(counts))[span.start - counts[0] :]
    return Points(
        nbytes=np.concatenate([[floor], steps.nbytes[span][below] + held]),
        ticks=np.concatenate([steps.ticks[above - 1 : above] + cuts.ticks[cut], ticks[below]]),
        choice=cut + 1,
    )


def _two_sided(cuts: Cuts, inner: Sides, alive_cuts: Whole, alive: npt.NDArray[np.bool_], edges: Whole) -> Points:
    """Return the points of all cuts, each from the first to the last cell in which it is alive; they are unsorted.

    The memory of cut number i is shifted by i times more than the largest memory, so that one search serves all cuts.
    """
    first = alive.argmax(axis=1)
    last = alive.shape[1] - alive[:, ::-1].argmax(axis=1)
    apart = np.arange(len(alive_cuts)) * (edges[-1] + 1)
    sides = [_between(side, alive_cuts, first, last, apart) for side in (inner, cuts.outer)]
    lowest = cuts.floors[alive_cuts]
    for side in (inner, cuts.outer):
        least = np.array([side.fronts[number].nbytes[0] for number in side.numbers[alive_cuts].tolist()])
        lowest = np.maximum(lowest, least + side.held[alive_cuts])
    keys = np.concatenate([lowest + apart, *(keys for keys, _ in sides)])
    owner = keys // (edges[-1] + 1)
    nbytes = keys - apart[owner]
    ours = (nbytes > edges[first][owner]) & (nbytes >= lowest[owner])
    keys, owner, nbytes = keys[ours], owner[ours], nbytes[ours]
    ticks = cuts.ticks[alive_cuts][owner]
    for steps, times in sides:
        ticks += times[steps.searchsorted(keys, "right") - 1]
    return Points(nbytes=nbytes, ticks=ticks, choice=alive_cuts[owner] + 1)


def _between(side: Sides, alive_cuts: Whole, first: Whole, last: Whole, apart: Whole) -> tuple[Whole, Whole]:
    """Return keys and ticks of one side's points from one edge to another, and of the point before them."""
    numbers = side.numbers[alive_cuts]
    starts = np.maximum(side.counts[numbers, first] - 1, 0)
    ends = side.counts[numbers, last]
    slices = [
        (side.fronts[number], slice(start, end))
        for number, start, end in zip(numbers.tolist(), starts.tolist(), ends.tolist(), strict=True)
    ]
    keys = np.concatenate([steps.nbytes[span] for steps, span in slices])
    keys += (apart + side.held[alive_cuts]).repeat(ends - starts)
    return keys, np.concatenate([steps.ticks[span] for steps, span in slices])
