"""Explains the peak of a recorded CUDA memory snapshot: what held it, what stayed, and what was reserved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from profiler.analysis.live_bytes import Holder, Share, holders
from profiler.core.errors import UserError
from profiler.core.trace_data import ALLOCATED, GIVEN, GRANULE, TAKEN_BACK, line, summed

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
    events = [entry for entry in entries if entry["action"] in (GIVEN, TAKEN_BACK)]
    lives = _lives(events, at_end)
    live = summed(((life.nbytes, life.born, life.died) for life in lives), len(events))
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
        return _category(self.frames) if self.born else BEFORE


def _lives(events: Sequence[Fields], at_end: Mapping[int, Fields]) -> list[_Life]:
    """Return the lifetimes of all blocks; first those from before the recording.

    These were freed in the recording, or are live at its end, without having been allocated in it.
    """
    before: list[_Life] = []
    given: list[_Life] = []
    unfreed: dict[int, _Life] = {}
    for number, entry in enumerate(events, start=1):
        address, rounded = entry.get("addr", 0), -(-entry.get("size", 0) // GRANULE) * GRANULE
        if entry["action"] == GIVEN:
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


def _category(frames: Any) -> str:
    """Return what a block is for, by the files and functions of its stack, the innermost first."""
    places = [(frame["filename"].replace("\\", "/"), frame["name"]) for frame in frames]
    if not places:
        return THREADS
    if any("torch/nn/modules/" in place and name in MAKING for place, name in places):
        return "parameters"
    named = (name for place, _ in places for part, name in BY_FILE.items() if part in place)
    return next(named, "other")


def _grown(lives: Iterable[_Life]) -> list[_Life]:
    """Return what lines allocated repeatedly, others in between, and is still live at the end; without parameters."""
    num_stretches, stayed = Counter[str](), list[_Life]()  # by line, the stretches in which it allocated what stayed
    for at, stretch in groupby((life for life in lives if life.born), key=lambda life: life.line):
        kept = [life for life in stretch if at and life.stayed]
        num_stretches[at] += bool(kept)
        stayed += kept
    return [life for life in stayed if num_stretches[life.line] >= LEAST_GROWN and life.category != "parameters"]
