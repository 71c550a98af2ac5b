"""Explains the peak of a recorded CUDA memory snapshot: what held it, what stayed, and what was reserved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from profiler.analysis.live_bytes import Holder, Share, holders
from profiler.core.allocator_history import ALLOCATED, GIVEN, GRANULE, TAKEN_BACK, line
from profiler.core.errors import UserError
from profiler.core.trace_data import summed

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


class Entry(msgspec.Struct, frozen=True):
    """One action of the allocator."""

    action: str
    size: int = 0
    addr: int = 0
    frames: Any = ()


class HeldBlock(msgspec.Struct, frozen=True):
    """A block of a segment. Bytes."""

    size: int
    state: str
    address: int = 0
    frames: Any = ()


class Segment(msgspec.Struct, frozen=True):
    """Memory that the allocator took from the device at once."""

    total_size: int
    blocks: list[HeldBlock]
    device: int = 0
    address: int = 0


class Snapshot(msgspec.Struct, frozen=True):
    """The fields of `torch.cuda.memory._snapshot` that are read."""

    segments: list[Segment]
    device_traces: list[list[Entry]] = []


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
    """Explain the busiest device of a snapshot. Raises UserError if the data are no snapshot."""
    try:
        snapshot = msgspec.convert(content, Snapshot)
        device = _busiest(snapshot)
        return _explain(snapshot, device)
    except (msgspec.ValidationError, TypeError, KeyError, AttributeError, RecursionError) as error:
        hint = "torch.cuda.memory._dump_snapshot('file.pickle') writes one"
        raise UserError(f"this is not a CUDA memory snapshot: {error}", hint=hint) from None


def _busiest(snapshot: Snapshot) -> int:
    sizes = Counter[int]()
    for segment in snapshot.segments:
        sizes[segment.device] += segment.total_size
    for device, entries in enumerate(snapshot.device_traces):
        sizes[device] += len(entries)
    return max(sizes, key=lambda device: sizes[device], default=0)


def _explain(snapshot: Snapshot, device: int) -> SnapshotExplanation:
    segments = [segment for segment in snapshot.segments if segment.device == device]
    traces = snapshot.device_traces
    entries = traces[device] if device < len(traces) else []
    at_end = {address: block for segment in segments for address, block in _placed(segment) if block.state == ALLOCATED}
    events = [entry for entry in entries if entry.action in (GIVEN, TAKEN_BACK)]
    lives = _lives(events, at_end)
    live = summed(((life.nbytes, life.born, life.died) for life in lives), len(events))
    peak = max(range(len(live)), key=live.__getitem__)
    at_peak = [life for life in lives if life.born <= peak <= life.died]
    free = [block.size for segment in segments for block in segment.blocks if block.state != ALLOCATED]
    reserved = sum(segment.total_size for segment in segments)
    return SnapshotExplanation(
        device=device,
        num_events=len(events),
        peak_bytes=live[peak],
        peak_event=peak - 1 if peak else None,
        peak_line=line(events[peak - 1].frames) if peak else "",
        categories=_categories(at_peak),
        holders=_holders(at_peak),
        grown=_grown(lives),
        end_bytes=sum(block.size for block in at_end.values()),
        reserved_bytes=reserved,
        num_segments=len(segments),
        largest_free_bytes=max(free, default=0),
        failed_bytes=next((entry.size for entry in reversed(entries) if entry.action == "oom"), None),
    )


def _placed(segment: Segment) -> list[tuple[int, HeldBlock]]:
    """Return blocks with their addresses; in older snapshots these are sums of sizes."""
    placed, address = [], segment.address
    for block in segment.blocks:
        placed.append((block.address or address, block))
        address += block.size
    return placed


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
        return _category(self.frames) if self.born else BEFORE


def _lives(events: Sequence[Entry], at_end: Mapping[int, HeldBlock]) -> list[_Life]:
    """Return the lifetimes of all blocks; first those from before the recording.

    These were freed in the recording, or are live at its end, without having been allocated in it.
    """
    before: list[_Life] = []
    given: list[_Life] = []
    unfreed: dict[int, _Life] = {}
    for number, entry in enumerate(events, start=1):
        if entry.action == GIVEN:
            unfreed[entry.addr] = _Life(nbytes=_rounded(entry.size), born=number, died=len(events), frames=entry.frames)
            given.append(unfreed[entry.addr])
        elif entry.addr in unfreed:
            unfreed.pop(entry.addr).died = number - 1
        else:
            before.append(_Life(nbytes=_rounded(entry.size), born=0, died=number - 1))
    touched = {entry.addr for entry in events}
    for address, block in at_end.items():
        if address in unfreed:
            unfreed[address].nbytes, unfreed[address].stayed = block.size, True
        elif address not in touched:
            before.append(_Life(nbytes=block.size, born=0, died=len(events), frames=block.frames))
    return before + given


def _category(frames: Any) -> str:
    """Return what a block is for, by the files and functions of its stack, the innermost first."""
    places = [(frame["filename"].replace("\\", "/"), frame["name"]) for frame in frames]
    if not places:
        return THREADS
    if any("torch/nn/modules/" in place and name in MAKING for place, name in places):
        return "parameters"
    named = (name for place, _ in places for part, name in BY_FILE.items() if part in place)
    return next(named, "other")


def _categories(lives: Iterable[_Life]) -> tuple[Share, ...]:
    sizes = Counter[str]()
    for life in lives:
        sizes[life.category] += life.nbytes
    return tuple(Share(name=name, nbytes=nbytes) for name, nbytes in sizes.most_common())


def _holders(lives: Iterable[_Life]) -> tuple[Holder, ...]:
    return holders((life.nbytes, "", life.line, life.category) for life in lives)


def _grown(lives: Iterable[_Life]) -> tuple[Holder, ...]:
    """Return what lines allocated repeatedly, others in between, and is still live at the end; without parameters."""
    stretches: dict[str, set[int]] = {}  # by line, the stretches in which it allocated what stayed
    stayed = []
    stretch, before = 0, ""
    for life in lives:
        if not life.born:
            continue
        at = life.line
        stretch, before = (stretch if at == before else stretch + 1), at
        if at and life.stayed:
            stretches.setdefault(at, set()).add(stretch)
            stayed.append(life)
    return _holders(
        life for life in stayed if len(stretches[life.line]) >= LEAST_GROWN and life.category != "parameters"
    )


def _rounded(nbytes: int) -> int:
    return -(-nbytes // GRANULE) * GRANULE
