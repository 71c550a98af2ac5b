"""The recurrence over intervals of a chain: the fastest ways to run stages s..t backward, for every memory size.

Fronts of time and memory are falling step functions; sums of two are merged over every place to cut.

Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova (RR-9302), extended by outputs that are freed, recomputes that stop
early, gradients of parameters and save options. Memory is counted without the input of s. Exact: whole numbers, no
grid. A grid serves only to find which cuts can be best where, so that the others are not merged.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from profiler.planning.chain import Chain, SaveOption, Stage, fetches

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
    return ParetoFront(*np.array([[nbytes], [ticks], [choice]], dtype=np.int64))


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
    """Return the points of all cuts, each from the first to the last cell in which it is alive; they are unsorted."""
    first = alive.argmax(axis=1)
    last = alive.shape[1] - alive[:, ::-1].argmax(axis=1)
    apart = np.arange(len(alive_cuts)) * (edges[-1] + 1)  # shifts each cut, so that one search serves all
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


FINEST = 10**12  # ticks per second: whole picoseconds have the same sum in any order


class Keep:
    """One way to keep a stage: plainly or under a save option; in a recompute only plainly."""

    def __init__(self, stage: Stage, costs: Stage | SaveOption, second: int, *, in_recompute: bool = False) -> None:
        self.name = None if costs is stage else costs.name
        self.saved = costs.saved_bytes
        self.forward = costs.saved_bytes + costs.forward_extra_bytes
        self.backward = stage.output_bytes + costs.own_bytes + costs.backward_extra_bytes
        self.at_gradient = stage.output_bytes + costs.own_bytes  # when that of the output arrives
        self.freed = costs.saved_bytes - costs.own_bytes  # with the output
        self.backward_ticks = round(costs.backward_seconds * second)
        forward_seconds = stage.inner_seconds if in_recompute else costs.forward_seconds
        self.ticks = round(forward_seconds * second) + self.backward_ticks


class Costs:
    """Bytes and ticks of every stage; index 0 is the input, index n + 1 the loss."""

    def __init__(self, chain: Chain) -> None:
        stages = chain.stages
        self.num_stages = len(stages)
        self.second = second = _ticks_in_a_second(chain)
        self.output = [chain.input_bytes, *(stage.output_bytes for stage in stages), 0]
        self.keeps = [(), *(tuple(Keep(stage, way, second) for way in stage.ways) for stage in stages), ()]
        self._in_recomputes = [(), *((Keep(stage, stage, second, in_recompute=True),) for stage in stages), ()]
        self.forward_ticks = [0, *(round(stage.forward_seconds * second) for stage in stages), 0]
        self.plain_extra = [0, *(stage.plain_extra_bytes for stage in stages), 0]
        self.stop_bytes = [0, *(stage.own_bytes + stage.forward_extra_bytes for stage in stages), 0]
        self.stop_ticks = [
            0,
            *(round(stage.stop_seconds * second) + round(stage.backward_seconds * second) for stage in stages),
            0,
        ]
        kinds: dict[object, int] = {}
        self.kinds = [
            -1,
            *(kinds.setdefault(replace(stage, name="", blocks=()), len(kinds)) for stage in stages),
            -1,
        ]  # the same for equal stages
        self._forward_sums = np.array([*accumulate(self.forward_ticks)], dtype=np.int64)
        self._plain: list[Whole] = [np.empty(0, dtype=np.int64)]  # by first stage, computed on demand
        # By stage: the ticks of a copy of its output, and whether one can be fetched at its gradient
        self.copy_ticks = [round(nbytes / chain.host_rate * second) if chain.host_rate else 0 for nbytes in self.output]
        self.fetches = [False, *(fetches(chain, stage) for stage in range(len(stages))), False]
        self.pinned = [False, *(stage.pinned for stage in stages), False]
        left = [stage.gradient_bytes for stage in reversed(stages)]
        self.left = [0, *reversed([*accumulate(left)]), 0, 0]  # parameter gradients of this stage and all after it
        self.always = chain.static_bytes + chain.input_bytes
        self.floor = chain.floor_bytes
        transient = max(keep.forward + keep.backward for ways in self.keeps for keep in ways) + max(self.plain_extra)
        held = sum(max(keep.saved for keep in ways) for ways in self.keeps if ways) + sum(self.output)
        self.most = held + transient + self.left[1]  # no plan holds more
        assert self.most < LARGEST // (self.num_stages + 1)

    def ways(self, stage: int, target: int) -> tuple[Keep, ...]:
        """Return the ways to keep a stage; in a checkpointed run only the plain one.

        There PyTorch's selective checkpoint would keep its results from the first forward on.
        """
        return self.keeps[stage] if target > self.num_stages else self._in_recomputes[stage]

    def last(self, stage: int) -> tuple[int, int, int]:
        """Return bytes, ticks and choice of a segment's last stage alone; zeros for the loss."""
        if stage > self.num_stages:
            return 0, 0, 0
        behind = self.left[stage + 1]
        own = self.keeps[stage][0].backward + self.left[stage]
        return max(self.output[stage] + self.stop_bytes[stage] + behind, own), self.stop_ticks[stage], 0

    def keep_floor(self, stage: int, target: int, way: Keep) -> int:
        """Return the bytes that a kept stage needs in forward and backward, if the interval ends in `target`."""
        return max(self.output[target] + self.left[target + 1] + way.forward, way.backward + self.left[stage])

    def plain_forward(self, first: int, target: int) -> Whole:
        """Return the peak of a forward that saves nothing, from `first` to each stage before `target` or a pin."""
        while len(self._plain) <= first:
            begin = len(self._plain)
            last = next(
                (stage for stage in range(begin, self.num_stages + 1) if self.pinned[stage]), self.num_stages + 1
            )
            made = self.output[begin:last]
            needed = [
                sum(three) for three in zip([0, *made][: len(made)], made, self.plain_extra[begin:last], strict=True)
            ]
            self._plain.append(np.array([*accumulate(needed, max)], dtype=np.int64))
        return self._plain[first][: target - first] + (self.output[target] + self.left[target + 1])

    def forward_sums(self, first: int, number: int) -> Whole:
        """Return the ticks of the forward from `first` to each of so many stages."""
        sums: Whole = self._forward_sums[first : first + number] - self._forward_sums[first - 1]
        return sums


