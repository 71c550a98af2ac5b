"""Why the peak of a recorded CUDA memory snapshot is what it is: what held it, what stayed, and what was reserved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from profiler.analysis.live_bytes import Holder, Share, holders
from profiler.core.allocator_history import ALLOCATED, GIVEN, TAKEN_BACK, line
from profiler.core.errors import UserError

GRANULE = 512  # bytes: the caching allocator rounds requests up to this
NUM_HOLDERS = 10
BEFORE = "before the recording"
LEAST_GROWN = 3  # times that a line asked for what stayed, to be called growth
THREADS = "autograd's threads, and libraries"  # which have no Python: the backward's results, cuBLAS's workspaces
BY_FILE = {  # the innermost of these in a stack tells what asked; PyTorch's own files
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
    device_free: int | None = None  # where a request failed


class HeldBlock(msgspec.Struct, frozen=True):
    """A part of a segment. Bytes."""

    size: int
    state: str
    address: int = 0
    requested_size: int = 0
    frames: Any = ()


class Segment(msgspec.Struct, frozen=True):
    """What was taken from the device at once."""

    total_size: int
    blocks: list[HeldBlock]
    device: int = 0
    address: int = 0


class Snapshot(msgspec.Struct, frozen=True):
    """What `torch.cuda.memory._snapshot` returns, as far as it is read."""

    segments: list[Segment]
    device_traces: list[list[Entry]] = []


class SnapshotExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The peak of one device's recording, what held it, what stayed, and what is reserved. Bytes.

    Sizes of blocks that were freed again are those of the requests, rounded as the allocator does; those that are
    there at the end are exact.
    """

    device: int
    num_events: int
    peak_bytes: int
    peak_event: int | None  # by its place in the recording; None where that is the beginning
    peak_line: str
    categories: tuple[Share, ...]  # at the peak, the largest first, as far as the stacks tell
    holders: tuple[Holder, ...]  # at the peak, by line and category
    grown: tuple[Holder, ...]  # asked for at one line again and again, and still there at the end
    end_bytes: int
    reserved_bytes: int  # at the end
    num_segments: int
    largest_free_bytes: int  # in one piece
    failed_bytes: int | None = None  # the last request that failed, where one did

    @property
    def free_bytes(self) -> int:
        """Reserved and in no tensor."""
        return self.reserved_bytes - self.end_bytes


class _Held(msgspec.Struct, frozen=True):
    nbytes: int
    line: str
    category: str


def explain_snapshot(content: Any) -> SnapshotExplanation:
    """Explains the device that a snapshot has most of. Raises UserError for data that are no snapshot."""
    try:
        snapshot = msgspec.convert(content, Snapshot)
        device = _busiest(snapshot)
        return _explain(snapshot, device)
    except (msgspec.ValidationError, TypeError, KeyError, AttributeError, RecursionError) as error:
        hint = "torch.cuda.memory._dump_snapshot('file.pickle') writes one"
        raise UserError(f"this is no CUDA memory snapshot: {error}", hint=hint) from None


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
    held = _before(events, at_end)
    peak_event, peak_bytes = _peak(events, held, at_end)
    at_peak = _at(events, held, at_end, peak_event)
    free = [block.size for segment in segments for block in segment.blocks if block.state != ALLOCATED]
    reserved = sum(segment.total_size for segment in segments)
    return SnapshotExplanation(
        device=device,
        num_events=len(events),
        peak_bytes=peak_bytes,
        peak_event=peak_event,
        peak_line=line(events[peak_event].frames) if peak_event is not None else "",
        categories=_categories(at_peak),
        holders=holders((one.nbytes, "", one.line, one.category) for one in at_peak)[:NUM_HOLDERS],
        grown=_grown(events, at_end),
        end_bytes=sum(block.size for block in at_end.values()),
        reserved_bytes=reserved,
        num_segments=len(segments),
        largest_free_bytes=max(free, default=0),
        failed_bytes=next((entry.size for entry in reversed(entries) if entry.action == "oom"), None),
    )


def _placed(segment: Segment) -> list[tuple[int, HeldBlock]]:
    """Blocks with their addresses, which older snapshots leave to be added up."""
    placed, address = [], segment.address
    for block in segment.blocks:
        placed.append((block.address or address, block))
        address += block.size
    return placed


