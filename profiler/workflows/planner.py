"""Finds the fastest plan that fits a budget, for a model or the costs of its stages: what `gcprof plan` does."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from profiler.core.case import Case
from profiler.core.errors import UserError
from profiler.core.record import Evidence, Record
from profiler.core.units import parse_budget
from profiler.planning import candidates
from profiler.planning import chain as chains
from profiler.planning.candidates import Way
from profiler.planning.chain import Chain
from profiler.planning.plan import Plan, plan_file_of
from profiler.planning.solver import Frontier, best, frontier
from profiler.request import device_choice
from profiler.request.spec import Request
from profiler.workflows import SILENT, Screen, plan_fitting
from profiler.workflows.plan_choice import ComparedPlan
from profiler.workflows.plan_comparison import EXACT_PASSES, PlanComparison, compare_plans
from profiler.workflows.plan_fitting import FittedPlan
from profiler.workflows.stages import ModelOnDevice, OwnForm

ANY = 2**40  # bytes: a stand-in for a peak that is not known yet
DEPTHS = (1, 2, 4, 8)  # levels of checkpoints, tried in turn unless the user says how deep
POINTS = 1000  # of a long chain's frontier
LONG = 200  # stages
GATE = 5  # the exit code if what was asked for cannot be had


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to plan for, and what of it to measure."""

    words: Request  # of the model, where there is one
    stages: Path | None = None  # costs from a file
    budget: str | None = None  # without one, only the frontier is found
    levels: int | None = None
    measure: bool = True  # steps under the plan, and under its rivals
    rounds: int | None = None
    is_compared: bool = True  # with its rivals
    has_recipe: bool = False  # whether the plan is written, so that every stage must have modules
    has_frontier: bool = False  # whether the frontier is shown: then stages are timed even if no plan of them fits
    typed: tuple[str, ...] = ()  # the words of the command line

    def check(self) -> None:
        """Raises UserError for what cannot be planned, before anything is measured."""
        if self.words.model is None and self.stages is None:
            raise UserError("plan needs a model, or costs", hint="gcprof plan transformer --budget 60%")
        if self.budget is not None:
            parse_budget(self.budget, whole_bytes=ANY)


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
    fitted: FittedPlan | None = None  # None without a budget, or if no plan fits it
    comparison: PlanComparison | None = None
    better_blocks: str | None = None  # in words, if no plan fits and others have a smaller lower bound
    own: OwnForm | None = None  # the model with its own checkpoints, if no plan fits and it does
    exit_code: int = 0

    @property
    def unused_options(self) -> tuple[str, ...]:
        """Save options that were left out of every stage, since they may be no faster than a checkpoint."""
        used = chains.option_names(self.frontier.chain)
        return tuple(name for name in chains.option_names(self.chain) if name not in used)

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
        budget = None if request.has_frontier else request.budget
        chain = chains.read(request.stages) if request.stages else _measured_chain(model, screen, budget)
        if model and chain.made_for != model.title:
            message = f"'{request.stages}' has the costs of {chain.made_for or 'no known model'}, not of {model.title}"
            raise UserError(message, hint="leave out --stages, or write them anew with `gcprof stages`")
        for note in chain.notes if request.stages else ():
            screen.say(f"note: {note}")
        return _Planning(chain, model, request, screen).go()


def _measured_chain(model: ModelOnDevice | None, screen: Screen, budget: str | None) -> Chain:
    assert model
    is_traced = model.case.is_predicted or device_choice.is_hollow(model.case.device, model.devices)
    doing = "tracing each stage" if is_traced else "measuring each stage"
    screen.say(doing)
    with screen.doing(doing):
        return model.chain(budget)


