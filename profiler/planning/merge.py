"""Segment and what follows it, merged over every place to cut: sums of two staircases, where they can be the best."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from profiler.planning.costs import LARGEST
from profiler.planning.staircase import Counts, Staircase, Whole


class Side(NamedTuple):
    """One of two staircases to be summed."""

    steps: Staircase
    held: int  # bytes that are held besides
    at: Counts | None  # how many steps are at or below each edge, `held` included; None where there is one

    def ticks_at(self, nbytes: Whole) -> Whole:
        return self.steps.ticks[self.steps.nbytes.searchsorted(nbytes - self.held, "right") - 1]


class Cuts(Struct, frozen=True, kw_only=True):
    """The segments that begin at one stage, by their ends."""

    pair: Callable[[int], tuple[Side, Side]]  # the segment and what follows it, both run backward
    floors: Whole  # the segment's forward needs this much
    ticks: Whole  # and takes this long
    times: Whole  # (cut, edge): both sides together, without floors and forward
    lost: Whole  # (cut)


def merged(cuts: Cuts, kept: list[Staircase], edges: Whole) -> list[Staircase]:
    """For every cut its steps in those cells of the grid where it may be below all the others and `kept`.

    In the cell behind one edge up to the next, a cut is never below its time at the next, and the lowest never above
    its time at the first: where the one is no less than the other, the cut need not be merged.
    """
    times = cuts.times
    times += cuts.ticks[:, None]
    times[edges < cuts.floors[:, None]] = LARGEST
    least = times.min(axis=0)
    for one in kept:
        np.minimum(least, one.values(edges, LARGEST), out=least)
    alive = times[:, 1:] < least[:-1]
    (found,) = alive.any(axis=1).nonzero()
    return [_sum(cuts, cut, alive[cut], least, edges) for cut in found.tolist()]


def _sum(cuts: Cuts, cut: int, alive: npt.NDArray[np.bool_], least: Whole, edges: Whole) -> Staircase:
    """The steps of one cut that may be the lowest."""
    inner, outer = cuts.pair(cut)
    floor = max(int(cuts.floors[cut]), int(inner.steps.nbytes[0]), int(outer.steps.nbytes[0]) + outer.held)
    start = np.array([floor], dtype=np.int64)
    if inner.at is None:
        more = inner.steps.ticks[0] + cuts.ticks[cut]
        nbytes, ticks = _above(outer, floor, np.where(alive, least[:-1] - more, -1))
        nbytes, ticks = np.concatenate([start, nbytes]), np.concatenate([outer.ticks_at(start), ticks]) + more
    else:
        first, last = int(alive.argmax()), len(alive) - int(alive[::-1].argmax())
        parts = [start] if floor > edges[first] else []
        nbytes = np.concatenate([*parts, *(_between(side, first, last, floor) for side in (inner, outer))])
        ticks = inner.ticks_at(nbytes) + outer.ticks_at(nbytes) + cuts.ticks[cut]
    return Staircase(nbytes, ticks, np.full(len(nbytes), cut + 1, dtype=np.int64))


def _between(side: Side, first: int, last: int, floor: int) -> Whole:
    """Where one side has steps behind one edge up to another, and above the floor."""
    assert side.at is not None
    found = side.steps.nbytes[side.at[first] : side.at[last]] + side.held
    return found[found.searchsorted(floor, "right") :]


def _above(side: Side, floor: int, limits: Whole) -> tuple[Whole, Whole]:
    """The steps of one side above the floor, where they are below the limits of their cells."""
    assert side.at is not None
    span = slice(max(side.at[0], int(side.steps.nbytes.searchsorted(floor - side.held, "right"))), side.at[-1])
    limit = limits.repeat(np.diff(side.at))[span.start - side.at[0] :]
    below = side.steps.ticks[span] < limit
    return side.steps.nbytes[span][below] + side.held, side.steps.ticks[span][below]
