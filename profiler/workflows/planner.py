"""Finds the fastest plan that fits a budget, for a model or the costs of its stages, and compares it: `gcprof plan`.

The choice is the simplest of the ways, run in one folder, that no other one beats.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from profiler.analysis import progress
from profiler.analysis.rows import Row, time_verdict_of
from profiler.analysis.rows import rows as read_rows
from profiler.core import device_choice, plan_file, schedule
from profiler.core.case import Calibration, Case, Trial
from profiler.core.errors import CODE_ALONE, UserError, refuse_idle
from profiler.core.gpu_specs import parse
from profiler.core.plan_file import PlanFile
from profiler.core.record import Evidence, Record
from profiler.core.stats import Sampling
from profiler.core.units import budget_text, parse_budget
from profiler.planning import chain as chains
from profiler.planning import simulator
from profiler.planning.chain import Chain, Plan, plan_file_of
from profiler.planning.simulator import Way, slower_by
from profiler.planning.solver import Frontier, best
from profiler.runs import RESULTS, store
from profiler.views.export import refuse_output
from profiler.views.tables.plans import ComparedPlan
from profiler.workflows import SILENT, Screen
from profiler.workflows.plan_fitting import MEMORY, Steps, TriedPlan, fastest, fit_rule, frontiers, under
from profiler.workflows.spec import Request, flags
from profiler.workflows.stages import ModelOnDevice, Step, better_blocks_text

ANY = 2**40  # bytes: a stand-in for a peak that is not known yet
GATE = 5  # the exit code if what was asked for cannot be had
PICTURES = (".png", ".svg", ".pdf")


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to plan for, what of it to measure, and what to show and write."""

    words: Request  # of the model, where there is one
    stages: Path | None = None  # costs from a file
    budget: str | None = None  # without one, only the frontier is found
    levels: int | None = None
    measure: bool = True  # steps under the plan, and under its rivals
    rounds: int | None = None
    frontier: bool = False
    emit: str | None = None  # the kind of code to print
    output: Path | None = None
    force: bool = False
    json: bool = False

    @property
    def writes_plan(self) -> bool:
        """Whether the output file is for the plan; else it is for the frontier."""
        return self.output is not None and self.output.suffix.lower() == ".json"

    def check(self) -> None:
        """Raise UserError for what is impossible or would have no effect, before anything is measured."""
        words, is_modelled = self.words, self.words.model is not None
        if not is_modelled and self.stages is None:
            raise UserError("plan needs a model, or costs", hint="gcprof plan transformer --budget 60%")
        if self.budget is not None:
            parse_budget(self.budget, whole_bytes=ANY)
        elif self.emit:
            raise UserError("--emit needs a budget", hint="--budget 60% --emit python")
        elif not self.frontier:
            raise UserError("plan needs a budget", hint="--budget 8GiB, --budget 60%, or --frontier for all of them")
        if self.output is not None:
            hint = "plan.json, or frontier.csv, .png, .svg, .pdf"
            refuse_output(self.output, force=self.force, kinds=(".json", ".csv", *PICTURES), hint=hint)
            if self.writes_plan and self.budget is None:
                raise UserError("a plan needs a budget", hint="--budget 60% -o plan.json")
        settings = flags(words, without=("model", "strategies", *(["repair_batchnorm"] if self.emit else [])))
        if not is_modelled:
            refuse_idle(
                dict.fromkeys(settings[:1], True), "on costs from a file", hint="name the model, or leave it out"
            )
        if self.emit:
            results = {"--json": self.json, "--frontier": self.frontier, "-o": self.output is not None}
            refuse_idle(results, "with --emit", hint=CODE_ALONE)
        measuring = {
            "--no-measure": not self.measure,
            "--rounds": self.rounds is not None,
            "--repair-batchnorm": words.repair_batchnorm and not self.emit,
        }
        if not (is_modelled and self.budget):
            refuse_idle(measuring, "where nothing is measured", hint="a model and --budget are measured")
        if not self.measure or parse(words.device or "").prefix:
            refuse_idle({"--rounds": self.rounds is not None}, "where no time is measured", hint="leave it out")


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """The plans of a chain, and the one that fits."""

    chain: Chain
    case: Case | None = None  # of the model, if there is one
    evidence: Evidence | None = None  # how a step on its device is known
    title: str
    words: tuple[str, ...] = ()  # the model as it was asked for, for the next command
    none: Way
    frontier: Frontier  # of the deepest search
    budget_bytes: int | None = None
    fitted: TriedPlan | None = None  # None without a budget, or if no plan fits it
    plans: tuple[ComparedPlan, ...] = ()  # that were compared, the solver's first
    is_timed: bool = False  # whether times were measured
    is_cut: bool = False  # whether it ended before all plans were measured, so that none is chosen
    taken: tuple[ComparedPlan, ...] = ()  # the way to take, and those as fast, if any was measured that fits
    folder: Path | None = None  # of the comparison's records
    file: Path | None = None  # of the plan to take
    better_blocks: str | None = None  # in words, if no plan fits and others have a smaller lower bound
    own: Record | None = None  # the model with its own checkpoints, if no plan fits and it does
    exit_code: int = 0

    @property
    def budget_text(self) -> str:
        return budget_text(self.budget_bytes or 0, simulator.whole_bytes(self.chain))

    @property
    def plan(self) -> Plan | None:
        """The plan to take: the best one measured, else the solver's.

        None if none fits, if all that was measured failed, or if not all was measured.
        """
        if self.is_cut:
            return None
        if self.is_timed:
            return self.taken[0].way.plan if self.taken else None
        return self.fitted.point.plan if self.fitted else None


