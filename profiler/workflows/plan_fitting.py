"""Finds the fastest plan whose step, measured, rehearsed or traced, fits a budget."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from profiler.analysis import progress
from profiler.core import plan_file
from profiler.core.case import Calibration, Case, Choice, Trial
from profiler.core.record import Readings, Record, evidence
from profiler.core.units import bytes_text
from profiler.engines import Engine
from profiler.planning import candidates
from profiler.planning.chain import Chain
from profiler.planning.plan import plan_file_of
from profiler.planning.solver import Frontier, Point, best

COUNTED = ("ok", "invalid")  # outcomes of steps whose bytes were read; the comparison reports wrong gradients
TRIES = 5  # plans that are tried until one fits
REHEARSED_TRIES = 10  # as a rehearsed step takes a moment
NEXT_TRIES = 3  # of them: the next smaller plans, which may not need as much besides; then what is needed is kept
BOLDER = 3  # faster plans that are tried, where the costs are too high
MEMORY = ("memory",)


def peak_bytes(readings: Readings) -> int | None:
    return readings.peak_bytes


class FittedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest plan that fits, and what its step needs."""

    point: Point
    needed_bytes: int | None  # measured, rehearsed or traced; None where none could be had
    reserve_bytes: int = 0  # part of the budget, for what the stages' costs do not include
    by_rule: bool = False  # a uniform split or similar: the steps of all frontier plans need more than their costs say
    records: tuple[Record, ...] = ()  # of the step if it was rehearsed; if gradients were compared, of `none` and it


def fit_plan(
    engine: Engine,
    case: Case,
    chain: Chain,
    frontier: Frontier,
    *,
    budget_bytes: int,
    path: Path,
    calibration: Calibration | None,
    measure: bool,
    say: Callable[[str], None] = lambda text: None,
    need: Callable[[Readings], int | None] = peak_bytes,
    passes: tuple[str, ...] = MEMORY,
) -> FittedPlan | None:
    """Return the fastest plan whose step fits, measured or else traced; its file is left at `path`.

    Steps of a rehearsed case are rehearsed, whatever `measure` says, and one that fails does not fit. If a step needs
    more than the stages' costs say, the difference is held in reserve and another plan is chosen; `say` is called if
    that was measured or rehearsed. `need` gives what of a step has to fit; `passes` are those that run it. Returns None
    if not even the smallest plan fits, which is tried in any case.
    """
    steps = _Steps(engine, case, chain, budget_bytes, calibration, passes, need, measure=measure)
    most, reserve, smallest = candidates.cost_limit(chain, budget_bytes), 0, frontier.peak_bytes[0]
    below, tries = most, REHEARSED_TRIES if case.is_rehearsed else TRIES
    for tries_left in reversed(range(tries)):
        point = best(frontier, min(below, most - reserve)) if tries_left else None
        point = point or frontier.point(0)  # also if its costs, which may be too high, do not fit
        step = steps.run(point, path)
        if steps.fits(step):
            fitted = FittedPlan(
                point=point, needed_bytes=step.needed_bytes, reserve_bytes=reserve, records=step.records
            )
            return _bolder(steps, frontier, fitted, path) or fitted
        if point.peak_bytes == smallest:
            return None
        if step.told:
            say(f"{step.told}: planning again")
        if step.has_room and case.is_rehearsed and tries_left >= tries - NEXT_TRIES:
            below = point.peak_bytes - 1
        elif step.has_room:
            reserve = max(reserve, (step.needed_bytes or 0) - point.peak_bytes, most - point.peak_bytes + 1)
        else:
            most = (point.peak_bytes + smallest) // 2  # running out of memory does not say how much there is
    return None


