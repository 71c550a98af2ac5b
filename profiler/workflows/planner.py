"""A model and a budget -> the fastest plan, traced, and the trials that measure it beside what a user would pick.

Knows nothing of command lines or screens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from profiler.analysis.rows import Row
from profiler.core import plan_file, schedule
from profiler.core.case import FAKE, OPERATORS, Calibration, Case, Choice, Trial, encode
from profiler.core.plan_file import Recipe
from profiler.core.record import Readings
from profiler.core.units import bytes_text
from profiler.engines import Engine, read_answer
from profiler.planning.candidates import Way
from profiler.planning.chain import Chain
from profiler.planning.plan import recipe as recipe_of
from profiler.planning.plan import render
from profiler.planning.solver import Frontier, Point, best
from profiler.views.tables.plans import Shown

TRIES = 5  # plans that are traced until one fits
MISS = 0.01  # of the measured peak: a prediction that is further off is said, and planned again


def peak(readings: Readings) -> int | None:
    return readings.peak_bytes


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest plan that fits, and its peak by a traced step."""

    point: Point
    traced_bytes: int | None  # None where the model is not at hand
    reserve_bytes: int = 0  # of the budget, for what the stages' costs do not tell


def calibrate(engine: Engine, case: Case) -> Calibration | None:
    """What the step's operators hide on the case's device, by one step that fits it; None for a device that is not
    there, or where no step fits.
    """
    if case.is_predicted:
        return None
    for strategy in ("none", "all"):
        one = msgspec.structs.replace(case, strategy=Choice(strategy))
        for record in engine.run([Trial(case=one, passes=("memory", OPERATORS))]):
            if record.outcome == "ok" and record.readings.hidden_bytes is not None:
                name = record.environment.device_name if record.environment else None
                return Calibration(hidden_bytes=record.readings.hidden_bytes, device_name=name)
    return None


def stages(
    engine: Engine, case: Case, calibration: Calibration | None, *, passes: tuple[str, ...] = ("memory", "time")
) -> Chain:
    """The chain of the case's model; without the pass `time`, its bytes alone. Raises UserError where there is none."""
    trial = Trial(case=case, calibration=calibration, passes=passes)
    failing = f"the stages of '{case.model}' ended without an answer"
    answer = engine.ask("profiler.engines.worker:stage", encode(trial).decode(), failing=failing)
    chain: Chain = read_answer(answer, "chain", Chain, of=str(case.model))
    return chain


def settle(
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
    need: Callable[[Readings], int | None] = peak,
) -> Settled | None:
    """The fastest plan whose traced step fits, and whose measured step does; its file is left at `path`.

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
        traced, needed = steps.needed(point, path)
        if needed <= budget_bytes:
            settled = Settled(point=point, traced_bytes=traced, reserve_bytes=reserve)
            return _bolder(steps, frontier, settled, path) or settled
        if point.peak_bytes == smallest:
            return None
        reserve = max(reserve, needed - point.peak_bytes, budget_bytes - point.peak_bytes + 1)
    return None


class _Steps:
    """Steps under plans, traced and measured against one budget."""

    def __init__(
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

    def needed(self, point: Point, path: Path) -> tuple[int | None, int]:
        """The traced need, and the largest of all that are known; the plan's file is left at `path`."""
        plan_file.write(recipe_of(self._chain, point.plan), path)
        traced = traced_need(self._engine, self._case, path, self._calibration, self._need)
        foreseen = point.peak_bytes if traced is None else traced
        if not self._measure or foreseen > self.budget_bytes:
            return traced, foreseen
        measured = measured_peak(self._engine, self._case, path)
        if measured is not None and abs(foreseen / measured - 1) > MISS:
            then = "planning again" if measured > self.budget_bytes else "it fits all the same"
            self._say(f"the plan was measured at {bytes_text(measured)}, predicted at {bytes_text(foreseen)}: {then}")
        return traced, max(foreseen, measured or 0)