def plan(request: PlanRequest, screen: Screen = SILENT) -> Planned:
    """Find the fastest plan that fits the budget, and compare it with others. Raises UserError."""
    request.check()
    with ExitStack() as stack:
        model = stack.enter_context(ModelOnDevice(request.words, screen)) if request.words.model is not None else None
        for remark in model.remarks if model else ():
            screen.say(f"note: {remark}")
        if request.stages:
            chain = chains.read(request.stages)
        else:
            assert model, "it was checked"
            budget = None if request.frontier or request.json else request.budget  # all is timed where all is shown
            is_traced = model.case.is_predicted or device_choice.is_hollow(model.case.device, model.devices)
            doing = "tracing each stage" if is_traced else "measuring each stage"
            screen.say(doing)
            with screen.doing(doing):
                chain = model.chain(budget)
        if model and chain.made_for != model.title:
            message = f"'{request.stages}' has the costs of {chain.made_for or 'no known model'}, not of {model.title}"
            raise UserError(message, hint="leave out --stages, or write them anew with `gcprof stages`")
        for note in chain.notes if request.stages else ():
            screen.say(f"note: {note}")
        return _planned(chain, model, request, screen)


def _planned(chain: Chain, model: ModelOnDevice | None, request: PlanRequest, screen: Screen) -> Planned:
    """Return the frontier; with a budget, also the plan that fits; and if asked for, its comparison with others."""
    none = simulator.none(chain)
    if model or request.emit or request.writes_plan:
        plan_file_of(chain, none.plan)  # refuse stages without known blocks before any work
    budget = fitted = None
    if request.budget is None:
        points = next(frontiers(chains.with_sure_options(chain), request.levels or 1, screen))
    else:
        budget = parse_budget(request.budget, whole_bytes=simulator.whole_bytes(chain))
        is_traced = model is None or not request.measure or model.case.is_predicted
        measured = EXACT_PASSES if model and model.evidence == "measured" else MEMORY  # those of the comparison's rows
        passes = () if is_traced else measured
        points, fitted = fitted_plan(
            chain, model.step if model else None, budget, passes=passes, levels=request.levels, screen=screen
        )
    planned = Planned(
        chain=chain,
        case=model.case if model else None,
        evidence=model.evidence if model else None,
        title=model.heading if model else request.stages.name if request.stages else "",
        words=model.words if model else (),
        none=none,
        frontier=points,
        budget_bytes=budget,
        fitted=fitted,
    )
    if budget is None:
        return planned
    if fitted is None:
        better = better_blocks_text(model.engine, model.case, below_bytes=points.peak_bytes[0]) if model else None
        own = model.own_form(budget, measure=request.measure) if model else None
        return msgspec.structs.replace(planned, better_blocks=better, own=own, exit_code=GATE)
    if request.emit and not request.measure:
        return planned
    ways = simulator.ways(chain, fitted.point.plan, budget)
    if model is None or (model.case.is_rehearsed and not request.measure):
        return msgspec.structs.replace(planned, plans=tuple(ComparedPlan(way=way) for way in ways))
    return compare_plans(planned, model, ways, budget, request, fitted=fitted.records)


