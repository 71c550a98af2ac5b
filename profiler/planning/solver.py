"""Solves a chain for the best plan at every memory size; each plan is checked by the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from profiler.planning.chain import Chain
from profiler.planning.costs import Costs
from profiler.planning.dp_table import Inner, KeptIntervals, Table
from profiler.planning.offload_table import OffloadTable
from profiler.planning.pareto import ParetoFront, Whole
from profiler.planning.plan import Item, Plan
from profiler.planning.simulator import simulate

DEEPEST = 8  # every level nests a checkpoint call, and a hundred of them end in RecursionError
TOLERANCE = 1e-9  # seconds by which sums of floats may differ from sums of whole picoseconds


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One plan of the frontier, with its peak and time."""

    peak_bytes: int
    step_seconds: float
    plan: Plan


class Frontier:
    """The Pareto frontier of plans: memory rises, time falls."""

    def __init__(self, chain: Chain, costs: Costs, whole: ParetoFront, plan: Callable[[int], Plan]) -> None:
        """`whole` is the front of the whole chain; `plan` returns the fastest within so many of its bytes."""
        self.chain = chain
        self._plan = plan
        peaks = np.maximum(whole.nbytes + costs.always, costs.floor)
        first = max(0, int(peaks.searchsorted(costs.floor, "right")) - 1)  # the fastest of those at the floor
        self._nbytes = whole.nbytes[first:]
        self.peak_bytes: tuple[int, ...] = tuple(peaks[first:].tolist())
        self.step_seconds: tuple[float, ...] = tuple((whole.ticks[first:] / costs.second).tolist())
        self.lost_fraction = whole.lost / max(1, int(whole.ticks[-1]))  # no plan is faster by more; 0 is exact

    def __len__(self) -> int:
        return len(self.peak_bytes)

    def __iter__(self) -> Iterator[Point]:
        return map(self.point, range(len(self)))

    def point(self, index: int) -> Point:
        """Return one point with its plan, which is constructed here and checked by the simulator."""
        plan = self._plan(int(self._nbytes[index]))
        cost = simulate(self.chain, plan)
        assert cost.peak_bytes == self.peak_bytes[index], "the simulator finds another peak"
        assert abs(cost.step_seconds - self.step_seconds[index]) < TOLERANCE, "the simulator finds another time"
        return Point(peak_bytes=cost.peak_bytes, step_seconds=cost.step_seconds, plan=plan)


class Tables:
    """`tables[n]` solves depth n: 0 the whole chain, 1 a checkpointed segment, ...; the last serves deeper ones."""

    def __init__(self, costs: Costs, tables: tuple[Inner, ...]) -> None:
        self._costs, self._tables = costs, tables

    @property
    def whole(self) -> ParetoFront:
        """The front of the whole chain."""
        return self._tables[0].of(1, self._costs.num_stages + 1)

    def plan(self, nbytes: int) -> Plan:
        """Return the fastest plan within so many bytes."""
        options: list[tuple[int, str]] = []
        items = self._items((1, self._costs.num_stages + 1), nbytes, 0, options)
        return Plan(items=items, options=tuple(options))

    def _items(
        self, interval: tuple[int, int], nbytes: int, level: int, options: list[tuple[int, str]]
    ) -> tuple[Item, ...]:
        """Return the best items of an interval within so many bytes; save options are added to `options`."""
        table = self._tables[min(level, len(self._tables) - 1)]
        first, target = interval
        items: list[Item] = []
        while first < target:
            front = table.of(first, target)
            at = front.at(nbytes)
            nbytes, choice = int(front.nbytes[at]), int(front.choices[at])
            if choice > 0:
                last = first + choice - 1
                items.append(self._items((first, last), nbytes, level + 1, options))
                nbytes -= self._costs.output[last]
            else:
                last = first
                way = self._costs.keeps[first][-choice]
                items.append(first - 1)
                options += [(first - 1, way.name)] if way.name is not None else []
                nbytes -= way.saved
            first = last + 1
        return tuple(items) if target > self._costs.num_stages else (*items, target - 1)


def frontier(
    chain: Chain,
    *,
    levels: int | None = 1,
    points: int | None = None,
    offload: bool = False,
    waiting: int | None = None,
) -> Frontier:
    """Return the frontier of plans with checkpoints nested at most `levels` deep; None is any depth.

    With `offload`, and at the chain's rate of copies, inputs of segments may wait in host memory, at one level; with
    `waiting` only those of segments that begin at one of so many first stages. The plans are optimal among those with
    one copy under way; a chain whose `host_rate` is infinite gives a bound for all.

    `points` limits the points that each front keeps. Reported costs stay exact, but faster plans may be missed: by at
    most the result's `lost_fraction` of the fastest plan's time. None keeps all points, and is exact.
    """
    assert levels is None or 1 <= levels <= DEEPEST
    costs = Costs(chain)
    edges = _edges(costs, 1024 if levels == 1 else 160)
    if offload and chain.host_rate:
        assert levels == 1, "what is nested has its input on the device"
        offloading = OffloadTable(costs, edges, points=points, waiting=waiting)
        return Frontier(chain, costs, offloading.whole, offloading.plan)
    whole = costs.num_stages
    if levels is None:
        inner: list[Inner] = [Table(costs, edges, inner=None, points=points).fill(range(1, whole + 1))]
    else:
        inner = [KeptIntervals(costs)]
        for _ in range(levels - 1):
            deeper = Table(costs, edges, inner=inner[0], points=points)
            inner.insert(0, deeper.fill(range(1, whole + 1)))
    end = Table(costs, edges, inner=inner[0], points=points).fill([whole + 1])
    tables = Tables(costs, (end, *inner))
    return Frontier(chain, costs, tables.whole, tables.plan)


def best(frontier: Frontier, budget: int) -> Point | None:
    """Return the fastest plan within a budget in bytes; None if none fits."""
    fitting = sum(peak <= budget for peak in frontier.peak_bytes)
    return frontier.point(fitting - 1) if fitting else None


def _edges(costs: Costs, number: int) -> Whole:
    """Return the grid that decides what to merge: finer edges merge less and look up more."""
    least = max(1, min(costs.last(stage)[0] for stage in range(1, costs.num_stages + 1)))
    spread = np.geomspace(least, costs.most + 1, number - 1).round()
    return np.unique(np.concatenate([[-1], spread]).astype(np.int64))
