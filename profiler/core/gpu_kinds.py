"""Devices that are named by the kind of GPU, as `cuda:a100`, and which GPU is of a kind."""

from __future__ import annotations

import re

CUDA = "cuda:"
REHEARSE = "rehearse:"  # what the name of a device begins with that PyTorch's own CUDA code runs on without a GPU
HOLLOW = "Hollow "  # what the name of a GPU begins with that has memory and does no arithmetic: `profiler/rehearsal`
KIND = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*", re.ASCII)  # never a number, which is that of one GPU


def named(kind: str) -> str:
    """What a case on such a GPU calls its device."""
    return CUDA + kind


def of(device: str) -> str | None:
    """The kind that a device's name tells; None for the CPU and for `cuda:0`."""
    kind = device.removeprefix(CUDA)
    return kind if device.startswith(CUDA) and KIND.fullmatch(kind) else None


def is_hollow(name: str | None) -> bool:
    """Whether a GPU of this name has memory and does no arithmetic, so that only bytes mean something on it."""
    return name is not None and name.startswith(HOLLOW)


def visible(device: str) -> str:
    """What torch calls it where it runs: there a GPU of a kind, any of several, or a rehearsed one is the first."""
    return f"{CUDA}0" if of(device) or device == "cuda" or device.startswith(REHEARSE) else device


def is_of(kind: str, name: str) -> bool:
    """Whether a GPU that its driver calls so is of the kind: every piece is a word of the name, `80g` also as `80gb`.

    By whole words, since an L40 is no L4.
    """
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    return all({piece, f"{piece}b"} & words for piece in re.split("[-_]", kind))
