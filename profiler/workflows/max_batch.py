"""The largest batch that a memory holds, by strategy and by plan: what `gcprof max-batch` does.

Predicted first, then measured there and with one sample more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import msgspec

from profiler.analysis import progress
from profiler.analysis.fit import CONTEXT
from profiler.analysis.search import largest
from profiler.core import code_digests, gpu_specs, plan_file
from profiler.core.case import FAKE, Case, Choice, Trial
from profiler.core.errors import UserError
from profiler.core.plan_file import Recipe
from profiler.core.record import Readings, Record, evidence
from profiler.core.schedule import in_rounds
from profiler.engines import Engine
from profiler.planning.plan_files import recipe as recipe_of
from profiler.planning.solver import frontier
from profiler.request import device_choice
from profiler.request.spec import Request
from profiler.runs import RESULTS, store
from profiler.workflows import SILENT, Screen, plan_fitting, runner
from profiler.workflows.stages import ModelOnDevice, calibrate, stages
from profiler.workflows.typed import command_line

PLAN = Choice("plan")
ROUNDS = 3


class MaxBatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which model, under which strategies besides the plan, and what it has to fit."""

    words: Request
    strategies: tuple[Choice, ...]
    limit: int  # bytes of the device's memory
    context_bytes: int | None = None  # of it, what CUDA takes besides tensors; None: as measured, or assumed
    measure: bool = True
    rounds: int = ROUNDS
    typed: tuple[str, ...] = ()  # the words of the command line


class LargestBatches(msgspec.Struct, frozen=True, kw_only=True):
    """Each strategy's largest batch, the plan's last."""

    case: Case
    words: tuple[str, ...]  # the model as it was asked for, for the next command
    batches: tuple[Largest, ...]
    context_bytes: int  # what CUDA takes of the memory besides tensors; 0 on a CPU
    context_source: str | None  # as asked, measured or assumed; None on a CPU
    exit_code: int = 0


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What a step takes of the device's memory, and the parts that neither batch size nor strategy changes. Bytes."""

    nbytes: int
    static_bytes: int
    context_bytes: int


