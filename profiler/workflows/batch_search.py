"""Finds the largest batch that is predicted to fit a memory, under a strategy or under the best plan."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import msgspec

from profiler.analysis.memory_fit import largest_that_fits
from profiler.core import gpu_specs, plan_file
from profiler.core.case import FAKE, Case, Choice, Trial
from profiler.core.errors import UserError
from profiler.core.gpu_specs import CONTEXT_BYTES
from profiler.core.plan_file import PlanFile
from profiler.core.record import Readings, Record, evidence
from profiler.core.strategy_label import strategy_label
from profiler.engines import Engine
from profiler.planning.chain import with_sure_options
from profiler.planning.plan import plan_file_of
from profiler.planning.solver import frontier
from profiler.workflows.plan_fitting import Steps, fit_plan
from profiler.workflows.stages import calibrate, stages

PLAN = Choice("plan")


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


def bytes_needed(readings: Readings, device: str, context_bytes: int = CONTEXT_BYTES) -> int | None:
    """Return the device memory at the peak, in bytes: on CUDA what the allocator reserves, and CUDA's context."""
    if "cpu" in device:
        return readings.peak_bytes
    taken = readings.reserved_bytes if readings.reserved_bytes is not None else readings.peak_bytes
    return None if taken is None else taken + context_bytes


def measured_context(engine: Engine, case: Case) -> int | None:
    """Measure the bytes that CUDA and other processes take besides the allocator, while one sample is trained.

    Returns None for a prediction, a rehearsal and on a CPU, and if the trial has no such readings.
    """
    if case.is_predicted or case.is_rehearsed or case.device == "cpu":
        return None
    alone = msgspec.structs.replace(case, batch_size=1, verify="off")
    (record,) = engine.run([Trial(case=alone, passes=("memory",))])
    if evidence(record.case, record.environment) != "measured":
        return None  # the context of a hollow device is set, not measured
    taken, reserved = record.readings.device_bytes, record.readings.reserved_bytes
    return None if taken is None or reserved is None else max(0, taken - reserved)


def predict(engine: Engine, case: Case, limit: int, context_bytes: int = CONTEXT_BYTES) -> Largest:
    """Return the largest batch of the case that is predicted to fit the limit."""
    needs: dict[int, Need | None] = {}  # by batch size

    def bytes_of(batch_size: int) -> int | None:
        sized = msgspec.structs.replace(case.foreseen, batch_size=batch_size)
        (record,) = engine.run([Trial(case=sized, passes=("memory",))])
        if record.outcome != "ok":
            raise UserError(f"{sized.strategy} cannot be predicted: {record.detail}")
        need = needs[batch_size] = _need(record.readings, sized.device, context_bytes)
        return need.nbytes if need else None

    batch_size = largest_that_fits(bytes_of, limit=limit, start=case.batch_size or 1)
    fitting = needs.get(batch_size)
    return Largest(
        strategy=case.strategy,
        batch_size=batch_size,
        predicted_bytes=fitting.nbytes if fitting else None,
        one_sample=None if batch_size else needs.get(1),
    )


def _need(readings: Readings, device: str, context_bytes: int) -> Need | None:
    nbytes = bytes_needed(readings, device, context_bytes)
    if nbytes is None:
        return None
    context = 0 if "cpu" in device else context_bytes
    return Need(nbytes=nbytes, static_bytes=sum((readings.static_bytes or {}).values()), context_bytes=context)


def confirm(engine: Engine, case: Case, limit: int, predicted: Largest, context_bytes: int = CONTEXT_BYTES) -> Largest:
    """Return the predicted batch if its step fits, or cannot be run; else the largest smaller one that fits."""
    largest = predicted.batch_size

    def bytes_of(batch_size: int) -> int | None:
        return _bytes_of_step(engine, case, predicted.strategy, batch_size, context_bytes)

    try:
        if not largest or ((needed := bytes_of(largest)) is not None and needed <= limit):
            return predicted
        batch_size = largest_that_fits(
            lambda size: bytes_of(size) if size < largest else None, limit=limit, start=max(1, largest - 1)
        )
    except UserError:
        return predicted  # the run that follows shows how it fails
    return _resized(engine, case, predicted, batch_size, context_bytes)


