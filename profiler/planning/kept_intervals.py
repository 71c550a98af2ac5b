"""Checkpointed segments in which every stage is kept: one step each, all of them at once."""

from __future__ import annotations

import numpy as np

from profiler.planning.costs import LARGEST, Costs
from profiler.planning.dp_table import Segments
from profiler.planning.pareto import Staircase, single


class Kept:
    """P(s, t) where nothing is checkpointed."""

    def __init__(self, costs: Costs) -> None:
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

    def segments(self, first: int, last: int) -> Segments:
        """P(first, e) for e from `first` to `last`."""
        row = first, slice(first, last + 1)
        return Segments(sides=None, times=0, floors=self._nbytes[row], ticks=self._ticks[row], lost=0)
