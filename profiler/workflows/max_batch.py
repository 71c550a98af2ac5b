"""Finds the largest batch that fits a memory, by strategy and by plan: what `gcprof max-batch` does.

It is predicted first, then measured: lower, if a step of that size does not fit, and with one sample more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from profiler.core import plan_file, rehearsed_gpu
from profiler.core.case import Case, Choice, Trial
from profiler.core.errors import UserError
from profiler.core.gpu_specs import CONTEXT_BYTES
from profiler.core.plan_file import PlanFile
from profiler.core.record import Record
from profiler.core.schedule import in_rounds
from profiler.core.units import bytes_text
from profiler.request import device_choice
from profiler.request.spec import Request
from profiler.runs import RESULTS, store
from profiler.workflows import SILENT, Screen
from profiler.workflows.batch_search import (
    PLAN,
    Largest,
    confirm,
    measured_context,
    predict,
    predict_planned,
    rehearse,
)
from profiler.workflows.plan_comparison import file_of
from profiler.workflows.planner import GATE
from profiler.workflows.stages import ModelOnDevice

ROUNDS = 3


class MaxBatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which model, under which strategies besides the plan, and what it has to fit."""

    words: Request
    strategies: tuple[Choice, ...]
    limit: int | float  # bytes of the device's memory, or a fraction of it
    context_bytes: int | None = None  # of it, what CUDA takes besides tensors; None: measured, or assumed
    measure: bool = True
    rounds: int = ROUNDS
    typed: tuple[str, ...] = ()  # the words of the command line


class LargestBatches(msgspec.Struct, frozen=True, kw_only=True):
    """Each strategy's largest batch, the plan's last."""

    case: Case
    words: tuple[str, ...]  # the model as it was asked for, for the next command
    batches: tuple[Largest, ...]
    limit: int  # bytes
    context_bytes: int  # what CUDA takes of the memory besides tensors; 0 on a CPU
    context_source: str | None  # as asked, measured or assumed; None on a CPU
    exit_code: int = 0


def max_batch(
    request: MaxBatchRequest,
    screen: Screen = SILENT,
    *,
    show: Callable[[str, Largest, int], None] = lambda strategy, largest, limit: None,
) -> LargestBatches:
    """Search for each strategy's largest batch, and measure them.

    `show` is called with the strategy, its batch and the limit in bytes, as soon as the batch is predicted. Raises
    UserError.
    """
    with ModelOnDevice(request.words, screen) as model:
        case = model.case
        if case.batch_size is None:
            hint = "give the function a parameter batch_size"
            raise UserError(f"'{case.model}' makes its own batch, of one size", hint=hint)
        limit = _limit(model, request, screen.say)
        context_bytes, source = _context(model, request)
        folder = store.new_folder(RESULTS, [f"max batch {case.model.name}"])
        with screen.doing("looking for the largest batches"), TemporaryDirectory(prefix="gcprof-") as made:
            batches = _predicted(
                model,
                request.strategies,
                limit,
                context_bytes,
                path=Path(made) / plan_file.USUAL,
                show=lambda name, largest: show(name, largest, limit),
                say=screen.say,
            )
            if case.is_rehearsed:
                device = rehearsed_gpu.limited(case.device, memory=limit, context=context_bytes)
                model.case = case = msgspec.structs.replace(case, device=device)
                batches = _rehearsed(model, limit, context_bytes, batches)
            elif request.measure and not case.is_predicted:
                batches = [confirm(model.engine, case, limit, batch, context_bytes) for batch in batches]
            batches, plans = _in_folder(batches, folder)
        code, holds_any = 0, any(batch.batch_size for batch in batches)
        if request.measure and not case.is_predicted:
            code, batches = _measured(model, request, folder, batches, plans, screen)
        return LargestBatches(
            case=case,
            words=model.words,
            batches=tuple(batches),
            limit=limit,
            context_bytes=context_bytes,
            context_source=source,
            exit_code=code or (0 if holds_any else GATE),
        )


def _limit(model: ModelOnDevice, request: MaxBatchRequest, say: Callable[[str], None]) -> int:
    """Return the limit in bytes; a fraction is of the device's memory. Raises UserError if that is unknown."""
    whole = device_choice.environment(model.case.device, model.devices).device_bytes
    if isinstance(request.limit, int):
        if whole is not None and request.limit > whole:
            say(f"note: {bytes_text(request.limit)} are more than {model.case.device} has: {bytes_text(whole)}")
        return request.limit
    if whole is None:
        message = f"--memory cannot be a share: how much '{model.case.device}' has is not known"
        raise UserError(message, hint="name it, as 11GiB, or a GPU: --device t4")
    return int(request.limit * whole)


