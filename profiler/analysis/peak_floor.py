"""The lower bound of the peak under any checkpointing of blocks, from the trace of one step."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from itertools import accumulate, count, groupby, pairwise

import msgspec

from profiler.analysis.live_bytes import OUTSIDE, stage_of
from profiler.core.trace_data import BUCKETS, STATIC, WORKSPACES, Allocation, Trace, as_asked, held_at, summed

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


def floor(trace: Trace, *, blocks: tuple[str, ...]) -> Floor:
    """Return a lower bound of the peak under any checkpointing of these blocks, and the operator that sets it.

    It is the static bytes and the needs of the one stage that runs, at the operator where these are most. A stage is a
    run of operators of one block, or of none. What it needs in its backward is live however the block is checkpointed,
    since the backward itself is the same:
    - what is static, outside of all blocks, temporary, or the gradient of an activation: for its whole lifetime;
    - what a block saved or recomputed: in the stage that is the last to need it. If that is the block's own backward,
      from the first operator that releases any of this call's, since the recompute may not have begun before.
    Not counted are the inputs of other blocks, which `all` keeps, and the unsplit rest of the allocator's blocks, which
    differs from step to step. Bytes.
    """
    trace = as_asked(trace)
    needs = _Needs(trace, blocks)
    bounds = needs.bounds()
    at = max(needs.counted(), key=bounds.__getitem__)
    operator = trace.operators[at - 1]
    return Floor(
        nbytes=bounds[at],
        static_bytes=sum(storage.nbytes for storage in held_at(trace, at) if storage.category in THROUGHOUT),
        stage=needs.at_work[at - 1],
        phase=operator.phase,
        operator=operator.name,
        module=operator.module,
    )


class _Needs:
    """Finds from which operator on each storage is needed by the stage that runs."""

    def __init__(self, trace: Trace, blocks: tuple[str, ...]) -> None:
        self.stage = stage_of(blocks)
        self.at_work = _at_work(trace, self.stage)
        self._trace = trace
        self._starts: list[int] = []  # the first operator of each stage; recomputes belong to the stage before them
        self._stages: list[tuple[str, str]] = []
        self._cut()
        self._calls = _calls(trace, self.at_work)
        self._released: dict[tuple[int, int], int] = {}  # by stage and call: when the first of its own is freed
        for storage in trace.allocations:
            if self._own(storage) and trace.operators[storage.died - 1].phase != "recompute":
                key = self._place(storage.died), self._calls[storage.born]
                self._released[key] = min(storage.died, self._released.get(key, storage.died))

    def bounds(self) -> list[int]:
        """Return the bytes that are needed while each operator runs."""
        lives = (
            (storage.nbytes, self._since(storage), storage.died)
            for storage in self._trace.allocations
            if not (storage.phase == "recompute" and storage.category == "temporaries")
        )
        held = summed(lives, len(self._trace.operators))
        for number, operator in enumerate(self._trace.operators, start=1):
            held[number] += operator.hidden_bytes
        return held

    def counted(self) -> list[int]:
        """Return the operators that run under any checkpointing."""
        operators = enumerate(self._trace.operators, start=1)
        return [number for number, operator in operators if operator.phase != "recompute"]

    def _cut(self) -> None:
        for number, operator in enumerate(self._trace.operators, start=1):
            stage = operator.phase, self.at_work[number - 1]
            if operator.phase != "recompute" and (not self._stages or stage != self._stages[-1]):
                self._starts.append(number)
                self._stages.append(stage)

    def _place(self, operator: int) -> int:
        return max(0, bisect_right(self._starts, operator) - 1)

    def _own(self, storage: Allocation) -> bool:
        """Whether a storage was made by the block whose backward is the last to need it."""
        stage = self.stage(storage.module)
        is_activation = storage.category in ("saved", "recomputed") and stage != OUTSIDE
        return is_activation and self._stages[self._place(storage.died)] == ("backward", stage)

    def _since(self, storage: Allocation) -> int:
        if storage.category not in ("saved", "recomputed") or self.stage(storage.module) == OUTSIDE:
            return storage.born
        place = self._place(storage.died)
        first = self._released.get((place, self._calls[storage.born]), storage.died)
        return max(storage.born, first if self._own(storage) else self._starts[place])


def _at_work(trace: Trace, stage: Callable[[str], str]) -> list[str]:
    """Return the block of each operator.

    If autograd has lost the module of a backward operator, it is the block of the operators around it, provided that
    the step has one forward in which that block ran once.
    """
    at_work = [stage(operator.module) for operator in trace.operators]
    forward = [block for block, operator in zip(at_work, trace.operators, strict=True) if operator.phase == "forward"]
    runs = Counter(block for block, _ in groupby(forward))
    passes = sum(phase == "forward" for phase, _ in trace.marks)
    backward = [at for at, operator in enumerate(trace.operators) if operator.phase == "backward"]
    last = {at_work[at]: at for at in backward}
    for before, at in pairwise(backward):
        around = at_work[before]
        if at_work[at] == OUTSIDE and around != OUTSIDE and passes == 1 == runs[around] and at < last[around]:
            at_work[at] = around
    return at_work


def _calls(trace: Trace, at_work: list[str]) -> list[int]:
    """Return the call of a block that each operator belongs to, 0 being before the step; numbers only tell calls apart.

    A block that is called again at once (layers that share their weights) repeats the operators that allocate.
    """
    allocating = {storage.born for storage in trace.allocations}
    calls = [0]
    numbered = zip(count(1), trace.operators, at_work)  # without strict: the count is endless
    for _, run in groupby(numbered, key=lambda entry: (entry[1].phase, entry[2])):
        operators = [((operator.name, operator.module), number in allocating) for number, operator, _ in run]
        period = _period([name for name, makes_any in operators if makes_any])
        first = calls[-1] + 1
        calls += [first + max(0, sofar - 1) // period for sofar in accumulate(makes_any for _, makes_any in operators)]
    return calls


def _period(names: list[tuple[str, str]]) -> int:
    """Return the length of the shortest prefix that the whole repeats (Knuth, Morris and Pratt 1977)."""
    longest = [0] if names else []  # for every prefix, the length of the longest suffix that is also a prefix
    for at in range(1, len(names)):
        length = longest[-1]
        while length and names[at] != names[length]:
            length = longest[length - 1]
        longest.append(length + (names[at] == names[length]))
    period = len(names) - (longest[-1] if names else 0)
    return period if period and len(names) % period == 0 else max(1, len(names))
