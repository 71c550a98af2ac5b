"""The results of a trial, as plain data; whether its gradients count as the baseline's, measured or read.

Schema history (a change is a new number, a line here, and an old file kept in tests/records/; a field with a default
may be added without one):
1  first release

None of these structs can be part of a reference cycle, so the garbage collector need not track them (`gc=False`): this
halves the time of reading 10,000. A record itself, which may keep its line, cannot be one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from profiler.core import gpu_specs
from profiler.core.case import Case, Choice, Key, Real, Whole, encode
from profiler.core.errors import UserError
from profiler.core.stats import highest
from profiler.core.units import few


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


class AppliedToModel(msgspec.Struct, frozen=True, kw_only=True):
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
    applied: tuple[AppliedToModel, ...] = ()  # of each model that it trains; under `none` of those with own checkpoints
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


SCHEMA = 1

Outcome = Literal["ok", "out_of_memory", "skipped", "invalid", "timed_out", "crashed", "failed"]
# where a number comes from: a real device; PyTorch's own CUDA code on a hollow device; a trace
Evidence = Literal["measured", "rehearsed", "predicted"]
# why sampling stopped: precise enough; maximum of samples or seconds; stage time limit; end of a first look
Stopped = Literal["target", "samples", "seconds", "limit", "look"]
IN_BUILD = "while the model was built"  # in `detail`, if memory ran out then
SOFTWARE = ("gcprof", "python", "torch")  # fields of Environment: the same throughout a run
HARDWARE = ("device_name", "cuda", "driver", "num_threads")  # the same for equal `case.device`
PHASES = ("forward", "backward", "optimizer")
REPRODUCIBLE = {"fp32": 1e-3}  # relative: if two runs of the same step differ by more, nothing can be verified
HALF_REPRODUCIBLE = 5e-2  # the same in half precision, whose last bit is 2**13 (fp16) or 2**16 (bf16) times larger
NOISE_MARGIN = 4.0  # a difference up to this many noise floors is noise: the floor is itself one sample of it
MOST_NAMED = 3  # of parameters, attributes and buffers
NUM_POINTS = 96  # of a timeline: a page draws several side by side, and a record is one line


class Conditions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The state of the device at one moment; None for what the device does not report."""

    at_seconds: Real  # since the device was opened
    clock_hertz: Real | None = None
    highest_clock_hertz: Real | None = None
    celsius: Real | None = None
    watts: Real | None = None
    limit_watts: Real | None = None
    held_by: tuple[str, ...] = ()  # reasons for a reduced clock: heat, power limit, ...
    num_others: Whole | None = None  # other processes on the device
    others_bytes: Whole | None = None  # device memory that they hold
    others_seconds: Real | None = None  # CPU time of other processes on all cores since the device was opened
    num_cores: Whole | None = None


class PhaseBytes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The largest number of bytes live in one phase of the step, counted in three ways."""

    allocated: Whole
    reserved: Whole | None = None  # held by the caching allocator
    device: Whole | None = None  # all device memory in use, other processes included


class Timeline(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Live bytes over the observed step at a few points, for drawing. The peak is one of them."""

    phases: tuple[tuple[str, Whole], ...]  # in order, each with the number of its first point
    nbytes: dict[str, tuple[Whole, ...]]  # at each point: by category if the step was traced, else all as "live"
    operator: str | None = None  # if traced: the operator at the peak
    module: str | None = None  # if traced: the module at the peak; empty outside of all modules
    modules: dict[str, Whole] = {}  # if traced: bytes of the largest blocks or modules at the peak


