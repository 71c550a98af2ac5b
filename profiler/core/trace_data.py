"""A traced step as plain data, with its live bytes and its seconds on a GPU; snapshots of CUDA's allocator."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from profiler.core.errors import UserError, is_theirs
from profiler.core.gpu_specs import Rates

STATIC = ("parameters", "buffers", "gradients", "optimizer", "inputs")
WORKSPACES = "workspaces"  # memory that libraries such as cuBLAS keep
BUCKETS = "communication buckets"  # buffers in which gradients are averaged, unless they are the gradients themselves
GATHERED = "gathered parameters"  # parameters sharded over ranks, while they are whole on this one
CATEGORIES = (*STATIC, WORKSPACES, BUCKETS, GATHERED, "saved", "recomputed", "temporaries")

Life = tuple[int, int, int]  # bytes, and the first and last operator of their lifetime, both included

# No kernel reaches the datasheet. With a fifth off, BERT-base's published +25 % (batch 64, on T4 and V100) comes out
# as +27 % where the first 10 of its 12 layers are checkpointed, and as +32 % where all are.
COMPUTE_EFFICIENCY = 0.8  # of the datasheet's FLOP per second, as large matrix products reach
BANDWIDTH_EFFICIENCY = 0.8  # of its bytes per second, as large elementwise kernels reach; an H200's host link did 0.86
LAUNCH_SECONDS = 3e-6  # from one kernel to the next, however little it does
PHASES = ("zero", "forward", "recompute", "backward", "optimizer")  # of a step; other phases may follow its end
RATIOS = "ratios of strategies are more accurate than seconds (BERT-base's published +25 % comes out as +27 to +32 %)"
FREE = (  # operators that launch no kernel: bookkeeping, and mere allocation
    "prim.",
    "profiler.",
    "aten.empty",
    "aten.new_empty",
    "aten._unsafe_view",
    "aten.lift_fresh",
    "aten._local_scalar_dense",  # in Adam, of step counts on the host
)

MOST_BYTES = 4 * 2**30
BROKEN = (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, KeyError, IndexError, MemoryError)
GRANULE = 512  # bytes: the allocator rounds every request up to this
ALLOCATED = "active_allocated"  # the state of a block that a tensor uses
GIVEN, TAKEN_BACK = "alloc", "free_requested"  # actions in the history: allocated, freed


class Allocation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The lifetime of one storage. It is live while the operators `born` to `died` run, both included."""

    nbytes: int  # rounded up as the allocator does
    born: int  # number of an operator; 0: before the step
    died: int  # the number of the last operator if it outlives the step
    operator: str
    module: str  # full name; for a gradient, the parameter's module; "" outside of all modules
    phase: str  # forward, recompute, backward, optimizer, zero; "before" the step
    category: str
    let_go: int | None = None  # the last operator before only autograd held a reference; None if not tracked
    unsplit: int = 0  # of `nbytes`: excess of its block over the request, because the allocator did not split it
    line: str = ""  # `file.py:12`: the user's line that requested it; "" if that is not known


