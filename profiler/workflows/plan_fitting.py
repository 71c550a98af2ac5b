"""The fastest plan whose step, measured or traced, fits a budget."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from profiler.core import plan_file
from profiler.core.case import Calibration, Case, Choice, Trial
from profiler.core.record import Readings, evidence
from profiler.core.units import bytes_text
from profiler.engines import Engine
from profiler.planning import candidates
from profiler.planning.chain import Chain
from profiler.planning.plan import plan_file_of
from profiler.planning.solver import Frontier, Point, best

TRIES = 5  # plans that are tried until one fits


def peak_bytes(readings: Readings) -> int | None:
    return readings.peak_bytes


class FittedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest plan that fits, and what its step needs."""

    point: Point
    needed_bytes: int | None  # measured or traced; None where neither could be had
    reserve_bytes: int = 0  # of the budget, for what the stages' costs do not tell
    by_rule: bool = False  # a uniform split or the like: the steps of all of the frontier's need more than was costed


def fit_plan(  # noqa: PLR0913
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
) -> FittedPlan | None:
    """The fastest plan whose step fits, measured or else traced; its file is left at `path`.

    Where a step needs more than the stages' costs say, the difference is kept in reserve and the plan made anew; `say`
    is told where it was measured. `need` is what of a step has to fit. None where none fits, the smallest among them.
    """
    steps = _Steps(engine, case, chain, budget_bytes, calibration, measure, need, say)
    reserve, smallest = 0, frontier.peak_bytes[0]
    for tries_left in reversed(range(TRIES)):
        point = best(frontier, budget_bytes - reserve) if tries_left else None
        point = point or best(frontier, min(smallest, budget_bytes))
        if point is None:
            return None
        needed = steps.needed(point, path)
        if steps.fits(point, needed):
            fitted = FittedPlan(point=point, needed_bytes=needed, reserve_bytes=reserve)
            return _bolder(steps, frontier, fitted, path) or fitted
        if point.peak_bytes == smallest:
            return None
        reserve = max(reserve, (needed or 0) - point.peak_bytes, budget_bytes - point.peak_bytes + 1)
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
    say: Callable[[str], None],
) -> FittedPlan | None:
    """The fastest uniform split, first N or every j-th whose step fits, where costs mislead the solver; else as there.

    No plan is said to fit nowhere before these were looked at.
    """
    steps = _Steps(engine, case, chain, budget_bytes, calibration, measure, peak_bytes, say)
    found = filter(None, (candidates.best_of(chain, kind, budget_bytes) for kind in candidates.KINDS))
    for _, plan, cost in sorted(found, key=lambda candidate: candidate[2].step_seconds):
        point = Point(peak_bytes=cost.peak_bytes, step_seconds=cost.step_seconds, plan=plan)
        needed = steps.needed(point, path)
        if steps.fits(point, needed):
            return FittedPlan(point=point, needed_bytes=needed, by_rule=True)
    return None


class _Steps:
    """Steps under plans, measured or traced, against one budget."""

    def __init__(  # noqa: PLR0917
        self,
        engine: Engine,
        case: Case,
        chain: Chain,
        budget_bytes: int,
        calibration: Calibration | None,
        measure: bool,
        need: Callable[[Readings], int | None],
        say: Callable[[str], None],
    ) -> None:
        self._engine, self._case, self._chain, self._calibration = engine, case, chain, calibration
        self.budget_bytes = budget_bytes
        self._measure, self._need, self._say = measure, need, say

    def needed(self, point: Point, path: Path) -> int | None:
        """What a step needs, None where that cannot be had; the plan's file is left at `path`."""
        plan_file.write(plan_file_of(self._chain, point.plan), path)
        if not self._measure:
            return traced_need(self._engine, self._case, path, self._calibration, self._need)
        (record,) = self._engine.run([Trial(case=under(self._case, path), passes=("memory",))])
        if record.outcome == "out_of_memory":
            return max(point.peak_bytes, self.budget_bytes) + 1  # at least: the device has less than the budget
        peak = record.readings.peak_bytes if record.outcome == "ok" else None
        if peak is not None and peak > self.budget_bytes:
            kind, costed = evidence(record.case, record.environment), bytes_text(point.peak_bytes)
            self._say(f"the plan was {kind} at {bytes_text(peak)}, by its costs {costed}: planning again")
        return peak

    def fits(self, point: Point, needed: int | None) -> bool:
        """Whether the step does; by its costs, where no step could be had."""
        return (point.peak_bytes if needed is None else needed) <= self.budget_bytes


def _bolder(steps: _Steps, frontier: Frontier, fitted: FittedPlan, path: Path) -> FittedPlan | None:
    """Where a step needs less than the stages' costs say, as with skips: a faster plan that fits by its own step."""
    spare = fitted.point.peak_bytes - (fitted.needed_bytes or fitted.point.peak_bytes)
    point = best(frontier, steps.budget_bytes + spare) if spare > 0 else None
    if point is None or point.plan == fitted.point.plan:
        return None
    bold = path.with_name(f"bold-{path.name}")
    needed = steps.needed(point, bold)
    if not steps.fits(point, needed):
        bold.unlink()
        return None
    bold.replace(path)
    return FittedPlan(point=point, needed_bytes=needed)


def traced_need(
    engine: Engine,
    case: Case,
    path: Path,
    calibration: Calibration | None,
    need: Callable[[Readings], int | None] = peak_bytes,
) -> int | None:
    """Of a step under the plan in a file, its peak or another need; None where it cannot be foreseen."""
    device = case.foreseen.device
    fake = msgspec.structs.replace(under(case, path), device=device)
    (record,) = engine.run([Trial(case=fake, passes=("memory",), calibration=calibration)])
    return need(record.readings) if record.outcome == "ok" else None


def under(case: Case, path: Path) -> Case:
    """The case with the plan in a file."""
    return msgspec.structs.replace(case, strategy=Choice.of("plan", {"file": path}))
