"""Finds the fastest plan that fits a budget, for a model or the costs of its stages: what `gcprof plan` does."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import msgspec

from profiler.core.case import Case
from profiler.core.errors import CODE_ALONE, UserError, refuse_idle
from profiler.core.gpu_specs import parse
from profiler.core.record import Evidence, Record
from profiler.core.units import budget_text, parse_budget
from profiler.planning import candidates
from profiler.planning import chain as chains
from profiler.planning.candidates import Way
from profiler.planning.chain import Chain, Plan, plan_file_of
from profiler.planning.solver import Frontier, best
from profiler.request import device_choice
from profiler.request.spec import Request, flags
from profiler.views.export import refuse_output
from profiler.views.tables.plans import ComparedPlan
from profiler.workflows import SILENT, Screen
from profiler.workflows.plan_comparison import EXACT_PASSES, PlanComparison, compare_plans
from profiler.workflows.plan_fitting import MEMORY, Steps, TriedPlan, fastest, fit_rule, frontiers
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
    typed: tuple[str, ...] = ()  # the words of the command line

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
    case: Case | None  # of the model, if there is one
    evidence: Evidence | None  # how a step on its device is known
    title: str
    words: tuple[str, ...]  # the model as it was asked for, for the next command
    none: Way
    frontier: Frontier  # of the deepest search
    budget_bytes: int | None = None
    fitted: TriedPlan | None = None  # None without a budget, or if no plan fits it
    comparison: PlanComparison | None = None
    better_blocks: str | None = None  # in words, if no plan fits and others have a smaller lower bound
    own: Record | None = None  # the model with its own checkpoints, if no plan fits and it does
    exit_code: int = 0

    @property
    def budget_text(self) -> str:
        return budget_text(self.budget_bytes or 0, candidates.whole_bytes(self.chain))

    @property
    def plan(self) -> Plan | None:
        """The plan to take: the best one measured, else the solver's.

        None if none fits, if all that was measured failed, or if not all was measured.
        """
        comparison = self.comparison
        if comparison is not None and comparison.is_cut:
            return None
        if comparison is not None and comparison.is_timed:
            return comparison.chosen.plan.way.plan if comparison.chosen else None
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
    none = candidates.none(chain)
    if model or request.emit or request.writes_plan:
        plan_file_of(chain, none.plan)  # refuse stages without known blocks before any work
    budget = fitted = None
    if request.budget is None:
        points = next(frontiers(chains.with_sure_options(chain), request.levels or 1, screen))
    else:
        budget = parse_budget(request.budget, whole_bytes=candidates.whole_bytes(chain))
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
    ways = candidates.ways(chain, fitted.point, budget)
    if model is None or (model.case.is_rehearsed and not request.measure):
        comparison = PlanComparison(plans=tuple(ComparedPlan(way=way) for way in ways))
    else:
        comparison = compare_plans(
            model, chain, ways, budget_bytes=budget, measure=request.measure, rounds=request.rounds,
            typed=request.typed, fitted=fitted.records,
        )  # fmt: skip
    return msgspec.structs.replace(planned, comparison=comparison, exit_code=comparison.exit_code)


def fitted_plan(
    chain: Chain, step: Step | None, budget: int, *, passes: tuple[str, ...] = (), levels: int | None = None,
    screen: Screen = SILENT,
) -> tuple[Frontier, TriedPlan | None]:  # fmt: skip
    """Return the fastest plan that fits, and the frontier that it is on, or the last that was looked at.

    Plans of a step are run by these passes, or traced; without a step they fit by their costs. If no plan of the
    frontier fits, or only one that the costs find slow, rules are tried.
    """
    if step is None:
        none = candidates.none(chain).plan
        taken = chain.traced_peak_bytes or None
        return fastest(
            lambda point: TriedPlan(point=point, needed_bytes=taken if point.plan == none else None), chain, budget,
            levels=levels, screen=screen,
        )  # fmt: skip
    if candidates.largest_stage(chain)[1] > budget:
        return next(frontiers(chains.with_sure_options(chain), levels, screen)), None
    run = Steps(step.engine, step.case, chain, passes=passes, calibration=step.calibration()).run
    is_rehearsed = step.case.is_rehearsed
    points, fitted = fastest(run, chain, budget, levels=levels, is_rehearsed=is_rehearsed, screen=screen)
    by_costs = best(points, candidates.cost_limit(chain, budget))
    if fitted is None:
        is_doubtful = points.peak_bytes[0] <= budget
    else:  # what the costs prefer did not fit
        is_doubtful = is_rehearsed and by_costs is not None and fitted.point.step_seconds > by_costs.step_seconds
    rule = fit_rule(run, chain, budget) if is_doubtful else None
    if rule and (fitted is None or rule.point.step_seconds < fitted.point.step_seconds):
        fitted = rule
    return points, fitted
