"""A plan beside what a user would pick: measured or predicted in one run folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from profiler.analysis import progress, row_times
from profiler.analysis.rows import Row
from profiler.analysis.rows import rows as read_rows
from profiler.core import plan_file, schedule
from profiler.core.case import Case, Trial
from profiler.core.plan_file import Recipe
from profiler.planning.candidates import Way
from profiler.planning.chain import Chain
from profiler.planning.plan import recipe as recipe_of
from profiler.planning.plan import render
from profiler.request import device_choice
from profiler.runs import RESULTS, run_diff, store
from profiler.workflows import Screen, runner
from profiler.workflows.plan_fitting import under
from profiler.workflows.stages import ModelOnDevice
from profiler.workflows.typed_words import command_line

ROUNDS = 3
SLOWER = 1  # the exit code where the plan lost, or could not be run


class ComparedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One way to checkpoint, and what is known of it."""

    way: Way
    predicted: Row | None = None  # by a traced step
    measured: Row | None = None


class PlanComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The plan first, then its rivals."""

    plans: tuple[ComparedPlan, ...]
    slower: str | None = None  # what to say where the plan was measured slower than a rival
    exit_code: int = 0


def compare_plans(
    model: ModelOnDevice,
    chain: Chain,
    ways: Sequence[Way],
    screen: Screen,
    *,
    measure: bool,
    rounds: int | None,
    typed: Sequence[str],
) -> PlanComparison:
    """Run the plan and the others in paired rounds, or trace them where nothing is to be measured."""
    case, calibrate = model.case, not measure and not model.case.is_predicted
    if calibrate:
        case = case.foreseen
    folder = store.new_folder(RESULTS, [f"plan {case.model.name}"])
    rounds = 1 if device_choice.is_hollow(case.device, model.devices) else rounds or ROUNDS
    cases, trials, files = paired_trials(case, chain, ways, folder, rounds=rounds, calibrate=calibrate)
    digests = run_diff.code_digests(trial.case for trial in trials)
    digests |= {
        str(path): run_diff.digest(plan_file.encoded(recipe)) for path, recipe in files.items()
    }  # written below
    store.create(
        folder,
        plan=trials,
        command=command_line(typed),
        environment=device_choice.environment(case.device, model.devices),
        sources=digests,
    )
    (folder / "plans").mkdir()
    for path, recipe in files.items():
        plan_file.write(recipe, path)
    code, folder = runner.follow(model.engine, folder, screen)
    run = store.load(folder)
    screen.say(f"wrote {folder / 'trials.jsonl'}")
    plans = compared_plans(ways, cases, read_rows(run.records))
    slower = slower_than_rival(plans)
    has_lost = slower is not None or not _went_well(plans[0])
    code = code or progress.exit_code(run.records) or (SLOWER if has_lost else 0)
    return PlanComparison(plans=tuple(plans), slower=slower, exit_code=code)


def _went_well(plan: ComparedPlan) -> bool:
    """Also where nothing is known of it, after Ctrl-C."""
    return all(row is None or row.outcome == "ok" for row in (plan.measured, plan.predicted))


def paired_trials(
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
    distinct = dict.fromkeys(cases.values())
    if case.is_predicted:
        return cases, schedule.predicted(distinct, calibrate=calibrate), files
    return cases, schedule.measured(distinct, rounds, predict=True), files


def compared_plans(ways: Sequence[Way], cases: Mapping[str, Case], rows: Sequence[Row]) -> list[ComparedPlan]:
    """Each way with its rows of a run; `none` is not among them."""
    measured = {row.case: row for row in rows if not row.case.is_predicted}
    predicted = {row.case.twin: row for row in rows if row.case.is_predicted}
    return [
        ComparedPlan(way=way, measured=measured.get(cases[way.label]), predicted=predicted.get(cases[way.label].twin))
        for way in ways
    ]


def slower_than_rival(lines: Sequence[ComparedPlan]) -> str | None:
    """What to say where the plan was measured surely slower than a rival that fits too."""
    plan, *rivals = lines
    for rival in rivals:
        fits = rival.way.cost.peak_bytes <= plan.way.cost.peak_bytes
        if plan.measured and rival.measured and fits and row_times.verdict(plan.measured, rival.measured) == "slower":
            text = render(rival.way.plan)
            return f"the plan was measured slower than {rival.way.label}, which needs no more: take that one: {text}"
    return None
