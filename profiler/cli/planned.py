"""What `gcprof plan` does with its words: costs, frontier, plan, proof, and what is printed of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from profiler.cli.output import aside, encoding, next_command, say, say_bytes, width
from profiler.cli.plan_options import Wish, refuse
from profiler.cli.proof import prove, unproved
from profiler.core.errors import UserError

if TYPE_CHECKING:
    from profiler.cli.planning import Model
    from profiler.planning.chain import Chain
    from profiler.planning.solver import Frontier, Point
    from profiler.request.spec import Request
    from profiler.views.tables.plans import Shown
    from profiler.workflows.planner import Settled

DEPTHS = (1, 2, 4, 8)  # tried in turn where the user does not say how deep
POINTS = 1000  # of a long chain's staircases
LONG = 200  # stages
GATE = 5  # what a command ends with where what was asked for cannot be had


def carry_out(words: Request, wish: Wish) -> int:
    """Plan, prove and print; the exit code. Raises UserError."""
    refuse(words, wish)
    with ExitStack() as stack:
        from profiler.cli.planning import Model
        from profiler.planning import chain as chains

        model = stack.enter_context(Model(words)) if words.model is not None else None
        for remark in model.remarks if model else ():
            aside(f"note: {remark}")
        chain = chains.read(wish.stages) if wish.stages else _chain(model)
        if model and chain.made_for != model.title:
            message = f"'{wish.stages}' has the costs of {chain.made_for or 'no known model'}, not of {model.title}"
            raise UserError(message, hint="leave out --stages, or write them anew with `gcprof stages`")
        return _Planning(chain, model, wish).go()


def _chain(model: Model | None) -> Chain:
    assert model
    from profiler.request import device_choice

    is_traced = model.case.is_predicted or model.case.device in device_choice.hollow(model.devices)
    aside("tracing each stage" if is_traced else "measuring each stage")
    return model.chain()


class _Planning:
    """One chain, with its model where that is at hand."""

    def __init__(self, chain: Chain, model: Model | None, wish: Wish) -> None:
        from profiler.planning import candidates

        self.chain, self.model, self.wish = chain, model, wish
        self.none = candidates.none(chain)
        self.title = model.title if model else wish.stages.name if wish.stages else ""

    def go(self) -> int:
        from profiler.core.units import parse_budget
        from profiler.planning.candidates import largest_stage
        from profiler.planning.plan import recipe

        if self.model or self.wish.emit or self._writes_plan:
            recipe(self.chain, self.none.plan)  # refuse stages of no known modules before there is work
        if self.wish.budget is None:
            return self._show_frontier(self._frontier(self.wish.levels or 1))
        budget = parse_budget(self.wish.budget, whole_bytes=self.none.cost.peak_bytes)
        _, floor = largest_stage(self.chain)
        for depth in (self.wish.levels,) if self.wish.levels else DEPTHS:
            frontier = self._frontier(depth)
            settled = self._settle(frontier, budget)
            if settled is not None:
                return self._show_plan(frontier, budget, settled)
            if frontier.peak_bytes[0] <= floor:
                break  # nor is any deeper one lower
        return self._infeasible(frontier, budget)

    def _frontier(self, levels: int) -> Frontier:
        from profiler.planning.solver import frontier

        return frontier(self.chain, levels=levels, points=POINTS if len(self.chain.stages) > LONG else None)

    def _settle(self, frontier: Frontier, budget: int) -> Settled | None:
        """The fastest plan that fits: by costs alone, by a traced step, and by a measured one, as far as there are."""
        import tempfile

        from profiler.planning.solver import best
        from profiler.workflows import planner

        if self.model is None:
            point = best(frontier, budget)
            return planner.Settled(point=point, traced_bytes=None) if point else None
        with tempfile.TemporaryDirectory() as folder:
            return planner.settle(
                self.model.engine,
                self.model.case,
                self.chain,
                frontier,
                budget_bytes=budget,
                path=Path(folder) / "plan.json",
                calibration=self.model.calibration(),
                measure=self._measures,
                say=aside,
            )

    @property
    def _measures(self) -> bool:
        return self.wish.measure and self.model is not None and not self.model.case.is_predicted

    def _show_frontier(self, frontier: Frontier) -> int:
        from profiler.views.tables import plans

        points = list(frontier)
        if self.wish.json:
            say_bytes(self._document(points, None, []))
        else:
            title = f"{self.title}: {len(points)} plans, none of which another beats; by the costs of the stages"
            say(plans.frontier(points, self.none, title=title, width=width(), encoding=encoding()))
            aside(plans.legend(self.chain))
        self._write(points, None)
        next_command("gcprof", "plan", *self._words, "--budget", "60%")
        return 0

    def _show_plan(self, frontier: Frontier, budget: int, settled: Settled) -> int:
        from profiler.planning.candidates import ways
        from profiler.planning.plan import recipe

        if self.wish.emit:
            from profiler.planning.plan_code import emit

            print(emit(recipe(self.chain, settled.point.plan), self.wish.emit), end="")
            return 0
        found = ways(self.chain, settled.point, budget)
        proof = prove(self.model, self.chain, found, self.wish) if self.model else unproved(found)
        points = list(frontier) if self.wish.frontier or self.wish.json or self._draws else []
        if self.wish.json:
            say_bytes(self._document(points, budget, proof.lines))
        else:
            self._say(points, frontier, budget, proof.lines)
        for line in (*self._facts(budget, frontier, settled), *proof.told):
            aside(line)
        self._write(points, settled)
        self._next()
        return proof.code

    def _say(self, points: list[Point], frontier: Frontier, budget: int, lines: Sequence[Shown]) -> None:
        from profiler.core.units import bytes_text
        from profiler.views.tables import plans

        if self.wish.frontier:
            say(plans.frontier(points, self.none, title=self.title, width=width(), encoding=encoding()))
            print()
        peak = self.none.cost.peak_bytes
        percent = f", {budget / peak * 100:.0f} % of the peak without checkpointing" if peak else ""
        title = f"{self.title}: at most {bytes_text(budget)}{percent}"
        below = [plans.legend(self.chain), "times are against the step without checkpointing"]
        say(plans.table(lines, title=title, none=self.none, below=below, width=width(), encoding=encoding()))

    def _facts(self, budget: int, frontier: Frontier, settled: Settled) -> list[str]:
        """What the user should know of the plan besides its line."""
        from profiler.core.units import bytes_text
        from profiler.planning.candidates import largest_stage

        name, floor = largest_stage(self.chain)
        found = [
            f"floor: {bytes_text(floor)}, the static bytes and '{name}' at work alone; "
            f"the smallest peak of a plan this deep: {bytes_text(frontier.peak_bytes[0])}"
        ]
        lost = frontier.lost_fraction
        exact = (
            "no plan of these stages this deep is faster" if not lost else f"no plan is faster by {lost * 100:.2g} %"
        )
        found.append(f"{exact}; {len(frontier)} plans are on the frontier")
        if settled.reserve_bytes:
            found.append(
                f"{bytes_text(settled.reserve_bytes)} are kept in reserve: the step needs more than its stages tell"
            )
        return found

    def _infeasible(self, frontier: Frontier, budget: int) -> int:
        from profiler.core.units import bytes_text
        from profiler.planning.candidates import largest_stage

        name, working = largest_stage(self.chain)
        static, gradients = self.chain.static_bytes, sum(stage.gradient_bytes for stage in self.chain.stages)
        if self.wish.json:
            say_bytes(self._document(list(frontier), budget, []))
        smallest = frontier.peak_bytes[0]
        more = " by the costs of the stages, and its step needs more" if smallest <= budget else ""
        aside(f"no plan fits {bytes_text(budget)}: the smallest peak is {bytes_text(smallest)}{more}")
        aside(
            f"'{name}' needs {bytes_text(working)} at work alone: {bytes_text(static)} of it are there in every step, "
            f"and up to {bytes_text(gradients)} are gradients of parameters"
        )
        aside("a smaller batch lowers the rest; sharding, 16 bits or an optimizer with less state these two")
        return GATE

    @property
    def _writes_plan(self) -> bool:
        return self.wish.output is not None and self.wish.output.suffix.lower() == ".json"

    @property
    def _draws(self) -> bool:
        return self.wish.output is not None and not self._writes_plan

    @property
    def _words(self) -> list[str]:
        """The model and the costs, for the next command."""
        stages = ["--stages", str(self.wish.stages)] if self.wish.stages else []
        return [*(self.model.words if self.model else []), *stages]

    def _document(self, points: list[Point], budget: int | None, lines: Sequence[Shown]) -> bytes:
        from profiler.planning.candidates import largest_stage
        from profiler.views.tables import plans

        name, floor = largest_stage(self.chain)
        model = str(self.model.case.model) if self.model else None
        facts = {"floor_bytes": floor, "largest_stage": name}
        return plans.document(model=model, budget_bytes=budget, none=self.none, points=points, lines=lines, facts=facts)

    def _write(self, points: list[Point], settled: Settled | None) -> None:
        """The file that was asked for: the plan, or the frontier as a table or a picture."""
        from profiler.core import optional_deps, plan_file
        from profiler.planning.plan import recipe as recipe_of
        from profiler.views.export.files import write_whole
        from profiler.views.tables import plans

        path, force = self.wish.output, self.wish.force
        if path is None:
            return
        if self._writes_plan:
            assert settled
            write_whole(path, plan_file.encoded(recipe_of(self.chain, settled.point.plan)), force=force)
        elif path.suffix.lower() == ".csv":
            write_whole(path, plans.csv(points), force=force)
        else:
            foreseen = ": predicted, not measured" if self.model and self.model.case.is_predicted else ""
            plot_plans = optional_deps.load("profiler.views.plots.plan_curves", needs="matplotlib")
            plot_plans.plot(points, self.chain, title=f"{self.title}{foreseen}", path=path, force=force)
        aside(f"wrote {path}")

    def _next(self) -> None:
        budget = ["--budget", str(self.wish.budget)]
        if self._writes_plan and self.model:
            file = f"plan:file={self.wish.output}"
            next_command("gcprof", "run", "--model", *self.model.words, "--strategies", file)
        elif any(stage.blocks for stage in self.chain.stages):
            next_command("gcprof", "plan", *self._words, *budget, "--emit", "python")
        else:
            next_command("gcprof", "plan", *self._words, "--frontier", "-o", "frontier.png")