class Operator(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One call of one operator. Its number is its place in the trace, from 1."""

    name: str
    module: str
    phase: str
    flops: int = 0
    moved_bytes: int = 0  # read and written; 0 if it only makes a view
    hidden_bytes: int = 0  # what it allocated besides its outputs while it ran, if known
    unsplit: int = 0  # of `hidden_bytes`, as in an allocation
    batch_bytes: int = 0  # of `hidden_bytes`: what half the batch size would save
    host_bytes: int = 0  # copied to host memory or from it
    is_beside: bool = False  # on a stream of its own, beside what the device computes


class Save(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One tensor that an autograd node saves for the backward. Times are counts of the operators that had run."""

    allocation: int | None  # the index of its storage in the trace; None if not tracked
    packed: int
    unpacked: int | None  # None if the backward never unpacked it


class Call(msgspec.Struct, frozen=True, array_like=True):
    """One call of a module in a forward. It ran the operators after `before` up to `last`."""

    module: str
    before: int
    last: int
    saves: tuple[int, int]  # start and end of its slice of Trace.saves
    inputs: tuple[int, ...]  # indices of its input storages
    outputs: tuple[int, ...]  # indices of its output storages


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One step. `marks` are the phases in order, each with the number of the last operator before it.

    `saves`, in the order of packing, and `calls` are recorded on request.
    """

    allocations: tuple[Allocation, ...]
    operators: tuple[Operator, ...]
    marks: tuple[tuple[str, int], ...]
    device: str = "cpu"
    uses_host: bool = False  # whether something was moved to the host and back
    saves: tuple[Save, ...] = ()
    calls: tuple[Call, ...] = ()

    def spans(self) -> Iterator[tuple[str, int, int]]:
        """Yield every phase with its first and last operator, in order; the last is below the first if nothing ran."""
        for (phase, before), (_, last) in pairwise(self.marks):
            yield phase, before + 1, last


class BlockChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a model's blocks, and the bytes that checkpointing them takes."""

    pattern: str  # for `--blocks`; "" for the blocks found without it
    num_blocks: int
    floor_bytes: int
    all_bytes: int | None  # the peak with each of them checkpointed by itself; None if it cannot be computed


class BlockChoices(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of a case, and coarser and finer blocks of the same model."""

    own: BlockChoice
    others: tuple[BlockChoice, ...] = ()


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """A traced case: its step, and what the strategy did to its blocks."""

    trace: Trace
    blocks: tuple[str, ...]
    split: str | None = None
    has_own_optimizer: bool = False  # whether the model brought its own optimizer
    remarks: tuple[str, ...] = ()
    choices: BlockChoices | None = None  # if requested


Part = TypeVar("Part", Allocation, Operator)


def recompute_ends(operators: Sequence[Operator]) -> list[int]:
    """Return for each operator number the last operator of the recompute that it is in or just before, else itself.

    Gradients are off while a checkpoint packs what it recomputes, so that its `aten.detach` has no recompute phase;
    such operators still belong to the recompute.
    """
    ends = [0] * (len(operators) + 2)
    for number in range(len(operators), 0, -1):
        after = operators[number] if number < len(operators) else None
        goes_on = after is not None and (after.phase == "recompute" or after.name == "aten.detach")
        ends[number] = ends[number + 1] if goes_on else number
    return ends


def live(trace: Trace) -> list[int]:
    """Return the live bytes while each operator runs, its hidden bytes included; index 0 is before the step."""
    lives = ((allocation.nbytes, allocation.born, allocation.died) for allocation in trace.allocations)
    held = summed(lives, len(trace.operators))
    return [
        held[0],
        *(bytes_ + operator.hidden_bytes for bytes_, operator in zip(held[1:], trace.operators, strict=True)),
    ]


def summed(lives: Iterable[Life], num_operators: int) -> list[int]:
    """Return the sum of the bytes that are live while each operator runs; index 0 is before the step."""
    change = [0] * (num_operators + 2)
    for nbytes, born, died in lives:
        change[born] += nbytes
        change[died + 1] -= nbytes
    return list(accumulate(change[:-1]))


def resting(trace: Trace, after: int) -> int:
    """Return the bytes live after one operator and before the next: what dies with the former is gone."""
    return sum(allocation.nbytes for allocation in trace.allocations if allocation.born <= after < allocation.died)


def as_asked(trace: Trace) -> Trace:
    """Return the step with the bytes that were requested, without the unsplit rest of their blocks."""
    return msgspec.structs.replace(
        trace,
        allocations=tuple(
            msgspec.structs.replace(one, nbytes=one.nbytes - one.unsplit, unsplit=0) if one.unsplit else one
            for one in trace.allocations
        ),
        operators=tuple(
            msgspec.structs.replace(one, hidden_bytes=one.hidden_bytes - one.unsplit, unsplit=0) if one.unsplit else one
            for one in trace.operators
        ),
    )


def held_at(trace: Trace, operator: int) -> list[Allocation]:
    """Return the allocations that are live while an operator runs, the largest first."""
    held = [allocation for allocation in trace.allocations if allocation.born <= operator <= allocation.died]
    return sorted(held, key=lambda allocation: -allocation.nbytes)


def by_category(trace: Trace) -> dict[str, list[int]]:
    """Return the live bytes of each category while each operator runs; hidden bytes count as temporaries."""
    lives: dict[str, list[Life]] = {category: [] for category in CATEGORIES}
    for allocation in trace.allocations:
        lives[allocation.category].append((allocation.nbytes, allocation.born, allocation.died))
    held = {category: summed(of_category, len(trace.operators)) for category, of_category in lives.items()}
    for number, operator in enumerate(trace.operators, start=1):
        held["temporaries"][number] += operator.hidden_bytes
    return held


def roofline_seconds(operators: Iterable[Operator], rates: Rates, precision: str) -> dict[str, float]:
    """Return the seconds of forward, backward (recompute included), optimizer and step with ideal kernels.

    An operator takes the longer of its arithmetic and its memory traffic, plus one kernel launch (the roofline model:
    Williams, Waterman, Patterson 2009). Copies on a stream of their own run beside the rest of their phase, which takes
    the longer of the two. `precision` is that of a case; a GPU without bf16 units computes bf16 as fp32.
    """
    spans: dict[tuple[str, bool], float] = {}
    for operator in operators:
        place = operator.phase, operator.is_beside
        spans[place] = spans.get(place, 0.0) + operator_seconds(operator, rates, precision)
    zero, forward, recompute, backward, optimizer = (
        max(spans.get((phase, is_beside), 0.0) for is_beside in (False, True)) for phase in PHASES
    )
    return {
        "forward": forward,
        "backward": recompute + backward,
        "optimizer": optimizer,
        "step": zero + forward + recompute + backward + optimizer,
    }


def scaled(estimate: Mapping[str, float], *, measured: float, estimated: float) -> dict[str, float]:
    """Return the estimate scaled by the ratio of measured to estimated seconds of the step without checkpointing."""
    return {phase: value * measured / estimated for phase, value in estimate.items()}


def stated_error(rates: Rates, precision: str, *, is_scaled: bool = False) -> str:
    """Return the caveat that accompanies every estimate."""
    basis = f"estimated for ideal kernels at {COMPUTE_EFFICIENCY * 100:.0f} % of the datasheet of {rates.name}"
    scale = ", then scaled to the measured row without checkpointing" if is_scaled else ""
    lacking = "bf16" in precision and rates.flops.bf16 is None
    slow = "; it has no bf16 units, and its matrix products count as fp32" if lacking else ""
    return f"times are {basis}{scale}{slow}; {RATIOS}"


def operator_seconds(operator: Operator, rates: Rates, precision: str) -> float:
    """Return the seconds of one operator, as `roofline_seconds` counts them."""
    if operator.host_bytes:
        return operator.host_bytes / host_rate(rates) + LAUNCH_SECONDS
    if not (operator.flops or operator.moved_bytes) or operator.name.startswith(FREE):
        return 0.0
    is_autocast = precision.startswith("amp-")  # in 16 bits: products, convolutions, attention, not the optimizer
    kind = "fp32" if is_autocast and operator.phase == "optimizer" else precision.removeprefix("amp-")
    rate: float | None = getattr(rates.flops, kind)
    computing = operator.flops / (COMPUTE_EFFICIENCY * (rates.flops.fp32 if rate is None else rate))
    moving = operator.moved_bytes / (BANDWIDTH_EFFICIENCY * rates.bandwidth)
    return max(computing, moving) + LAUNCH_SECONDS


def host_rate(rates: Rates) -> float:
    """Return the bytes per second of copies between pinned host memory and the device; 0 where it is not known."""
    return BANDWIDTH_EFFICIENCY * (rates.host_bandwidth or 0.0)


class Block(NamedTuple):
    """An allocator block in use when the snapshot was taken. Sizes in bytes."""

    address: int
    nbytes: int
    requested: int
    line: str


def load_snapshot(path: Path) -> Any:
    """Return the plain data in a pickle. Raises UserError if the file cannot be read or contains anything else."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UserError(f"{path} is larger than 4 GiB", hint="record fewer entries: max_entries=100000")
        with path.open("rb") as file:
            return _Unpickler(file).load()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except BROKEN as error:
        raise UserError(f"{path} is not a pickle of plain data: {error}") from None


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Refuse: every opcode that calls something gets it from here."""
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def blocks_in_use(segments: Iterable[Mapping[str, Any]]) -> tuple[Block, ...]:
    """Return the blocks in a snapshot's segments that tensors use."""
    return tuple(
        Block(block["address"], block["size"], block["requested_size"], line(block.get("frames", ())))
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == ALLOCATED
    )


def line(frames: Iterable[Mapping[str, Any]]) -> str:
    """Return the innermost line of the user's code as `file.py:12`; "" if there is none.

    Files that torch.compile generated are not the user's. Source: torch/_inductor/runtime/cache_dir_utils.py.
    """
    generated = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    for frame in frames:
        name = frame["filename"]
        if is_theirs(name) and "torchinductor_" not in name and not (generated and name.startswith(generated)):
            return f"{Path(name).name}:{frame['line']}"
    return ""