class RankBytes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The bytes of one of several ranks."""

    static_bytes: dict[str, Whole]  # includes the buckets and gathered parameters that stay between steps
    saved_bytes: Whole
    peak_bytes: Whole
    gathered_bytes: Whole | None = None  # the most bytes live at once of parameters gathered from all ranks


class Readings(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the meters read, in bytes and seconds; None if a number was not measured.

    With several ranks, bytes are those of the rank with the highest peak, and each sample is the slowest rank's.
    """

    static_bytes: dict[str, Whole] | None = None  # parameters, buffers, gradients, optimizer, inputs
    start_bytes: Whole | None = None  # live when the forward begins
    saved_bytes: Whole | None = None  # left live by the forward for the backward
    phases: dict[str, PhaseBytes] | None = None
    peak_bytes: Whole | None = None
    peak_phase: str | None = None
    peak_gradient_bytes: Whole | None = None  # gradients of this step that were live at the peak
    timeline: Timeline | None = None
    reserved_bytes: Whole | None = None
    device_bytes: Whole | None = None
    forward_flops: Whole | None = None
    backward_flops: Whole | None = None  # the recompute included
    hidden_bytes: dict[str, Whole] | None = None  # what operators allocate besides their outputs, by operator signature
    block_calls: tuple[Whole, ...] | None = None  # how often each block's forward ran in a step
    forward_seconds: tuple[Real, ...] | None = None
    backward_seconds: tuple[Real, ...] | None = None
    optimizer_seconds: tuple[Real, ...] | None = None
    step_seconds: tuple[Real, ...] | None = None
    warmup_seconds: tuple[Real, ...] | None = None  # earlier steps: the first, the requested and the detected warm-up
    plain_step_seconds: tuple[Real, ...] | None = None  # without the strategy, paired with `step_seconds` by index
    plain_warmup_seconds: tuple[Real, ...] | None = None  # without it; empty if its first step ran out of memory
    processor_seconds: tuple[Real, ...] | None = None  # per step, the time in which its thread had a core; CPU only
    plain_processor_seconds: tuple[Real, ...] | UnsetType = UNSET  # the same for `plain_step_seconds`
    steps_per_sample: Whole = 1  # each sample is the mean of so many consecutive steps, if one is too fast to time
    host_share: Real | None = None  # share of a step that the host takes to launch it; asynchronous devices only
    stopped: Stopped | None = None  # why sampling stopped
    ranks: tuple[RankBytes, ...] | None = None  # in order, if several train together
    conditions: tuple[Conditions, ...] | None = None  # after the warm-up, during sampling, and after the last sample

    @property
    def flops(self) -> int | None:
        """Those of forward and backward; None if either was not counted."""
        is_known = self.forward_flops is not None and self.backward_flops is not None
        return self.forward_flops + self.backward_flops if is_known else None  # type: ignore[operator]