def fitted_plan(
    chain: Chain, step: Step | None, budget: int, *, passes: tuple[str, ...] = (), levels: int | None = None,
    screen: Screen = SILENT,
) -> tuple[Frontier, TriedPlan | None]:  # fmt: skip
    """Return the fastest plan that fits, and the frontier that it is on, or the last that was looked at.

    Plans of a step are run by these passes, or traced; without a step they fit by their costs. If no plan of the
    frontier fits, or only one that the costs find slow, rules are tried.
    """
    if step is None:
        none = simulator.none(chain).plan
        taken = chain.traced_peak_bytes or None
        return fastest(
            lambda point: TriedPlan(point=point, needed_bytes=taken if point.plan == none else None), chain, budget,
            levels=levels, screen=screen,
        )  # fmt: skip
    if simulator.largest_stage(chain)[1] > budget:
        return next(frontiers(chains.with_sure_options(chain), levels, screen)), None
    run = Steps(step, chain, passes=passes).run
    is_rehearsed = step.case.is_rehearsed
    points, fitted = fastest(run, chain, budget, levels=levels, is_rehearsed=is_rehearsed, screen=screen)
    by_costs = best(points, simulator.cost_limit(chain, budget))
    if fitted is None:
        is_doubtful = points.peak_bytes[0] <= budget
    else:  # what the costs prefer did not fit
        is_doubtful = is_rehearsed and by_costs is not None and fitted.point.step_seconds > by_costs.step_seconds
    rule = fit_rule(run, chain, budget) if is_doubtful else None
    if rule and (fitted is None or rule.point.step_seconds < fitted.point.step_seconds):
        fitted = rule
    return points, fitted


ROUNDS = 1  # of timing; more show how processes differ
SAMPLES = 12  # least steps, half of them without the plan: six pairs, the fewest with a confidence interval
EXACT_PASSES = ("equality", "memory")  # of the first round; times are those of later ones, in which all ways alternate
UNFIT = 1  # the exit code if no way was measured to fit


def compare_plans(
    planned: Planned, model: ModelOnDevice, ways: Sequence[Way], budget_bytes: int, request: PlanRequest, *,
    fitted: Sequence[Record],
) -> Planned:  # fmt: skip
    """Run the ways in paired rounds and choose the best; rehearse them once; or trace them if nothing is measured.

    `fitted` are the records of `none` and the first way, or of the way alone, if their exact passes were run before.
    """
    chain, case = planned.chain, model.case if request.measure else model.case.foreseen
    if not case.is_predicted:
        sampling = msgspec.structs.replace(case.sampling or Sampling(), ends_together=True)
        case = msgspec.structs.replace(case, samples=SAMPLES, warmup=0, sampling=sampling)
    folder = store.new_folder(RESULTS, [f"plan {case.model.name}"])
    rounds = 1 if device_choice.is_hollow(case.device, model.devices) else request.rounds or ROUNDS
    cases, trials, files = paired_trials(case, chain, ways, folder, rounds=rounds, calibration=model.calibration())
    exact = zip(fitted, ("none", ways[0].label)[-len(fitted) :], strict=True) if fitted else ()
    ready = [msgspec.structs.replace(record, case=cases[label]) for record, label in exact]
    code, run = model.run(folder, trials, plans=files, ready=ready)
    rows = read_rows(run.records)
    measured = {row.case: row for row in rows if not row.case.is_predicted}
    predicted = {row.case.twin: row for row in rows if row.case.is_predicted}
    own = {way: cases[way.label] for way in ways}
    plans = tuple(
        ComparedPlan(way=way, measured=measured.get(case), predicted=predicted.get(case.twin))
        for way, case in own.items()
    )
    is_timed = any(plan.measured and plan.measured.evidence == "measured" for plan in plans)
    is_cut = bool(progress.owed(run.manifest.plan, run.records))
    taken = choose(plans, chain, budget_bytes) if is_timed and not is_cut else ()
    went_well = all(row is None or row.outcome == "ok" for row in (plans[0].measured, plans[0].predicted))
    has_lost = not taken if is_timed else not went_well  # after Ctrl-C there may be no row
    code = code or (UNFIT if has_lost else 0)
    label = taken[0].way.label if taken else None if is_timed or is_cut else ways[0].label
    if taken:
        plans = tuple(msgspec.structs.replace(plan, is_chosen=plan is taken[0]) for plan in plans)
    return msgspec.structs.replace(
        planned, plans=plans, is_timed=is_timed, is_cut=is_cut, taken=taken, folder=run.folder, exit_code=code,
        file=file_of(run.folder, label) if label else None,
    )  # fmt: skip