def _ticks_in_a_second(chain: Chain) -> int:
    """Return as many ticks per second as leave room for the slowest plan, which runs each forward once per stage."""
    number = len(chain.stages)
    ways = [way for stage in chain.stages for way in stage.ways]
    slowest = sum(number * way.forward_seconds + way.backward_seconds for way in ways)
    slowest += sum(stage.stop_seconds + stage.inner_seconds for stage in chain.stages) * number
    slowest += sum(2 * stage.output_bytes / chain.host_rate for stage in chain.stages) if chain.host_rate else 0
    second = FINEST
    while slowest * second > LARGEST / 2:
        second //= 10
    return second


class Segments(Struct, frozen=True, kw_only=True):
    """All checkpointed segments that begin at one stage, run backward."""

    sides: Sides | None  # None if each front is one point: in floors and ticks
    times: Whole | int  # (segment, edge)
    floors: Whole | int
    ticks: Whole | int
    lost: Whole | int


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

        Intervals with a pinned stage are solved only for the chain's end; those of equal stages with equal inputs share
        a front.
        """
        costs = self.costs
        for target in targets:
            loss = target > costs.num_stages
            for first in range(target, 0, -1):
                if costs.pinned[first] and not loss:
                    break
                behind = self._numbers[first + 1, target] if first < target else -1 - costs.left[target + 1]
                key = int(behind), costs.kinds[first], costs.output[first - 1]
                if key not in self._known:
                    self._add(self._solve(first, target), input_bytes=costs.output[first - 1])
                    self._known[key] = len(self._fronts) - 1
                self._numbers[first, target] = self._known[key]
        return self

    def _add(self, front: ParetoFront, *, input_bytes: int) -> None:
        number = len(self._fronts)
        if number == len(self._lost):  # double the room for fronts
            for name in ("_lost", "_here", "_behind", "_here_counts", "_behind_counts"):
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.empty_like(array)]))
        self._fronts.append(front)
        unsplit, behind = front.counts(self.edges), front.counts(self.edges - input_bytes)
        self._lost[number] = front.lost
        self._here[number] = front.after(unsplit, LARGEST)
        self._behind[number] = front.after(behind, LARGEST)
        self._here_counts[number] = unsplit
        self._behind_counts[number] = behind

    def _solve(self, first: int, target: int) -> ParetoFront:
        costs = self.costs
        if first == target:
            return single(*costs.last(target))
        behind, parts, kept_times = self.of(first + 1, target), list[Points](), list[Whole]()
        for number, way in enumerate(costs.ways(first, target)):  # the first stage kept; several may be at the floor
            floor = costs.keep_floor(first, target, way)
            nbytes = np.maximum(behind.nbytes + way.saved, floor)
            parts.append(Points(nbytes=nbytes, ticks=behind.ticks + way.ticks, choice=-number))
            times = behind.after(behind.counts(self.edges - way.saved), LARGEST) + way.ticks  # at every edge
            times[self.edges < floor] = LARGEST
            kept_times.append(times)
        lost = behind.lost
        forward = costs.plain_forward(first, target)
        if len(forward):
            cuts = self._cuts(first, target, forward)
            parts += merged(cuts, kept_times, self.edges)
            lost = max(lost, int(cuts.lost.max()))
        front = lowest(parts)
        front.lost = lost
        return thinned(front, self.points)

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


Inner = Table | KeptIntervals  # provides the costs of checkpointed segments