def _before(events: Sequence[Entry], at_end: Mapping[int, HeldBlock]) -> dict[int, _Held]:
    """What was there when the recording began: what was freed or stayed, and was not given in it."""
    before: dict[int, _Held] = {}
    given: set[int] = set()
    for entry in events:
        if entry.action == GIVEN:
            given.add(entry.addr)
        elif entry.addr not in given:
            before[entry.addr] = _Held(_rounded(entry.size), "", BEFORE)
        else:
            given.discard(entry.addr)
    touched = {entry.addr for entry in events}
    untouched = {address: block for address, block in at_end.items() if address not in touched}
    return before | {a: _Held(block.size, line(block.frames), BEFORE) for a, block in untouched.items()}


def _last_given(events: Sequence[Entry]) -> dict[int, int]:
    """By address, the place of the last event that gave it."""
    return {entry.addr: place for place, entry in enumerate(events) if entry.action == GIVEN}


def _sized(events: Sequence[Entry], at_end: Mapping[int, HeldBlock]) -> list[int]:
    """The bytes of each event's block: exact where it is there at the end."""
    sizes = [_rounded(entry.size) for entry in events]
    for address, place in _last_given(events).items():
        if address in at_end:
            sizes[place] = at_end[address].size
    return sizes


def _peak(
    events: Sequence[Entry], before: Mapping[int, _Held], at_end: Mapping[int, HeldBlock]
) -> tuple[int | None, int]:
    """The first event at which most is live, and how much; None where that is before all of them."""
    sizes, held = _sized(events, at_end), {address: one.nbytes for address, one in before.items()}
    live = peak = sum(held.values())
    at: int | None = None
    for place, entry in enumerate(events):
        if entry.action == GIVEN:
            held[entry.addr] = sizes[place]
            live += sizes[place]
        else:
            live -= held.pop(entry.addr, 0)
        if live > peak:
            at, peak = place, live
    return at, peak


def _at(
    events: Sequence[Entry], before: Mapping[int, _Held], at_end: Mapping[int, HeldBlock], last: int | None
) -> list[_Held]:
    """What is live after an event."""
    sizes, held = _sized(events, at_end), dict(before)
    for place, entry in enumerate(events[: 0 if last is None else last + 1]):
        if entry.action == GIVEN:
            held[entry.addr] = _Held(sizes[place], line(entry.frames), _category(entry.frames))
        else:
            held.pop(entry.addr, None)
    return list(held.values())


def _category(frames: Any) -> str:
    """What asked for a block, by the files and functions of its stack, the innermost first."""
    places = [(frame["filename"].replace("\\", "/"), frame["name"]) for frame in frames]
    if not places:
        return THREADS
    if any("torch/nn/modules/" in place and name in MAKING for place, name in places):
        return "parameters"
    named = (name for place, _ in places for part, name in BY_FILE.items() if part in place)
    return next(named, "other")


def _categories(held: Iterable[_Held]) -> tuple[Share, ...]:
    sizes = Counter[str]()
    for one in held:
        sizes[one.category] += one.nbytes
    return tuple(Share(name=name, nbytes=nbytes) for name, nbytes in sizes.most_common())


def _grown(events: Sequence[Entry], at_end: Mapping[int, HeldBlock]) -> tuple[Holder, ...]:
    """What was asked for at one line several times, with other lines in between, and stayed; no parameters."""
    runs: dict[str, set[int]] = {}  # by line, the stretches of events in which it asked for what stayed
    stayed, last = [], _last_given(events)
    run, before = 0, ""
    for place, entry in enumerate(events):
        if entry.action != GIVEN:
            continue
        at = line(entry.frames)
        run, before = (run if at == before else run + 1), at
        if at and last[entry.addr] == place and entry.addr in at_end:
            runs.setdefault(at, set()).add(run)
            stayed.append(_Held(at_end[entry.addr].size, at, _category(entry.frames)))
    grown = [one for one in stayed if one.category != "parameters" and len(runs[one.line]) >= LEAST_GROWN]
    return holders((one.nbytes, "", one.line, one.category) for one in grown)[:NUM_HOLDERS]


def _rounded(nbytes: int) -> int:
    return -(-nbytes // GRANULE) * GRANULE
