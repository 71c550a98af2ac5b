"""Segment and what follows it, merged over every place to cut: sums of two staircases, where they can be the best."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from profiler.planning.costs import LARGEST
from profiler.planning.staircase import Staircase, Whole


class Cuts(Struct, frozen=True, kw_only=True):
    """The segments that begin at one stage, by their ends."""

    pair: Callable[[int], tuple[Staircase, Staircase]]  # the segment and what follows it, both run backward
    held: list[int]  # the segment's output, which is held while what follows runs
    floors: Whole  # the segment's forward needs this much
    ticks: Whole  # and takes this long
    times: Whole  # (cut, edge): inner and outer together, without floors and forward
    lost: Whole  # (cut)


def merged(cuts: Cuts, kept: list[Staircase], edges: Whole) -> list[Staircase]:
    """For every cut its steps in those cells of the grid where it may be below all the others and `kept`.

    In the cell behind one edge up to the next, a cut is never below its time at the next, and the lowest never above
    its time at the first: where the one is no less than the other, the cut need not be merged.
    """
    times = cuts.times + cuts.ticks[:, None]
    times[edges < cuts.floors[:, None]] = LARGEST
    least = times.min(axis=0)
    for one in kept:
        np.minimum(least, one.values(edges, LARGEST), out=least)
    alive = times[:, 1:] < least[:-1]
    found = []
    for cut in alive.any(axis=1).nonzero()[0]:
        cells = alive[cut].nonzero()[0]
        steps = _sum(cuts, int(cut), int(edges[cells[0]]), int(edges[cells[-1] + 1]))
        found.append(steps)
    return found


def _sum(cuts: Cuts, cut: int, low: int, high: int) -> Staircase:
    """The steps of one cut behind `low` up to `high`."""
    inner, outer = cuts.pair(cut)
    held = cuts.held[cut]
    floor = max(int(cuts.floors[cut]), int(inner.nbytes[0]), int(outer.nbytes[0]) + held)
    nbytes = np.concatenate(
        [
            np.array([floor] if floor > low else [], dtype=np.int64),
            _between(outer.nbytes, max(low, floor) - held, high - held) + held,
            _between(inner.nbytes, max(low, floor), high),
        ]
    )
    ticks = outer.ticks[outer.nbytes.searchsorted(nbytes - held, "right") - 1]
    ticks = ticks + inner.ticks[inner.nbytes.searchsorted(nbytes, "right") - 1] + cuts.ticks[cut]
    return Staircase(nbytes, ticks, np.full(len(nbytes), cut + 1, dtype=np.int64))


def _between(nbytes: Whole, low: int, high: int) -> Whole:
    first, last = nbytes.searchsorted((low, high), "right")
    return nbytes[first:last]
