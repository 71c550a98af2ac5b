"""Predicts the record of a trial without its device, from one step traced under fake tensors."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from profiler.analysis import live_bytes
from profiler.core import roofline
from profiler.core.case import Case, Trial
from profiler.core.gpu_specs import Rates
from profiler.core.record import PHASES, Environment, PhaseBytes, Readings, Record, Timeline
from profiler.core.trace_data import STATIC, BlockChoices, Followed, Trace, by_category, live, resting
from profiler.measuring.devices import versions
from profiler.measuring.meters.memory import timeline
from profiler.predicting import prediction_notes
from profiler.predicting.block_choices import block_choices
from profiler.predicting.traced_case import known_rates, trace_case
from profiler.training.assemble import Assembled, Build

NUM_LARGEST = 5  # blocks that a record names at its peak


def predict(
    trial: Trial,
    *,
    on_pass: Callable[[str], None] = lambda name: None,
    build: Build | None = None,
) -> Record:
    """Return a trial's predicted memory, and an estimate of its time if the device's rates are known.

    `build` replaces the catalogue's model. Raises Unsupported if the model or the strategy cannot be built or traced,
    and whatever the model raises.
    """
    began = time.monotonic()
    on_pass("build")
    case = trial.case
    built, trace, assumed = trace_case(case, calibration=trial.calibration, on_pass=on_pass, build=build)
    rates = known_rates(case.device, trial.calibration)
    seconds = {} if assumed.is_unfused else _seconds(trial, trace, rates, build)  # fused kernels have no rate
    return Record(
        case=case,
        round=trial.round,
        outcome="ok",
        built=built.describe(),
        readings=Readings(**memory_readings(trace), timeline=_timeline(trace, built.workload.blocks), **seconds),
        environment=_environment(rates),
        notes=(
            *prediction_notes.of_model(built, case, trace),
            *prediction_notes.of_blocks(built, case, trace),
            *prediction_notes.stated(trial, rates, assumed),
        ),
        stage_seconds={"build": time.monotonic() - began},
    )


def _timeline(trace: Trace, blocks: tuple[str, ...]) -> Timeline:
    """Return the bytes live at each operator, and what the largest blocks hold at the peak."""
    peak = live_bytes.peak(trace)
    largest = live_bytes.modules_at(trace, peak.number, blocks=blocks)[:NUM_LARGEST]
    return timeline(
        by_category(trace),
        [(phase, first) for phase, first, last in trace.spans() if first <= last],
        operator=peak.operator,
        module=peak.module,
        modules={share.name: share.nbytes for share in largest},
    )


def follow_case(trial: Trial, *, with_choices: bool = False, build: Build | None = None) -> Followed:
    """Return one traced step of the trial's case; `build` replaces the catalogue's model. Raises as `predict` does.

    `with_choices` adds the floors and peaks of other block choices, if the hooks that these need do not fail; the case
    must be one without checkpointing.
    """
    if not with_choices:
        return _followed(trial, build, with_choices=False)
    try:
        return _followed(trial, build, with_choices=True)
    except Exception as error:  # noqa: BLE001  the model may raise anything; if the step itself fails, it does so again
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
    followed = _followed(trial, build, with_choices=False)
    remark = f"whether other blocks would lower the peak is not known: {why}"
    return msgspec.structs.replace(followed, remarks=(*followed.remarks, remark))


def _followed(trial: Trial, build: Build | None, *, with_choices: bool) -> Followed:
    built, trace, assumed = trace_case(
        trial.case,
        calibration=trial.calibration,
        with_saves=with_choices,
        build=build,
    )
    notes = (
        *prediction_notes.of_model(built, trial.case, trace),
        *prediction_notes.stated(trial, None, assumed),
    )
    return Followed(
        trace=msgspec.structs.replace(trace, saves=(), calls=()),  # not read by callers
        blocks=built.workload.blocks,
        split=built.applied.split,
        has_own_optimizer=built.workload.optimizer is not None,
        remarks=tuple(note.text for note in notes),
        choices=_choices(built, trace) if with_choices else None,
    )


def choices(case: Case, *, build: Build | None = None) -> BlockChoices:
    """Return floors and peaks of a case's blocks and of its model's other block choices. Raises as `predict` does."""
    built, trace, _ = trace_case(case.baseline, with_saves=True, build=build)
    return _choices(built, trace)


def _choices(built: Assembled, trace: Trace) -> BlockChoices:
    return block_choices(trace, built.workload.module, built.workload.blocks)


def _environment(rates: Rates | None) -> Environment:
    """Return the versions in this process, and what is known of the predicted device."""
    return msgspec.structs.replace(
        versions(),
        device_name=rates.name if rates else None,
        device_bytes=rates.memory_bytes if rates else None,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _seconds(trial: Trial, trace: Trace, rates: Rates | None, build: Build | None) -> dict[str, Any]:
    if rates is None or trace.uses_host:  # transfers to the host have no rates
        return {}
    case, measured = trial.case, prediction_notes.measured_seconds(trial, rates)
    estimate = roofline.seconds(trace.operators, rates, case.precision)
    if measured is not None:
        bare = trace if case == case.baseline else trace_case(case.baseline, build=build)[1]
        estimated = roofline.seconds(bare.operators, rates, case.precision)["step"]
        estimate = roofline.scaled(estimate, measured=measured, estimated=estimated)
    return {f"{phase}_seconds": (value,) for phase, value in estimate.items()}


def memory_readings(trace: Trace) -> dict[str, Any]:
    """Return the memory fields (bytes) and FLOP fields of Readings; what the allocator reserves is not known."""
    held = live(trace)
    peaks = [(phase, *_peak(trace, held, first, last)) for phase, first, last in trace.spans()]
    phase, at, peak = max(peaks, key=lambda item: item[2])
    forwards = [(first, last) for name, first, last in trace.spans() if name == "forward"]
    return {
        "static_bytes": _static(trace),
        "start_bytes": resting(trace, forwards[0][0] - 1),
        "saved_bytes": max(_saved(trace, first, last) for first, last in forwards),
        "phases": {
            name: PhaseBytes(allocated=max(nbytes for phase, _, nbytes in peaks if phase == name)) for name in PHASES
        },
        "peak_bytes": peak,
        "peak_phase": phase,
        "peak_gradient_bytes": sum(
            item.nbytes
            for item in trace.allocations
            if item.category == "gradients" and 0 < item.born < at <= item.died
        ),
        "forward_flops": sum(item.flops for item in trace.operators if item.phase == "forward"),
        "backward_flops": sum(item.flops for item in trace.operators if item.phase in ("backward", "recompute")),
    }


def _peak(trace: Trace, held: list[int], first: int, last: int) -> tuple[int, int]:
    """Return the operator at which most bytes are live in a range, and those bytes; the range may be empty."""
    if last < first:
        return last, resting(trace, last)
    at = max(range(first, last + 1), key=held.__getitem__)
    return at, held[at]


def _saved(trace: Trace, first: int, last: int) -> int:
    """Return the bytes that a forward allocates and leaves live at its end; older bytes that it frees do not count."""
    made = [item for item in trace.allocations if first <= item.born <= last]
    return sum(item.nbytes for item in made if item.died > last)


def _static(trace: Trace) -> dict[str, int]:
    """Return the bytes live before the step, by category."""
    nbytes = dict.fromkeys(STATIC, 0)
    for allocation in trace.allocations:
        if not allocation.born:
            nbytes[allocation.category] = nbytes.get(allocation.category, 0) + allocation.nbytes
    return nbytes
