"""The lower bound of a step's peak under any checkpointing of its blocks, from the step's trace."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate, groupby, pairwise

import msgspec

from profiler.analysis.live_bytes import OUTSIDE, nbytes, stage_of
from profiler.core.trace_data import BUCKETS, STATIC, WORKSPACES, Allocation, Life, Trace, as_asked, held_at, summed

THROUGHOUT = (*STATIC, WORKSPACES, BUCKETS)


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """The lower bound of the peak, and the operator at which it is reached."""

    nbytes: int
    static_bytes: int  # of these: parameters, buffers, gradients so far, optimizer state, inputs, workspaces
    stage: str  # the block that runs; empty outside of all blocks
    phase: str
    operator: str
    module: str

    @property
    def work_bytes(self) -> int:
        return self.nbytes - self.static_bytes


def floor(trace: Trace, *, blocks: tuple[str, ...], is_proof: bool = False) -> Floor:
    """Return a lower bound of the peak under any checkpointing of these blocks, and the operator that sets it.

    It is the static bytes and the needs of the one stage that runs, at the operator where these are most. A stage is a
    run of operators of one block, or of none. What it needs in its backward is live however the block is checkpointed,
    since the backward itself is the same:
    - what is static, outside of all blocks, temporary, or the gradient of an activation: for its whole lifetime;
    - what a block saved or recomputed: in the stage that is the last to need it. If that is the block's own backward,
      from the first operator that releases any of this call's, since the recompute may not have begun before.
    Not counted are the inputs of other blocks, which `all` keeps, and the unsplit rest of the allocator's blocks, which
    differs from step to step. A recomputed tensor is freed by the operator that reads it last, before autograd would
    release a saved one, which can be a few percent: with `is_proof` what a block saves is counted only from the first
    operator that reads any of what its call saved to the last that reads this, if the trace has saves. Bytes.
    """
    trace = as_asked(trace)
    stage = stage_of(blocks)
    at_work = [stage(operator.module) for operator in trace.operators]
    forward = [block for block, operator in zip(at_work, trace.operators, strict=True) if operator.phase == "forward"]
    runs = Counter(block for block, _ in groupby(forward))
    passes = sum(phase == "forward" for phase, _ in trace.marks)
    backward = [at for at, operator in enumerate(trace.operators) if operator.phase == "backward"]
    last = {at_work[at]: at for at in backward}
    for before, at in pairwise(backward):  # one without a module is of the block of those around it, if that ran once
        around = at_work[before]
        if at_work[at] == OUTSIDE and around != OUTSIDE and passes == 1 == runs[around] and at < last[around]:
            at_work[at] = around
    bounds = _bounds(trace, stage, at_work, has_saved=not is_proof)
    counted = (number for number, operator in enumerate(trace.operators, start=1) if operator.phase != "recompute")
    at = max(counted, key=bounds.__getitem__)
    operator = trace.operators[at - 1]
    return Floor(
        nbytes=bounds[at],
        static_bytes=nbytes(storage for storage in held_at(trace, at) if storage.category in THROUGHOUT),
        stage=at_work[at - 1],
        phase=operator.phase,
        operator=operator.name,
        module=operator.module,
    )


def _bounds(trace: Trace, stage: Callable[[str], str], at_work: list[str], *, has_saved: bool) -> list[int]:
    """Return the bytes that are needed while each operator runs."""
    starts: list[int] = []  # the first operator of each stage; recomputes belong to the stage before them
    stages: list[tuple[str, str]] = []
    for number, operator in enumerate(trace.operators, start=1):
        at = operator.phase, at_work[number - 1]
        if operator.phase != "recompute" and (not stages or at != stages[-1]):
            starts.append(number)
            stages.append(at)
    calls = _calls(trace, at_work)
    released: dict[tuple[int, int], int] = {}  # by stage and call: when the first of its own is freed
    lives: list[tuple[Allocation, int | None, bool]] = []  # the last stage to need each, and if it is its own backward
    for storage in trace.allocations:
        block = stage(storage.module) if storage.category in ("saved", "recomputed") else OUTSIDE
        place = max(0, bisect_right(starts, storage.died) - 1) if block != OUTSIDE else None
        is_own = place is not None and stages[place] == ("backward", block)
        lives.append((storage, place, is_own))
        if place is not None and is_own and trace.operators[storage.died - 1].phase != "recompute":
            key = place, calls[storage.born]
            released[key] = min(storage.died, released.get(key, storage.died))
    needed = [] if has_saved else list(_read(trace, stage, [place for _, place, _ in lives]))
    for storage, place, is_own in lives:
        since = storage.born
        if place is not None:
            if not has_saved:
                continue
            first = released.get((place, calls[storage.born]), storage.died) if is_own else starts[place]
            since = max(storage.born, first)
        if not (storage.phase == "recompute" and storage.category == "temporaries"):
            needed.append((storage.nbytes, since, storage.died))
    hidden = (0, *(operator.hidden_bytes for operator in trace.operators))
    return [bytes_ + more for bytes_, more in zip(summed(needed, len(trace.operators)), hidden, strict=True)]


def _read(trace: Trace, stage: Callable[[str], str], places: list[int | None]) -> Iterator[Life]:
    """Yield what blocks save, while their own backward is sure to hold it: a checkpoint recomputes whole calls of them.

    Whatever a call saves is there again from the first time that any of it is unpacked, until it is unpacked last.
    """
    windows: dict[int, list[tuple[int, int]]] = {}  # by allocation
    for call in trace.calls:
        if not call.module or stage(call.module) != call.module:
            continue  # within a block, or outside of all
        saves = trace.saves[slice(*call.saves)]
        reads = sorted(
            (save.unpacked, save.allocation)
            for save in saves
            if save.unpacked is not None and save.allocation is not None
        )
        last = {allocation: unpacked + 1 for unpacked, allocation in reads}  # the latest of each
        for allocation, end in last.items():
            if places[allocation] is not None:
                windows.setdefault(allocation, []).append((reads[0][0] + 1, end))
    for allocation, spans in windows.items():
        until = 0
        for first, end in sorted(spans):
            if end > until:
                yield trace.allocations[allocation].nbytes, max(first, until + 1), end
                until = end


def _calls(trace: Trace, at_work: list[str]) -> list[int]:
    """Return the call of a block that each operator belongs to, 0 being before the step.

    A block that is called again at once repeats the operators that allocate.
    """
    allocating = {storage.born for storage in trace.allocations}
    calls = [0]
    numbered = enumerate(zip(trace.operators, at_work, strict=True), start=1)
    for _, run in groupby(numbered, key=lambda entry: (entry[1][0].phase, entry[1][1])):
        operators = [((operator.name, operator.module), number in allocating) for number, (operator, _) in run]
        names = [name for name, makes_any in operators if makes_any]
        sizes = (size for size in range(1, len(names)) if len(names) % size == 0)  # of a prefix that all repeats
        period = next((size for size in sizes if names[:size] * (len(names) // size) == names), max(1, len(names)))
        first = calls[-1] + 1
        calls += [first + max(0, sofar - 1) // period for sofar in accumulate(makes_any for _, makes_any in operators)]
    return calls
