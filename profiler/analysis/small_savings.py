"""Explains why checkpointing saved little, from two traces; does not look at the strategy's name."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from profiler.analysis import live_bytes
from profiler.analysis.live_bytes import OUTSIDE, Peak, nbytes, peak_parts, recomputes, stage_of
from profiler.core.record import Readings
from profiler.core.trace_data import STATIC, WORKSPACES, Allocation, Trace, by_category, held_at
from profiler.core.units import bytes_text, count_text

LITTLE = 0.1  # fraction of the baseline's peak: smaller savings are explained
UNCHANGED = 0.98  # fraction of the baseline's peak: a row with more has not lowered it
SAME = 0.99  # fraction of the baseline's saved bytes: a step that saves so many was not checkpointed
MOST = 0.75  # fraction of the peak: if so much is static, that is the reason
NUM_OUTSIDE = 2  # how many modules outside of the blocks are named
ACTIVATIONS = ("saved", "recomputed")
INPUTS = "inputs"  # the kind of reason if there are too many checkpoints


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why checkpointing saved little.

    `kind` is unreached, workspace, optimizer, gradients, static, whole, segment, block, plain, inputs or outside.
    """

    kind: str
    text: str  # one sentence


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules look at."""

    peak: Peak
    held: tuple[Allocation, ...]  # at the peak
    blocks: tuple[str, ...]
    segment: tuple[str, ...]  # the blocks of the last recompute that began before the peak
    recomputed: frozenset[str]  # the blocks of all recomputes
    is_recomputed: bool  # whether anything is recomputed, in a block or outside of all
    inputs: tuple[Allocation, ...]  # the part of `held` that is the inputs of checkpoints
    all_gradient_bytes: int
    saved_bytes: int
    baseline_saved_bytes: int
    workspace_bytes: int  # what libraries hold at the peak, whatever the batch, such as cuBLAS's workspace
    stage: Callable[[str], str]

    def bytes_of(self, *categories: str) -> int:
        return nbytes(storage for storage in self.held if storage.category in categories)


def reason(trace: Trace, *, baseline: Trace, blocks: tuple[str, ...]) -> Reason | None:
    """Return the first reason that applies; None if a tenth of the baseline's peak is saved, or more."""
    if live_bytes.peak(trace).nbytes <= (1 - LITTLE) * live_bytes.peak(baseline).nbytes:
        return None
    step = _look(trace, baseline, blocks)
    for rule in (_unreached, _workspace, _optimizer, _gradients, _whole, _static):
        if answer := rule(step):
            return answer
    return _largest(step)


def reason_of_readings(readings: Readings, baseline: Readings) -> str | None:
    """Return why a peak is no lower than the baseline's, by what was read of both; None if it is, or not known."""
    parts, saved, peak = peak_parts(readings), readings.saved_bytes, readings.peak_bytes
    if parts is None or not peak or not saved or not baseline.saved_bytes or not baseline.peak_bytes:
        return None
    if peak <= UNCHANGED * baseline.peak_bytes:
        return None
    of = f"of the peak's {bytes_text(peak)}"
    if saved >= SAME * baseline.saved_bytes:
        without = bytes_text(baseline.saved_bytes)
        more = f"and {without} without checkpoints: their inputs and random states take more than they free"
        same = "as without it: `gcprof blocks MODEL` shows where it is"
        return f"the forward saves {bytes_text(saved)}, {more if saved > baseline.saved_bytes / SAME else same}"
    if readings.peak_phase == "optimizer":
        return f"the peak is in the optimizer's step, which checkpointing does not touch: {bytes_text(peak)}"
    if parts.static >= max(parts.saved, parts.transient):
        return f"{bytes_text(parts.static)} {of} is static, which checkpointing does not touch"
    if parts.saved >= parts.transient:
        return f"what checkpoints and the rest of the model keep holds {bytes_text(parts.saved)} {of}"
    what = f"what is recomputed and computed at once in the {readings.peak_phase}"
    return f"{what} holds {bytes_text(parts.transient)} {of}: `gcprof explain` names it"


def _look(trace: Trace, baseline: Trace, blocks: tuple[str, ...]) -> _Step:
    stage, peak, lives = stage_of(blocks), live_bytes.peak(trace), by_category(trace)
    ran = _recomputed(trace, stage)
    recomputed = frozenset(block for _, run_blocks in ran for block in run_blocks)
    held = tuple(held_at(trace, peak.number))
    saved = (storage for storage in held if storage.category == "saved" and stage(storage.module) != OUTSIDE)
    return _Step(
        peak=peak,
        held=held,
        blocks=blocks,
        segment=next((run_blocks for first, run_blocks in reversed(ran) if first <= peak.number), ()),
        recomputed=recomputed,
        is_recomputed=bool(ran) or any(storage.category == "recomputed" for storage in trace.allocations),
        inputs=tuple(storage for storage in saved if stage(trace.operators[storage.died - 1].module) in recomputed),
        all_gradient_bytes=max(lives["gradients"]),
        saved_bytes=max(lives["saved"]),
        baseline_saved_bytes=max(by_category(baseline)["saved"]),
        workspace_bytes=_workspace_bytes(trace, peak.number, held),
        stage=stage,
    )


def _workspace_bytes(trace: Trace, number: int, held: tuple[Allocation, ...]) -> int:
    """Return the workspaces that are kept, and what the operator hides that does not grow with the batch."""
    kept = nbytes(storage for storage in held if storage.category == WORKSPACES)
    if not number:
        return kept
    operator = trace.operators[number - 1]
    return kept + max(0, operator.hidden_bytes - 2 * operator.batch_bytes)


