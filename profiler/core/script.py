"""What is stored of a user's own training script: the phases of each process, and how the command ended.

A phase, and what is stored of a process and of a variant besides, are part of a `Record`, and of what
`profiler/scripts/report.py` makes of them.
"""

from __future__ import annotations

import msgspec

from profiler.core.case import Real, Whole


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of memory of one category that one line allocated; of the category `rest`, all that are not named."""

    category: str
    line: str  # of the script; of what the backward allocates, the line that called it
    module: str = ""  # that all of them belong to; "" where there is none, or it is not known
    num: Whole  # blocks
    nbytes: Whole


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """A line whose memory was more after each of several steps in a row."""

    line: str
    num_steps: Whole
    nbytes: Whole  # in these steps together


class Assumed(msgspec.Struct, frozen=True, kw_only=True):
    """Values that a hollow GPU does not compute, as a line of the script makes them."""

    operator: str
    line: str
    is_size: bool = False  # the size of its result came from assumed values


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """What the largest process takes if values are assumed otherwise, where sizes depend on them."""

    values: str  # none: comparisons are false, and the first is chosen; all: true, and the last
    outcome: str
    peak_bytes: Whole | None
    reserved_bytes: Whole | None


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What a strategy did to one model of a process, or why it did nothing."""

    strategy: str
    module: str  # the model's class
    num_blocks: Whole = 0  # that are recomputed
    split: str | None = None  # how they are cut, in the strategy's words
    own: tuple[str, ...] = ()  # what the script itself checkpoints of it: names, with `*` for numbers
    why: str | None = None  # it was left as it is


class Gradients(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a run's gradients against those of `none`, at the first steps of each optimizer."""

    verdict: str  # equal, equal within rounding, differ, not comparable, unverified
    detail: str | None = None
    parameter: str | None = None  # the first one that differs
    step: Whole | None = None  # in which it does, from 1
    num_differing: Whole = 0  # of num_gradients
    num_gradients: Whole = 0  # in the first step of all optimizers, of all processes
    largest_difference: Real | None = None  # relative, from 0 to 2; None where the values were not kept


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """All passes through one phase of a process, of its first step or of later ones."""

    name: str
    is_first_step: bool = False
    first_step: Whole  # the number of the step in which it was first, from 0
    num: Whole  # passes
    peak_bytes: Whole | None  # the largest of them; None on a CPU whose memory is not measured
    live_bytes: Whole | None  # at the end of the pass with the largest peak
    reserved_bytes: Whole | None  # the most within it; None on a CPU
    line: str  # of the script, at the peak; where it is not known, at the begin of that pass
    holders: tuple[Holder, ...] = ()  # of the peak, the largest first: together all of its bytes; none where not known


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a process that used a GPU, besides what its record says in fields of its own."""

    number: Whole  # of the process
    torch: str | None = None  # its version, in the process
    died: Real | None = None  # when it raised, or was gone without a word: seconds since the epoch
    steps_are: str = "steps"  # of an optimizer; "backward passes" where torch.optim made none
    shortages: tuple[str, ...] = ()  # lines at which memory ran out, each time, also where the script went on
    shortage_holders: tuple[Holder, ...] = ()  # what was live when memory ran out for the last time
    reads: tuple[str, ...] = ()  # lines that read a value of the GPU, which a hollow one does not compute
    assumed: tuple[Assumed, ...] = ()  # values that were not known, and sizes that came from such
    notes: tuple[str, ...] = ()  # what was not as it would be on a GPU
    applied: tuple[Applied, ...] = ()  # of each model that it trains; under `none` of those with own checkpoints
    growth: tuple[Growth, ...] = ()  # from step to step, the most first
    holders_why: str | None = None  # why holders are not known, of all phases or of some
    estimated_seconds: Real | None = None  # of the second step, by the roofline model, where strategies are compared
    estimate_why: str | None = None  # why these are not known


class VariantFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the command on one device, with one set of values; the same for all of its processes."""

    words: dict[str, str]  # what this variant is: its device, its strategy and the values of -L
    gpu_bytes: Whole | None  # memory of each GPU; None on a CPU
    context_bytes: Whole  # of it, taken by CUDA
    outcome: str  # of the whole command
    detail: str | None = None  # why it is skipped, or where its processes were when the limit ended them
    exit_code: Whole = 0  # its own
    needed_bytes: Whole | None = None  # reserved by one process, and the context, where this GPU has too little
    unguarded: str | None = None  # why its files could not be guarded: only what it saved was redirected
    is_cut: bool = False  # ended before the script would have
    seconds: tuple[tuple[Real, ...], ...] = ()  # of each step after the first, by round; measured only
    values: str | None = None  # how values were assumed, where it was asked for; zeros otherwise
    bounds: tuple[Bound, ...] = ()  # where sizes came from assumed values
    equality: Gradients | None = None  # with the gradients of `none`; measured only
