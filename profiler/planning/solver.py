"""Solves a chain for the best plan at every memory size; each plan is checked by the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec
import numpy as np

from profiler.planning import dp_table
from profiler.planning.chain import Chain, Item, Plan
from profiler.planning.dp_table import LARGEST, Costs, ParetoFront, Points, Whole, lowest
from profiler.planning.simulator import simulate

DEEPEST = 8  # every level nests a checkpoint call, and a hundred of them end in RecursionError
TOLERANCE = 1e-9  # seconds by which sums of floats may differ from sums of whole picoseconds

LONGER, ALONE, OPTIONS = 0, 1, 2  # treatments of a stage: plain, with any backward; a segment alone; the save options

Parts = dict[int, list[Points]]  # by treatment of the first stage


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


def _plan(costs: Costs, tables: Sequence[dp_table.Inner], nbytes: int) -> Plan:
    """Return the fastest plan within so many bytes; `tables` are of the whole chain, a segment of it, and so on."""
    options: list[tuple[int, str]] = []

    def best_items(first: int, target: int, nbytes: int, level: int) -> tuple[Item, ...]:
        items: list[Item] = []
        while first < target:
            front = tables[min(level, len(tables) - 1)].of(first, target)  # the last serves all deeper levels
            at = front.at(nbytes)
            nbytes, choice = int(front.nbytes[at]), int(front.choices[at])
            if choice > 0:
                last = first + choice - 1
                items.append(best_items(first, last, nbytes, level + 1))
                nbytes -= costs.output[last]
            else:
                last = first
                way = costs.keeps[first][-choice]
                items.append(first - 1)
                options.extend([(first - 1, way.name)] if way.name is not None else [])
                nbytes -= way.saved
            first = last + 1
        return tuple(items) if target > costs.num_stages else (*items, target - 1)

    items = best_items(1, costs.num_stages + 1, nbytes, 0)
    return Plan(items=items, options=tuple(options))


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
    inner: list[dp_table.Inner] = [] if levels is None else [dp_table.KeptIntervals(costs)]
    for _ in range(1 if levels is None else levels - 1):  # of any depth: one table that serves itself
        deeper = dp_table.Table(costs, edges, inner=inner[0] if inner else None, points=points)
        inner.insert(0, deeper.fill(range(1, whole + 1)))
    end = dp_table.Table(costs, edges, inner=inner[0], points=points).fill([whole + 1])
    return Frontier(chain, costs, end.of(1, whole + 1), partial(_plan, costs, (end, *inner)))


def best(frontier: Frontier, budget: int) -> Point | None:
    """Return the fastest plan within a budget in bytes; None if none fits."""
    fitting = sum(peak <= budget for peak in frontier.peak_bytes)
    return frontier.point(fitting - 1) if fitting else None


def _edges(costs: Costs, number: int) -> Whole:
    """Return the grid that decides what to merge: finer edges merge less and look up more."""
    least = max(1, min(costs.last(stage)[0] for stage in range(1, costs.num_stages + 1)))
    spread = np.geomspace(least, costs.most + 1, number - 1).round()
    return np.unique(np.concatenate([[-1], spread]).astype(np.int64))


class OffloadTable:
    """Pareto fronts P(s) of the stages from s to the end of the chain, by what the output of s - 1 holds.

    Inputs of checkpointed segments may wait in host memory. The input of a segment s..r has landed where its forward
    ends, and is fetched when the gradient of the output of stage r + 1 arrives: it is on the device again through the
    backward of r + 1, and through its recompute if it is a segment alone. So what a fetch adds depends on r + 1 and on
    how that is treated, and on nothing further: P(s) has a front for each treatment of s. No two copies overlap, so
    that waits are known segment by segment. Exact among plans with checkpoints of one level.

    Memory is counted without what is held before s. A choice is -number of a way to keep s, or the length of a segment
    times a base, plus the treatment of the stage after it and 1 if the segment's input waits in host memory.
    """

    def __init__(self, costs: Costs, edges: Whole, *, points: int | None, waiting: int | None = None) -> None:
        """`waiting`: only inputs of segments that begin at stages up to this one may wait in host memory."""
        self._costs, self._edges, self._points = costs, edges, points
        self._waiting = costs.num_stages if waiting is None else waiting
        self._inner = dp_table.KeptIntervals(costs)
        self._output = np.array(costs.output)
        self._base = OPTIONS + max(map(len, costs.keeps))  # above every treatment + 1
        self._by_held: list[dict[int, ParetoFront]] = [{} for _ in costs.output]  # [s][what the output of s - 1 holds]
        self._treated: list[dict[int, ParetoFront]] = [{} for _ in costs.output]  # [s][treatment of s]
        self._any, self._fetching = (_Rows(edges, (costs.num_stages + 1) * number) for number in (1, self._base))
        self._lost = 0
        for first in range(costs.num_stages + 1, 0, -1):
            self._solve(first)

    @property
    def whole(self) -> ParetoFront:
        """The front of the whole chain."""
        return self._by_held[1][self._costs.output[0]]

    def plan(self, nbytes: int) -> Plan:
        """Return the fastest plan within so many bytes."""
        costs, front, first, held = self._costs, self.whole, 1, self._costs.output[0]
        items, options, offloaded = list[Item](), list[tuple[int, str]](), list[int]()
        while first <= costs.num_stages:
            at = front.at(nbytes)
            nbytes, choice = int(front.nbytes[at]), int(front.choices[at])
            if choice <= 0:
                way = costs.keeps[first][-choice]
                items.append(first - 1)
                options += [(first - 1, way.name)] if way.name is not None else []
                nbytes, held, first = nbytes - way.saved, way.freed, first + 1
                front = self._by_held[first][held]
                continue
            length, treatment = divmod(choice, self._base)
            items.append(tuple(range(first - 1, first + length - 1)))
            if treatment:
                offloaded.append(first - 1)
                nbytes += held
            first += length
            held = costs.output[first - 1]
            nbytes -= held
            front = self._treated[first][treatment - 1] if treatment else self._by_held[first][held]
        return Plan(items=tuple(items), options=tuple(options), offloaded=tuple(offloaded))

    def _solve(self, first: int) -> None:
        """Find the fronts of all plans from this stage on."""
        costs, before = self._costs, self._costs.output[first - 1]
        here = self._here(first) if first <= costs.num_stages else {LONGER: dp_table.single(0, 0, 0)}
        helds = {before, *(way.freed for way in costs.keeps[first - 1])}
        away = {held: self._away(first, held, max(helds), here) for held in helds}
        lost = self._lost
        for held in helds:
            parts = [front.points() for front in here.values()]
            parts += [front.points(held) for front in away[held].values()]
            self._by_held[first][held] = self._front(parts, lost)
        self._any.add(self._by_held[first][before], first, before, LONGER, 0, 0)
        for treatment, front in here.items() if costs.fetches[first] else ():
            parts = [front.points()]
            parts += [away[before][treatment].points(before)] if treatment in away[before] else []
            self._treated[first][treatment] = self._front(parts, lost)
            # what the stage needs while a copy is fetched, and the ticks until what is fetched is needed
            if treatment == ALONE:
                nbytes, ticks, _ = costs.last(first)
            else:
                way = costs.keeps[first][max(0, treatment - OPTIONS + 1)]
                nbytes = max(way.backward + costs.left[first], way.at_gradient + costs.left[first + 1])
                ticks = way.backward_ticks
            self._fetching.add(self._treated[first][treatment], first, before, treatment, nbytes, ticks)

    def _front(self, parts: list[Points], lost: int) -> ParetoFront:
        front = lowest(parts)
        front.lost = lost
        front = dp_table.thinned(front, self._points)
        self._lost = max(self._lost, front.lost)
        return front

    def _here(self, first: int) -> dict[int, ParetoFront]:
        """Return the fronts of plans whose first item has its input on the device, by treatment of the first stage."""
        costs, kept = self._costs, list[Points]()
        for number, way in enumerate(costs.keeps[first]):
            behind, floor = self._by_held[first + 1][way.freed], costs.keep_floor(first, costs.num_stages + 1, way)
            nbytes = np.maximum(behind.nbytes + way.saved, floor)
            kept.append(Points(nbytes=nbytes, ticks=behind.ticks + way.ticks, choice=-number))
        plain, *options = kept
        rival = lowest([plain])
        parts = {OPTIONS + number: [points] for number, points in enumerate(options)}
        parts |= self._segments(first, self._any, {LONGER: rival.after(rival.counts(self._edges), LARGEST)})
        parts[LONGER] = [plain, *parts.get(LONGER, [])]
        return {treatment: lowest(points) for treatment, points in parts.items()}

    def _away(self, first: int, held: int, most: int, here: dict[int, ParetoFront]) -> dict[int, ParetoFront]:
        """Return the fronts of plans whose first item's input waits in host memory, by treatment of the first stage.

        Their memory includes what the input held, which is freed where its copy has landed. What is not faster than
        `here` even with `most` bytes less is left out.
        """
        if first == 1 or first > self._waiting:
            return {}
        rivals = {key: front.after(front.counts(self._edges - most), LARGEST) for key, front in here.items()}
        parts = self._segments(first, self._fetching, rivals, held=held)
        return {treatment: lowest(points) for treatment, points in parts.items()}

    def _segments(self, first: int, rows: _Rows, rivals: dict[int, Whole], *, held: int | None = None) -> Parts:
        """Return the points of all segments that begin at `first`; `held` if their input waits in host memory."""
        costs = self._costs
        plain = costs.plain_forward(first, costs.num_stages + 1)
        start = rows.since(first + len(plain))
        after = rows.stages[start : rows.number]
        if not len(plain) or not len(after):
            return {}
        lengths, inner = after - first, self._inner.segments(first, first + len(plain) - 1)
        plain, backward = plain[lengths - 1], np.asarray(inner.floors)[lengths - 1]
        forward = costs.forward_sums(first, int(lengths.max()))[lengths - 1]
        ticks, floors = forward + np.asarray(inner.ticks)[lengths - 1], np.maximum(plain, backward)
        if held is not None:
            whole, copy = costs.output[first - 1], costs.copy_ticks[first - 1]
            fetched = whole + self._output[after - 1] + rows.nbytes[start : rows.number]
            floors = np.maximum.reduce([held + plain, whole + backward, fetched])
            ticks += np.maximum(0, copy - forward) + np.maximum(0, copy - rows.ticks[start : rows.number])
        parts: Parts = {}
        for treatment in (ALONE, LONGER):
            (cuts,) = ((lengths == 1) == (treatment == ALONE)).nonzero()
            if not len(cuts):
                continue
            numbers = start + cuts
            outer = dp_table.Sides(
                fronts=rows.fronts, numbers=numbers, counts=rows.counts, held=self._output[after[cuts] - 1]
            )
            made = dp_table.Cuts(
                outer=outer, inner=None, floors=floors[cuts], ticks=ticks[cuts], times=rows.times[numbers], lost=cuts
            )
            for points in dp_table.merged(made, [rivals[treatment]] if treatment in rivals else [], self._edges):
                cut = int(cuts[points.choice - 1])
                choice = int(lengths[cut]) * self._base + (held is not None) * (1 + int(rows.treatments[start + cut]))
                parts.setdefault(treatment, []).append(Points(nbytes=points.nbytes, ticks=points.ticks, choice=choice))
        return parts


class _Rows:
    """The fronts that may follow a segment, in descending order of their first stage."""

    def __init__(self, edges: Whole, most: int) -> None:
        self._edges = edges
        self.number = 0
        self.fronts: list[ParetoFront] = []
        self.stages, self.treatments, self.nbytes, self.ticks = np.empty((4, most), dtype=np.int64)
        self.times = np.empty((most, len(edges)), dtype=np.int64)  # at each edge, with the input of the first stage
        self.counts = np.empty((most, len(edges)), dtype=np.int32)  # points up to each edge

    def add(self, front: ParetoFront, stage: int, held: int, treatment: int, nbytes: int, ticks: int) -> None:
        """Add a front whose first stage's input is of `held` bytes; `nbytes` and `ticks` are those of a fetch there."""
        number, counts = self.number, front.counts(self._edges - held)
        self.fronts.append(front)
        self.stages[number], self.treatments[number] = stage, treatment
        self.nbytes[number], self.ticks[number] = nbytes, ticks
        self.times[number], self.counts[number] = front.after(counts, LARGEST), counts
        self.number += 1

    def since(self, stage: int) -> int:
        """Return the number of the first front that begins at this stage or one before it."""
        return int((-self.stages[: self.number]).searchsorted(-stage))
