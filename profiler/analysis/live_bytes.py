"""Live bytes of a step: from a trace, over time, at its peak; from readings; from a CUDA snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from profiler.core import by_key, trace_data
from profiler.core.errors import UserError
from profiler.core.record import Readings
from profiler.core.stats import highest
from profiler.core.trace_data import ALLOCATED, BUCKETS, GATHERED, Allocation, Trace, line, live
from profiler.core.units import bytes_text

OUTSIDE = ""  # outside of all blocks: embeddings, head, loss, optimizer
HIDDEN = "temporaries"  # the category of what an operator takes besides its outputs
NUM_HOLDERS = 10  # how many of the largest are named

LASTING = ("parameters", "buffers", "optimizer", "inputs", BUCKETS, GATHERED)  # all of it is live when the step begins
CATEGORIES = (*LASTING, "gradients", "static", "saved", "rest")  # categories of the peak in readings


def stage_of(blocks: tuple[str, ...]) -> Callable[[str], str]:
    """Return a function from a module's full name to the block that it is or is inside; OUTSIDE if there is none."""
    stages = {"": OUTSIDE} | {block: block for block in blocks}

    def stage(module: str) -> str:
        if module not in stages:
            stages[module] = stage(module.rpartition(".")[0])
        return stages[module]

    return stage


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes under one name."""

    name: str
    nbytes: int


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The operator at which the most bytes are live. `number` is 0 if that is before the step."""

    nbytes: int
    number: int
    phase: str  # forward, recompute, backward, optimizer
    operator: str
    module: str


def peak(trace: Trace) -> Peak:
    """Return the first operator at which the most bytes are live."""
    held = live(trace)
    number = max(range(len(held)), key=held.__getitem__)
    if number == 0:
        return Peak(nbytes=held[0], number=0, phase="before", operator="", module="")
    operator = trace.operators[number - 1]
    return Peak(
        nbytes=held[number], number=number, phase=operator.phase, operator=operator.name, module=operator.module
    )


def categories_at(trace: Trace, operator: int) -> tuple[Share, ...]:
    """Return the live bytes while an operator runs, by category, the largest first; they add up to all of them."""
    return _shares(trace, operator, of=lambda storage: storage.category, hidden=HIDDEN)


def modules_at(trace: Trace, operator: int, *, blocks: tuple[str, ...]) -> tuple[Share, ...]:
    """Return the live bytes by module: what is inside a block under the block's name, the rest under its own.

    The name is empty for what is outside of all modules.
    """
    stage = stage_of(blocks)
    at_work = trace.operators[operator - 1].module if operator else ""
    return _shares(
        trace, operator, of=lambda storage: stage(storage.module) or storage.module, hidden=stage(at_work) or at_work
    )


def _shares(trace: Trace, operator: int, *, of: Callable[[Allocation], str], hidden: str) -> tuple[Share, ...]:
    sizes = Counter[str]()
    for storage in trace_data.held_at(trace, operator):
        sizes[of(storage)] += storage.nbytes
    if operator and trace.operators[operator - 1].hidden_bytes:
        sizes[hidden] += trace.operators[operator - 1].hidden_bytes
    shares = [Share(name=name, nbytes=bytes_) for name, bytes_ in sizes.items()]
    return tuple(sorted(shares, key=lambda share: (-share.nbytes, share.name)))


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """What one operator allocated for one line of code, in one category."""

    nbytes: int
    count: int  # number of allocations
    operator: str  # empty if it was allocated before the step
    line: str  # empty if no line of the user's is known
    category: str


def holders(held: Iterable[tuple[int, str, str, str]]) -> tuple[Holder, ...]:
    """Return what holds most, the largest first, from the bytes, operator, line and category of each storage."""
    by_holder = by_key((tuple(holder), size) for size, *holder in held)
    grouped = [
        Holder(nbytes=sum(sizes), count=len(sizes), operator=operator, line=at, category=category)
        for (operator, at, category), sizes in by_holder.items()
    ]
    return tuple(sorted(grouped, key=lambda holder: -holder.nbytes)[:NUM_HOLDERS])


def nbytes(allocations: Iterable[Allocation]) -> int:
    """Return the sum of the bytes of allocations."""
    return sum(storage.nbytes for storage in allocations)


def curve(trace: Trace, *, num_points: int) -> tuple[list[int], dict[str, list[int]]]:
    """Return at most `num_points` operators, 0 being before the step, and the live bytes of each category at these.

    They are where the most bytes are live in every stretch, so that the peak is always among them.
    """
    chosen = highest(live(trace), num_points)
    return chosen, {
        category: [values[at] for at in chosen] for category, values in trace_data.by_category(trace).items()
    }


