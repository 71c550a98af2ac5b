"""The recurrence over intervals of a chain: the fastest ways to run stages s..t backward, for every memory size.

Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova (RR-9302), extended by outputs that are freed, recomputes that stop
early, gradients of parameters and save options. Memory is counted without the input of s. Exact: whole numbers, no
grid. A grid serves only to find which cuts can be best where, so that the others are not merged.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Protocol

import numpy as np
from msgspec import Struct

from profiler.planning.costs import Costs
from profiler.planning.pareto import LARGEST, Cuts, ParetoFront, Points, Sides, Whole, lowest, merged, single, thinned


class Segments(Struct, frozen=True, kw_only=True):
    """All checkpointed segments that begin at one stage, run backward."""

    sides: Sides | None  # None if each front is one point: in floors and ticks
    times: Whole | int  # (segment, edge)
    floors: Whole | int
    ticks: Whole | int
    lost: Whole | int


class Inner(Protocol):
    """Provides the costs of checkpointed segments."""

    def of(self, first: int, target: int) -> ParetoFront: ...
    def segments(self, first: int, last: int) -> Segments: ...


class Table:
    """Pareto fronts P(s, t) of segments, or of the chain's end if t is the loss, n + 1."""

    def __init__(self, costs: Costs, edges: Whole, *, inner: Inner | None, points: int | None) -> None:
        """`inner` provides the checkpointed segments; None: this table itself does."""
        self.costs = costs
        self.edges = edges
        self.points = points
        size = costs.num_stages + 2
        self._inner: Inner = self if inner is None else inner
        self._numbers = np.full((size, size), -1, dtype=np.int64)  # [s, t] -> index of the front; equal intervals share
        self._fronts: list[ParetoFront] = []
        self._known: dict[Hashable, int] = {}
        self._lost = np.zeros(64, dtype=np.int64)
        self._here = np.empty((64, len(edges)), dtype=np.int64)  # by front: the time at each edge
        self._behind = np.empty((64, len(edges)), dtype=np.int64)  # the same if the memory includes the input of s
        self._here_counts = np.empty((64, len(edges)), dtype=np.int32)  # points up to each edge
        self._behind_counts = np.empty((64, len(edges)), dtype=np.int32)

    def of(self, first: int, target: int) -> ParetoFront:
        return self._fronts[int(self._numbers[first, target])]

    def segments(self, first: int, last: int) -> Segments:
        """Return P(first, e) for e from `first` to `last`."""
        numbers: Whole = self._numbers[first, first : last + 1]
        sides = Sides(fronts=self._fronts, numbers=numbers, counts=self._here_counts, held=np.zeros_like(numbers))
        return Segments(sides=sides, times=self._here[numbers], floors=0, ticks=0, lost=self._lost[numbers])

    def fill(self, targets: Iterable[int]) -> Table:
        """Solve all intervals that end in these targets, which are in ascending order; return this table.

        Intervals with a pinned stage are solved only for the chain's end.
        """
        for target in targets:
            loss = target > self.costs.num_stages
            for first in range(target, 0, -1):
                if self.costs.pinned[first] and not loss:
                    break
                self._enter(first, target)
        return self

    def _enter(self, first: int, target: int) -> None:
        key = self._key(first, target)
        if key not in self._known:
            self._add(self._solve(first, target), input_bytes=self.costs.output[first - 1])
            self._known[key] = len(self._fronts) - 1
        self._numbers[first, target] = self._known[key]

    def _key(self, first: int, target: int) -> Hashable:
        """Return a key that is the same for intervals of equal stages with equal inputs."""
        behind = self._numbers[first + 1, target] if first < target else -1 - self.costs.left[target + 1]
        return int(behind), self.costs.kinds[first], self.costs.output[first - 1]

    def _add(self, front: ParetoFront, *, input_bytes: int) -> None:
        number = len(self._fronts)
        if number == len(self._lost):
            self._grow()
        self._fronts.append(front)
        unsplit, behind = front.counts(self.edges), front.counts(self.edges - input_bytes)
        self._lost[number] = front.lost
        self._here[number] = front.after(unsplit, LARGEST)
        self._behind[number] = front.after(behind, LARGEST)
        self._here_counts[number] = unsplit
        self._behind_counts[number] = behind

    def _grow(self) -> None:
        """Double the room for fronts."""
        for name in ("_lost", "_here", "_behind", "_here_counts", "_behind_counts"):
            array = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.empty_like(array)]))

    def _solve(self, first: int, target: int) -> ParetoFront:
        costs = self.costs
        if first == target:
            return single(*costs.last(target))
        behind = self.of(first + 1, target)
        parts = [self._kept(behind, first, target, number) for number in range(len(costs.ways(first, target)))]
        lost = behind.lost
        forward = costs.plain_forward(first, target)
        if len(forward):
            cuts = self._cuts(first, target, forward)
            parts += merged(cuts, self._kept_times(first, target), self.edges)
            lost = max(lost, int(cuts.lost.max()))
        front = lowest(parts)
        front.lost = lost
        return thinned(front, self.points)

    def _kept(self, behind: ParetoFront, first: int, target: int, number: int) -> Points:
        """Return the points with the first stage kept in one of its ways; several may be at the floor."""
        way = self.costs.ways(first, target)[number]
        floor = self.costs.keep_floor(first, target, way)
        return Points(
            nbytes=np.maximum(behind.nbytes + way.saved, floor), ticks=behind.ticks + way.ticks, choice=-number
        )

    def _kept_times(self, first: int, target: int) -> list[Whole]:
        """Return the time at every edge with the first stage kept, for each way of keeping it."""
        behind, times_of_ways = self.of(first + 1, target), []
        for way in self.costs.ways(first, target):
            times = behind.after(behind.counts(self.edges - way.saved), LARGEST) + way.ticks
            times[self.edges < self.costs.keep_floor(first, target, way)] = LARGEST
            times_of_ways.append(times)
        return times_of_ways

    def _cuts(self, first: int, target: int, forward: Whole) -> Cuts:
        """Return every end of a checkpointed segment that begins at `first`."""
        last = first + len(forward) - 1
        segments = self._inner.segments(first, last)
        numbers: Whole = self._numbers[first + 1 : last + 2, target]
        outer = Sides(
            fronts=self._fronts,
            numbers=numbers,
            counts=self._behind_counts,
            held=np.array(self.costs.output[first : last + 1]),
        )
        return Cuts(
            outer=outer,
            inner=segments.sides,
            floors=np.maximum(forward, segments.floors),
            ticks=self.costs.forward_sums(first, len(forward)) + segments.ticks,
            times=self._behind[numbers] + segments.times,
            lost=self._lost[numbers] + segments.lost,
        )


