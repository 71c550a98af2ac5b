"""A plan for a caller's model and a budget, from steps that are rehearsed or estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from profiler.analysis.explanation import better_blocks
from profiler.core import plan_file
from profiler.core.case import FAKE, Case, Trial
from profiler.core.errors import UserError
from profiler.core.record import Record
from profiler.core.trace_data import BlockChoice
from profiler.core.units import bytes_text, parse_budget
from profiler.engines import Engine
from profiler.planning import candidates, solver
from profiler.planning.chain import Chain
from profiler.planning.plan import plan_file_of
from profiler.predicting.prediction import better_choice
from profiler.predicting.prediction import predict as predict_trial
from profiler.predicting.staging.stages import stages
from profiler.predicting.traced_case import known_rates
from profiler.request.model_choice import optimizer_text
from profiler.training.assemble import Build
from profiler.views.tables.evidence import device_word
from profiler.views.tables.plans import workspace_text
from profiler.workflows import plan_fitting
from profiler.workflows.in_process.arguments import Model, predicted, undisturbed
from profiler.workflows.in_process.rehearsing import named, rehearsed
from profiler.workflows.in_process.results import Found, Plan
from profiler.workflows.planner import DEPTHS, GATE, LONG, POINTS
from profiler.workflows.stages import block_choices
from profiler.workflows.stages import stages as stages_of


def plan(
    build: Model,
    budget: str | int,
    *,
    batch: Any = None,
    loss: Callable[..., Any] | None = None,
    optimizer: str = "sgd",
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


        plan = profiler.plan(build, "60%", device="h100")
        module, batch, loss = build()
        profiler.apply(module, plan)
    """
    words: dict[str, Any] = {"device": device, "precision": precision, "blocks": blocks, "seed": seed}

    def ask(engine: Engine, case: Case) -> Plan:
        return _planned(engine, case, stages_of(engine, case, None), budget, named(case, build))

    made, _ = rehearsed(ask, build, batch, loss, optimizer, **words)
    return made or _estimated(budget, build, batch, loss, optimizer, **words)


@undisturbed
def _estimated(budget: str | int, *model: Any, **words: Any) -> Plan:
    case, fresh = predicted(*model, **words)
    engine: Any = _InThisProcess(fresh)  # as far as traced steps need one
    return _planned(engine, case, _chain(case, fresh), budget, case)


def _planned(engine: Engine, case: Case, chain: Chain, budget: str | int, shown: Case) -> Plan:
    """Return the plan for the case's chain; `shown` is the case as its title has it."""
    budget_bytes = _budget_bytes(budget, whole_bytes=candidates.whole_bytes(chain))
    name, floor = candidates.largest_stage(chain)
    points = POINTS if len(chain.stages) > LONG else None
    for levels in DEPTHS:
        frontier = solver.frontier(chain, levels=levels, points=points)
        if point := _fitted(engine, case, chain, frontier, budget_bytes):
            return Plan.of(plan_file_of(chain, point.plan), _found(shown, chain, frontier, point, budget_bytes))
        if frontier.peak_bytes[0] <= floor:
            break  # deeper plans are no smaller
    better = engine.better_choice(case) if isinstance(engine, _InThisProcess) else _better_choice(engine, case)
    smallest = f"the smallest peak is about {bytes_text(frontier.peak_bytes[0])}"
    pattern = f"with blocks='{better.pattern}'" if better and better.pattern else "without blocks"
    others = f"{pattern} the floor is {bytes_text(better.floor_bytes)}; " if better else ""
    message = f"no plan fits {bytes_text(budget_bytes)}: {smallest}; '{name}' needs {bytes_text(floor)} by itself"
    lower = workspace_text(chain, floor) or "a smaller batch lowers it; so do 16 bits, or an optimizer with less state"
    raise UserError(message, hint=others + lower, exit_code=GATE)


def _chain(case: Case, fresh: Build | None) -> Chain:
    """Return the stages of the model; for a device of unknown speed, each block's forward takes 1, its backward 2."""
    if known_rates(case.device):
        return stages(Trial(case=case), build=fresh)
    chain = stages(Trial(case=case, passes=("memory",)), build=fresh)
    counted = (
        msgspec.structs.replace(
            stage,
            forward_seconds=len(stage.blocks),
            backward_seconds=2 * len(stage.blocks),
            early_stop_seconds=None,  # a recompute takes as long as a forward
            inner_recompute_seconds=None,
        )
        for stage in chain.stages
    )
    return msgspec.structs.replace(chain, stages=tuple(counted))


def _budget_bytes(budget: str | int, *, whole_bytes: int) -> int:
    if isinstance(budget, str):
        return parse_budget(budget, whole_bytes=whole_bytes)
    if budget < 1:
        raise UserError(f"--budget cannot be '{budget}'", hint="bytes, or a word as '60%'")
    return budget


def _fitted(
    engine: Engine, case: Case, chain: Chain, frontier: solver.Frontier, budget_bytes: int
) -> solver.Point | None:
    """Return the fastest plan of a frontier whose step fits, rehearsed or traced; None if none does."""
    with TemporaryDirectory() as folder:
        fitted = plan_fitting.fit_plan(
            engine,
            case,
            chain,
            frontier,
            budget_bytes=budget_bytes,
            path=Path(folder) / plan_file.USUAL,
            calibration=None,
            measure=case.is_rehearsed,
        )
    return fitted.point if fitted else None


def _found(case: Case, chain: Chain, frontier: solver.Frontier, point: solver.Point, budget_bytes: int) -> Found:
    """Return what the plan was chosen from."""
    percent = f"{budget_bytes / candidates.whole_bytes(chain) * 100:.0f} % of the peak without checkpointing"
    device = device_word(case.device.removeprefix(FAKE))
    settings = f"{optimizer_text(case)}, {case.precision}, {device}: predicted, not measured"
    return Found(
        title=f"{case.model}, {settings}: at most {bytes_text(budget_bytes)}, {percent}",
        chain=chain,
        points=list(frontier),
        ways=candidates.ways(chain, point, budget_bytes),
        none=candidates.none(chain),
    )


def _better_choice(engine: Engine, case: Case) -> BlockChoice | None:
    """Return the other blocks with the lowest floor, by a rehearsed step; None if none is lower, or none is known."""
    try:
        return better_blocks(block_choices(engine, case), lowers_floor=True)
    except UserError:
        return None


class _InThisProcess:
    """Predicts trials of one model in this process, where an engine would start one for each."""

    def __init__(self, build: Build | None) -> None:
        self._build = build

    def run(self, trials: Iterable[Trial]) -> Iterator[Record]:
        return (predict_trial(trial, build=self._build) for trial in trials)

    def better_choice(self, case: Case) -> BlockChoice | None:
        return better_choice(case, build=self._build)
