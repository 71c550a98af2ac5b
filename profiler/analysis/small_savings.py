"""Explains why checkpointing saved little, from two traces or two readings; does not look at the strategy's name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from profiler.analysis import live_bytes
from profiler.analysis.live_bytes import OUTSIDE, largest_part, nbytes, recomputes, stage_of
from profiler.core.record import Readings
from profiler.core.trace_data import STATIC, WORKSPACES, Allocation, Trace, by_category, held_at
from profiler.core.units import bytes_text, count_text

LITTLE = 0.1  # fraction of the baseline's peak: smaller savings are explained
UNCHANGED = 0.98  # fraction of the baseline's peak: a row with more has not lowered it
SAME = 0.99  # fraction of the baseline's saved bytes: a step that saves so many was not checkpointed
MOST = 0.75  # fraction of the peak: if so much is static, that is the reason
NUM_OUTSIDE = 2  # how many modules outside of the blocks are named
INPUTS = "inputs"  # the kind of reason if there are too many checkpoints

Stage = Callable[[str], str]  # from a module's name to its block


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why checkpointing saved little.

    `kind` is unreached, workspace, optimizer, gradients, static, whole, segment, block, plain, inputs or outside.
    """

    kind: str
    text: str  # one sentence


def reason_of_readings(readings: Readings, baseline: Readings) -> str | None:
    """Return why a peak is no lower than the baseline's, by what was read of both; None if it is, or not known."""
    part, saved, peak = largest_part(readings), readings.saved_bytes, readings.peak_bytes
    if part is None or not peak or not saved or not baseline.saved_bytes or not baseline.peak_bytes:
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
    kind, held = part
    if kind == "static":
        return f"{bytes_text(held)} {of} is static, which checkpointing does not touch"
    if kind == "saved":
        return f"what checkpoints and the rest of the model keep holds {bytes_text(held)} {of}"
    what = f"what is recomputed and computed at once in the {readings.peak_phase}"
    return f"{what} holds {bytes_text(held)} {of}: `gcprof explain` names it"


def reason(trace: Trace, *, baseline: Trace, blocks: tuple[str, ...]) -> Reason | None:
    """Return the first reason that applies; None if a tenth of the baseline's peak is saved, or more."""
    if live_bytes.peak(trace).nbytes <= (1 - LITTLE) * live_bytes.peak(baseline).nbytes:
        return None
    kind, text = next(_reasons(trace, baseline, blocks))
    return Reason(kind=kind, text=text)


