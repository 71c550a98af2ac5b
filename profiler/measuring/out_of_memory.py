"""An error -> the request for memory that failed, where it is one: knows nothing of trials."""

from __future__ import annotations

import re

import torch

from profiler.core.record import Shortage
from profiler.core.units import GIB, KIB, MIB
from profiler.measuring.devices.cpu import available_bytes

OF_HOST = ("can't allocate memory",)  # c10/core/impl/alloc_cpu.cpp
OF_DEVICE = (  # in other ways than by torch.OutOfMemoryError
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
UNITS = {"bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
SIZE = r"(\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB)"


def shortage(error: BaseException) -> Shortage | None:
    """Whose memory was too small, what was asked for and what was free; None for any other error."""
    words = str(error)
    if isinstance(error, torch.OutOfMemoryError) or _says(error, OF_DEVICE):
        asked, free = _size(f"[Tt]ried to allocate {SIZE}", words), _size(f"of which {SIZE} is free", words)
        return Shortage(of="device", asked_bytes=asked, free_bytes=free)
    if isinstance(error, MemoryError) or _says(error, OF_HOST):
        asked = _size(f"tried to allocate {SIZE}", words)
        return Shortage(of="host", asked_bytes=asked, free_bytes=available_bytes())
    return None


def _says(error: BaseException, phrases: tuple[str, ...]) -> bool:
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in phrases)


def _size(pattern: str, words: str) -> int | None:
    found = re.search(pattern, words)
    return round(float(found[1]) * UNITS[found[2]]) if found else None