def _context(model: ModelOnDevice, request: MaxBatchRequest) -> tuple[int, str | None]:
    """Return what CUDA takes, and its source: as asked, else as measured with one sample, else as assumed."""
    if "cpu" in model.case.device:
        if request.context_bytes is not None:
            raise UserError("--context has no effect on a CPU", hint="leave it out")
        return 0, None
    if request.context_bytes is not None:
        return request.context_bytes, "as asked"
    measured = measured_context(model.engine, model.case) if request.measure else None
    return (CONTEXT_BYTES, "assumed") if measured is None else (measured, "measured")


def _predicted(
    model: ModelOnDevice,
    strategies: Sequence[Choice],
    limit: int,
    context_bytes: int,
    *,
    path: Path,
    show: Callable[[str, Largest], None],
    say: Callable[[str], None],
) -> list[Largest]:
    """Return each strategy's predicted batch; the plan's file is left at `path`."""
    batches = []
    for strategy in strategies:
        case = msgspec.structs.replace(model.case, strategy=strategy)
        batches.append(predict(model.engine, case, limit, context_bytes))
        show(str(strategy), batches[-1])
    try:
        planned = predict_planned(model.engine, model.case, limit, path, context_bytes)
    except UserError as error:  # the blocks are no chain
        say(f"note: no plan: {error}")
        return batches
    show("plan", planned)
    return [*batches, planned]


def _in_folder(batches: Sequence[Largest], folder: Path) -> tuple[list[Largest], dict[Path, PlanFile]]:
    """Return the batches with the plan's file in a run folder, and the plans to write there."""
    *others, last = batches
    if last.strategy.name != PLAN or not last.batch_size:
        return [*batches], {}
    path = file_of(folder, PLAN)
    plan = plan_file.read(Path(last.strategy.options["file"]))
    return [*others, msgspec.structs.replace(last, strategy=Choice.of(PLAN, {"file": path}))], {path: plan}


def _rehearsed(model: ModelOnDevice, limit: int, context_bytes: int, batches: Sequence[Largest]) -> list[Largest]:
    """Return the largest batches at which PyTorch itself has enough memory; a plan keeps the batch it was made for."""
    engine, case = model.engine, model.case
    return [
        batch if batch.strategy.name == PLAN else rehearse(engine, case, limit, batch, context_bytes)
        for batch in batches
    ]


def _measured(
    model: ModelOnDevice,
    request: MaxBatchRequest,
    folder: Path,
    batches: Sequence[Largest],
    plans: Mapping[Path, PlanFile],
    screen: Screen,
) -> tuple[int, list[Largest]]:
    case = model.case
    planned = trials(case, batches, rounds=1 if case.is_rehearsed else request.rounds)
    code, run = model.run(folder, planned, plans=plans, typed=request.typed)
    screen.say(f"wrote {run.folder / 'trials.jsonl'}")
    return code, with_records(case, batches, run.records)


def trials(case: Case, batches: Sequence[Largest], *, rounds: int) -> tuple[Trial, ...]:
    """Return the trials of each at its size, in rounds (every second one reversed), then with one sample more."""
    cases = [_at(case, batch, batch.batch_size) for batch in batches if batch.batch_size]
    measured = [
        msgspec.structs.replace(trial, passes=("memory", "time") if trial.round == 1 else ("time",))
        for trial in in_rounds(cases, rounds)
    ]
    without_plan = [batch for batch in batches if batch.strategy != PLAN]
    further = [_at(case, batch, batch.batch_size + 1) for batch in without_plan]
    return (*measured, *(Trial(case=beyond, passes=("memory",)) for beyond in further))


def with_records(case: Case, batches: Sequence[Largest], records: Sequence[Record]) -> list[Largest]:
    """Return the batches with their records."""
    measured_batches = []
    for batch in batches:
        at, beyond = (_at(case, batch, size) for size in (batch.batch_size, batch.batch_size + 1))
        measured = tuple(record for record in records if record.case == at)
        further = next((record for record in records if record.case == beyond), None)
        measured_batches.append(msgspec.structs.replace(batch, measured=measured, beyond=further))
    return measured_batches


def _at(case: Case, batch: Largest, batch_size: int) -> Case:
    return msgspec.structs.replace(case, strategy=batch.strategy, batch_size=batch_size, verify="off")