def _bolder(steps: _Steps, frontier: Frontier, settled: Settled, path: Path) -> Settled | None:
    """Where a trace needs less than the stages' costs say, as with skips: a faster plan that fits by its own steps."""
    spare = settled.point.peak_bytes - (settled.traced_bytes or settled.point.peak_bytes)
    point = best(frontier, steps.budget_bytes + spare) if spare > 0 else None
    if point is None or point.plan == settled.point.plan:
        return None
    bold = path.with_name(f"bold-{path.name}")
    traced, needed = steps.needed(point, bold)
    if needed > steps.budget_bytes:
        bold.unlink()
        return None
    bold.replace(path)
    return Settled(point=point, traced_bytes=traced)


def traced_need(
    engine: Engine,
    case: Case,
    path: Path,
    calibration: Calibration | None,
    need: Callable[[Readings], int | None] = peak,
) -> int | None:
    """Of a step under the plan in a file, its peak or another need; None where it cannot be foreseen."""
    device = case.device if case.is_predicted else FAKE + case.twin.device
    fake = msgspec.structs.replace(under(case, path), device=device)
    (record,) = engine.run([Trial(case=fake, passes=("memory",), calibration=calibration)])
    return need(record.readings) if record.outcome == "ok" else None


def measured_peak(engine: Engine, case: Case, path: Path) -> int | None:
    """Of a step under the plan in a file, on the case's device; None where it had no room, or failed."""
    (record,) = engine.run([Trial(case=under(case, path), passes=("memory",))])
    return record.readings.peak_bytes if record.outcome == "ok" else None


def under(case: Case, path: Path) -> Case:
    """The case with the plan in a file."""
    return msgspec.structs.replace(case, strategy=Choice.of("plan", {"file": path}))


def comparison(
    case: Case, chain: Chain, ways: Sequence[Way], folder: Path, *, rounds: int, calibrate: bool = False
) -> tuple[dict[str, Case], tuple[Trial, ...], dict[Path, Recipe]]:
    """The cases by label, `none` first; their trials in paired rounds; and the files in the folder that they read.

    With `calibrate`, what is predicted is so with what `none` is measured to hide first. Ways of one plan share a file
    and a case: what is measured once is not noise.
    """
    first = {render(way.plan): way.label for way in reversed(ways)}
    names = {way.label: re.sub("[^a-z0-9]+", "-", first[render(way.plan)]).strip("-") for way in ways}
    paths = {way.label: folder / "plans" / f"{names[way.label]}.json" for way in ways}
    cases = {"none": case.baseline, **{way.label: under(case, paths[way.label]) for way in ways}}
    files = {paths[way.label]: recipe_of(chain, way.plan) for way in ways}
    each = dict.fromkeys(cases.values())
    if case.is_predicted:
        return cases, schedule.predicted(each, calibrate=calibrate), files
    return cases, schedule.measured(each, rounds, predict=True), files


def beside(ways: Sequence[Way], cases: Mapping[str, Case], rows: Sequence[Row]) -> list[Shown]:
    """Each way with its rows of a run; `none` is not among them."""
    measured = {row.case: row for row in rows if not row.case.is_predicted}
    predicted = {row.case.twin: row for row in rows if row.case.is_predicted}
    return [
        Shown(way=way, measured=measured.get(cases[way.label]), predicted=predicted.get(cases[way.label].twin))
        for way in ways
    ]


def lost(lines: Sequence[Shown]) -> str | None:
    """What to say where the plan was measured slower than a rival that fits too, beyond the noise of the rounds: in
    every round it took longer than the rival in any. One round tells of no noise.
    """
    plan, *rivals = lines
    mine = plan.measured.time_ratio_range if plan.measured else None
    if mine is None or mine[0] == mine[1]:
        return None
    for rival in rivals:
        theirs = rival.measured.time_ratio_range if rival.measured else None
        fits = rival.way.cost.peak_bytes <= plan.way.cost.peak_bytes
        if theirs is not None and fits and theirs[1] < mine[0]:
            text = render(rival.way.plan)
            return f"the plan was measured slower than {rival.way.label}, which needs no more: take that one: {text}"
    return None