class KeptIntervals:
    """P(s, t) if nothing is checkpointed: single points."""

    def __init__(self, costs: Costs) -> None:
        num = costs.num_stages
        self._nbytes = np.full((num + 2, num + 1), LARGEST, dtype=np.int64)
        self._ticks = np.full((num + 2, num + 1), LARGEST, dtype=np.int64)
        target_bytes = np.array(costs.output[: num + 1]) + np.array(costs.left[1 : num + 2])
        for first in range(num, 0, -1):
            (way,) = costs.ways(first, first)
            self._nbytes[first, first], self._ticks[first, first], _ = costs.last(first)
            behind = slice(first + 1, num + 1)
            floors = np.maximum(target_bytes[behind] + way.forward, way.backward + costs.left[first])
            self._nbytes[first, behind] = np.maximum(self._nbytes[first + 1, behind] + way.saved, floors)
            self._ticks[first, behind] = self._ticks[first + 1, behind] + way.ticks

    def of(self, first: int, target: int) -> ParetoFront:
        return single(self._nbytes[first, target], self._ticks[first, target], 0)

    def segments(self, first: int, last: int) -> Segments:
        """Return P(first, e) for e from `first` to `last`."""
        row = first, slice(first, last + 1)
        return Segments(sides=None, times=0, floors=self._nbytes[row], ticks=self._ticks[row], lost=0)