class Equality(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a strategy's loss, gradients and buffers compare with those of the step without checkpointing.

    Differences are relative: the largest absolute difference of a tensor over its largest absolute value; for a
    gradient the denominator is at least 2**-8 of the model's largest gradient.
    """

    loss_equal: bool  # to the bit
    gradients_equal: bool  # to the bit
    buffers_equal: bool  # to the bit
    random_state_equal: bool
    random_sources: tuple[str, ...] = ()  # random generators whose states differ: torch, random, numpy.random, ...
    largest_difference: Real | None = None
    buffers_difference: Real | None = None  # the largest, without the batch counters of norm layers
    differing_buffers: tuple[str, ...] = ()  # largest difference first, batch counters last
    worst_parameter: str | None = None
    worst_step: Whole | None = None  # the step with the largest difference, of the two that are compared: 1 or 2
    moved: tuple[str, ...] = ()  # plain attributes of modules that the step changes differently: counters, caches
    missing: tuple[str, ...] = ()  # parameters that have a gradient without checkpointing but not with it
    num_gradients: Whole | None = None  # parameters with a gradient without checkpointing, if gradients were compared
    num_without_gradient: Whole | None = None  # trainable parameters that get no gradient in this trial's own step
    rounding_floor: Real | None = None  # difference if the last bit of the baseline's weights is changed
    precision_difference: Real | None = None  # difference from a run without checkpointing in fp32
    noise_floor: Real | None = None  # difference between two runs without checkpointing
    ranks_difference: Real | None = None  # difference from one process's mean gradient over all ranks' batches
    against: str = "none"  # the strategy that it was compared with
    digests: dict[str, str] = {}


def reproducible(precision: str) -> float:
    """Return how far two runs of the same step may differ, relative."""
    return REPRODUCIBLE.get(precision, HALF_REPRODUCIBLE)


class Environment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The hardware and software that a trial ran on; names neither host nor user."""

    gcprof: str
    python: str
    system: str
    torch: str | None = None
    cuda: str | None = None
    driver: str | None = None
    device_name: str | None = None
    device_bytes: Whole | None = None
    device_uuid: str | None = None
    num_threads: Whole | None = None
    started: str | None = None  # UTC, ISO 8601


class Built(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the trial built: the model's size, its data, and what the strategy did to it."""

    num_parameters: Whole
    num_blocks: Whole
    data: str  # "synthetic", or the data set's name
    split: str | None = None  # "31x3+7": 31 checkpointed segments of 3 blocks, the last 7 plain


class Note(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A remark that the reader of a number must know; the text names the option that helps."""

    code: str
    text: str


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What a strategy did to a module."""

    split: str | None = None
    reference: Choice | None = None  # what to compare with instead of `none`, if random numbers are drawn differently
    changes_kernels: bool = False  # whether other operators do the same work: equal except for rounding
    rounds: bool = False  # whether a lever does: other sums in kernels that are as known
    draws_apart: bool = False  # whether a lever draws dropout's masks for parts of the batch
    heads: dict[str, str] = {}  # Linears whose loss a lever computes in parts, by name: "parts" or "torch", which does
    recomputes: dict[int, int] = {}  # by block index: how often it is recomputed in the backward
    keeps_own: bool = False  # whether the model's own checkpoints stay on
    notes: tuple[Note, ...] = ()
    remark: Callable[[], Note | None] = lambda: None  # called after a step: an additional note, if there is one
    switch: Callable[[bool], None] | None = None  # turns it on or off; off: the step of `none`; None: no switch


class Shortage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A memory request that failed, as far as the error message tells. Bytes."""

    of: Literal["device", "host"]
    asked_bytes: Whole | None = None
    free_bytes: Whole | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One trial, one line of trials.jsonl."""

    schema: Whole = SCHEMA
    case: Case
    round: Whole = 1
    outcome: Outcome
    detail: str | None = None  # why it is not ok
    shortage: Shortage | None = None  # if it ran out of memory
    built: Built | None = None
    readings: Readings = Readings()
    equality: Equality | None = None
    environment: Environment | None = None
    notes: tuple[Note, ...] = ()
    stage_seconds: dict[str, Real] = {}  # what the trial itself took, by stage: start, build, equality, memory, time
    num_steps: Whole = 0  # training steps that the trial ran in all
    # the fields below are left out of all records but those of a user's own script, one for each process
    rank: Whole | UnsetType = UNSET  # of a script: as its launcher gave it
    phases: tuple[Phase, ...] | UnsetType = UNSET  # of a script: its memory by phase, in order
    script: ProcessFacts | UnsetType = UNSET  # of a script: what else is known of the process
    variant: VariantFacts | UnsetType = UNSET  # of a script: what is known of the whole command

    @property
    def key(self) -> Key:
        """What tells it from the other trials of a run."""
        return self.case, self.round

    def keep_line(self, line: bytes) -> None:
        """Keep the JSON from which this was decoded, until it is stored."""
        self.__dict__["line"] = line

    def take_line(self) -> bytes:
        """Return the record as JSON: what was kept, once, else encoded."""
        line: bytes = self.__dict__.pop("line", None) or encode(self)
        return line

    def fits(self, device: str) -> bool:
        """Whether a GPU, by its name (`t4`, `a100-80`), has the memory for the step and for CUDA's own context.

        Raises UserError for a GPU that is not known, and for a record of a CPU or of a step without a peak.
        """
        memory_bytes = gpu_specs.find(device).memory_bytes
        if self.case.twin.device == "cpu":
            raise UserError("bytes of a CPU do not say what a GPU holds", hint="predict for a GPU: device='h100'")
        total = self.environment.device_bytes if self.environment else None
        if self.outcome == "out_of_memory" and total is not None and memory_bytes <= total:
            return False
        if (needed := bytes_needed(self.readings, self.case.device)) is None:
            raise UserError(f"the record has no bytes: {self.outcome}", hint="its `detail` says why")
        return needed <= memory_bytes


def bytes_needed(readings: Readings, device: str, context_bytes: int = gpu_specs.CONTEXT_BYTES) -> int | None:
    """Return the device memory at the peak, in bytes: on CUDA what the allocator reserves, and CUDA's context."""
    if "cpu" in device:
        return readings.peak_bytes
    taken = readings.reserved_bytes if readings.reserved_bytes is not None else readings.peak_bytes
    return None if taken is None else taken + context_bytes


def evidence(case: Case, environment: Environment | None) -> Evidence:
    """Return whether numbers were measured, rehearsed (also if the device's name says Hollow) or predicted."""
    is_hollow = environment is not None and gpu_specs.is_hollow(environment.device_name)
    if not (case.has_estimated_times or is_hollow):
        return "measured"
    return "predicted" if case.is_predicted else "rehearsed"


def moment(text: str | None) -> datetime | None:
    """Return the time in a `started` or `created` field, in UTC if it has no time zone; None if it is not a time."""
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


class BlockSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One block, as observed in one forward."""

    name: str
    kind: str  # its class
    num_parameters: int
    output: str  # the shapes of its output; "" if it was not run
    feeds_next: bool | None = None  # whether its output is the only new input of the next block; None: not known


class ModelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A model's blocks in order."""

    model: str
    num_parameters: int
    batch_size: int | None
    blocks: tuple[BlockSummary, ...]
    remark: str | None = None  # why `feeds_next` is not known


def why_invalid(case: Case, equality: Equality) -> str | None:
    """Return why a trial of this case is invalid by its gradients; None if it is not.

    A baseline whose noise is too large is no fault of its own.
    """
    noise = not_reproducible(equality, case.precision)
    if noise and case == case.baseline:
        return None
    return noise if noise and not equality.missing else judge(equality, strict=case.verify == "strict")


def judge(equality: Equality | None, *, strict: bool, rewritten: Sequence[str] = ()) -> str | None:
    """Return why these gradients do not count as the baseline's; None if they do.

    Without a comparison, there is a reason only if `strict`. `rewritten` are buffers that a recompute has written into
    again and that the forward may read.
    """
    if equality is None:
        return "not verified: there is nothing to compare with" if strict else None
    if equality.missing:
        names = ", ".join(equality.missing[:3]) + (", ..." if len(equality.missing) > 3 else "")
        return f"{len(equality.missing)} of {equality.num_gradients} parameters have no gradient: {names}"
    largest, floor = equality.largest_difference or 0.0, equality.noise_floor or 0.0
    allowed = NOISE_MARGIN * max(floor, equality.rounding_floor or 0.0)
    across = equality.ranks_difference or 0.0
    where = f", worst in {equality.worst_parameter}" if equality.worst_parameter else ""
    if across > (0.0 if strict else allowed):
        return f"gradients differ by {across:.1e}{where} from the mean of those of one process with all ranks' batches"
    if (equality.gradients_equal and equality.loss_equal) or (not strict and allowed and largest <= allowed):
        return None
    where += " of the second step, while those of the first agree" if equality.worst_step == 2 else ""
    cause = f": the recompute draws different numbers from {', '.join(drawn)}" if (drawn := unkept(equality)) else ""
    changed = few((*equality.moved, *rewritten), MOST_NAMED)
    cause = cause or (f": the recompute changes {changed} again" if changed else "")
    return f"gradients differ by {largest:.1e}{where}; two runs without checkpointing differ by {floor:.1e}{cause}"


def unkept(equality: Equality) -> list[str]:
    """Return the random sources that a recompute drew from again: checkpoints restore only torch's own."""
    return [name for name in equality.random_sources if name != "torch"]


def not_reproducible(equality: Equality, precision: str) -> str | None:
    """Return why no gradients can be verified; None if the step without checkpointing is reproducible."""
    if (equality.noise_floor or 0.0) <= reproducible(precision):
        return None
    where = f", worst in {equality.worst_parameter}" if equality.worst_parameter else ""
    return (
        f"two runs without checkpointing differ by {equality.noise_floor:.1e}{where}: nothing can be verified. The "
        "step draws numbers that gcprof cannot seed (os.urandom, the time), keeps state from call to call, or has "
        "kernels that are not deterministic"
    )


def timeline(nbytes: Mapping[str, Sequence[int]], phases: Iterable[tuple[str, int]], **at_peak: Any) -> Timeline:
    """Downsample series of bytes, one for each category: keep the point of each stretch where their sum is largest.

    All series have the same length. `phases` are in order, each with the index of its first value. `at_peak` are other
    fields of the Timeline, stored as they are.
    """
    places = highest([sum(values) for values in zip(*nbytes.values(), strict=True)], NUM_POINTS)
    firsts = [(phase, sum(place < first for place in places)) for phase, first in phases]
    ends = [*(first for _, first in firsts[1:]), len(places)]
    return Timeline(
        phases=tuple(start for start, end in zip(firsts, ends, strict=True) if start[1] < end),  # some have no points
        nbytes={name: tuple(values[place] for place in places) for name, values in nbytes.items() if any(values)},
        **at_peak,
    )
