"""Finds the largest batch that fits a memory, by strategy and by plan: what `gcprof max-batch` does.

It is predicted first, then measured: lower, if a step of that size does not fit, and with one sample more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import msgspec

from profiler.analysis.memory_fit import largest_that_fits
from profiler.core import gpu_specs
from profiler.core.case import Case, Choice, Trial
from profiler.core.devices import parse
from profiler.core.errors import UserError
from profiler.core.gpu_specs import CONTEXT_BYTES
from profiler.core.plan_file import PlanFile, strategy_label
from profiler.core.record import Readings, Record, bytes_needed
from profiler.core.schedule import in_rounds
from profiler.engines import Engine
from profiler.planning.chain import with_sure_options
from profiler.planning.plan import plan_file_of
from profiler.planning.solver import frontier
from profiler.request.spec import Request
from profiler.runs import RESULTS, store
from profiler.workflows import SILENT, Screen
from profiler.workflows.plan_comparison import file_of
from profiler.workflows.plan_fitting import Steps, fit_plan
from profiler.workflows.planner import GATE
from profiler.workflows.stages import ModelOnDevice, calibrate, context_of, limit_of, stages

PLAN = Choice("plan")
ROUNDS = 3


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """The device memory that a step takes, and its parts that depend on neither batch size nor strategy. Bytes."""

    nbytes: int
    static_bytes: int
    context_bytes: int


class Largest(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy: the largest batch that was predicted to fit, and what was measured of it."""

    strategy: Choice
    batch_size: int  # 0: not even one sample fits
    predicted_bytes: int | None = None
    one_sample: Need | None = None  # if none fits, what a batch of one takes
    measured: tuple[Record, ...] = ()  # rounds at that size
    beyond: Record | None = None  # one sample more

    @property
    def samples_per_second(self) -> float | None:
        samples = [second for record in self.measured for second in record.readings.step_seconds or ()]
        accumulate = self.measured[0].case.accumulate if self.measured else 1
        return self.batch_size * accumulate / median(samples) if samples else None


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
        if model.case.batch_size is None:
            hint = "give the function a parameter batch_size"
            raise UserError(f"'{model.case.model}' makes its own batch, of one size", hint=hint)
        limit = limit_of(model, request.limit, screen.say)
        context_bytes, source = context_of(model, request.context_bytes, measure=request.measure)
        folder = store.new_folder(RESULTS, [f"max batch {model.case.model.name}"])
        search = Search(model.engine, model.case, limit, context_bytes)
        with screen.doing("looking for the largest batches"):
            batches, plan = [], None
            for strategy in request.strategies:
                batches.append(search.predicted(strategy))
                show(str(strategy), batches[-1], limit)
            try:
                planned, plan = search.planned(file_of(folder, PLAN))
                batches.append(planned)
                show(PLAN, planned, limit)
            except UserError as error:  # the blocks are no chain
                screen.say(f"note: no plan: {error}")
            if model.case.is_rehearsed:
                gpu = msgspec.structs.replace(parse(model.case.device), bytes=limit, context_bytes=context_bytes)
                search.case = model.case = msgspec.structs.replace(model.case, device=str(gpu))
                batches = [batch if batch.strategy.name == PLAN else search.rehearsed(batch) for batch in batches]
            elif request.measure and not model.case.is_predicted:
                batches = [search.confirmed(batch) for batch in batches]
        code, case = 0, model.case
        if request.measure and not case.is_predicted:
            planned_trials = trials(case, batches, rounds=1 if case.is_rehearsed else request.rounds)
            plans = {file_of(folder, PLAN): plan} if plan else {}
            code, run = model.run(folder, planned_trials, plans=plans, typed=request.typed)
            screen.say(f"wrote {run.folder / 'trials.jsonl'}")
            batches = with_records(case, batches, run.records)
        return LargestBatches(
            case=case,
            words=model.words,
            batches=tuple(batches),
            limit=limit,
            context_bytes=context_bytes,
            context_source=source,
            exit_code=code or (0 if any(batch.batch_size for batch in batches) else GATE),
        )


