"""How the environment sets PyTorch's caching allocator for CUDA: knows nothing of torch.

The words and rules are those of c10/core/AllocatorConfig.cpp; what is not named here does not change which blocks a
step is given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # PyTorch reads both
NUM_INTERVALS = 16  # of sizes: below 2 MiB, from each power of two to the next, from 32 GiB on


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Of the allocator; as it is by default."""

    expandable_segments: bool = False
    max_split_bytes: int | None = None  # blocks from here on are not split; None: all may be
    divisions: tuple[int, ...] = ()  # by interval of sizes: the steps between two powers of two that sizes round up to


def read(environment: Mapping[str, str]) -> Settings:
    """What these variables ask for."""
    words = ",".join(environment.get(name, "") for name in VARIABLES).replace(" ", "")
    expandable = re.search(r"expandable_segments:(true)", words, re.IGNORECASE)
    split = re.search(r"max_split_size_mb:(\d+)", words)
    divisions = re.search(r"roundup_power2_divisions:(?:\[([^\]]*)\]|(\d+))", words)
    return Settings(
        expandable_segments=bool(expandable),
        max_split_bytes=int(split[1]) * 2**20 if split else None,
        divisions=_divisions(*divisions.groups()) if divisions else (),
    )


def _divisions(by_size: str | None, everywhere: str | None) -> tuple[int, ...]:
    """From `4`, or from `256:1,512:2,>:4`, which is by the size in MiB at which each begins."""
    if everywhere is not None:
        return (int(everywhere),) * NUM_INTERVALS
    found = [0] * NUM_INTERVALS
    last = -1
    for word in (by_size or "").split(","):
        size, _, steps = word.partition(":")
        if size == ">":
            found[last + 1 :] = [int(steps)] * (NUM_INTERVALS - last - 1)
            continue
        index = min(int(size).bit_length() - 1, NUM_INTERVALS - 1)
        first = 0 if last < 0 else index
        found[first : index + 1] = [int(steps)] * (index + 1 - first)
        last = index
    return tuple(found)