def _recomputed(trace: Trace, stage: Callable[[str], str]) -> list[tuple[int, tuple[str, ...]]]:
    """Return every recompute: its first operator, and the blocks that it ran, in order."""
    recomputed = []
    for first, last in recomputes(trace):
        blocks = dict.fromkeys(stage(operator.module) for operator in trace.operators[first - 1 : last])
        recomputed.append((first, tuple(block for block in blocks if block != OUTSIDE)))
    return recomputed


def _unreached(step: _Step) -> Reason | None:
    if step.is_recomputed or step.saved_bytes < SAME * step.baseline_saved_bytes:
        return None
    text = "nothing is recomputed in the whole step: the checkpoints never reached the layers"
    return Reason(kind="unreached", text=f"{text}, and {bytes_text(step.saved_bytes)} is saved as without them")


def _workspace(step: _Step) -> Reason | None:
    workspace, peak = step.workspace_bytes, step.peak
    if 2 * workspace < peak.nbytes:
        return None
    of = f"{bytes_text(workspace)} of the peak's {bytes_text(peak.nbytes)}"
    text = f"{of} is workspace, which libraries take for their kernels: neither checkpointing nor a smaller batch"
    return Reason(kind="workspace", text=f"{text} lowers it")


def _optimizer(step: _Step) -> Reason | None:
    if step.peak.phase != "optimizer":
        return None
    static = step.bytes_of(*STATIC, WORKSPACES)
    text = f"the peak is in the optimizer's step, which checkpointing does not touch: {bytes_text(static)} is static"
    return Reason(kind="optimizer", text=f"{text}, and the step itself takes {bytes_text(step.peak.nbytes - static)}")


def _gradients(step: _Step) -> Reason | None:
    gradients, activations = step.bytes_of("gradients"), step.bytes_of(*ACTIVATIONS)
    if step.peak.phase not in ("backward", "recompute") or gradients < max(step.all_gradient_bytes / 2, activations):
        return None
    text = f"the peak is late in the backward and consists of gradients: it holds {bytes_text(gradients)} of them"
    return Reason(kind="gradients", text=f"{text}, and {bytes_text(activations)} of activations")


def _whole(step: _Step) -> Reason | None:
    if len(step.blocks) < 2 or set(step.segment) != set(step.blocks):
        return None
    text = f"one checkpoint holds all {count_text(len(step.blocks), 'block')}"
    back = bytes_text(step.bytes_of("recomputed"))
    saved = bytes_text(step.baseline_saved_bytes)
    return Reason(kind="whole", text=f"{text}: its recompute brings back {back} at once, of {saved} saved without it")


def _static(step: _Step) -> Reason | None:
    static, workspace = step.bytes_of(*STATIC), step.workspace_bytes
    if static + workspace < MOST * step.peak.nbytes:
        return None
    of = f"{bytes_text(static)} of the peak's {bytes_text(step.peak.nbytes)}"
    text = "is static (parameters, gradients, optimizer state, inputs)"
    more = f" and {bytes_text(workspace)} a workspace" if workspace else ""
    return Reason(kind="static", text=f"{of} {text}{more}, which checkpointing does not touch")


def _largest(step: _Step) -> Reason:
    """Return what holds most of the non-static bytes at the peak, as the reason."""
    moving = [storage for storage in step.held if storage.category not in (*STATIC, WORKSPACES)]
    stages = [(storage, step.stage(storage.module)) for storage in moving]
    parts = {
        "outside": nbytes(storage for storage, stage in stages if stage == OUTSIDE),
        "segment": nbytes(
            storage for storage, stage in stages if stage in step.segment and storage.category != "saved"
        ),
        "plain": nbytes(storage for storage, stage in stages if stage != OUTSIDE and stage not in step.recomputed),
        INPUTS: nbytes(step.inputs),
    }
    parts["plain"] -= nbytes(storage for storage in step.inputs if step.stage(storage.module) not in step.recomputed)
    kind = max(parts, key=parts.__getitem__)
    if kind == "segment" and len(step.segment) == 1:
        kind = "block"
    return Reason(kind=kind, text=_TEXTS[kind](step, bytes_text(max(parts.values()))))


def _outside(step: _Step) -> str:
    """Return the modules outside of the blocks that hold most of what is not static, the largest first, as text."""
    sizes: dict[str, int] = {}
    for storage in step.held:
        if storage.category not in (*STATIC, WORKSPACES) and step.stage(storage.module) == OUTSIDE:
            sizes[storage.module] = sizes.get(storage.module, 0) + storage.nbytes
    largest = sorted(sizes, key=lambda module: -sizes[module])[:NUM_OUTSIDE]
    return ", ".join(f"{module or 'outside of all modules'} {bytes_text(sizes[module])}" for module in largest)


def _of(step: _Step) -> str:
    return f"of the peak's {bytes_text(step.peak.nbytes)}"


_TEXTS: dict[str, Callable[[_Step, str], str]] = {
    "outside": lambda step, held: f"what is outside of these blocks ({_outside(step)}) holds {held} {_of(step)}",
    "segment": lambda step, held: (
        f"one segment dominates: '{step.segment[0]}' to '{step.segment[-1]}', {len(step.segment)} of"
        f" {count_text(len(step.blocks), 'block')}, are recomputed at once and hold {held} {_of(step)}"
    ),
    "block": lambda step, held: (
        f"one block dominates: '{step.segment[0]}' alone needs {held} {_of(step)} in its backward"
    ),
    "plain": lambda step, held: (
        f"{len(step.blocks) - len(step.recomputed)} of {count_text(len(step.blocks), 'block')} are not recomputed, and"
        f" hold {held} {_of(step)}"
    ),
    INPUTS: lambda step, held: f"there are too many checkpoints: the inputs that they keep hold {held} {_of(step)}",
}