def _reasons(trace: Trace, baseline: Trace, blocks: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each reason that applies, the first ones first."""
    peak, stage, lives = live_bytes.peak(trace), stage_of(blocks), by_category(trace)
    held = held_at(trace, peak.number)
    ran = [  # every recompute: its first operator, and the blocks that it ran, in order
        (first, list(dict.fromkeys(stage(operator.module) for operator in trace.operators[first - 1 : last])))
        for first, last in recomputes(trace)
    ]
    saved, plain_saved = max(lives["saved"]), max(by_category(baseline)["saved"])
    workspace = _workspace_bytes(trace, peak.number, held)
    static, gradients, again, activations = (
        nbytes(storage for storage in held if storage.category in categories)
        for categories in (STATIC, ("gradients",), ("recomputed",), ("saved", "recomputed"))
    )
    segment = next(([block for block in run if block] for first, run in reversed(ran) if first <= peak.number), [])
    of = f"of the peak's {bytes_text(peak.nbytes)}"
    is_recomputed = bool(ran) or any(storage.category == "recomputed" for storage in trace.allocations)
    if not is_recomputed and saved >= SAME * plain_saved:
        text = "nothing is recomputed in the whole step: the checkpoints never reached the layers"
        yield "unreached", f"{text}, and {bytes_text(saved)} is saved as without them"
    if 2 * workspace >= peak.nbytes:
        text = (
            "is workspace, which libraries take for their kernels: neither checkpointing nor a smaller batch lowers it"
        )
        yield "workspace", f"{bytes_text(workspace)} {of} {text}"
    if peak.phase == "optimizer":
        text = "the peak is in the optimizer's step, which checkpointing does not touch"
        all_static = static + nbytes(storage for storage in held if storage.category == WORKSPACES)
        own = bytes_text(peak.nbytes - all_static)
        yield "optimizer", f"{text}: {bytes_text(all_static)} is static, and the step itself takes {own}"
    if peak.phase in ("backward", "recompute") and gradients >= max(max(lives["gradients"]) / 2, activations):
        text = "the peak is late in the backward and consists of gradients: it holds"
        yield "gradients", f"{text} {bytes_text(gradients)} of them, and {bytes_text(activations)} of activations"
    if len(blocks) > 1 and set(segment) == set(blocks):
        text = f"one checkpoint holds all {count_text(len(blocks), 'block')}: its recompute brings back"
        yield "whole", f"{text} {bytes_text(again)} at once, of {bytes_text(plain_saved)} saved without it"
    if static + workspace >= MOST * peak.nbytes:
        text = "is static (parameters, gradients, optimizer state, inputs)"
        more = f" and {bytes_text(workspace)} a workspace" if workspace else ""
        yield "static", f"{bytes_text(static)} {of} {text}{more}, which checkpointing does not touch"
    recomputed = {block for _, run in ran for block in run if block}
    yield _largest(trace, held, stage, blocks=blocks, segment=segment, recomputed=recomputed, of=of)


def _workspace_bytes(trace: Trace, number: int, held: Sequence[Allocation]) -> int:
    """Return the workspaces that are kept, and what the operator hides that does not grow with the batch."""
    kept = nbytes(storage for storage in held if storage.category == WORKSPACES)
    if not number:
        return kept
    operator = trace.operators[number - 1]
    return kept + max(0, operator.hidden_bytes - 2 * operator.batch_bytes)


def _largest(
    trace: Trace,
    held: Sequence[Allocation],
    stage: Stage,
    *,
    blocks: tuple[str, ...],
    segment: list[str],
    recomputed: set[str],
    of: str,
) -> tuple[str, str]:
    """Return what holds most of the non-static bytes at the peak, as the reason."""
    moving = [(storage, stage(storage.module)) for storage in held if storage.category not in (*STATIC, WORKSPACES)]
    parts, outside = Counter[str](), Counter[str]()
    for storage, block in moving:
        is_input = (
            storage.category == "saved" and block and stage(trace.operators[storage.died - 1].module) in recomputed
        )
        parts[INPUTS] += storage.nbytes * bool(is_input)
        parts["segment"] += storage.nbytes * (block in segment and storage.category != "saved")
        parts["plain"] += storage.nbytes * bool(block and block not in recomputed and not is_input)
        outside[storage.module] += storage.nbytes * (block == OUTSIDE)
    parts["outside"] = sum(outside.values())
    kind = max(("outside", "segment", "plain", INPUTS), key=parts.__getitem__)
    holds = f"{bytes_text(parts[kind])} {of}"
    if kind == "segment" and len(segment) == 1:
        return "block", f"one block dominates: '{segment[0]}' alone needs {holds} in its backward"
    several = count_text(len(blocks), "block")
    names = ", ".join(
        f"{module or 'outside of all modules'} {bytes_text(size)}"
        for module, size in outside.most_common(NUM_OUTSIDE)
        if size
    )
    texts = {
        "outside": f"what is outside of these blocks ({names}) holds {holds}",
        "segment": f"one segment dominates: '{segment[0] if segment else ''}' to '{segment[-1] if segment else ''}', "
        f"{len(segment)} of {several}, are recomputed at once and hold {holds}",
        "plain": f"{len(blocks) - len(recomputed)} of {several} are not recomputed, and hold {holds}",
        INPUTS: f"there are too many checkpoints: the inputs that they keep hold {holds}",
    }
    return kind, texts[kind]
