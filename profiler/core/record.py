"""What a trial found, as plain data.

Schema history (a change is a new number, a line here, and an old file kept in tests/records/):
1  first release

None of these holds itself, so the garbage collector need not look (`gc=False`): half the time of reading 10,000.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from profiler.core import gpu_kinds, gpu_specs
from profiler.core.case import Case, Choice, Real, Whole
from profiler.core.errors import UserError

SCHEMA = 1

Outcome = Literal["ok", "out_of_memory", "skipped", "invalid", "timed_out", "crashed", "failed"]
# how a number came about: a device ran the step; PyTorch's own CUDA code did on a hollow one; it was traced
Evidence = Literal["measured", "rehearsed", "predicted"]
# the median was sure enough; or their number or time was spent; or the next would have passed the limit of the stage
Stopped = Literal["target", "samples", "seconds", "limit", "look"]
IN_BUILD = "while the model was built"  # in the detail of what then ran out of memory
SOFTWARE = ("gcprof", "python", "torch")  # of an environment: the same in all of a run
HARDWARE = ("device_name", "cuda", "driver", "num_threads")  # the same wherever a device has the same name in a case
PHASES = ("forward", "backward", "optimizer")
REPRODUCIBLE = {"fp32": 1e-3}  # relative: two runs of the same step that differ by more can verify nothing
HALF_REPRODUCIBLE = 5e-2  # the same in half precision, whose last bit is 64 to 512 times larger


class Conditions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What it was like at the device at one moment; None for what it does not tell."""

    at_seconds: Real  # since the device was opened
    clock_hertz: Real | None = None
    highest_clock_hertz: Real | None = None
    celsius: Real | None = None
    watts: Real | None = None
    limit_watts: Real | None = None
    held_by: tuple[str, ...] = ()  # what keeps the clock down: heat, power limit, ...
    num_others: Whole | None = None  # processes on the device besides this one
    others_bytes: Whole | None = None  # of the device's memory, that they hold
    others_seconds: Real | None = None  # of all cores, that others took since the device was opened
    num_cores: Whole | None = None


class PhaseBytes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The largest number of bytes live in one phase of the step, by three accounts."""

    allocated: Whole
    reserved: Whole | None = None  # by the caching allocator
    device: Whole | None = None  # all that is taken of the device, other processes included


class Timeline(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What was live over the watched step, in few points: to be drawn. The peak is one of them."""

    phases: tuple[tuple[str, Whole], ...]  # in order, each with the number of its first point
    nbytes: dict[str, tuple[Whole, ...]]  # at each point: by category where the step was traced, else all as "live"
    operator: str | None = None  # traced: what ran at the peak,
    module: str | None = None  # and where; empty outside of all modules
    modules: dict[str, Whole] = {}  # traced: what the largest blocks or modules held at the peak


class RankBytes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one of several ranks holds."""

    static_bytes: dict[str, Whole]  # the buckets and gathered parameters that stay between steps are among them
    saved_bytes: Whole
    peak_bytes: Whole
    gathered_bytes: Whole | None = None  # the most bytes of parameters gathered from all ranks that were live at once


class Readings(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the meters read; None where a number was not measured. Bytes and seconds.

    Of several ranks, bytes are those of the rank with the highest peak, and each sample is the slowest rank's.
    """

    static_bytes: dict[str, Whole] | None = None  # parameters, buffers, gradients, optimizer, inputs
    start_bytes: Whole | None = None  # live when the forward begins
    saved_bytes: Whole | None = None  # what the forward leaves live for the backward
    phases: dict[str, PhaseBytes] | None = None
    peak_bytes: Whole | None = None
    peak_phase: str | None = None
    peak_gradient_bytes: Whole | None = None  # gradients of this step that were there at the peak
    timeline: Timeline | None = None
    reserved_bytes: Whole | None = None
    device_bytes: Whole | None = None
    forward_flops: Whole | None = None
    backward_flops: Whole | None = None  # the recompute included
    hidden_bytes: dict[str, Whole] | None = None  # what operators take besides their outputs, by signature
    block_calls: tuple[Whole, ...] | None = None  # how often each block's forward ran in a step
    forward_seconds: tuple[Real, ...] | None = None
    backward_seconds: tuple[Real, ...] | None = None
    optimizer_seconds: tuple[Real, ...] | None = None
    step_seconds: tuple[Real, ...] | None = None
    warmup_seconds: tuple[Real, ...] | None = None  # steps before these: the first, those asked for, those found
    plain_step_seconds: tuple[Real, ...] | None = None  # without the strategy, each just before or after the other
    plain_warmup_seconds: tuple[Real, ...] | None = None  # without it; empty where the first had no room
    processor_seconds: tuple[Real, ...] | None = None  # of each step, in which its thread had a core; on a CPU
    plain_processor_seconds: tuple[Real, ...] | UnsetType = UNSET  # the same of each step without the strategy
    steps_per_sample: Whole = 1  # of so many in a row each is the mean, where one is too fast for the clock
    host_share: Real | None = None  # of a step, until the host had asked for it; where a device works meanwhile
    stopped: Stopped | None = None  # why there are no more samples
    ranks: tuple[RankBytes, ...] | None = None  # in order, where several train together
    conditions: tuple[Conditions, ...] | None = None  # after the warm-up, in between, and after the last sample