def file_of(folder: Path, label: str) -> Path:
    """Return where the plan of a label is in a run folder: `uniform(4)` in plans/uniform-4.json."""
    return folder / plan_file.FOLDER / f"{re.sub('[^a-z0-9]+', '-', label).strip('-')}.json"


def paired_trials(
    case: Case, chain: Chain, ways: Sequence[Way], folder: Path, *, rounds: int, calibration: Calibration | None = None
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


def is_slower(row: Row | None, other: Row | None) -> bool:
    """Whether a row's steps took significantly longer than another's, by the rule of `time_ratio`."""
    return row is not None and other is not None and time_verdict_of(row, other) == "slower"


def choose(plans: Sequence[ComparedPlan], chain: Chain, budget_bytes: int) -> tuple[ComparedPlan, ...]:
    """Return the way to take of those that were measured to fit the budget, then those as fast that are less simple.

    Ways are dropped if another was measured faster, then if another is faster by the costs, beyond their error; the
    simplest of the rest is taken.
    """
    fitting = [
        plan
        for plan in plans
        if (row := plan.measured) and row.outcome == "ok" and 0 < (row.readings.peak_bytes or 0) <= budget_bytes
    ]
    unbeaten = [plan for plan in fitting if not any(is_slower(plan.measured, other.measured) for other in fitting)]
    left = []
    for plan in unbeaten:
        slower = (slower_by(chain, plan.way.plan, other.way.plan) for other in unbeaten)
        if all(difference <= error for difference, error in slower):
            left.append(plan)
    chosen = sorted(left, key=simplicity)[:1]
    return (*chosen, *(plan for plan in left if plan is not chosen[0]))


def simplicity(plan: ComparedPlan) -> tuple[int, bool, int, float]:
    """Return a sort key: fewer kinds of items, then ways with a name in the catalogue, then the smaller peak.

    Kinds are: a single stage under a checkpoint, a run of stages, a checkpoint in a checkpoint, each save option.
    """
    way = plan.way
    runs = [item for item in way.plan.items if isinstance(item, tuple)]
    kinds = {"alone" if len(run) == 1 else "run" for run in runs} | {name for _, name in way.plan.options}
    nested = way.plan.is_nested
    return len(kinds) + nested, not way.is_catalogue, way.cost.peak_bytes, way.cost.step_seconds


def sentence(taken: Sequence[ComparedPlan]) -> str:
    """Return why the first was chosen, below a table that has all ways."""
    why = "no other plan that fits is faster, as measured or, where that cannot tell, by these costs"
    chosen, *as_fast = (plan.way.name for plan in taken)
    if as_fast:
        why = f"its time cannot be told apart from {listed(as_fast)}, and it is the simplest"
    return f"{chosen} is chosen: {why}"


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
