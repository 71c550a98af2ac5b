"""Finds the fastest plan whose step, measured, rehearsed or traced, fits a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from profiler.analysis import progress
from profiler.core import gpu_specs, plan_file
from profiler.core.case import Case, Choice, Trial
from profiler.core.plan_file import PlanFile
from profiler.core.record import Readings, Record, evidence
from profiler.core.trace_data import host_rate
from profiler.core.units import bytes_text
from profiler.planning import simulator
from profiler.planning.chain import Chain, Plan, host_bytes, plan_file_of, with_sure_options
from profiler.planning.solver import Frontier, Point, best, frontier
from profiler.workflows import SILENT, Screen
from profiler.workflows.stages import Step

COUNTED = ("ok", "invalid")  # outcomes of steps whose bytes were read; the comparison reports wrong gradients
TRIES = 5  # plans that are tried until one fits
REHEARSED_TRIES = 10  # as a rehearsed step takes a moment
NEXT_TRIES = 3  # of them: the next smaller plans, which may not need as much besides; then what is needed is kept
BOLDER = 3  # faster plans that are tried, where the costs are too high
DEPTHS = (1, 2, 4, 8)  # levels of checkpoints, tried in turn unless the user says how deep
POINTS, LONG = 1000, 200  # of the frontier of a long chain, and its stages
HELPS = 0.99  # of the bytes without a lever: one that saves less is not proposed
FASTER = 0.99  # of the seconds without: so is a plan that moves inputs to the host
MEMORY = ("memory",)


class TriedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, and what a step under it needs."""

    point: Point
    needed_bytes: int | None = None  # measured, rehearsed or traced; None where none could be had
    has_room: bool = True  # False where the device ran out of memory, or the rehearsed step did not run
    told: str = ""  # what happened, in words, if it was run
    records: tuple[Record, ...] = ()  # of the step if it was rehearsed; if gradients were compared, of `none` and it
    reserve_bytes: int = 0  # part of the budget, for what the stages' costs do not include
    by_rule: bool = False  # a uniform split or similar: the steps of all frontier plans need more than their costs say

    def fits(self, budget_bytes: int) -> bool:
        """Whether the step fits the budget; by its costs, if neither a device nor a trace gave its need."""
        needed = self.point.peak_bytes if self.needed_bytes is None else self.needed_bytes
        return self.has_room and needed <= budget_bytes


Try = Callable[[Point], TriedPlan]


def fastest(
    run: Try, chain: Chain, limit: int, *, gpu: str | None = None, levels: int | None = None, beyond: int = 0,
    is_rehearsed: bool = False, most_host_bytes: int | None = None, screen: Screen = SILENT,
) -> tuple[Frontier, TriedPlan | None]:  # fmt: skip
    """Return the fastest plan whose step fits, as by `fit_plan`, and the last frontier that was looked at.

    With a `gpu` inputs wait in host memory where that is worth it. Without one, options that may be no faster than a
    checkpoint are tried where nothing else fits, since they may need less.
    """
    sure = with_sure_options(chain)
    fit = partial(fit_plan, run, budget_bytes=limit, beyond=beyond, is_rehearsed=is_rehearsed, say=screen.say)
    for number, points in enumerate(frontiers(sure, levels, screen)):
        fitted = fit(points)
        left = limit - (fitted.reserve_bytes if fitted else beyond)
        away = offloading(copied(sure, gpu), left, most_host_bytes) if gpu and not number else None
        if away:
            point = best(away, left) or away.point(0)
            seconds = FASTER * fitted.point.step_seconds if fitted else 0.0
            is_lower = away.peak_bytes[0] < HELPS * points.peak_bytes[0]
            if moves_enough(chain, point.plan) and (point.step_seconds < seconds if fitted else is_lower):
                offloaded = fit(away)
                fitted = offloaded if offloaded and not (fitted and offloaded.point.step_seconds > seconds) else fitted
        if fitted:
            return points, fitted
    for points in frontiers(chain, levels, screen) if sure != chain and not gpu else ():
        if fitted := fit(points):
            break
    return points, fitted