class Equality(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a strategy's loss, gradients and buffers compare with those of the step without checkpointing.

    Differences are relative: the largest absolute difference of a tensor over its largest absolute value; of a gradient
    over at least 2**-8 of the model's largest.
    """

    loss_equal: bool  # to the bit
    gradients_equal: bool  # to the bit
    buffers_equal: bool  # to the bit
    random_state_equal: bool
    random_sources: tuple[str, ...] = ()  # which were drawn from more or less often: torch, random, numpy.random, ...
    largest_difference: Real | None = None
    buffers_difference: Real | None = None  # but for the counts of a norm's batches
    differing_buffers: tuple[str, ...] = ()  # the one that differs most is the first, counts of batches are the last
    worst_parameter: str | None = None
    worst_step: Whole | None = None  # of the two steps that are compared, the one where they differ most: 1 or 2
    moved: tuple[str, ...] = ()  # attributes of modules, plain Python, that a step changes otherwise: counters, caches
    missing: tuple[str, ...] = ()  # parameters that have a gradient without checkpointing, and none with it
    num_gradients: Whole | None = None  # parameters that have one without checkpointing, where they were compared
    num_without_gradient: Whole | None = None  # parameters that train and get none in this trial's own step
    rounding_floor: Real | None = None  # the same where the last bit of the weights differs
    precision_difference: Real | None = None  # the same to a run without checkpointing in fp32
    noise_floor: Real | None = None  # the same difference between two runs without checkpointing
    ranks_difference: Real | None = None  # the same to the mean of one process's gradients of all ranks' batches
    against: str = "none"  # the strategy that it was compared with
    digests: dict[str, str] = {}


def is_reproducible(equality: Equality, precision: str) -> bool:
    """Whether two runs without checkpointing differ so little that others can be compared with them."""
    return (equality.noise_floor or 0.0) <= REPRODUCIBLE.get(precision, HALF_REPRODUCIBLE)


class Environment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where and with what a trial ran; neither host nor user."""

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
    """What the trial really built: the model's size, its batch, and what the strategy did to it."""

    num_parameters: Whole
    num_blocks: Whole
    data: str  # "synthetic", or the data set's name
    split: str | None = None  # "31x3+7": 31 checkpointed segments of 3 blocks, the last 7 plain


class Note(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that the reader of a number must know; the text names the option that helps."""

    code: str
    text: str


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What a strategy did to a module."""

    split: str | None = None
    reference: Choice | None = None  # where random numbers are drawn otherwise: what to compare with instead of `none`
    changes_kernels: bool = False  # other operators do the same work: equal but for rounding
    recomputes: dict[int, int] = {}  # by index of a block: how often it is computed again in the backward
    kept: tuple[str, ...] = ()  # operators that are not computed again in these blocks
    keeps_own: bool = False  # whether the model's own checkpoints stay on
    notes: tuple[Note, ...] = ()
    remark: Callable[[], Note | None] = lambda: None  # what there is to say besides, once a step has run
    switch: Callable[[bool], None] | None = None  # off: the module's step is that of `none`; None: it cannot be


class Shortage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request for memory that failed, as far as the error tells it. Bytes."""

    of: Literal["device", "host"]
    asked_bytes: Whole | None = None
    free_bytes: Whole | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One trial, one line of trials.jsonl."""

    schema: Whole = SCHEMA
    case: Case
    round: Whole = 1
    outcome: Outcome
    detail: str | None = None  # why it is not ok
    shortage: Shortage | None = None  # where it ran out of memory
    built: Built | None = None
    readings: Readings = Readings()
    equality: Equality | None = None
    environment: Environment | None = None
    notes: tuple[Note, ...] = ()
    stage_seconds: dict[str, Real] = {}  # what the trial itself cost: start, build, equality, memory, time
    num_steps: Whole = 0  # training steps that the trial ran in all

    def fits(self, device: str) -> bool:
        """Whether a GPU, by its word (`t4`, `a100-80`), holds the step of a record for CUDA, CUDA's own context too.

        The same question as `gcprof predict --fit` answers. Raises UserError for a GPU that is not known, and for a
        record of a CPU or of a step that has no bytes.
        """
        memory_bytes = gpu_specs.find(device).memory_bytes
        if self.case.twin.device == "cpu":
            raise UserError("bytes of a CPU do not say what a GPU holds", hint="predict for a GPU: device='h100'")
        if self.readings.peak_bytes is None:
            raise UserError(f"the record has no bytes: {self.outcome}", hint="its `detail` says why")
        return needed_bytes(self.readings) <= memory_bytes


def needed_bytes(readings: Readings) -> int:
    """Returns what a process takes of a GPU at its peak: what the allocator reserves, and CUDA itself."""
    taken = readings.reserved_bytes if readings.reserved_bytes is not None else readings.peak_bytes
    assert taken is not None, "bytes were measured"
    return taken + gpu_specs.CONTEXT_BYTES


def evidence(case: Case, environment: Environment | None) -> Evidence:
    """Returns what the numbers of a trial are evidence of; `rehearsed` also where its device's name says Hollow."""
    if case.is_predicted:
        return "predicted"
    is_hollow = environment is not None and gpu_kinds.is_hollow(environment.device_name)
    return "rehearsed" if case.is_rehearsed or is_hollow else "measured"


def moment(text: str | None) -> datetime | None:
    """What `started` and `created` say, in UTC where they do not say where; None for what is no time."""
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


class BlockSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One block, as one forward saw it."""

    name: str
    kind: str  # its class
    num_parameters: int
    output: str  # the shapes of what it returns; "" where it was not run
    feeds_next: bool | None = None  # whether its output is all that the next one takes that is new; None: not known


class ModelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A model's blocks in order, or why they cannot be had."""

    model: str
    num_parameters: int
    batch_size: int | None
    blocks: tuple[BlockSummary, ...]
    remark: str | None = None  # why it is not known what feeds what
