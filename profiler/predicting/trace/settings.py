"""The settings of PyTorch's caching allocator for CUDA in the environment: knows nothing of torch.

They are read as in c10/core/AllocatorConfig.cpp. Settings that are not here do not change which blocks a step is given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # PyTorch reads both
NUM_INTERVALS = 16  # of sizes: below 2 MiB, from each power of two to the next, from 32 GiB on


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What changes the blocks that the allocator gives; the defaults are PyTorch's."""

    expandable_segments: bool = False
    max_split_bytes: int | None = None  # blocks of at least this are not split; None: every block may be
    divisions: tuple[int, ...] = ()  # by interval of sizes: into how many steps powers of two are divided to round up


def read(environment: Mapping[str, str]) -> Settings:
    """The settings in `VARIABLES`."""
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
    """The number of steps for each interval: from `4` for all, or from `256:1,512:2,>:4` by the size in MiB."""
    if everywhere is not None:
        return (int(everywhere),) * NUM_INTERVALS
    divisions = [0] * NUM_INTERVALS
    last = -1
    for word in (by_size or "").split(","):
        size, _, steps = word.partition(":")
        if size == ">":
            divisions[last + 1 :] = [int(steps)] * (NUM_INTERVALS - last - 1)
            continue
        index = min(int(size).bit_length() - 1, NUM_INTERVALS - 1)
        first = 0 if last < 0 else index
        divisions[first : index + 1] = [int(steps)] * (index + 1 - first)
        last = index
    return tuple(divisions)
