"""The history that PyTorch's caching allocator keeps, replayed: which blocks are live at any moment, and at the peak.

Pure functions over the entries and segments of `torch.cuda.memory._snapshot()`; the standard library alone, and nothing
of the watch. An entry tells what was asked for; what a block took of its segment, as `memory_allocated` counts it,
follows from the parts of the segment that were free then.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

GRANULE = 512  # bytes: the allocator rounds every request up to this
SMALL = 2**20  # bytes: up to here blocks are cut from the small pool; and what is left of a large one stays with it
MOST_HOLDERS = 5
REST = "rest"
TEMPORARIES, OTHER = "temporaries", "other"
Entry = Mapping[str, Any]


@dataclass(eq=False)
class Block:
    """What one request took of the allocator. `category` and `module` are None and "" until they are known."""

    address: int
    nbytes: int
    requested: int
    frames: Sequence[Mapping[str, Any]] = ()
    phase: str = ""
    line: str | None = None
    category: str | None = None
    module: str = ""


class Space:
    """The free parts of segments, by address."""

    def __init__(self, segments: Iterable[Mapping[str, Any]] = ()) -> None:
        self.begins: set[int] = set()  # of segments: parts do not grow together over them
        self.free: dict[int, int] = {}  # bytes
        self.ends: dict[int, int] = {}  # of free parts: their begin
        self.taken: dict[int, int] = {}  # bytes
        for segment in segments:
            if segment.get("is_expandable"):
                continue  # these are always cut to the request
            self.begins.add(segment["address"])
            for block in segment["blocks"]:
                if block["state"] == "inactive":
                    self._put(block["address"], block["size"])
                else:
                    self.taken[block["address"]] = block["size"]

    def take(self, address: int, requested: int) -> int:
        """Return the bytes that a request gets at this address. Source: `should_split` in CUDACachingAllocator.cpp."""
        size = max(1, -(-requested // GRANULE)) * GRANULE
        if address not in self.free:
            return size
        whole = self.free.pop(address)
        del self.ends[address + whole]
        left = whole - size
        if left >= GRANULE if size <= SMALL else left > SMALL:
            self._put(address + size, left)
        else:
            size = whole
        self.taken[address] = size
        return size

    def give(self, address: int) -> None:
        """Make what was taken at this address free again."""
        size = self.taken.pop(address, 0)
        if not size:
            return
        after = address + size
        if after in self.free and after not in self.begins:
            size += self.free.pop(after)
            del self.ends[address + size]
        if address in self.ends and address not in self.begins:
            address = self.ends.pop(address)
            size += self.free.pop(address)
        self._put(address, size)

    def add(self, address: int, size: int) -> None:
        self.begins.add(address)
        self._put(address, size)

    def remove(self, address: int) -> None:
        self.begins.discard(address)
        if address in self.free:
            del self.ends[address + self.free.pop(address)]

    def _put(self, address: int, size: int) -> None:
        self.free[address] = size
        self.ends[address + size] = address


class Replayed(NamedTuple):
    """What a history comes to."""

    peak_bytes: int
    peak: Block | None  # whose request made the peak; None where what was live at the begin is the most
    held: list[Block]  # live at the peak
    live: dict[int, Block]  # at the end, by address


def replay(
    live: Mapping[int, Block],
    space: Space,
    entries: Iterable[Entry],
    *,
    phase: str = "",
    inputs: Sequence[tuple[int, set[int]]] = (),
) -> Replayed:
    """Return the peak of a history, what was live then, and what is at its end; `space` is changed along.

    `live` is what was live before, `phase` is noted at what is allocated, and `inputs` are addresses of a model's
    inputs, each with the number of allocations before it was called, in order.
    """
    moment = _Moment(live, inputs)
    for entry in entries:
        action, address = entry["action"], entry.get("addr", 0)
        if action == "alloc":
            size = space.take(address, entry["size"])
            moment.allocate(Block(address, size, entry["size"], entry["frames"], phase))
        elif action == "free_requested":
            moment.free(address)
        elif action == "free_completed":
            space.give(address)
        elif action == "segment_alloc":
            space.add(address, entry["size"])
        elif action == "segment_free":
            space.remove(address)
    held = _after(live, moment.changes[: moment.num_at_peak])
    return Replayed(moment.most, moment.peak, list(held.values()), moment.live)


class _Moment:
    """What is live at a moment of the history, and the largest moment so far."""

    def __init__(self, live: Mapping[int, Block], inputs: Sequence[tuple[int, set[int]]]) -> None:
        self.live = dict(live)
        self.total = self.most = sum(block.nbytes for block in live.values())
        self.peak: Block | None = None
        self.changes: list[tuple[int, Block | None]] = []
        self.num_at_peak = self.num = 0  # changes, allocations
        self.inputs = list(inputs)
        self._note_inputs()

    def allocate(self, block: Block) -> None:
        self.live[block.address] = block
        self.changes.append((block.address, block))
        self.total += block.nbytes
        self.num += 1
        if self.total > self.most:
            self.most, self.peak, self.num_at_peak = self.total, block, len(self.changes)
        if self.inputs:
            self._note_inputs()

    def free(self, address: int) -> None:
        if address in self.live:
            self.total -= self.live.pop(address).nbytes
        self.changes.append((address, None))

    def _note_inputs(self) -> None:
        while self.inputs and self.inputs[0][0] <= self.num:
            for address in self.inputs.pop(0)[1]:
                block = self.live.get(address)
                if block and block.category is None and block.phase not in ("forward", "backward"):
                    block.category = "inputs"


def _after(live: Mapping[int, Block], changes: Iterable[tuple[int, Block | None]]) -> dict[int, Block]:
    now = dict(live)
    for address, block in changes:
        if block is None:
            now.pop(address, None)
        else:
            now[address] = block
    return now


def of_segments(segments: Iterable[Mapping[str, Any]], known: Mapping[int, Block], phase: str) -> dict[int, Block]:
    """Return the blocks that a snapshot has in use, by address; those that are not known are of this phase."""
    found = {}
    for segment in segments:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                address, size, asked = block["address"], block["size"], block["requested_size"]
                old = known.get(address)
                is_same = old is not None and old.nbytes == size
                found[address] = old if old and is_same else Block(address, size, asked, block["frames"], phase)
    return found


def holders(held: Iterable[Block], most: int = MOST_HOLDERS) -> list[dict[str, Any]]:
    """Return blocks by category and line, the largest first, and the rest as one: together all of the bytes."""
    groups: dict[tuple[str, str], list[Block]] = defaultdict(list)
    for block in held:
        groups[block.category or OTHER, block.line or ""].append(block)
    ordered = sorted(groups.items(), key=lambda item: (-sum(block.nbytes for block in item[1]), item[0]))
    found = [_holder(category, line, blocks) for (category, line), blocks in ordered[:most]]
    left = [block for _, blocks in ordered[most:] for block in blocks]
    return [*found, _holder(REST, "", left)] if left else found


def _holder(category: str, line: str, blocks: list[Block]) -> dict[str, Any]:
    module = "" if category == REST else _common([block.module for block in blocks])
    nbytes = sum(block.nbytes for block in blocks)
    return {"category": category, "line": line, "module": module, "num": len(blocks), "nbytes": nbytes}


def _common(names: Sequence[str]) -> str:
    """Return the module that all of these are or are inside; "" if there is none."""
    common = names[0].split(".")
    for name in names[1:]:
        same = [one == two for one, two in zip(common, name.split("."), strict=False)]
        common = common[: [*same, False].index(False)]
    return ".".join(common)


class Growth:
    """Lines whose blocks grow from each step to the next, several steps in a row."""

    LEAST, LEAST_OF_SAME = 3, 6  # times in a row: that there are more blocks, and that as many are larger

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int]] | None = None
        self._now: dict[str, tuple[int, int, int]] = {}  # of a line: times in a row, of them with more blocks, bytes
        self._longest: dict[str, tuple[int, int, int]] = {}

    def step(self, live: Iterable[Block]) -> None:
        """Look at what is live at the same point of the next step."""
        num: Counter[str] = Counter()
        size: Counter[str] = Counter()
        for block in live:
            num[block.line or ""] += 1
            size[block.line or ""] += block.nbytes
        found = {line: (num[line], size[line]) for line in num}
        before, self._before = self._before, found
        if before is None:
            return
        grown = {}
        for line, (count, nbytes) in found.items():
            old_count, old_bytes = before.get(line, (0, 0))
            if nbytes > old_bytes and count >= old_count:
                times, more, total = self._now.get(line, (0, 0, 0))
                grown[line] = times + 1, more + (count > old_count), total + nbytes - old_bytes
                self._longest[line] = max(self._longest.get(line, (0, 0, 0)), grown[line])
        self._now = grown

    def lines(self) -> list[dict[str, Any]]:
        """Return those lines, the one that grew most first, with the steps in a row and the bytes."""
        found = [
            {"line": line, "num_steps": times, "nbytes": nbytes}
            for line, (times, more, nbytes) in self._longest.items()
            if times >= self.LEAST and (more == times or times >= self.LEAST_OF_SAME)
        ]
        return sorted(found, key=lambda row: (-row["nbytes"], row["line"]))
