"""Checkpointed segments in which every stage is kept: one step each, all of them at once."""

from __future__ import annotations

import numpy as np

from profiler.planning.costs import LARGEST, Costs
from profiler.planning.merge import Side
from profiler.planning.staircase import Staircase, Whole, single


class Kept:
    """P(s, t) where nothing is checkpointed and there are no save options."""

    def __init__(self, costs: Costs, edges: Whole) -> None:
        self.edges = edges
        num = costs.num_stages
        self._nbytes = np.full((num + 2, num + 1), LARGEST, dtype=np.int64)
        self._ticks = np.full((num + 2, num + 1), LARGEST, dtype=np.int64)
        target_bytes = np.array(costs.output[: num + 1]) + np.array(costs.left[1 : num + 2])
        for first in range(num, 0, -1):
            way = costs.keeps[first][0]
            self._nbytes[first, first], self._ticks[first, first], _ = costs.last(first)
            behind = slice(first + 1, num + 1)
            floors = np.maximum(target_bytes[behind] + way.forward, way.backward + costs.left[first])
            self._nbytes[first, behind] = np.maximum(self._nbytes[first + 1, behind] + way.saved, floors)
            self._ticks[first, behind] = self._ticks[first + 1, behind] + way.ticks

    def of(self, first: int, target: int) -> Staircase:
        return single(self._nbytes[first, target], self._ticks[first, target], 0)

    def side(self, first: int, last: int) -> Side:
        """P(first, last) as the segment of a cut."""
        return Side(self.of(first, last), 0, None)

    def times(self, first: int, last: int) -> Whole:
        """Ticks of P(first, e) at every edge, for e from `first` to `last`."""
        row = first, slice(first, last + 1)
        return np.where(self.edges >= self._nbytes[row][:, None], self._ticks[row][:, None], LARGEST)

    def lost(self, first: int, last: int) -> Whole:
        return np.zeros(last + 1 - first, dtype=np.int64)
