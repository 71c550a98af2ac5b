"""A plan for a caller's model and a budget, from steps that are rehearsed or estimated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from profiler.analysis.explanation import better_blocks
from profiler.core import optional_deps
from profiler.core.case import Case
from profiler.core.errors import UserError
from profiler.core.plan_file import PlanFile
from profiler.core.units import budget_text, bytes_text, parse_budget
from profiler.planning import candidates, solver
from profiler.planning.candidates import Way
from profiler.planning.chain import Chain
from profiler.planning.plan import plan_file_of
from profiler.planning.solver import Point
from profiler.request.spec import optimizer_text
from profiler.views.export import markdown as languages
from profiler.views.tables import plans
from profiler.views.tables.evidence import device_word
from profiler.views.tables.grid import Table, text
from profiler.views.tables.plans import workspace_text
from profiler.workflows.in_process.answering import Source, answer, named
from profiler.workflows.in_process.arguments import Model, Optimizer
from profiler.workflows.plan_fitting import Steps, fit_plan, frontiers
from profiler.workflows.planner import GATE


def plan(
    model: Model,
    batch: Any = None,
    budget: str | int | None = None,
    *,
    loss: Callable[..., Any] | None = None,
    optimizer: Optimizer = None,
    device: str = "cuda",
    precision: str = "fp32",
    blocks: str | None = None,
    seed: int = 0,
) -> Plan:
    """Returns the plan that recomputes least of those whose peak fits the budget.

    `build`, `device` and the other keywords are as for `predict`. `budget` is of the peak of allocated bytes in a step:
    "8GiB", a number of bytes, "60%" of the peak without checkpointing, or "max". What each block holds is rehearsed or
    estimated, as `predict` says, and so is the step under the plan before the plan is returned:
    `predict(build, plan).readings.peak_bytes` is within the budget. For a GPU that is known by name the plan adds the
    least estimated seconds, and may keep the results of matrix products, convolutions or attention within a block; for
    `cpu` every block costs the same. Nothing is measured: `gcprof plan` does that too. A notebook shows the plan beside
    its rivals.

    The plan goes to `apply`, `measure` and `predict` as a strategy; `plan.save("plan.json")` writes it to a file, which
    `gcprof run --strategies plan:file=plan.json` and `apply(module, Path("plan.json"))` read. `plan.plan` says it in
    words: `1 [2-3] 4` keeps blocks 1 and 4, and recomputes 2 and 3 together.

    Raises UserError where no plan fits, naming the smallest peak there is, or for what cannot be asked for; Unsupported
    where the blocks do not run once each in order, or the step cannot be traced; TypeError for a `build` that returns
    something else, and whatever it raises.

    Example::

        def build():
            module = nn.Sequential(*(nn.Linear(256, 256) for _ in range(16)))
            return module, (torch.randn(4096, 256), torch.zeros(4096, 256)), nn.functional.mse_loss


        plan = gcprof.plan(build, budget="60%", device="h100")
        module, batch, loss = build()
        gcprof.apply(module, plan)
    """

    def ask(source: Source, case: Case) -> Plan:
        return _planned(source, case, budget, named(case, model))  # type: ignore[arg-type]  # refused below

    if budget is None:
        raise UserError("plan needs a budget", hint="budget='8GiB', bytes, or '60%' of the peak without checkpointing")
    made, _ = answer(ask, model, batch, loss, optimizer, device=device, precision=precision, blocks=blocks, seed=seed)
    return made


def _planned(source: Source, case: Case, budget: str | int, shown: Case) -> Plan:
    """Return the plan for the case; `shown` is the case as its title has it."""
    chain = source.chain(case)
    if isinstance(budget, int) and budget < 1:
        raise UserError(f"--budget cannot be '{budget}'", hint="bytes, or a word as '60%'")
    whole = candidates.whole_bytes(chain)
    budget_bytes = parse_budget(budget, whole_bytes=whole) if isinstance(budget, str) else budget
    engine: Any = source  # as far as steps need one
    steps = Steps(engine, case, chain, passes=())
    for frontier in frontiers(chain):
        if fitted := fit_plan(steps.run, frontier, budget_bytes, is_rehearsed=case.is_rehearsed):
            point = fitted.point
            return Plan.of(plan_file_of(chain, point.plan), _found(shown, chain, frontier, point, budget_bytes))
    name, floor = candidates.largest_stage(chain)
    better = None
    with suppress(UserError):
        better = better_blocks(source.choices(case), lowers_floor=True)
    smallest = f"the smallest peak is about {bytes_text(frontier.peak_bytes[0])}"
    pattern = f"with blocks='{better.pattern}'" if better and better.pattern else "without blocks"
    others = f"{pattern} the floor is {bytes_text(better.floor_bytes)}; " if better else ""
    message = f"no plan fits {bytes_text(budget_bytes)}: {smallest}; '{name}' needs {bytes_text(floor)} by itself"
    lower = workspace_text(chain, floor) or "a smaller batch lowers it; so do 16 bits, or an optimizer with less state"
    raise UserError(message, hint=others + lower, exit_code=GATE)


def _found(case: Case, chain: Chain, frontier: solver.Frontier, point: solver.Point, budget_bytes: int) -> Found:
    """Return what the plan was chosen from."""
    device = device_word(case.device)
    settings = f"{optimizer_text(case)}, {case.precision}, {device}: predicted, not measured"
    return Found(
        title=f"{case.model}, {settings}: at most {budget_text(budget_bytes, candidates.whole_bytes(chain))}",
        chain=chain,
        points=list(frontier),
        ways=candidates.ways(chain, point, budget_bytes),
        none=candidates.none(chain),
    )


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan was chosen from: its chain, the frontier, and the alternatives."""

    title: str
    chain: Chain
    points: Sequence[Point]  # of the frontier
    ways: tuple[Way, ...]  # the plan first, then what a user would pick without a solver
    none: Way


class Plan(PlanFile, frozen=True, kw_only=True, dict=True):
    """A plan that its notebook shows next to the alternatives; its file is like that of any plan."""

    @classmethod
    def of(cls, file: PlanFile, found: Found) -> Plan:
        """Return the plan, with what it was chosen from."""
        plan = cls(plan=file.plan, segments=file.segments, fingerprint=file.fingerprint)
        plan.__dict__["found"] = found
        return plan

    def __repr__(self) -> str:
        return text([self._table(self._found)]).plain if self._found else super().__repr__()

    def _repr_html_(self) -> str | None:
        found = self._found
        if found is None:
            return None
        view = optional_deps.load("profiler.views.plots.lines", needs="matplotlib")
        png = languages.png(lambda path: view.plot_plans(found.points, found.chain, title=found.title, path=path))
        return languages.html([self._table(found)], picture=png)

    def _repr_markdown_(self) -> str | None:
        found = self._found
        if found is None:
            return None
        return languages.markdown([self._table(found)])

    @property
    def _found(self) -> Found | None:
        """What the plan was chosen from; None for a copy, which has only what its file has."""
        return self.__dict__.get("found")

    def _table(self, found: Found) -> Table:
        lines = [plans.ComparedPlan(way=way) for way in (found.none, *found.ways)]
        below = [
            *plans.reading(found.chain, (line.way.plan for line in lines)),
            "by the costs of the stages, predicted; times are against the step without checkpointing",
            "gcprof.apply(module, plan) checkpoints a module so; plan.save('plan.json') keeps it",
        ]
        return Table(title=found.title, columns=plans.way_columns(lines, found.chain, found.none), below=tuple(below))
