"""A step of a caller's model: measured here, rehearsed in another process or estimated; explained, planned, fitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch

from profiler.analysis import explanation
from profiler.analysis.explanation import better_blocks
from profiler.core import device_choice, gpu_specs, plan_file
from profiler.core.case import PASSES, Case, Choice, Trial, split_choices
from profiler.core.errors import Unsupported, UserError
from profiler.core.gpu_specs import CONTEXT_BYTES, parse
from profiler.core.plan_file import PlanFile
from profiler.core.record import Note, Record
from profiler.core.trace_data import Followed
from profiler.core.units import budget_text, bytes_text, parse_budget, parse_memory
from profiler.engines import Engine
from profiler.measuring.trial import measure as measure_trial
from profiler.planning import simulator
from profiler.planning.chain import plan_file_of
from profiler.training import refuse_conflicts, resolved_label
from profiler.training.memory_levers import grows, set_growing
from profiler.training.models.user import as_workload
from profiler.views.tables import Table
from profiler.views.tables.columns import OWN_OPTIMIZER, device_word
from profiler.views.tables.plans import ComparedPlan, workspace_text
from profiler.workflows import SILENT
from profiler.workflows.explain import assumed, heading
from profiler.workflows.fit import FitRequest, Fitted, searched
from profiler.workflows.in_process import answering
from profiler.workflows.in_process.answering import Given, Model, Optimizer, answer, named, rehearsed
from profiler.workflows.in_process.results import Fit, PeakMemory, Plan, ShownRecord, StepExplanation, Timeline
from profiler.workflows.plan_fitting import frontiers, written
from profiler.workflows.planner import GATE, Planned, fitted_plan
from profiler.workflows.spec import Request, optimizer_text
from profiler.workflows.stages import Step, block_choices, followed, limit_of, roomy, stages

REHEARSED = "by='predicted' rehearses a GPU where that is possible"


@answering.undisturbed
def measure(
    model: Model,
    batch: Any = None,
    strategy: str | PlanFile | Path = "none",
    *,
    loss: Callable[..., Any] | None = None,
    optimizer: Optimizer = None,
    device: str = "cpu",
    precision: str = "fp32",
    blocks: str | None = None,
    warmup: int = 1,
    samples: int = 5,
    seed: int = 0,
) -> Record:
    """Measure one strategy in this process: memory, time, FLOPs, and equality to the step without checkpointing.

    `build` returns a fresh module and batch, optionally a loss and an optimizer, as a user's file does for `gcprof run`
    (see profiler.training.models.user); it is called once for each pass. It may also be a word (`mlp`, `train.py:make`)
    or a module, with a `batch` and perhaps a `loss`: it is copied for each pass. `strategy` is as for `apply`. Bytes
    and seconds: `readings.peak_bytes`, `readings.step_seconds` with `samples` raw samples after `warmup` steps. One
    process for all is less exact than `gcprof run`, which takes a fresh one for every trial.

    Raises UserError for what cannot be asked for, Unsupported where the strategy cannot be applied, TypeError for a
    `build` that returns something else, and whatever it raises.

    Example::

        def build():
            module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
            return module, (torch.randn(32, 64), torch.zeros(32, 64)), nn.functional.mse_loss


        record = gcprof.measure(build, strategy="segments:k=4")
        record.readings.saved_bytes, record.equality.gradients_equal
    """
    answering.refuse_other_strategies(strategy)
    words = Request(
        device=device, precision=precision, blocks=blocks, rounds=1, warmup=warmup, samples=samples, seed=seed
    )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = ["cpu", *(f"cuda:{index}" for index in range(count))]
    given = Given(model, batch, loss, optimizer)
    checked = given.case(words, lambda word: device_choice.choose_device(word, devices))
    make = given.factory()
    made = None if make is None else lambda: as_workload(make())

    with under(checked, strategy) as (case, shown):
        trial = Trial(case=case, passes=PASSES)
        if case != case.baseline:
            equality = measure_trial(Trial(case=case.baseline, passes=("equality",)), build=made).equality
            trial = msgspec.structs.replace(trial, digests=equality.digests if equality else None)
        return ShownRecord.of(msgspec.structs.replace(measure_trial(trial, build=made), case=shown))


def predict(
    model: Model,
    batch: Any = None,
    strategy: str | PlanFile | Path = "none",
    *,
    loss: Callable[..., Any] | None = None,
    optimizer: Optimizer = None,
    device: str = "cuda",
    precision: str = "fp32",
    blocks: str | None = None,
    seed: int = 0,
) -> Record:
    """Predict what `measure` would find on a device that need not be there.

    A GPU's bytes are rehearsed where torch can do that, on Linux with its CUDA build: another process runs the step by
    PyTorch's own CUDA code on a device that computes nothing. `build` is as for `measure`; it is sent there, a module
    as its shapes, types and shared storages, what your script defines by value. Where that cannot be, and for `cpu` and
    `fake:h100`, a step is traced here under fake tensors instead; a note says why. Nothing is computed either way, the
    module stays as it is, and a model may be larger than this machine. `strategy` is as for `apply`, `device` a GPU of
    `gcprof predict` (`h100`, `a100-80`, `rtx-4090`), `cuda` for an H100, or `cpu`. In the record,
    `readings.peak_bytes`, `saved_bytes`, `static_bytes` and `phases` are bytes; `step_seconds` holds one estimate in
    seconds for a GPU that is known by name. A step that does not fit a GPU has the outcome `out_of_memory`. The notes
    say how sure it is. The random state of this process stays as it was.

    Raises UserError for what cannot be asked for, Unsupported where the strategy cannot be applied or the step cannot
    be traced (it depends on values of its data), TypeError for a `build` that returns something else, and whatever it
    raises.

    Example::

        def build():
            module = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8)))
            return module, (torch.randn(32, 4096), torch.zeros(32, 4096)), nn.functional.mse_loss


        before = gcprof.predict(build, device="h100", precision="bf16").readings.peak_bytes
        after = gcprof.predict(build, strategy="segments:k=4", device="h100", precision="bf16").readings.peak_bytes
    """
    answering.refuse_other_strategies(strategy)
    given = Given(model, batch, loss, optimizer)

    def ask(engine: Engine, case: Case) -> Record:
        with under(case, strategy) as (chosen, shown):
            (record,) = engine.run([Trial(case=chosen)])
            if record.outcome not in ("ok", "out_of_memory"):  # the device did not decide
                raise Unsupported(record.detail or record.outcome)
            return msgspec.structs.replace(record, case=named(shown, given))

    record, why = answer(ask, given, device=device, precision=precision, blocks=blocks, seed=seed)
    if why:
        record = msgspec.structs.replace(record, notes=(*record.notes, Note(code="GCP068", text=why)))
    return ShownRecord.of(record)


def explain(
    model: Model,
    batch: Any = None,
    strategy: str | PlanFile | Path = "none",
    *,
    loss: Callable[..., Any] | None = None,
    optimizer: Optimizer = None,
    device: str = "cuda",
    precision: str = "fp32",
    blocks: str | None = None,
    seed: int = 0,
) -> StepExplanation:
    """Explain the predicted peak of a training step: where it is, what holds it, how low it could be, and why.

    `model` is a module with its `batch`, a function as for `predict`, or a word (`mlp`, `train.py:make`). The module is
    called with the batch as `apply` calls it; with a `loss`, a batch of two is inputs and targets. `optimizer` is the
    module's own, a function of parameters, or a name (`adamw`); without it SGD is assumed. All stay as they are, and
    the step takes no memory. Bytes are rehearsed or estimated as for `predict`, and so are the other keywords. A
    notebook shows the result as tables, `print` as text; `peak_bytes` and `explanation` hold the numbers.

    Raises UserError for what cannot be asked for, Unsupported where the step cannot be traced, and whatever the model
    raises.

    Example::

        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(16)))
        batch = torch.randn(4096, 256), torch.zeros(4096, 256)
        gcprof.explain(model, batch, loss=nn.functional.mse_loss, optimizer="adamw", device="h100")
    """
    strategies = ["none", *([strategy] if strategy != "none" else [])]
    given = Given(model, batch, loss, optimizer)
    steps, why = _steps(
        strategies, given, device=device, precision=precision, blocks=blocks, seed=seed, with_choices=True
    )
    (_, baseline), (step, chosen) = steps[0], steps[-1]
    explained = explanation.explain(chosen, baseline, batch_size=step.batch_size)
    is_given = not isinstance(optimizer, str | None)  # then it is no news that the model has its own
    title = heading(step, chosen, with_strategy=True, is_assumed=optimizer is None)
    remarks = [remark for remark in chosen.remarks if not (is_given and OWN_OPTIMIZER in remark)]
    return StepExplanation(
        title=title.replace(OWN_OPTIMIZER, type(optimizer).__name__) if is_given else title,
        explanation=explained,
        notes=(*(assumed(chosen) if optimizer is None else ()), *remarks, *([why] if why else [])),
    )


def timeline(
    model: Model,
    batch: Any = None,
    strategies: str | Iterable[str | PlanFile | Path] = "none,all",
    *,
    loss: Callable[..., Any] | None = None,
    optimizer: Optimizer = None,
    device: str = "cuda",
    precision: str = "fp32",
    blocks: str | None = None,
    seed: int = 0,
) -> Timeline:
    """Predict what is live over a training step, under each of the strategies.

    `strategies` is a list as on the command line (`none,segments:k=4`), or one of words and plans. All else is as for
    `explain`. A notebook shows the result as a table and a picture, a panel for each strategy; `save("fig.png")` writes
    the picture, `peak_bytes` holds the peaks and `traces` the steps. Raises as `explain` does.

    Example::

        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(16)))
        batch = torch.randn(4096, 256), torch.zeros(4096, 256)
        gcprof.timeline(model, batch, "none,segments:k=4", loss=nn.functional.mse_loss).peak_bytes
    """
    chosen = split_choices(strategies) if isinstance(strategies, str) else strategies
    given = Given(model, batch, loss, optimizer)
    steps, _ = _steps(list(chosen), given, device=device, precision=precision, blocks=blocks, seed=seed)
    traces = {str(case.label): step.trace for case, step in steps}
    return Timeline(title=heading(*steps[0]), traces=traces)


def _steps(
    strategies: Sequence[str | PlanFile | Path], given: Given, *, with_choices: bool = False, **words: Any
) -> tuple[list[tuple[Case, Followed]], str]:
    """Return the cases of these strategies, each with its step, and why they are estimated if they could be rehearsed.

    `words` are as of `answer`. With choices, the first step also has what other blocks come to.
    """
    answering.refuse_other_strategies(*strategies)

    def ask(engine: Engine, case: Case) -> list[tuple[Case, Followed]]:
        steps = []
        for place, strategy in enumerate(strategies):
            with under(case, strategy) as (chosen, shown):
                step = followed(engine, Trial(case=chosen), with_choices=with_choices and not place)
                steps.append((named(shown, given), step))
        return steps

    return answer(ask, given, **words)


@contextmanager
def under(case: Case, strategy: str | PlanFile | Path) -> Iterator[tuple[Case, Case]]:
    """Yield the case under a strategy, and the case to record; a plan in memory is in a file meanwhile."""
    if isinstance(strategy, PlanFile):
        with written(strategy) as path, under(case, path) as (from_file, _):
            yield from_file, msgspec.structs.replace(case, strategy=Choice("plan"))
        return
    word = Choice.of("plan", {"file": strategy}) if isinstance(strategy, Path) else Choice(strategy)
    chosen = case.under(resolved_label(word))
    refuse_conflicts(chosen)
    yield chosen, chosen
    if grows(chosen) and chosen.torch_device.startswith("cuda") and not chosen.is_rehearsed:
        set_growing(False)


BY: dict[str, Callable[..., Record]] = {"predicted": predict, "measured": measure}


def peak_memory(
    model: Model, batch: Any = None, strategy: str | PlanFile | Path = "none", *, by: str = "predicted", **settings: Any
) -> PeakMemory:
    """Returns the peak of one training step; predicted, or measured on a device that is here.

    The model and the settings are as for `gcprof.predict` and `gcprof.measure`. Raises UserError for what cannot be
    asked for, and as these do.
    """
    if by not in BY:
        raise UserError(f"by: '{by}' is not known", hint=REHEARSED if by == "rehearsed" else f"try {', '.join(BY)}")
    return PeakMemory.of(BY[by](model, batch, strategy, **settings))


def failure(peak: PeakMemory, budget: int | None, *, named: str) -> str | None:
    """Return why a peak is over a budget, what holds it and what to try; None if it fits, or there is no budget."""
    if budget is None or peak <= budget:
        return None
    over = f"{bytes_text(peak - budget)} over {named} of {bytes_text(budget)}"
    readings = peak.record.readings
    lines = [f"peak memory {peak!r}", f"is {over}"]
    if readings and readings.timeline and readings.timeline.modules:
        largest = sorted(readings.timeline.modules.items(), key=lambda item: -item[1])[:3]
        held = [f"{name or 'the loss and top-level code'} {bytes_text(size)}" for name, size in largest]
        lines.append(f"in the {readings.peak_phase} the most is held by {', '.join(held)}")
    elif readings:
        lines.append(f"the peak is in the {readings.peak_phase}")
    lines.append("gcprof.explain says why, gcprof.plan where to checkpoint so that it fits")
    return "\n".join(lines)


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
    whole = simulator.whole_bytes(chain)
    budget_bytes = parse_budget(budget, whole_bytes=whole) if isinstance(budget, str) else budget
    points, fitted = fitted_plan(chain, Step(case=case, engine=engine), budget_bytes)
    if fitted:
        settings = f"{optimizer_text(case)}, {case.precision}, {device_word(case.device)}: predicted, not measured"
        found = Planned(
            chain=chain,
            title=f"{shown.model}, {settings}: at most {budget_text(budget_bytes, whole)}",
            none=simulator.none(chain),
            frontier=points,
            plans=tuple(ComparedPlan(way=way) for way in simulator.ways(chain, fitted.point.plan, budget_bytes)),
        )
        return Plan.of(plan_file_of(chain, fitted.point.plan), found)
    name, floor = simulator.largest_stage(chain)
    choices = block_choices(engine, case)
    better = better_blocks(choices, lowers_floor=True) if choices else None
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
            source = "assumed" if context == CONTEXT_BYTES else "as asked"
            room = Fitted(limit_bytes=limit, context_bytes=context, context_source=source)
            found = searched(step, request, room, Path(folder), run, SILENT)
            return Fit(fitted=found, table=_of_caller(found.table, case, given, folder))

    try:
        return rehearsed(ask, given, device=device, precision=precision, blocks=blocks, seed=seed)
    except answering.NotRehearsed as error:
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
