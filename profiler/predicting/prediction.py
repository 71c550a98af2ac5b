"""Predicts the record of a trial without its device, from one step traced under fake tensors."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from torch import nn

from profiler.analysis import live_bytes
from profiler.analysis.live_bytes import OUTSIDE, nbytes, stage_of
from profiler.core import trace_data
from profiler.core.case import Case, Trial
from profiler.core.gpu_specs import Rates
from profiler.core.record import PHASES, Note, PhaseBytes, Readings, Record, timeline
from profiler.core.trace_data import Followed, Trace, resting, roofline_seconds
from profiler.measuring.devices import open_device, versions
from profiler.measuring.meters import saved_graph
from profiler.predicting import device_trace
from profiler.predicting.stage_operators import block_choices
from profiler.predicting.step_tracer import Assumed
from profiler.predicting.traced_case import device_kind, known_rates, trace_case
from profiler.training import own_checkpoints
from profiler.training.assemble import Assembled, Build
from profiler.training.blocks import offered_blocks
from profiler.training.known_values import BYTES_ONLY

NUM_LARGEST = 5  # blocks that a record names at its peak
ESTIMATED = {  # the errors are those of 40 rows of benchmarks/instrument.py, spread over all
    "cuda": (
        "the bytes are an estimate, without what kernels work in and what the allocator reserves: of 40 steps held to "
        "PyTorch's own allocator, the peak was off by 1.6 % in the median and by 34 % at worst"
    ),
    "cpu": "the bytes are an estimate, without what kernels work in: `gcprof run` measures them",
}
UNFUSED = (
    "compiled code was traced as it is written, without being compiled, which saves less and takes less at the peak; "
    "no time is estimated"
)
GUESSED = (
    "the model reads values that a trace does not have: all() was taken as true, so that a mask masks nothing (it "
    "would take more if it did), other tests as false, numbers as 0"
)
ROUTED = {
    "balanced": "the step depends on its data: tokens are taken to be routed evenly; --routing worst sends all one way",
    "worst": "the step depends on its data: all tokens are taken to be routed to the same experts",
}


def predict(trial: Trial, *, on_pass: Callable[[str], None] = lambda name: None, build: Build | None = None) -> Record:
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
    peak = live_bytes.peak(trace)
    largest = live_bytes.modules_at(trace, peak.number, blocks=built.workload.blocks)[:NUM_LARGEST]
    shown = timeline(
        trace_data.by_category(trace),
        [(phase, first) for phase, first, last in trace.spans() if first <= last],
        operator=peak.operator,
        module=peak.module,
        modules={share.name: share.nbytes for share in largest},
    )
    return Record(
        case=case,
        round=trial.round,
        outcome="ok",
        built=built.describe(),
        readings=Readings(**memory_readings(trace), timeline=shown, **seconds),
        environment=msgspec.structs.replace(
            versions(),
            device_name=rates.name if rates else None,
            device_bytes=rates.memory_bytes if rates else None,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        ),
        notes=(*_of_model(built, case, trace), *_of_blocks(built, case, trace), *_stated(trial, rates, assumed)),
        stage_seconds={"build": time.monotonic() - began},
    )


def trace(
    trial: Trial, case: Case, *, with_saves: bool = False, build: Build | None = None, **how: Any
) -> tuple[Assembled, Trace, Assumed]:
    """Return a model, the trace of one step, and what it assumes, of a case like the trial's.

    A rehearsed case is traced on its hollow device, which has one model at a time; any other is predicted. `build`,
    which replaces the catalogue's model, is for the latter alone. Raises as their `trace_case` does.
    """
    if not case.is_rehearsed:
        return trace_case(case, calibration=trial.calibration, with_saves=with_saves, build=build, **how)
    open_device(case.device).release()
    return device_trace.trace_case(case, with_saves=with_saves, data_directory=trial.data_directory, **how)


def follow_case(trial: Trial, *, with_choices: bool = False, build: Build | None = None) -> Followed:
    """Return one traced step of the trial's case, if it is rehearsed with lines of code. Raises as `trace` does.

    `with_choices` adds block choices; the case must be one without checkpointing. If that fails, a remark says why,
    since the model may raise anything. If the step itself fails, it does so again.
    """
    case, more = trial.case, list[str]()
    how = {"with_lines": True} if case.is_rehearsed else {}

    def followed(with_choices: bool) -> Followed:
        built, step, assumed = trace(trial, case, with_saves=with_choices, build=build, **how)
        if case.is_rehearsed:
            notes = [*built.applied.notes, Note(code="GCP039", text=BYTES_ONLY)]
        else:
            notes = [*_of_model(built, case, step), *_stated(trial, None, assumed)]
        return Followed(
            trace=step,
            blocks=built.workload.blocks,
            split=built.applied.split,
            has_own_optimizer=built.workload.optimizer is not None,  # the model brought it
            remarks=(*(note.text for note in notes), *assumed.remarks, *more),
            choices=block_choices(step, built.workload) if with_choices else None,
        )

    if with_choices:
        try:
            return followed(True)
        except Exception as error:  # noqa: BLE001  as said above
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        more.append(f"whether other blocks would lower the peak is not known: {why}")
    return followed(False)


def _seconds(trial: Trial, trace: Trace, rates: Rates | None, build: Build | None) -> dict[str, Any]:
    if rates is None or trace.uses_host:  # transfers to the host have no rates
        return {}
    case, measured = trial.case, _measured_seconds(trial, rates)
    estimate = roofline_seconds(trace.operators, rates, case.precision)
    if measured is not None:
        bare = trace if case == case.baseline else trace_case(case.baseline, build=build)[1]
        estimated = roofline_seconds(bare.operators, rates, case.precision)["step"]
        estimate = trace_data.scaled(estimate, measured=measured, estimated=estimated)
    return {f"{phase}_seconds": (value,) for phase, value in estimate.items()}


def memory_readings(trace: Trace) -> dict[str, Any]:
    """Return the memory fields (bytes) and FLOP fields of Readings; what the allocator reserves is not known."""
    alive, peaks = trace_data.live(trace), list[tuple[str, int, int]]()
    for name, first, last in trace.spans():
        at = max(
            range(first, last + 1), key=alive.__getitem__, default=last
        )  # the operator at its peak; it may be empty
        peaks.append((name, at, alive[at] if last >= first else resting(trace, last)))
    phase, at, peak = max(peaks, key=lambda item: item[2])
    forwards = [(first, last) for name, first, last in trace.spans() if name == "forward"]
    before = [item for item in trace.allocations if not item.born]
    return {
        "static_bytes": {
            category: nbytes(item for item in before if item.category == category)
            for category in dict.fromkeys((*trace_data.STATIC, *(item.category for item in before)))
        },
        "start_bytes": resting(trace, forwards[0][0] - 1),
        "saved_bytes": max(  # what a forward allocates and leaves; older bytes that it frees do not count
            nbytes(item for item in trace.allocations if first <= item.born <= last < item.died)
            for first, last in forwards
        ),
        "phases": {name: PhaseBytes(allocated=max(most for of, _, most in peaks if of == name)) for name in PHASES},
        "peak_bytes": peak,
        "peak_phase": phase,
        "peak_gradient_bytes": nbytes(
            item for item in trace.allocations if item.category == "gradients" and 0 < item.born < at <= item.died
        ),
        "forward_flops": sum(item.flops for item in trace.operators if item.phase == "forward"),
        "backward_flops": sum(item.flops for item in trace.operators if item.phase in ("backward", "recompute")),
    }


def _stated(trial: Trial, rates: Rates | None, assumed: Assumed) -> list[Note]:
    """Return the notes on what limits the accuracy of a prediction."""
    texts = {
        "GCP015": ESTIMATED[device_kind(trial.case)] if trial.calibration is None else None,
        "GCP016": trace_data.stated_error(
            rates, trial.case.precision, is_scaled=_measured_seconds(trial, rates) is not None
        )
        if rates and not assumed.is_unfused
        else None,
        "GCP017": GUESSED if assumed.num_guesses else None,
        "GCP062": ROUTED[assumed.routing] if assumed.routing else None,
        "GCP065": UNFUSED if assumed.is_unfused else None,
    }
    return [Note(code=code, text=text) for code, text in texts.items() if text]


def _of_model(built: Assembled, case: Case, trace: Trace) -> tuple[Note, ...]:
    """Return the notes on strategy and model; a prediction for CUDA omits those on the CPU that it was traced on."""
    on_cuda = device_kind(case) == "cuda"
    notes = tuple(note for note in built.applied.notes if not (on_cuda and note.code == "GCP008"))
    remarks = own_checkpoints.remark(built.case, built.own_calls), built.applied.remark()
    notes = (*notes, *filter(None, remarks))
    if case == case.baseline and (again := saved_graph.recomputed_modules(trace.operators)):
        notes = (*notes, Note(code="GCP064", text=saved_graph.recompute_remark(again)))
    recurrent = nn.RNNBase, nn.RNNCellBase
    if not on_cuda or not any(isinstance(module, recurrent) for module in built.workload.module.modules()):
        return notes
    text = "recurrent layers are traced as a CPU runs them: how much a GPU keeps for them is not known, nor their time"
    return (*notes, Note(code="GCP018", text=text))


def _of_blocks(built: Assembled, case: Case, trace: Trace) -> list[Note]:
    """Return a note if the blocks found hold at most half of the saved bytes, and others would hold more than that."""
    workload = built.workload
    if case != case.baseline or case.blocks or workload.calls or not workload.blocks:
        return []
    saved = [storage for storage in trace.allocations if storage.category == "saved" and storage.phase == "forward"]

    def share(blocks: tuple[str, ...]) -> float:
        stage = stage_of(blocks)
        return nbytes(storage for storage in saved if stage(storage.module) != OUTSIDE) / nbytes(saved)

    if not saved or share(workload.blocks) > 0.5:
        return []
    if not any(share(blocks) > 0.5 for blocks in offered_blocks(workload.module).values()):
        return []
    percent = (1 - share(workload.blocks)) * 100
    text = f"{percent:.0f} % of what the forward saves is outside of the blocks that strategies checkpoint"
    return [Note(code="GCP051", text=f"{text}: `gcprof blocks MODEL` shows others, for --blocks")]


def _measured_seconds(trial: Trial, rates: Rates) -> float | None:
    """Return the measured seconds of the baseline's step on the predicted GPU, if the calibration has them."""
    calibration = trial.calibration
    return calibration.step_seconds if calibration and calibration.device_name == rates.name else None