class Search:
    """Looks for the largest batches of a case that fit a memory, of which CUDA itself takes `context_bytes`."""

    def __init__(self, engine: Engine, case: Case, limit: int, context_bytes: int = CONTEXT_BYTES) -> None:
        self.engine, self.case, self.limit, self.context_bytes = engine, case, limit, context_bytes

    def predicted(self, strategy: Choice) -> Largest:
        """Return the largest batch of a strategy that is predicted to fit."""
        needs: dict[int, Need | None] = {}  # by batch size

        def bytes_of(batch_size: int) -> int | None:
            case = msgspec.structs.replace(self.case.foreseen, strategy=strategy, batch_size=batch_size)
            record = self._step(case)
            if record.outcome != "ok":
                raise UserError(f"{strategy} cannot be predicted: {record.detail}")
            need = needs[batch_size] = self._need(record.readings, case.device)
            return need.nbytes if need else None

        batch_size = self._largest(bytes_of)
        fitting = needs.get(batch_size)
        return Largest(
            strategy=strategy,
            batch_size=batch_size,
            predicted_bytes=fitting.nbytes if fitting else None,
            one_sample=None if batch_size else needs.get(1),
        )

    def planned(self, path: Path) -> tuple[Largest, PlanFile | None]:
        """Return the largest batch that is predicted to fit under the smallest plan, and the fastest plan that fits it.

        That is the smallest one itself, if faster ones need too much besides their stages; it will be at `path`. Raises
        UserError if there is no chain.
        """
        plans: dict[int, tuple[PlanFile, int | None]] = {}  # by batch size, the smallest one and its traced bytes
        needs: dict[int, Need | None] = {}

        def smallest(batch_size: int) -> int | None:
            case = msgspec.structs.replace(self.case.foreseen, batch_size=batch_size)
            chain = stages(self.engine, case, None, passes=("memory",))

            def need(readings: Readings) -> int | None:
                needs[batch_size] = self._need(readings, case.device)
                return bytes_needed(readings, case.device, self.context_bytes)

            point = frontier(chain).point(0)
            traced = Steps(self.engine, case, chain, passes=(), need=need).run(point).needed_bytes
            plans[batch_size] = plan_file_of(chain, point.plan), traced
            return traced

        batch_size = self._largest(smallest)
        if not batch_size:
            return Largest(strategy=PLAN, batch_size=0, one_sample=needs.get(1)), None
        plan, nbytes = self._fastest(msgspec.structs.replace(self.case, batch_size=batch_size)) or plans[batch_size]
        strategy = Choice.of(PLAN, {"file": path})
        return Largest(strategy=strategy, batch_size=batch_size, predicted_bytes=nbytes), plan

    def _fastest(self, case: Case) -> tuple[PlanFile, int | None] | None:
        """Return the fastest plan that fits, and what its traced step needs; None if none fits."""
        calibration = calibrate(self.engine, case)
        has_times = not case.is_predicted or parse(case.device).name in gpu_specs.names()
        passes = ("memory", "time") if has_times else ("memory",)  # without times, the smallest plan is the fastest
        chain = stages(self.engine, case, calibration, passes=passes)

        def need(readings: Readings) -> int | None:
            return bytes_needed(readings, case.device, self.context_bytes)

        steps = Steps(self.engine, case, chain, passes=(), calibration=calibration, need=need)
        points = frontier(with_sure_options(chain))
        fitted = fit_plan(steps.run, points, self.limit, is_rehearsed=case.is_rehearsed)
        return (plan_file_of(chain, fitted.point.plan), fitted.needed_bytes) if fitted else None

    def confirmed(self, predicted: Largest) -> Largest:
        """Return the predicted batch if its step fits, or cannot be run; else the largest smaller one that fits."""
        most = predicted.batch_size
        try:
            needed = self._run(predicted.strategy, most) if most else None
            if not most or (needed is not None and needed <= self.limit):
                return predicted
            batch_size = largest_that_fits(
                lambda size: self._run(predicted.strategy, size) if size < most else None,
                limit=self.limit,
                start=max(1, most - 1),
            )
        except UserError:
            return predicted  # the run that follows shows how it fails
        return self._resized(predicted, batch_size)

    def rehearsed(self, predicted: Largest) -> Largest:
        """Return the largest batch at which PyTorch does not run out of that memory, from the predicted one on."""
        batch_size = largest_that_fits(
            lambda size: self._run(predicted.strategy, size), limit=self.limit, start=predicted.batch_size or 1
        )
        return self._resized(predicted, batch_size)

    def _resized(self, predicted: Largest, batch_size: int) -> Largest:
        """Return the same with another batch size, and what is predicted for it."""
        if batch_size in (0, predicted.batch_size):
            return msgspec.structs.replace(predicted, batch_size=batch_size)
        case = msgspec.structs.replace(self.case.foreseen, strategy=predicted.strategy, batch_size=batch_size)
        record = self._step(case)
        foreseen = bytes_needed(record.readings, case.device, self.context_bytes) if record.outcome == "ok" else None
        return msgspec.structs.replace(predicted, batch_size=batch_size, predicted_bytes=foreseen, one_sample=None)

    def _largest(self, bytes_of: Callable[[int], int | None]) -> int:
        return largest_that_fits(bytes_of, limit=self.limit, start=self.case.batch_size or 1)

    def _run(self, strategy: Choice, batch_size: int) -> int | None:
        """Run a step; return what it needs, None if it runs out of memory. Raises UserError if it cannot be run."""
        case = msgspec.structs.replace(self.case, strategy=strategy, batch_size=batch_size, verify="off")
        record = self._step(case)
        if record.outcome not in ("ok", "out_of_memory"):
            raise UserError(f"{strategy_label(strategy)} cannot be run: {record.detail}")
        return bytes_needed(record.readings, case.device, self.context_bytes) if record.outcome == "ok" else None

    def _step(self, case: Case) -> Record:
        (record,) = self.engine.run([Trial(case=case, passes=("memory",))])
        return record

    def _need(self, readings: Readings, device: str) -> Need | None:
        nbytes = bytes_needed(readings, device, self.context_bytes)
        if nbytes is None:
            return None
        context = 0 if "cpu" in device else self.context_bytes
        return Need(nbytes=nbytes, static_bytes=sum((readings.static_bytes or {}).values()), context_bytes=context)


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
