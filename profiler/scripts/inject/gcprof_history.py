"""The history that PyTorch's caching allocator keeps, replayed: which blocks are live at any moment, and at the peak.

And lines of the user's own code, told from those of libraries. The standard library alone, and nothing of the watch.

The history is that of the entries and segments of `torch.cuda.memory._snapshot()`.
"""

from __future__ import annotations

import builtins
import os
import re
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from runpy import run_path
from types import TracebackType
from typing import Any, NamedTuple

MOST_HOLDERS = 5
REST, TEMPORARIES, OTHER = "rest", "temporaries", "other"
Entry = Mapping[str, Any]
LIBRARY = re.compile(r"[/\\](site|dist)-packages[/\\]")
STANDARD = os.path.realpath(sysconfig.get_path("stdlib")) + os.sep
HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(HERE))) + os.sep  # no library where it is installed to edit
WRAPPERS = re.compile(r"\.(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)(?=\.|$)")
GENERATED = os.sep + "torchinductor_"  # folders of code that torch.compile made


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


Space: Any = run_path(os.path.join(PACKAGE, "core", "allocator_history.py"))["Space"]  # it may not be installed


class Replayed(NamedTuple):
    """What a history comes to."""

    peak_bytes: int
    peak: Block | None  # whose request made the peak; None where what was live at the begin is the most
    held: list[Block]  # live at the peak
    live: dict[int, Block]  # at the end, by address


def replay(live: Mapping[int, Block], space: Any, entries: Iterable[Entry], *, phase: str = "") -> Replayed:
    """Return the peak of a history, what was live then, and what is at its end; `space` is changed along.

    `live` is what was live before, and `phase` is noted at what is allocated.
    """
    now = dict(live)
    total = most = sum(block.nbytes for block in live.values())
    peak: Block | None = None
    changes: list[tuple[int, Block | None]] = []
    num_at_peak = 0  # changes
    for entry in entries:
        action, address, size = entry["action"], entry.get("addr", 0), space.follow(entry)
        if action == "alloc":
            now[address] = block = Block(address, size, entry["size"], entry["frames"], phase)
            changes.append((address, block))
            total += size
            if total > most:
                most, peak, num_at_peak = total, block, len(changes)
        elif action == "free_requested":
            total -= now.pop(address).nbytes if address in now else 0
            changes.append((address, None))
    held: dict[int, Block | None] = {**live, **dict(changes[:num_at_peak])}
    return Replayed(most, peak, [block for block in held.values() if block], now)


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


def holders(held: Iterable[Block]) -> list[dict[str, Any]]:
    """Return blocks by category and line, the largest first, and the rest as one: together all of the bytes."""
    groups: dict[tuple[str, str], list[Block]] = defaultdict(list)
    for block in held:
        groups[block.category or OTHER, block.line or ""].append(block)
    ordered = sorted(groups.items(), key=lambda item: (-sum(block.nbytes for block in item[1]), item[0]))
    named = [(category, line, blocks) for (category, line), blocks in ordered[:MOST_HOLDERS]]
    if left := [block for _, blocks in ordered[MOST_HOLDERS:] for block in blocks]:
        named.append((REST, "", left))
    return [
        {
            "category": category, "line": line, "num": len(blocks), "nbytes": sum(block.nbytes for block in blocks),
            "module": "" if category == REST else _common([block.module for block in blocks]),
        }
        for category, line, blocks in named
    ]  # fmt: skip


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
        found: dict[str, tuple[int, int]] = {}
        for block in live:
            num, nbytes = found.get(block.line or "", (0, 0))
            found[block.line or ""] = num + 1, nbytes + block.nbytes
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


# ---- lines of the user's own code


@cache  # asked for each frame at each mark: without it a step of 10 ms took 5 % longer
def is_the_users(file: str) -> bool:
    """Whether a file is neither a library's, nor made by torch.compile, nor gcprof's; one that `-m` started is."""
    path = os.path.realpath(file)
    if LIBRARY.search(path):
        return path == os.path.realpath(getattr(sys.modules["__main__"], "__file__", None) or "")
    places = filter(None, (os.environ.get("TORCHINDUCTOR_CACHE_DIR"), *map(_with_packages, sys.path[1:])))
    is_excluded = path.startswith((STANDARD, PACKAGE, *places)) or GENERATED in path
    return not is_excluded and (os.path.isfile(path) or file in _cells())


@cache
def _with_packages(place: str) -> str:
    """Return a folder of sys.path into which pip installed (`--target`); "" for others, and one with the script."""
    folder, own = (os.path.join(os.path.realpath(one), "") for one in (place, sys.path[0]))
    is_looked_at = os.path.isdir(place) and os.access(place, os.R_OK) and not own.startswith(folder)
    return folder if is_looked_at and any(name.endswith(".dist-info") for name in os.listdir(place)) else ""


def _cells() -> dict[str, int]:
    """Return the numbers of a notebook's cells by the names that their code has."""
    shell = getattr(builtins, "get_ipython", lambda: None)()
    return getattr(getattr(shell, "compile", None), "_filename_map", {})


def without_wrappers(name: str) -> str:
    """Return a module's name in the model without the wrappers of torch.compile, checkpoints and FSDP1."""
    return WRAPPERS.sub("", f".{name}")[1:]


def causes(error: BaseException | None) -> list[BaseException]:
    """Return an error with all that led to it."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this folder's files."""
    if trace is None:
        return None
    following = without_ours(trace.tb_next)
    if trace.tb_frame.f_code.co_filename.startswith(HERE):
        return following
    return TracebackType(following, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


@cache
def short(file: str) -> str:
    """Return a file as seen from the working folder, or a notebook's cell by its number."""
    if file in _cells():
        return f"In [{_cells()[file]}]"
    path = os.path.relpath(file)
    return os.path.basename(file) if path.startswith("..") else path


def line_now() -> str:
    """Return the innermost line that is no library's: `train.py:61`."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_the_users(frame.f_code.co_filename):
            return f"{short(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def line_of(frames: Iterable[Mapping[str, Any]]) -> str:
    """Return the innermost line that is no library's, of frames as the allocator's history has them."""
    for frame in frames:
        if is_the_users(frame["filename"]):
            return f"{short(frame['filename'])}:{frame['line']}"
    return ""