class Largest(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy: the largest batch that was predicted to fit, and what was measured of it."""

    strategy: Choice
    batch_size: int  # 0: not even one sample fits
    predicted_bytes: int | None = None
    one_sample: Need | None = None  # where none fits, what a batch of one takes
    measured: tuple[Record, ...] = ()  # rounds at that size
    beyond: Record | None = None  # one sample more

    @property
    def samples_per_second(self) -> float | None:
        samples = [second for record in self.measured for second in record.readings.step_seconds or ()]
        accumulate = self.measured[0].case.accumulate if self.measured else 1
        return self.batch_size * accumulate / median(samples) if samples else None


def max_batch(
    request: MaxBatchRequest,
    screen: Screen = SILENT,
    *,
    show: Callable[[str, Largest], None] = lambda strategy, largest: None,
) -> LargestBatches:
    """Search for each strategy's largest batch, and measure them; `show` is given each one as soon as it is predicted.

    Raises UserError.
    """
    with ModelOnDevice(request.words) as model:
        case = model.case
        if case.batch_size is None:
            hint = "give the function a parameter batch_size"
            raise UserError(f"'{case.model}' makes its own batch, of one size", hint=hint)
        context_bytes, source = _context(model, request)
        folder, batches = _predicted(model, request, context_bytes, show)
        code = 0
        if request.measure and not case.is_predicted:
            code, batches = _measured(model, request, folder, batches, screen)
        return LargestBatches(
            case=case,
            words=model.words,
            batches=tuple(batches),
            context_bytes=context_bytes,
            context_source=source,
            exit_code=code,
        )


def _context(model: ModelOnDevice, request: MaxBatchRequest) -> tuple[int, str | None]:
    """What is left to CUDA: as asked, else as one sample on the device shows, else as assumed."""
    if "cpu" in model.case.device:
        if request.context_bytes is not None:
            raise UserError("--context has no effect on a CPU", hint="leave it out")
        return 0, None
    if request.context_bytes is not None:
        return request.context_bytes, "as asked"
    measured = measured_context(model.engine, model.case) if request.measure else None
    return (CONTEXT, "assumed") if measured is None else (measured, "measured")


def _predicted(
    model: ModelOnDevice, request: MaxBatchRequest, context_bytes: int, show: Callable[[str, Largest], None]
) -> tuple[Path, list[Largest]]:
    """The folder of a run that measures them, and each strategy's batch; the plan's file is beside that folder."""
    batches = []
    for strategy in request.strategies:
        case = msgspec.structs.replace(model.case, strategy=strategy)
        batches.append(predict(model.engine, case, request.limit, context_bytes))
        show(str(strategy), batches[-1])
    folder = store.new_folder(RESULTS, [f"max batch {model.case.model.name}"])
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f"{folder.name}.json")  # beside the run's folder, which is not there yet
    planned = predict_planned(model.engine, model.case, request.limit, path, context_bytes)
    show("plan", planned)
    return folder, [*batches, planned]


def _measured(
    model: ModelOnDevice, request: MaxBatchRequest, folder: Path, batches: Sequence[Largest], screen: Screen
) -> tuple[int, list[Largest]]:
    case = model.case
    planned = trials(case, batches, rounds=request.rounds)
    store.create(
        folder,
        plan=planned,
        command=command_line(request.typed),
        environment=device_choice.environment(case.device, model.devices),
        sources=code_digests.digests(trial.case for trial in planned),
    )
    code = runner.follow(model.engine, folder, screen)
    run = store.load(folder)
    screen.say(f"wrote {folder / 'trials.jsonl'}")
    return code or progress.exit_code(run.records), beside(case, batches, run.records)


def needed(readings: Readings, device: str, context_bytes: int = CONTEXT) -> int | None:
    """Bytes of the device's memory at the peak: on CUDA what the allocator reserves, and CUDA itself."""
    if "cpu" in device:
        return readings.peak_bytes
    taken = readings.reserved_bytes if readings.reserved_bytes is not None else readings.peak_bytes
    return None if taken is None else taken + context_bytes


def measured_context(engine: Engine, case: Case) -> int | None:
    """The bytes that CUDA and other processes take besides the allocator, measured while one sample is trained.

    None for a prediction, a rehearsal and on a CPU, and where the trial did not tell.
    """
    if case.is_predicted or case.device == "cpu":
        return None
    one = msgspec.structs.replace(case, batch_size=1, verify="off")
    (record,) = engine.run([Trial(case=one, passes=("memory",))])
    if evidence(record.case, record.environment) != "measured":
        return None  # a hollow device's context takes what it is told to
    taken, reserved = record.readings.device_bytes, record.readings.reserved_bytes
    return None if taken is None or reserved is None else max(0, taken - reserved)


def predict(engine: Engine, case: Case, limit: int, context_bytes: int = CONTEXT) -> Largest:
    """The largest batch of the case that is predicted to fit the limit."""
    needs: dict[int, Need | None] = {}  # by batch size

    def bytes_of(batch_size: int) -> int | None:
        sized = msgspec.structs.replace(_fake(case), batch_size=batch_size)
        (record,) = engine.run([Trial(case=sized, passes=("memory",))])
        if record.outcome != "ok":
            raise UserError(f"{sized.strategy} cannot be predicted: {record.detail}")
        need = needs[batch_size] = _need(record.readings, sized.device, context_bytes)
        return need.nbytes if need else None

    batch_size = largest(bytes_of, limit=limit, start=case.batch_size or 1)
    fitting = needs.get(batch_size)
    return Largest(
        strategy=case.strategy,
        batch_size=batch_size,
        predicted_bytes=fitting.nbytes if fitting else None,
        one_sample=None if batch_size else needs.get(1),
    )


def _need(readings: Readings, device: str, context_bytes: int) -> Need | None:
    nbytes = needed(readings, device, context_bytes)
    if nbytes is None:
        return None
    context = 0 if "cpu" in device else context_bytes
    return Need(nbytes=nbytes, static_bytes=sum((readings.static_bytes or {}).values()), context_bytes=context)


def predict_planned(engine: Engine, case: Case, limit: int, path: Path, context_bytes: int = CONTEXT) -> Largest:
    """The largest batch for which the smallest plan is predicted to fit, and the fastest that fits in the file `path`.

    That is the smallest one, where what is faster needs too much besides its stages.
    """
    plans: dict[int, tuple[Recipe, int | None]] = {}  # by batch size, the smallest one and its traced bytes
    needs: dict[int, Need | None] = {}

    def smallest(batch_size: int) -> int | None:
        sized = msgspec.structs.replace(_fake(case), batch_size=batch_size)
        chain = stages(engine, sized, None, passes=("memory",))
        plan = recipe_of(chain, frontier(chain).point(0).plan)
        plan_file.write(plan, path)

        def need(readings: Readings) -> int | None:
            needs[batch_size] = _need(readings, sized.device, context_bytes)
            return needed(readings, sized.device, context_bytes)

        traced = plan_fitting.traced_need(engine, sized, path, None, need)
        plans[batch_size] = plan, traced
        return traced

    batch_size = largest(smallest, limit=limit, start=case.batch_size or 1)
    if not batch_size:
        path.unlink(missing_ok=True)
        return Largest(strategy=PLAN, batch_size=0, one_sample=needs.get(1))
    plan, smallest_bytes = plans[batch_size]
    fastest = _plan(engine, msgspec.structs.replace(case, batch_size=batch_size), limit, path, context_bytes)
    if fastest is None:
        plan_file.write(plan, path)
    predicted = smallest_bytes if fastest is None else fastest
    return Largest(strategy=Choice.of("plan", {"file": path}), batch_size=batch_size, predicted_bytes=predicted)


def trials(case: Case, found: Sequence[Largest], *, rounds: int) -> tuple[Trial, ...]:
    """What measures each at its size, in rounds of which every second is reversed, and then with one sample more."""
    cases = [_at(case, one, one.batch_size) for one in found if one.batch_size]
    measured = [
        msgspec.structs.replace(trial, passes=("memory", "time") if trial.round == 1 else ("time",))
        for trial in in_rounds(cases, rounds)
    ]
    further = [_at(case, one, one.batch_size + 1) for one in found if one.strategy != PLAN]  # it is in no file
    return (*measured, *(Trial(case=one, passes=("memory",)) for one in further))


def beside(case: Case, found: Sequence[Largest], records: Sequence[Record]) -> list[Largest]:
    """Each with its records."""
    of = {one.strategy: (_at(case, one, one.batch_size), _at(case, one, one.batch_size + 1)) for one in found}
    return [
        msgspec.structs.replace(
            one,
            measured=tuple(record for record in records if record.case == of[one.strategy][0]),
            beyond=next((record for record in records if record.case == of[one.strategy][1]), None),
        )
        for one in found
    ]


def _at(case: Case, one: Largest, batch_size: int) -> Case:
    return msgspec.structs.replace(case, strategy=one.strategy, batch_size=batch_size, verify="off")


def _fake(case: Case) -> Case:
    return case if case.is_predicted else msgspec.structs.replace(case, device=FAKE + case.twin.device)


def _has_times(case: Case) -> bool:
    return not case.is_predicted or case.device.removeprefix(FAKE) in gpu_specs.names()


def _plan(engine: Engine, case: Case, limit: int, path: Path, context_bytes: int) -> int | None:
    """What the fastest plan that fits needs by a traced step; it is left in the file. None where none does."""
    calibration = calibrate(engine, case)
    passes = ("memory", "time") if _has_times(case) else ("memory",)  # without times, the smallest plan is the fastest
    chain = stages(engine, case, calibration, passes=passes)
    settled = plan_fitting.settle(
        engine, case, chain, frontier(chain), budget_bytes=limit, path=path, calibration=calibration, measure=False,
        need=lambda readings: needed(readings, case.device, context_bytes),
    )  # fmt: skip
    return settled.traced_bytes if settled else None