def moves_enough(chain: Chain, plan: Plan) -> bool:
    """Whether a plan moves at least 1 % of the peak to the host; less is not worth the copies."""
    return host_bytes(chain, plan) >= (1 - HELPS) * chain.traced_peak_bytes


def copied(chain: Chain, gpu: str) -> Chain:
    """Return the chain with the rate of copies to host memory of a GPU; of 0 where that is not known."""
    rate = host_rate(gpu_specs.find(gpu)) if gpu in gpu_specs.names() else 0.0
    return msgspec.structs.replace(chain, host_rate=rate)


def offloading(chain: Chain, budget_bytes: int, most_host_bytes: int | None = None) -> Frontier | None:
    """Return the frontier of plans with inputs in host memory, at the chain's rate of copies; None if it has none.

    Only the inputs of so many first stages may wait there that the fastest plan within the budget takes at most
    `most_host_bytes` of it.
    """
    if not chain.host_rate:
        return None
    low, at, high, found = 0, len(chain.stages), len(chain.stages) + 1, None
    while high - low > 1:
        points = frontier(chain, points=POINTS if len(chain.stages) > LONG else None, offload=True, waiting=at)
        plan = (best(points, budget_bytes) or points.point(0)).plan
        if most_host_bytes is None or host_bytes(chain, plan) <= most_host_bytes:
            low, found = at, points
        else:
            high = at
        at = (low + high) // 2
    return found


def frontiers(chain: Chain, levels: int | None = None, screen: Screen = SILENT) -> Iterator[Frontier]:
    """Yield the frontier of so many levels, or of each depth, until deeper plans can be no smaller."""
    _, floor = simulator.largest_stage(chain)
    smallest: int | None = None
    for depth in (levels,) if levels else DEPTHS:
        with screen.doing(f"looking for the fastest plans, {depth} deep"):
            points = frontier(chain, levels=depth, points=POINTS if len(chain.stages) > LONG else None)
        if smallest is not None and points.peak_bytes[0] >= smallest:
            return
        yield points
        smallest = points.peak_bytes[0]
        if smallest <= floor:
            return


