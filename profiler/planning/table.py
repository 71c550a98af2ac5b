"""The recurrence over intervals of a chain: the best ways to run stages s..t backward, for every memory.

Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova (RR-9302), with outputs that die, early stops, gradients of
parameters and save options. Memory is counted without the input of s. Exact: whole numbers, no grid. A grid serves only
to see which cuts can be best where, so that the others are not merged.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Protocol

import numpy as np

from profiler.planning.costs import LARGEST, Costs
from profiler.planning.merge import Cuts, Side, merged
from profiler.planning.staircase import Counts, Staircase, Whole, lowest, raised, single, thinned


class Inner(Protocol):
    """Where the staircases of checkpointed segments are found."""

    def of(self, first: int, target: int) -> Staircase: ...
    def side(self, first: int, last: int) -> Side: ...
    def times(self, first: int, last: int) -> Whole: ...
    def lost(self, first: int, last: int) -> Whole: ...


class Table:
    """Staircases P(s, t) of segments, and of the chain's end where t is the loss, n + 1."""

    def __init__(self, costs: Costs, edges: Whole, *, inner: Inner | None, points: int | None, longest: int) -> None:
        """`inner` has the checkpointed segments, of `longest` stages at most; this table itself where it is None."""
        self.costs = costs
        self.edges = edges
        self.points = points
        self.longest = longest
        size = costs.num_stages + 2
        self._inner: Inner = self if inner is None else inner
        self._numbers = np.full((size, size), -1, dtype=np.int64)  # [s, t] -> which staircase: equal intervals share
        self._staircases: list[Staircase] = []
        self._known: dict[Hashable, int] = {}
        self._lost = np.zeros(64, dtype=np.int64)
        self._here = np.empty((64, len(edges)), dtype=np.int64)  # the time at each edge
        self._behind = np.empty((64, len(edges)), dtype=np.int64)  # where the input of s is within the memory
        self._counts: list[tuple[Counts, Counts]] = []  # steps up to each edge, in both ways

    def of(self, first: int, target: int) -> Staircase:
        return self._staircases[int(self._numbers[first, target])]

    def times(self, first: int, last: int) -> Whole:
        """Ticks of P(first, e) at every edge, for e from `first` to `last`."""
        found: Whole = self._here[self._numbers[first, first : last + 1]]
        return found

    def side(self, first: int, last: int) -> Side:
        """P(first, last) as the segment of a cut."""
        number = int(self._numbers[first, last])
        return Side(self._staircases[number], 0, self._counts[number][0])

    def _outer(self, first: int, target: int) -> Side:
        """P(first, target) as what follows a segment, whose output is held meanwhile."""
        number = int(self._numbers[first, target])
        return Side(self._staircases[number], self.costs.output[first - 1], self._counts[number][1])

    def lost(self, first: int, last: int) -> Whole:
        found: Whole = self._lost[self._numbers[first, first : last + 1]]
        return found

    def fill(self, targets: Iterable[int]) -> Table:
        """All intervals that end in these stages, in rising order. Stages behind a pin are only in the chain's end."""
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
            self._known[key] = len(self._staircases) - 1
        self._numbers[first, target] = self._known[key]

    def _key(self, first: int, target: int) -> Hashable:
        """The same for intervals of equal stages behind equal inputs."""
        behind = self._numbers[first + 1, target] if first < target else -1 - self.costs.left[target + 1]
        return int(behind), self.costs.kinds[first], self.costs.output[first - 1]

    def _add(self, staircase: Staircase, *, input_bytes: int) -> None:
        number = len(self._staircases)
        if number == len(self._lost):
            self._lost, self._here, self._behind = (
                np.concatenate([one, np.empty_like(one)]) for one in (self._lost, self._here, self._behind)
            )
        self._staircases.append(staircase)
        self._lost[number] = staircase.lost
        here, behind = staircase.counts(self.edges), staircase.counts(self.edges - input_bytes)
        self._here[number] = staircase.after(here, LARGEST)
        self._behind[number] = staircase.after(behind, LARGEST)
        self._counts.append((here.astype(np.int32), behind.astype(np.int32)))

    def _solve(self, first: int, target: int) -> Staircase:
        costs = self.costs
        if first == target:
            return single(*costs.last(target))
        behind = self.of(first + 1, target)
        kept = [
            raised(behind, by=way.saved, ticks=way.ticks, floor=costs.keep_floor(first, target, way), choice=-number)
            for number, way in enumerate(costs.keeps[first])
        ]
        lost = behind.lost
        floors = costs.plain_forward(first, self.longest, target)
        if len(floors):
            cuts = self._cuts(first, target, floors)
            kept += merged(cuts, kept, self.edges)
            lost = max(lost, int(cuts.lost.max()))
        found = lowest([(one.nbytes, one.ticks, one.choices) for one in kept])
        found.lost = lost
        return thinned(found, self.points)

    def _cuts(self, first: int, target: int, floors: Whole) -> Cuts:
        """Every end of a checkpointed segment that begins here."""
        last = first + len(floors) - 1
        numbers = self._numbers[first + 1 : last + 2, target]
        return Cuts(
            pair=lambda cut: (self._inner.side(first, first + cut), self._outer(first + cut + 1, target)),
            floors=floors,
            ticks=self.costs.forward_sums(first, len(floors)),
            times=self._inner.times(first, last) + self._behind[numbers],
            lost=self._inner.lost(first, last) + self._lost[numbers],
        )