def rehearse(engine: Engine, case: Case, limit: int, predicted: Largest, context_bytes: int = CONTEXT_BYTES) -> Largest:
    """Return the largest batch at which PyTorch does not run out of that memory, searched from the predicted one on."""
    batch_size = largest_that_fits(
        lambda size: _bytes_of_step(engine, case, predicted.strategy, size, context_bytes),
        limit=limit,
        start=predicted.batch_size or 1,
    )
    return _resized(engine, case, predicted, batch_size, context_bytes)


def _bytes_of_step(engine: Engine, case: Case, strategy: Choice, batch_size: int, context_bytes: int) -> int | None:
    """Run a step; return what it needs, None if it runs out of memory. Raises UserError if it cannot be run."""
    sized = msgspec.structs.replace(case, strategy=strategy, batch_size=batch_size, verify="off")
    (record,) = engine.run([Trial(case=sized, passes=("memory",))])
    if record.outcome not in ("ok", "out_of_memory"):
        raise UserError(f"{strategy_label(strategy)} cannot be run: {record.detail}")
    return bytes_needed(record.readings, sized.device, context_bytes) if record.outcome == "ok" else None


def _resized(engine: Engine, case: Case, predicted: Largest, batch_size: int, context_bytes: int) -> Largest:
    """Return the same with another batch size, and what is predicted for it."""
    if batch_size in (0, predicted.batch_size):
        return msgspec.structs.replace(predicted, batch_size=batch_size)
    sized = msgspec.structs.replace(case.foreseen, strategy=predicted.strategy, batch_size=batch_size)
    (record,) = engine.run([Trial(case=sized, passes=("memory",))])
    foreseen = bytes_needed(record.readings, sized.device, context_bytes) if record.outcome == "ok" else None
    return msgspec.structs.replace(predicted, batch_size=batch_size, predicted_bytes=foreseen, one_sample=None)


def predict_planned(engine: Engine, case: Case, limit: int, path: Path, context_bytes: int = CONTEXT_BYTES) -> Largest:
    """Return the largest batch that is predicted to fit under the smallest plan; leave the fastest that fits at `path`.

    That is the smallest one itself, if faster ones need too much besides their stages.
    """
    plans: dict[int, tuple[PlanFile, int | None]] = {}  # by batch size, the smallest one and its traced bytes
    needs: dict[int, Need | None] = {}

    def smallest(batch_size: int) -> int | None:
        sized = msgspec.structs.replace(case.foreseen, batch_size=batch_size)
        chain = stages(engine, sized, None, passes=("memory",))

        def need(readings: Readings) -> int | None:
            needs[batch_size] = _need(readings, sized.device, context_bytes)
            return bytes_needed(readings, sized.device, context_bytes)

        point = frontier(chain).point(0)
        traced = Steps(engine, sized, chain, passes=(), need=need).run(point).needed_bytes
        plans[batch_size] = plan_file_of(chain, point.plan), traced
        return traced

    batch_size = largest_that_fits(smallest, limit=limit, start=case.batch_size or 1)
    if not batch_size:
        return Largest(strategy=PLAN, batch_size=0, one_sample=needs.get(1))
    fastest = _plan(engine, msgspec.structs.replace(case, batch_size=batch_size), limit, context_bytes)
    plan, needed_bytes = fastest or plans[batch_size]
    plan_file.write(plan, path)
    return Largest(strategy=Choice.of("plan", {"file": path}), batch_size=batch_size, predicted_bytes=needed_bytes)


def _plan(engine: Engine, case: Case, limit: int, context_bytes: int) -> tuple[PlanFile, int | None] | None:
    """Return the fastest plan that fits, and what its traced step needs; None if none fits."""
    calibration = calibrate(engine, case)
    has_times = not case.is_predicted or case.device.removeprefix(FAKE) in gpu_specs.names()
    passes = ("memory", "time") if has_times else ("memory",)  # without times, the smallest plan is the fastest
    chain = stages(engine, case, calibration, passes=passes)

    def need(readings: Readings) -> int | None:
        return bytes_needed(readings, case.device, context_bytes)

    steps = Steps(engine, case, chain, passes=(), calibration=calibration, need=need)
    points = frontier(with_sure_options(chain))
    fitted = fit_plan(steps.run, points, limit, is_rehearsed=case.is_rehearsed)
    return (plan_file_of(chain, fitted.point.plan), fitted.needed_bytes) if fitted else None
