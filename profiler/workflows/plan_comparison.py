"""Compares a plan with what a user would pick, measured or predicted in one run folder, and chooses among them.

The choice is the simplest of those that no other one beats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from profiler.analysis import progress
from profiler.analysis.rows import Row, time_verdict_of
from profiler.analysis.rows import rows as read_rows
from profiler.core import plan_file, schedule
from profiler.core.case import Calibration, Case, Trial
from profiler.core.plan_file import PlanFile
from profiler.core.record import Record
from profiler.core.stats import Sampling
from profiler.planning.candidates import Way
from profiler.planning.chain import Chain, plan_file_of
from profiler.planning.simulator import slower_by
from profiler.request import device_choice
from profiler.runs import RESULTS, store
from profiler.views.tables.plans import ComparedPlan
from profiler.workflows.plan_fitting import under
from profiler.workflows.stages import ModelOnDevice

ROUNDS = 1  # of timing; more show how processes differ
SAMPLES = 12  # least steps, half of them without the plan: six pairs, the fewest with a confidence interval
EXACT_PASSES = ("equality", "memory")  # of the first round; times are those of later ones, in which all ways alternate
UNFIT = 1  # the exit code if no way was measured to fit


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The way to take, and why."""

    plan: ComparedPlan
    as_fast: tuple[str, ...] = ()  # labels of ways that are not significantly slower or faster, but less simple


class PlanComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The compared ways, the solver's plan first, and which of them to take."""

    plans: tuple[ComparedPlan, ...]
    is_timed: bool = False  # whether times were measured
    is_cut: bool = False  # whether it ended before all ways were measured, so that none is chosen
    chosen: Chosen | None = None  # None where nothing was measured that fits
    folder: Path | None = None  # of its records
    file: Path | None = None  # of the plan to take
    exit_code: int = 0


def compare_plans(
    model: ModelOnDevice,
    chain: Chain,
    ways: Sequence[Way],
    *,
    budget_bytes: int,
    measure: bool,
    rounds: int | None,
    typed: Sequence[str],
    fitted: Sequence[Record] = (),
) -> PlanComparison:
    """Run the ways in paired rounds and choose the best; rehearse them once; or trace them if nothing is measured.

    `fitted` are the records of `none` and the first way, or of the way alone, if their exact passes were run before.
    """
    case = model.case if measure else model.case.foreseen
    if not case.is_predicted:
        sampling = msgspec.structs.replace(case.sampling or Sampling(), ends_together=True)
        case = msgspec.structs.replace(case, samples=SAMPLES, warmup=0, sampling=sampling)
    folder = store.new_folder(RESULTS, [f"plan {case.model.name}"])
    rounds = 1 if device_choice.is_hollow(case.device, model.devices) else rounds or ROUNDS
    cases, trials, files = paired_trials(case, chain, ways, folder, rounds=rounds, calibration=model.calibration())
    exact = zip(fitted, ("none", ways[0].label)[-len(fitted) :], strict=True) if fitted else ()
    ready = [msgspec.structs.replace(record, case=cases[label]) for record, label in exact]
    code, run = model.run(folder, trials, plans=files, typed=typed, ready=ready)
    plans = tuple(compared_plans(ways, cases, read_rows(run.records)))
    is_timed = any(plan.measured and plan.measured.evidence == "measured" for plan in plans)
    is_cut = bool(progress.owed(run.manifest.plan, run.records))
    chosen = choose(plans, chain, budget_bytes) if is_timed and not is_cut else None
    went_well = all(row is None or row.outcome == "ok" for row in (plans[0].measured, plans[0].predicted))
    has_lost = chosen is None if is_timed else not went_well  # after Ctrl-C there may be no row
    code = code or (UNFIT if has_lost else 0)
    label = chosen.plan.way.label if chosen else None if is_timed or is_cut else ways[0].label
    if chosen:
        plans = tuple(msgspec.structs.replace(plan, is_chosen=plan is chosen.plan) for plan in plans)
    return PlanComparison(
        plans=plans, is_timed=is_timed, is_cut=is_cut, chosen=chosen, folder=run.folder, exit_code=code,
        file=file_of(run.folder, label) if label else None,
    )  # fmt: skip


def file_of(folder: Path, label: str) -> Path:
    """Return where the plan of a label is in a run folder: `uniform(4)` in plans/uniform-4.json."""
    return folder / plan_file.FOLDER / f"{re.sub('[^a-z0-9]+', '-', label).strip('-')}.json"