def fit_plan(
    run: Try,
    points: Frontier,
    budget_bytes: int,
    *,
    beyond: int = 0,
    is_rehearsed: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> TriedPlan | None:
    """Return the fastest plan whose step fits; `run` runs or traces a step under a plan.

    If a step needs more than the stages' costs say, the difference is held in reserve (from the first try on `beyond`)
    and another plan is chosen, of rehearsed ones first the next smaller; `say` is called if the step was run. Returns
    None if not even the smallest plan fits, which is tried in any case.
    """
    most, smallest = simulator.cost_limit(points.chain, budget_bytes), points.peak_bytes[0]
    reserve, below, failed = beyond, most, 2 * most
    tries, next_tries = (REHEARSED_TRIES, NEXT_TRIES) if is_rehearsed else (TRIES, 0)
    for tries_left in reversed(range(tries)):
        point = best(points, min(below, most - reserve)) if tries_left else None
        tried = run(point or points.point(0))  # also if its costs, which may be too high, do not fit
        point = tried.point
        if tried.fits(budget_bytes):
            tried = msgspec.structs.replace(tried, reserve_bytes=reserve)
            return _bolder(run, points, tried, budget_bytes, below=failed) or tried
        if point.peak_bytes == smallest:
            return None
        failed = min(failed, point.peak_bytes)
        if tried.told:
            say(f"{tried.told}: planning again")
        if not tried.has_room:
            most = (point.peak_bytes + smallest) // 2  # running out of memory does not say how much there is
        elif tries_left >= tries - next_tries:
            below = point.peak_bytes - 1
        else:
            reserve = max(reserve, (tried.needed_bytes or 0) - point.peak_bytes, most - point.peak_bytes + 1)
    return None


def _bolder(run: Try, points: Frontier, fitted: TriedPlan, budget_bytes: int, *, below: int) -> TriedPlan | None:
    """Return a faster plan that fits by its own step too, where the last left room.

    A plan that does not fit is followed by the next that is smaller by what its step needs too much, or by half of
    what it has on the last that fits. Plans of `below` bytes did not fit before.
    """
    limit = fitted.point.peak_bytes + budget_bytes - (fitted.needed_bytes or budget_bytes)
    for _ in range(BOLDER):
        point = best(points, min(limit, below - 1))
        if point is None or point.step_seconds >= fitted.point.step_seconds:
            return None
        tried = run(point)
        if tried.fits(budget_bytes):
            return tried
        halved = (point.peak_bytes + fitted.point.peak_bytes) // 2
        limit = max(halved, point.peak_bytes - max(1, (tried.needed_bytes or 0) - budget_bytes))
    return None


def fit_rule(run: Try, chain: Chain, budget_bytes: int) -> TriedPlan | None:
    """Return the fastest uniform split, first N or every j-th whose step fits, since costs may mislead the solver."""
    found = filter(None, (simulator.best_of(chain, kind, budget_bytes) for kind in simulator.KINDS))
    for way in sorted(found, key=lambda way: way.cost.step_seconds):
        tried = run(Point(peak_bytes=way.cost.peak_bytes, step_seconds=way.cost.step_seconds, plan=way.plan))
        if tried.fits(budget_bytes):
            return msgspec.structs.replace(tried, by_rule=True)
    return None


class Steps:
    """Runs a step under plans of its chain: by these passes, or none to trace it.

    Steps of a rehearsed case are rehearsed in any case. `need` gives what of a step has to fit.
    """

    def __init__(
        self, step: Step, chain: Chain, *, passes: tuple[str, ...] = MEMORY,
        need: Callable[[Readings], int | None] = attrgetter("peak_bytes"),
    ) -> None:  # fmt: skip
        self._step, self._chain, self._need = step, chain, need
        self._passes = passes or (MEMORY if step.case.is_rehearsed else ())
        self._before: list[Record] = []  # of the step without checkpointing, once gradients were compared with it

    def run(self, point: Point) -> TriedPlan:
        """Run a step under the plan, if asked for and possible, else trace it; not one of too much host memory."""
        step = self._step
        if step.most_host_bytes is not None and host_bytes(self._chain, point.plan) > step.most_host_bytes:
            return TriedPlan(point=point, has_room=False)
        with written(plan_file_of(self._chain, point.plan)) as path:
            case = under(step.case, path)
            if self._passes and (tried := self._run(point, case)):
                return tried
            (record,) = step.engine.run([Trial(case=case.foreseen, passes=MEMORY, calibration=step.calibration())])
            return TriedPlan(point=point, needed_bytes=self._need(record.readings) if record.outcome == "ok" else None)

    def _run(self, point: Point, case: Case) -> TriedPlan | None:
        """Run the case's step; None if it is to be traced instead."""
        compares, is_rehearsed = "equality" in self._passes, case.is_rehearsed
        cases = [*([case.baseline] if compares else []), case]
        *before, record = self._step.engine.run([Trial(case=one, passes=self._passes) for one in cases], self._before)
        self._before = before or self._before
        needed, peak = self._need(record.readings), bytes_text(point.peak_bytes)
        if record.outcome == "out_of_memory":
            return TriedPlan(point=point, has_room=False, told=f"the device has no room for a plan of {peak}")
        if record.outcome in COUNTED and needed is not None:
            told = f"the plan was {evidence(record.case, record.environment)} at {bytes_text(needed)}"
            is_settled = all(one.outcome not in progress.LOST for one in self._before)
            records = (*self._before, record) if is_settled and (compares or is_rehearsed) else ()
            return TriedPlan(point=point, needed_bytes=needed, told=f"{told}, by its costs {peak}", records=records)
        if not is_rehearsed:
            return None
        how = f"{record.outcome.replace('_', ' ')}, {record.detail}"
        return TriedPlan(point=point, has_room=False, told=f"the step under a plan of {peak} did not run: {how}")


@contextmanager
def written(plan: PlanFile) -> Iterator[Path]:
    """Yield a file with the plan, which is gone afterwards."""
    with TemporaryDirectory(prefix="gcprof-") as folder:
        path = Path(folder) / plan_file.USUAL
        plan_file.write(plan, path)
        yield path


def under(case: Case, path: Path) -> Case:
    """Return the case under the plan in a file."""
    return msgspec.structs.replace(case, strategy=Choice.of("plan", {"file": path}))