def fit_rule(
    engine: Engine,
    case: Case,
    chain: Chain,
    *,
    budget_bytes: int,
    path: Path,
    calibration: Calibration | None,
    measure: bool,
    passes: tuple[str, ...] = MEMORY,
) -> FittedPlan | None:
    """Return the fastest uniform split, first N or every j-th whose step fits; other arguments are as in `fit_plan`.

    These are tried before a budget is refused, since costs may mislead the solver.
    """
    steps = _Steps(engine, case, chain, budget_bytes, calibration, passes, peak_bytes, measure=measure)
    found = filter(None, (candidates.best_of(chain, kind, budget_bytes) for kind in candidates.KINDS))
    for _, plan, cost in sorted(found, key=lambda candidate: candidate[2].step_seconds):
        point = Point(peak_bytes=cost.peak_bytes, step_seconds=cost.step_seconds, plan=plan)
        step = steps.run(point, path)
        if steps.fits(step):
            return FittedPlan(point=point, needed_bytes=step.needed_bytes, by_rule=True, records=step.records)
    return None


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step under a plan, and what it needs."""

    point: Point
    needed_bytes: int | None = None  # measured or traced; None where neither could be had
    has_room: bool = True  # False where the device ran out of memory
    told: str = ""  # what happened, in words, if it was run
    records: tuple[Record, ...] = ()  # as those of the fitted plan


class _Steps:
    """Runs steps under plans, measured or traced, against one budget."""

    def __init__(  # noqa: PLR0917
        self,
        engine: Engine,
        case: Case,
        chain: Chain,
        budget_bytes: int,
        calibration: Calibration | None,
        passes: tuple[str, ...],
        need: Callable[[Readings], int | None],
        *,
        measure: bool,
    ) -> None:
        self._engine, self._case, self._chain, self._calibration = engine, case, chain, calibration
        self.budget_bytes = budget_bytes
        self._passes, self._need = passes if measure or case.is_rehearsed else (), need
        self._before: list[Record] = []  # of the step without checkpointing, once gradients were compared with it

    def run(self, point: Point, path: Path) -> _Step:
        """Run a step under the plan, if asked for and possible, else trace it; its file is left at `path`."""
        plan_file.write(plan_file_of(self._chain, point.plan), path)
        if self._passes:
            compares = "equality" in self._passes
            cases = [*([self._case.baseline] if compares else []), under(self._case, path)]
            *before, record = self._engine.run([Trial(case=case, passes=self._passes) for case in cases], self._before)
            self._before = before or self._before
            needed, peak = self._need(record.readings), bytes_text(point.peak_bytes)
            if record.outcome == "out_of_memory":
                return _Step(point=point, has_room=False, told=f"the device has no room for a plan of {peak}")
            if record.outcome in COUNTED and needed is not None:
                told = f"the plan was {evidence(record.case, record.environment)} at {bytes_text(needed)}"
                is_settled = all(one.outcome not in progress.LOST for one in self._before)
                records = (*self._before, record) if is_settled and (compares or self._case.is_rehearsed) else ()
                return _Step(point=point, needed_bytes=needed, told=f"{told}, by its costs {peak}", records=records)
            if self._case.is_rehearsed:
                how = f"{record.outcome.replace('_', ' ')}, {record.detail}"
                return _Step(point=point, has_room=False, told=f"the step under a plan of {peak} did not run: {how}")
        needed = traced_need(self._engine, self._case, path, self._calibration, self._need)
        return _Step(point=point, needed_bytes=needed)

    def fits(self, step: _Step) -> bool:
        """Whether the step fits the budget; by its costs, if neither a device nor a trace gave its need."""
        needed = step.point.peak_bytes if step.needed_bytes is None else step.needed_bytes
        return step.has_room and needed <= self.budget_bytes


def _bolder(steps: _Steps, frontier: Frontier, fitted: FittedPlan, path: Path) -> FittedPlan | None:
    """Return a faster plan that fits by its own step, if the last needs less than its costs, as with skips.

    A plan that does not fit is followed by the next that is smaller by what its step needs too much.
    """
    spare = fitted.point.peak_bytes - (fitted.needed_bytes or fitted.point.peak_bytes)
    limit, bold = steps.budget_bytes + spare, path.with_name(f"bold-{path.name}")
    for _ in range(BOLDER if spare > 0 else 0):
        point = best(frontier, limit)
        if point is None or point.step_seconds >= fitted.point.step_seconds:
            return None
        step = steps.run(point, bold)
        if steps.fits(step):
            bold.replace(path)
            return FittedPlan(point=point, needed_bytes=step.needed_bytes, records=step.records)
        bold.unlink()
        limit = point.peak_bytes - max(1, (step.needed_bytes or 0) - steps.budget_bytes)
    return None


def traced_need(
    engine: Engine,
    case: Case,
    path: Path,
    calibration: Calibration | None,
    need: Callable[[Readings], int | None] = peak_bytes,
) -> int | None:
    """Trace a step under the plan in a file; return its peak or another need, None if it cannot be traced."""
    device = case.foreseen.device
    fake = msgspec.structs.replace(under(case, path), device=device)
    (record,) = engine.run([Trial(case=fake, passes=MEMORY, calibration=calibration)])
    return need(record.readings) if record.outcome == "ok" else None


def under(case: Case, path: Path) -> Case:
    """Return the case under the plan in a file."""
    return msgspec.structs.replace(case, strategy=Choice.of("plan", {"file": path}))
