"""The recurrence for a chain of equal stages whose bytes are multiples of one unit: by length, the time at every unit.

The same recurrence as in `table`. Intervals of one length are the same, and there nearly all cuts reach the same memory
in the same time: sums of whole arrays are quicker than staircases merged. The arrays hold the time beyond that of
keeping every stage, in multiples of a unit too, so that the numbers are small.
"""

from __future__ import annotations

from math import gcd

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from profiler.planning.costs import Costs, Keep
from profiler.planning.pareto import Staircase, Whole, single

MOST = 1 << 22  # lengths times units: what the arrays may hold


class Units(Struct, frozen=True, kw_only=True):
    """What all bytes, and all times beyond keeping every stage, are multiples of."""

    nbytes: int
    ticks: int


def units(costs: Costs) -> Units | None:
    """None where the stages are not equal or the arrays would be too large."""
    same = len(set(costs.kinds[1:-1])) == 1 and len(set(costs.output[:-1])) == 1
    if not same or costs.left[1] or any(costs.pinned):
        return None
    ways = costs.keeps[1]
    sizes = [size for way in ways for size in (way.saved, way.forward, way.backward)]
    nbytes = gcd(*sizes, costs.output[1], costs.plain_extra[1], costs.stop_bytes[1])
    ticks = gcd(
        costs.forward_ticks[1], *(one - ways[0].ticks for one in (costs.stop_ticks[1], *(w.ticks for w in ways)))
    )
    if not nbytes or not ticks or (costs.num_stages + 1) * (costs.most // nbytes) > MOST:
        return None
    return Units(nbytes=nbytes, ticks=ticks)


class Lattice:
    """P(s, t) by `t - s`; of the chain's end, where `inner` has the checkpointed segments."""

    def __init__(self, costs: Costs, units: Units, inner: Lattice | None = None) -> None:
        self._costs, self._units = costs, units
        self._segments_of = self if inner is None else inner
        self._target = costs.num_stages + (inner is not None)
        small = costs.num_stages**2 * costs.forward_ticks[1] // units.ticks < 1 << 27
        self._beyond = 1 << 29 if small else 1 << 61  # nothing fits; two of them can be added
        shape = self._target, costs.most // units.nbytes + 1
        self._times, self._behind, self._segments, self._sums = (
            np.full(shape, self._beyond, dtype=np.int32 if small else np.int64) for _ in range(4)
        )  # [t - s, units]; the same behind a segment whose output is held; [stages - 1, units]; what is at work
        self._floors: Whole = costs.plain_forward(1, self._target) // units.nbytes
        self._staircases: list[Staircase] = []
        for number in range(self._target):
            self._staircases.append(self._solve(number) if number else self._last())
            self._enter(number)

    def of(self, first: int, target: int) -> Staircase:
        return self._staircases[target - first]

    def _last(self) -> Staircase:
        nbytes, ticks, choice = self._costs.last(self._target)
        self._times[0, nbytes // self._units.nbytes :] = 0
        return single(nbytes, ticks, choice)

    def _enter(self, number: int) -> None:
        """What was solved, as part of what is to be solved: behind a segment, and in one."""
        costs, times, shift = self._costs, self._times[number], self._costs.output[1] // self._units.nbytes
        self._behind[number, shift:] = times[: len(times) - shift]
        if number < len(self._floors):
            floor, once = self._floors[number], costs.stop_ticks[1] - costs.keeps[1][0].ticks
            ticks = (int(costs.forward_sums(1, number + 1)[-1]) + once) // self._units.ticks
            self._segments[number, floor:] = self._segments_of._times[number, floor:] + ticks

    def _solve(self, number: int) -> Staircase:
        costs, first, unit = self._costs, self._target - number, self._units
        ways = costs.ways(first, self._target)
        most = [int(self._staircases[-1].nbytes[-1]) + way.saved for way in ways]  # nothing is faster beyond
        top = max(*most, *(costs.keep_floor(first, self._target, way) for way in ways)) // unit.nbytes + 1
        kept = np.stack([self._kept(number, way)[:top] for way in ways])
        cuts = np.add(
            self._behind[number - 1 :: -1, :top], self._segments[:number, :top], out=self._sums[:number, :top]
        )
        times = np.minimum(kept.min(axis=0), cuts.min(axis=0))
        times[times > self._beyond // 2] = self._beyond
        (found,) = (np.diff(times, prepend=self._beyond) < 0).nonzero()
        self._times[number, :top], self._times[number, top:] = times, times[-1]
        best = np.concatenate([kept[:, found], cuts[:, found]]).argmin(axis=0)
        return Staircase(
            found * unit.nbytes,
            times[found].astype(np.int64) * unit.ticks + number * ways[0].ticks + costs.last(self._target)[1],
            np.where(best < len(ways), -best, best - len(ways) + 1),
        )

    def _kept(self, number: int, way: Keep) -> NDArray[np.signedinteger]:
        """The first stage kept, at every unit."""
        first, before = self._target - number, self._times[number - 1]
        shift = way.saved // self._units.nbytes
        times: NDArray[np.signedinteger] = np.full_like(before, self._beyond)
        extra = (way.ticks - self._costs.keeps[first][0].ticks) // self._units.ticks
        times[shift:] = before[: len(before) - shift] + extra
        times[: self._costs.keep_floor(first, self._target, way) // self._units.nbytes] = self._beyond
        return times