def recomputes(trace: Trace) -> tuple[tuple[int, int], ...]:
    """Return the first and the last operator of every recompute.

    Views between two parts belong to one recompute: hooks make them, outside of its own mode. What runs only outside of
    all modules is none: autograd makes its first gradient in the same phase.
    """
    spans: list[tuple[int, int]] = []
    is_open = False
    for number, operator in enumerate(trace.operators, start=1):
        if operator.phase == "recompute":
            first = spans.pop()[0] if is_open else number
            spans.append((first, number))
            is_open = True
        elif operator.moved_bytes:
            is_open = False
    operators = trace.operators
    return tuple(
        (first, last) for first, last in spans if any(operator.module for operator in operators[first - 1 : last])
    )


def peak_parts(readings: Readings) -> dict[str, int]:
    """Split the peak into static, saved and transient bytes, which add up to it; empty if a part was not measured.

    Static are parameters, buffers, optimizer state, inputs, and the gradients that were live at the peak. Saved is what
    the forward saves for the backward, counted as all still live, as far as it fits. Transient is the rest: recomputed
    activations, gradients of activations, workspaces.
    """
    if readings.peak_bytes is None or readings.start_bytes is None or readings.saved_bytes is None:
        return {}
    static = min(readings.peak_bytes, readings.start_bytes + (readings.peak_gradient_bytes or 0))
    held = 0 if readings.peak_phase == "optimizer" else readings.saved_bytes
    saved = min(held, readings.peak_bytes - static)
    return {"static": static, "saved": saved, "transient": readings.peak_bytes - static - saved}


def most_of_peak(readings: Readings) -> str | None:
    """Return what holds most of a peak, in words; None if its parts were not measured."""
    parts = peak_parts(readings)
    if not parts:
        return None
    kind, held = max(parts.items(), key=lambda part: part[1])
    of = f"{bytes_text(held)} of the peak's {bytes_text(readings.peak_bytes)}"
    if readings.peak_phase == "optimizer":
        text = "the peak is in the optimizer's step, which checkpointing does not touch"
        return f"{text}: {bytes_text(readings.peak_bytes)}"
    if kind == "static":
        return f"{of} is static, which checkpointing does not touch"
    if kind == "saved":
        return f"what checkpoints and the rest of the model keep holds {of}"
    return f"what is recomputed and computed at once in the {readings.peak_phase} holds {of}: `gcprof explain` names it"


def categories(readings: Readings) -> tuple[Share, ...]:
    """Return the parts of the peak in the order of CATEGORIES, without empty ones; none if they were not measured.

    Gradients are those of this step that were live at the peak. If the static categories were not read, or do not fit
    into what was live before the step, everything static is one part.
    """
    parts = peak_parts(readings)
    if not parts:
        return ()
    known = {name: (readings.static_bytes or {}).get(name, 0) for name in LASTING}
    known["gradients"] = min(readings.peak_gradient_bytes or 0, parts["static"])
    rest = parts["static"] - sum(known.values())
    if rest < 0 or not readings.static_bytes:
        known, rest = {}, parts["static"]
    sizes = {**known, "static": rest, "saved": parts["saved"], "rest": parts["transient"]}
    return tuple(Share(name=name, nbytes=sizes[name]) for name in CATEGORIES if sizes.get(name))


BEFORE = "before the recording"
LEAST_GROWN = 3  # separate times that a line must allocate what stays, to be called growth
THREADS = "autograd's threads, and libraries"  # no Python stack: results of the backward, cuBLAS's workspaces
BY_FILE = {  # PyTorch's own files; the innermost of these in a stack tells the category
    "torch/utils/checkpoint.py": "recomputed",
    "torch/optim/": "optimizer",
    "torch/nn/init.py": "parameters",
    "torch/autograd/graph.py": "backward",
    "torch/nn/modules/": "forward",
    "torch/nn/functional.py": "forward",
}
MAKING = ("_apply", "reset_parameters")  # functions of modules that make or move parameters and buffers

Fields = Mapping[str, Any]  # of an entry, a segment or a block, as PyTorch names them


class SnapshotExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The peak of one device's recording, what held it, what stayed, and what is reserved. Bytes.

    Blocks that were freed have the size of their request, rounded as the allocator does; the size of those that are
    live at the end is exact.
    """

    device: int
    num_events: int
    peak_bytes: int
    peak_event: int | None  # its index in the recording; None if that is the beginning
    peak_line: str
    categories: tuple[Share, ...]  # at the peak, the largest first, as far as the stacks show
    holders: tuple[Holder, ...]  # at the peak, by line and category
    grown: tuple[Holder, ...]  # allocated at one line again and again, and still live at the end
    end_bytes: int
    reserved_bytes: int  # at the end
    num_segments: int
    largest_free_bytes: int  # in one piece
    failed_bytes: int | None = None  # the last request that failed, if one did

    @property
    def free_bytes(self) -> int:
        """The reserved bytes that are in no tensor."""
        return self.reserved_bytes - self.end_bytes


def explain_snapshot(content: Any) -> SnapshotExplanation:
    """Explain the busiest device of a snapshot: the dict of `torch.cuda.memory._snapshot`, from a file of anyone's.

    Raises UserError if the data are no snapshot.
    """
    try:
        return _explain(content["segments"], content.get("device_traces", ()))
    except (TypeError, LookupError, AttributeError, ValueError, RecursionError) as error:
        hint = "torch.cuda.memory._dump_snapshot('file.pickle') writes one"
        raise UserError(f"this is not a CUDA memory snapshot: {error}", hint=hint) from None


def _explain(all_segments: Sequence[Fields], traces: Sequence[Sequence[Fields]]) -> SnapshotExplanation:
    sizes = Counter({device: len(entries) for device, entries in enumerate(traces)})
    for segment in all_segments:
        sizes[segment.get("device", 0)] += segment["total_size"]
    device = max(sizes, key=lambda device: sizes[device], default=0)
    segments = [segment for segment in all_segments if segment.get("device", 0) == device]
    entries = traces[device] if device < len(traces) else []
    placed: list[tuple[int, Fields]] = []
    for segment in segments:
        address = segment.get("address", 0)
        for block in segment["blocks"]:  # in older snapshots their addresses are sums of sizes
            placed.append((block.get("address") or address, block))
            address += block["size"]
    at_end = {address: block for address, block in placed if block["state"] == ALLOCATED}
    events = [entry for entry in entries if entry["action"] in (trace_data.GIVEN, trace_data.TAKEN_BACK)]
    lives = _lives(events, at_end)
    live = trace_data.summed(((life.nbytes, life.born, life.died) for life in lives), len(events))
    peak = max(range(len(live)), key=live.__getitem__)
    at_peak = [life for life in lives if life.born <= peak <= life.died]
    categories = Counter[str]()
    for life in at_peak:
        categories[life.category] += life.nbytes
    held, grown = (
        holders((life.nbytes, "", life.line, life.category) for life in some) for some in (at_peak, _grown(lives))
    )
    return SnapshotExplanation(
        device=device,
        num_events=len(events),
        peak_bytes=live[peak],
        peak_event=peak - 1 if peak else None,
        peak_line=line(events[peak - 1].get("frames", ())) if peak else "",
        categories=tuple(Share(name=name, nbytes=nbytes) for name, nbytes in categories.most_common()),
        holders=held,
        grown=grown,
        end_bytes=sum(block["size"] for block in at_end.values()),
        reserved_bytes=sum(segment["total_size"] for segment in segments),
        num_segments=len(segments),
        largest_free_bytes=max((block["size"] for _, block in placed if block["state"] != ALLOCATED), default=0),
        failed_bytes=next((entry.get("size", 0) for entry in reversed(entries) if entry["action"] == "oom"), None),
    )


class _Life(msgspec.Struct, kw_only=True):
    """The lifetime of a block. Events are numbered from 1; `born` is 0 if it was live before the recording."""

    nbytes: int  # exact if it is live at the end
    born: int
    died: int  # the last event after which it is live
    stayed: bool = False  # whether it is live at the end
    frames: Any = ()

    @property
    def line(self) -> str:
        return line(self.frames)

    @property
    def category(self) -> str:
        """What it is for, by the files and functions of its stack, the innermost first."""
        if not self.born:
            return BEFORE
        places = [(frame["filename"].replace("\\", "/"), frame["name"]) for frame in self.frames]
        if not places:
            return THREADS
        if any("torch/nn/modules/" in place and name in MAKING for place, name in places):
            return "parameters"
        return next((name for place, _ in places for part, name in BY_FILE.items() if part in place), "other")


def _lives(events: Sequence[Fields], at_end: Mapping[int, Fields]) -> list[_Life]:
    """Return the lifetimes of all blocks; first those from before the recording, which were not allocated in it."""
    before: list[_Life] = []
    given: list[_Life] = []
    unfreed: dict[int, _Life] = {}
    for number, entry in enumerate(events, start=1):
        address, rounded = entry.get("addr", 0), -(-entry.get("size", 0) // trace_data.GRANULE) * trace_data.GRANULE
        if entry["action"] == trace_data.GIVEN:
            life = _Life(nbytes=rounded, born=number, died=len(events), frames=entry.get("frames", ()))
            unfreed[address] = life
            given.append(life)
        elif address in unfreed:
            unfreed.pop(address).died = number - 1
        else:
            before.append(_Life(nbytes=rounded, born=0, died=number - 1))
    touched = {entry.get("addr", 0) for entry in events}
    for address, block in at_end.items():
        if address in unfreed:
            unfreed[address].nbytes, unfreed[address].stayed = block["size"], True
        elif address not in touched:
            before.append(_Life(nbytes=block["size"], born=0, died=len(events), frames=block.get("frames", ())))
    return before + given


def _grown(lives: Iterable[_Life]) -> list[_Life]:
    """Return what lines allocated repeatedly, others in between, and is still live at the end; without parameters."""
    num_stretches, stayed = Counter[str](), list[_Life]()  # by line, the stretches in which it allocated what stayed
    for at, stretch in groupby((life for life in lives if life.born), key=lambda life: life.line):
        kept = [life for life in stretch if at and life.stayed]
        num_stretches[at] += bool(kept)
        stayed += kept
    return [life for life in stayed if num_stretches[life.line] >= LEAST_GROWN and life.category != "parameters"]