class _Planning:
    """Plans for one chain, with its model if there is one."""

    def __init__(self, chain: Chain, model: ModelOnDevice | None, request: PlanRequest, screen: Screen) -> None:
        self.chain, self.model, self.request, self.screen = chain, model, request, screen

    def go(self) -> Planned:
        """Return the frontier; with a budget, also the plan that fits; and if asked for, its comparison with others."""
        request, model, none = self.request, self.model, candidates.none(self.chain)
        if model or request.has_recipe:
            plan_file_of(self.chain, none.plan)  # refuse stages without known blocks before any work
        planned = Planned(
            chain=self.chain,
            case=model.case if model else None,
            evidence=model.evidence if model else None,
            title=model.heading if model else request.stages.name if request.stages else "",
            words=model.words if model else (),
            none=none,
            frontier=self._frontier(chains.with_sure_options(self.chain), request.levels or DEPTHS[0]),
        )
        if request.budget is None:
            return planned
        budget = parse_budget(request.budget, whole_bytes=candidates.whole_bytes(self.chain))
        points, fitted = self._found(budget, planned.frontier)
        planned = msgspec.structs.replace(planned, budget_bytes=budget, frontier=points, fitted=fitted)
        if fitted is None:
            better = model.better_blocks(points.peak_bytes[0]) if model else None
            own = model.own_form(budget, measure=request.measure) if model else None
            return msgspec.structs.replace(planned, better_blocks=better, own=own, exit_code=GATE)
        if not request.is_compared:
            return planned
        comparison = self._comparison(candidates.ways(self.chain, fitted.point, budget), budget, fitted.records)
        return msgspec.structs.replace(planned, comparison=comparison, exit_code=comparison.exit_code)

    def _frontier(self, chain: Chain, levels: int) -> Frontier:
        with self.screen.doing(f"looking for the fastest plans, {levels} deep"):
            return frontier(chain, levels=levels, points=POINTS if len(chain.stages) > LONG else None)

    def _found(self, budget: int, points: Frontier) -> tuple[Frontier, FittedPlan | None]:
        """Find a plan as `_fitted` does; if nothing fits, with all save options, and then by rules."""
        points, fitted = self._fitted(budget, points)
        if fitted is None and points.chain != self.chain:  # when it runs, an option may need less than a checkpoint
            points, fitted = self._fitted(budget, self._frontier(self.chain, self.request.levels or DEPTHS[0]))
        if fitted is None and self.model is not None and points.peak_bytes[0] <= budget:
            fitted = self._by_steps(plan_fitting.fit_rule, self.model, budget)
        elif fitted is not None and self.model is not None and self.model.case.is_rehearsed:
            by_costs = best(points, candidates.cost_limit(self.chain, budget))
            if by_costs and fitted.point.step_seconds > by_costs.step_seconds:  # what the costs prefer did not fit
                rule = self._by_steps(plan_fitting.fit_rule, self.model, budget)
                fitted = rule if rule and rule.point.step_seconds < fitted.point.step_seconds else fitted
        return points, fitted

    def _fitted(self, budget: int, points: Frontier) -> tuple[Frontier, FittedPlan | None]:
        """Return the fastest plan that fits, of these or deeper ones, and the frontier that it is on."""
        _, floor = candidates.largest_stage(self.chain)
        fitted = self._fit(budget, points)
        for levels in () if self.request.levels else DEPTHS[1:]:
            if fitted is not None or points.peak_bytes[0] <= floor or floor > budget:
                break  # no deeper one is lower, or low enough
            points = self._frontier(points.chain, levels)
            fitted = self._fit(budget, points)
        return points, fitted

    def _fit(self, budget: int, points: Frontier) -> FittedPlan | None:
        """Return the plan that fits by its costs or its step; None below the lower bound, where there are no times."""
        if self.model is None:
            point = best(points, candidates.cost_limit(self.chain, budget))
            return FittedPlan(point=point, needed_bytes=None) if point else None
        if candidates.largest_stage(self.chain)[1] > budget:
            return None
        return self._by_steps(partial(plan_fitting.fit_plan, frontier=points, say=self.screen.say), self.model, budget)

    def _by_steps(self, fit: Callable[..., FittedPlan | None], model: ModelOnDevice, budget: int) -> FittedPlan | None:
        request = self.request
        is_row = request.measure and request.is_compared and model.evidence == "measured"  # of the comparison
        with tempfile.TemporaryDirectory() as folder:
            return fit(
                model.engine,
                model.case,
                self.chain,
                budget_bytes=budget,
                path=Path(folder) / "plan.json",
                calibration=model.calibration(),
                measure=request.measure and not model.case.is_predicted,
                passes=EXACT_PASSES if is_row else plan_fitting.MEMORY,
            )

    def _comparison(self, ways: tuple[Way, ...], budget: int, fitted: Sequence[Record]) -> PlanComparison:
        request = self.request
        if self.model is None or (self.model.case.is_rehearsed and not request.measure):
            return PlanComparison(plans=tuple(ComparedPlan(way=way) for way in ways))
        return compare_plans(
            self.model, self.chain, ways, budget_bytes=budget, measure=request.measure,
            rounds=request.rounds, typed=request.typed, fitted=fitted,
        )  # fmt: skip
