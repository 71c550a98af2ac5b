"""Snapshots of CUDA's caching allocator: pickles of plain data, of which no class and no function is ever looked up."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from profiler.core.errors import UserError
from profiler.core.user_code import is_theirs

MOST_BYTES = 4 * 2**30
BROKEN = (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, KeyError, IndexError, MemoryError)
GRANULE = 512  # bytes: the allocator rounds every request up to this
ALLOCATED = "active_allocated"  # the state of a block that a tensor uses
GIVEN, TAKEN_BACK = "alloc", "free_requested"  # actions in the history: allocated, freed


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
    """Return the innermost line of the user's code as `file.py:12`; "" if there is none."""
    theirs = (frame for frame in frames if is_theirs(frame["filename"]) and not _is_generated(frame["filename"]))
    frame = next(theirs, None)
    return f"{Path(frame['filename']).name}:{frame['line']}" if frame else ""


def _is_generated(filename: str) -> bool:
    """Whether torch.compile generated a file. Source: torch/_inductor/runtime/cache_dir_utils.py."""
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return "torchinductor_" in filename or (folder is not None and filename.startswith(folder))
