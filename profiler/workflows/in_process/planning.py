"""A plan for a caller's model and a budget, and with every lever what makes its step fit a memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from profiler.analysis.explanation import better_blocks
from profiler.core import gpu_specs, plan_file
from profiler.core.case import Case, Trial
from profiler.core.errors import UserError
from profiler.core.gpu_specs import CONTEXT_BYTES, parse
from profiler.core.plan_file import PlanFile
from profiler.core.record import Record
from profiler.core.units import budget_text, bytes_text, parse_budget, parse_memory
from profiler.engines import Engine
from profiler.planning import candidates
from profiler.planning.chain import plan_file_of
from profiler.request.spec import Request, optimizer_text
from profiler.views.tables import Table
from profiler.views.tables.columns import OWN_OPTIMIZER, device_word
from profiler.views.tables.plans import workspace_text
from profiler.workflows import SILENT
from profiler.workflows.fit import FitRequest, Room, searched
from profiler.workflows.in_process.answering import NotRehearsed, answer, named, rehearsed
from profiler.workflows.in_process.arguments import Given, Model, Optimizer
from profiler.workflows.in_process.results import Fit, Found, Plan
from profiler.workflows.plan_comparison import file_of
from profiler.workflows.plan_fitting import frontiers
from profiler.workflows.planner import GATE, fitted_plan
from profiler.workflows.stages import Step, block_choices, limit_of, roomy, stages

NO_DEVICE = 3  # the exit code if nothing can be rehearsed


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
    if budget is None:
        raise UserError("plan needs a budget", hint="budget='8GiB', bytes, or '60%' of the peak without checkpointing")
    given, asked = Given(model, batch, loss, optimizer), budget

    def ask(engine: Engine, case: Case) -> Plan:
        return _planned(engine, case, asked, named(case, given))

    made, _ = answer(ask, given, device=device, precision=precision, blocks=blocks, seed=seed)
    return made


def _planned(engine: Engine, case: Case, budget: str | int, shown: Case) -> Plan:
    """Return the plan for the case; `shown` is the case as its title has it."""
    chain = stages(engine, case, None)
    if isinstance(budget, int) and budget < 1:
        raise UserError(f"--budget cannot be '{budget}'", hint="bytes, or a word as '60%'")
    whole = candidates.whole_bytes(chain)
    budget_bytes = parse_budget(budget, whole_bytes=whole) if isinstance(budget, str) else budget
    points, fitted = fitted_plan(chain, Step(case=case, engine=engine), budget_bytes)
    if fitted:
        settings = f"{optimizer_text(case)}, {case.precision}, {device_word(case.device)}: predicted, not measured"
        found = Found(
            title=f"{shown.model}, {settings}: at most {budget_text(budget_bytes, whole)}",
            chain=chain,
            points=list(points),
            ways=candidates.ways(chain, fitted.point, budget_bytes),
            none=candidates.none(chain),
        )
        return Plan.of(plan_file_of(chain, fitted.point.plan), found)
    name, floor = candidates.largest_stage(chain)
    better = None
    with suppress(UserError):
        better = better_blocks(block_choices(engine, case), lowers_floor=True)
    smallest = f"the smallest peak is about {bytes_text(min(points.peak_bytes[0] for points in frontiers(chain)))}"
    pattern = f"with blocks='{better.pattern}'" if better and better.pattern else "without blocks"
    others = f"{pattern} the floor is {bytes_text(better.floor_bytes)}; " if better else ""
    message = f"no plan fits {bytes_text(budget_bytes)}: {smallest}; '{name}' needs {bytes_text(floor)} by itself"
    lower = workspace_text(chain, floor) or "a smaller batch lowers it; so do 16 bits, or an optimizer with less state"
    raise UserError(message, hint=others + lower, exit_code=GATE)


def fit(
    model: Model,
    batch: Any = None,
    memory: str | int | None = None,
    *,
    loss: Callable[..., Any] | None = None,
    optimizer: Optimizer = None,
    device: str = "cuda",
    precision: str = "fp32",
    blocks: str | None = None,
    seed: int = 0,
    context: int = CONTEXT_BYTES,
    allow: str | None = None,
) -> Fit:
    """Find the fastest way to make a training step fit a memory, with every lever; each way is rehearsed.

    `memory` is "12GiB", a number of bytes, or "60%" of the device's memory, which is the default; `context` are the
    bytes of it that CUDA itself takes. `allow` names levers that change what is trained: "8bit,bf16-state". All else is
    as for `explain`. The result prints as the command's table; `label` is the way to take, `plan` its plan, which goes
    to `apply`, and `code` what to paste for it and its levers. Nothing is measured.

    Raises UserError for what cannot be asked for, and where no step can be rehearsed.

    Example::

        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(16)))
        batch = torch.randn(65536, 256), torch.zeros(65536, 256)
        gcprof.fit(model, batch, "1GiB", loss=nn.functional.mse_loss, optimizer="adamw", device="t4", context=0)
    """
    request = FitRequest(words=Request(), limit=1.0, allow=tuple(allow.split(",")) if allow else (), emit="python")
    request.check()
    given = Given(model, batch, loss, optimizer)

    def ask(engine: Engine, case: Case) -> Fit:
        step = Step(case=roomy(case), engine=engine)

        def run(trials: tuple[Trial, ...], plans: dict[Path, PlanFile]) -> tuple[int, tuple[Record, ...]]:
            for path, plan in plans.items():
                plan_file.write(plan, path)
            return 0, tuple(engine.run(trials))

        asked = parse_memory(memory, flag="--memory") if isinstance(memory, str) else 1.0 if memory is None else memory
        gpu = gpu_specs.find(parse(case.device).name)
        limit = limit_of(asked, gpu.memory_bytes, of=case.device, say=SILENT.say)
        with TemporaryDirectory(prefix="gcprof-") as folder:
            (Path(folder) / plan_file.FOLDER).mkdir()
            room = Room(limit, context, "assumed" if context == CONTEXT_BYTES else "as asked")
            found = searched(step, request, room, partial(file_of, Path(folder)), run, SILENT)
            return Fit(fitted=found, table=_of_caller(found.table, case, given, folder))

    try:
        return rehearsed(ask, given, device=device, precision=precision, blocks=blocks, seed=seed)
    except NotRehearsed as error:
        why = str(error)
        hint = None if why else 'name a GPU that need not be here: device="t4"'
        message = f"fit rehearses every way, which is not possible here{why and f': {why}'}"
        raise UserError(message, hint=hint, exit_code=NO_DEVICE) from error


def _of_caller(table: Table, case: Case, given: Given, folder: str) -> Table:
    """Return the table of a live model: with its name and optimizer, and without what is said of files in a folder."""
    title = table.title.replace(str(case.model), str(named(case, given).model))
    gone = [folder]
    if not isinstance(given.optimizer, str | None):
        title = title.replace(OWN_OPTIMIZER, type(given.optimizer).__name__)
        gone.append("GCP009")  # that the model has its own is no news
    below = tuple(line for line in table.below if not any(word in line for word in gone))
    return msgspec.structs.replace(table, title=title, below=below)
