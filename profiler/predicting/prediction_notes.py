"""Notes on a prediction: its limits and assumptions, and remarks on its model and strategy."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from profiler.analysis.live_bytes import OUTSIDE, nbytes, stage_of
from profiler.core import roofline
from profiler.core.case import Case, Trial
from profiler.core.gpu_specs import Rates
from profiler.core.record import Note
from profiler.core.trace_data import Allocation, Trace
from profiler.measuring.meters import own_recomputes
from profiler.predicting.traced_case import Assumed, kind_of
from profiler.training.assemble import Assembled
from profiler.training.blocks import offered_blocks
from profiler.training.checkpointing import own_checkpoints

ESTIMATED = {  # the errors are those of 40 rows of benchmarks/instrument.py, spread over all
    "cuda": (
        "the bytes are an estimate, without what kernels work in and what the allocator reserves: of 40 steps held to "
        "PyTorch's own allocator, the peak was off by 0.7 % in the median and by 34 % at worst"
    ),
    "cpu": "the bytes are an estimate, without what kernels work in: `gcprof run` measures them",
}
UNFUSED = (
    "compiled code was traced operator by operator: it saves what torch.compile chooses to; the peak is that "
    "without fused kernels, which usually take less, and no time is estimated"
)
GUESSED = (
    "the model reads values that a trace does not have: all() was taken as true, so that a mask masks nothing (it "
    "would take more if it did), other tests as false, numbers as 0"
)
ROUTED = {
    "balanced": "the step depends on its data: tokens are taken to be routed evenly; --routing worst sends all one way",
    "worst": "the step depends on its data: all tokens are taken to be routed to the same experts",
}


def stated(trial: Trial, rates: Rates | None, assumed: Assumed) -> list[Note]:
    """Return the notes on what limits the accuracy of a prediction."""
    texts = {
        "GCP015": ESTIMATED[kind_of(trial.case)] if trial.calibration is None else None,
        "GCP016": _stated_error(trial, rates) if rates and not assumed.is_unfused else None,
        "GCP017": GUESSED if assumed.num_guesses else None,
        "GCP062": ROUTED[assumed.routing] if assumed.routing else None,
        "GCP065": UNFUSED if assumed.is_unfused else None,
    }
    return [Note(code=code, text=text) for code, text in texts.items() if text]


def _stated_error(trial: Trial, rates: Rates) -> str:
    is_scaled = measured_seconds(trial, rates) is not None
    return roofline.stated_error(rates, trial.case.precision, is_scaled=is_scaled)


def of_model(built: Assembled, case: Case, trace: Trace) -> tuple[Note, ...]:
    """Return the notes on strategy and model; a prediction for CUDA omits those on the CPU that it was traced on."""
    on_cuda = kind_of(case) == "cuda"
    notes = tuple(note for note in built.applied.notes if not (on_cuda and note.code == "GCP008"))
    remarks = own_checkpoints.remark(built.case, built.own_calls), built.applied.remark()
    notes = (*notes, *filter(None, remarks))
    if case == case.baseline and (again := own_recomputes.of_trace(trace.operators)):
        notes = (*notes, Note(code="GCP064", text=own_recomputes.remark(again)))
    if not on_cuda or not any(isinstance(module, nn.RNNBase) for module in built.workload.module.modules()):
        return notes
    text = "recurrent layers are traced as a CPU runs them: how much cuDNN keeps for them is not known, nor their time"
    return (*notes, Note(code="GCP018", text=text))


def of_blocks(built: Assembled, case: Case, trace: Trace) -> list[Note]:
    """Return a note if the blocks found hold at most half of the saved bytes, and others would hold more than that."""
    workload = built.workload
    if case != case.baseline or case.blocks or workload.calls or not workload.blocks:
        return []
    saved = [storage for storage in trace.allocations if storage.category == "saved" and storage.phase == "forward"]

    def is_most(blocks: tuple[str, ...]) -> bool:
        return 2 * _within(saved, blocks) > nbytes(saved)

    if not saved or is_most(workload.blocks) or not any(map(is_most, offered_blocks(workload.module).values())):
        return []
    percent = (1 - _within(saved, workload.blocks) / nbytes(saved)) * 100
    text = f"{percent:.0f} % of what the forward saves is outside of the blocks that strategies checkpoint"
    return [Note(code="GCP051", text=f"{text}: `gcprof blocks MODEL` shows others, for --blocks")]


def _within(saved: Sequence[Allocation], blocks: tuple[str, ...]) -> int:
    stage = stage_of(blocks)
    return nbytes(storage for storage in saved if stage(storage.module) != OUTSIDE)


def measured_seconds(trial: Trial, rates: Rates) -> float | None:
    """Return the measured seconds of the baseline's step on the predicted GPU, if the calibration has them."""
    calibration = trial.calibration
    return calibration.step_seconds if calibration and calibration.device_name == rates.name else None