def paired_trials(
    case: Case,
    chain: Chain,
    ways: Sequence[Way],
    folder: Path,
    *,
    rounds: int,
    calibration: Calibration | None = None,
) -> tuple[dict[str, Case], tuple[Trial, ...], dict[Path, PlanFile]]:
    """Return the cases by label, `none` first; their trials, with so many rounds of times; and the files they read.

    Predictions take the hidden bytes of operators as they were measured. No pass counts FLOPs, which the costs have.
    """
    paths = {way.label: file_of(folder, way.label) for way in ways}
    cases = {"none": case.baseline, **{way.label: under(case, paths[way.label]) for way in ways}}
    files = {paths[way.label]: plan_file_of(chain, way.plan) for way in ways}
    foreseen = tuple(Trial(case=one.foreseen, passes=("memory",), calibration=calibration) for one in cases.values())
    if case.is_predicted:
        return cases, foreseen, files
    if case.is_rehearsed:
        return cases, tuple(Trial(case=one, passes=("memory",)) for one in cases.values()), files
    first = [Trial(case=one, passes=EXACT_PASSES) for one in cases.values()]
    timed = schedule.in_rounds([one for one in cases.values() if one != case.baseline], rounds + 1)
    return cases, (*first, *foreseen, *(trial for trial in timed if trial.round > 1)), files


def compared_plans(ways: Sequence[Way], cases: Mapping[str, Case], rows: Sequence[Row]) -> list[ComparedPlan]:
    """Return each way with its rows of a run; `none` is not among them."""
    measured = {row.case: row for row in rows if not row.case.is_predicted}
    predicted = {row.case.twin: row for row in rows if row.case.is_predicted}
    return [
        ComparedPlan(way=way, measured=measured.get(cases[way.label]), predicted=predicted.get(cases[way.label].twin))
        for way in ways
    ]


def is_slower(row: Row | None, other: Row | None) -> bool:
    """Whether a row's steps took significantly longer than another's, by the rule of `time_ratio`."""
    return row is not None and other is not None and time_verdict_of(row, other) == "slower"


def choose(plans: Sequence[ComparedPlan], chain: Chain, budget_bytes: int) -> Chosen | None:
    """Return the way to take of those that were measured to fit the budget; None if none was.

    Ways are dropped if another was measured faster, then if another is faster by the costs, beyond their error; the
    simplest of the rest is taken.
    """
    fitting = [plan for plan in plans if _fits(plan, budget_bytes)]
    unbeaten = [plan for plan in fitting if not any(is_slower(plan.measured, other.measured) for other in fitting)]
    left = [plan for plan in unbeaten if not any(_is_slower_by_costs(chain, plan, other) for other in unbeaten)]
    if not left:
        return None
    chosen = min(left, key=simplicity)
    return Chosen(plan=chosen, as_fast=tuple(plan.way.name for plan in left if plan is not chosen))


def simplicity(plan: ComparedPlan) -> tuple[int, bool, int, float]:
    """Return a sort key: fewer kinds of items, then ways with a name in the catalogue, then the smaller peak.

    Kinds are: a single stage under a checkpoint, a run of stages, a checkpoint in a checkpoint, each save option.
    """
    way = plan.way
    runs = [item for item in way.plan.items if isinstance(item, tuple)]
    kinds = {"alone" if len(run) == 1 else "run" for run in runs} | {name for _, name in way.plan.options}
    nested = way.plan.depth() > 1
    return len(kinds) + nested, not way.is_catalogue, way.cost.peak_bytes, way.cost.step_seconds


def _fits(plan: ComparedPlan, budget_bytes: int) -> bool:
    row = plan.measured
    return row is not None and row.outcome == "ok" and (row.readings.peak_bytes or budget_bytes + 1) <= budget_bytes


def _is_slower_by_costs(chain: Chain, plan: ComparedPlan, other: ComparedPlan) -> bool:
    difference, error = slower_by(chain, plan.way.plan, other.way.plan)
    return difference > error


def sentence(chosen: Chosen) -> str:
    """Return why it was chosen, below a table that has all ways."""
    why = "no other plan that fits is faster, as measured or, where that cannot tell, by these costs"
    if chosen.as_fast:
        why = f"its time cannot be told apart from {listed(chosen.as_fast)}, and it is the simplest"
    return f"{chosen.plan.way.name} is chosen: {why}"


def doubted(plans: Sequence[ComparedPlan], none_seconds: float) -> list[str]:
    """Return the labels of ways that were significantly faster than `none`, although they compute more."""
    return [
        plan.way.name
        for plan in plans
        if plan.measured is not None
        and plan.measured.time_verdict == "faster"
        and plan.way.cost.step_seconds > none_seconds
    ]


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
