"""Devices named by the kind of GPU, such as `cuda:a100`, and the test whether a GPU is of a kind."""

from __future__ import annotations

import re

CUDA = "cuda:"
REHEARSE = "rehearse:"  # prefix of a device that is rehearsed: PyTorch's own CUDA code runs without a GPU
HOLLOW = "Hollow "  # prefix of the name of a GPU that has memory and does no arithmetic: `profiler/rehearsal`
KIND = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*", re.ASCII)  # never a bare number, which is a GPU's index


def named(kind: str) -> str:
    """Return the device name that a case has for a GPU of this kind."""
    return CUDA + kind


def of(device: str) -> str | None:
    """Return the GPU kind in a device's name; None for the CPU and for `cuda:0`."""
    kind = device.removeprefix(CUDA)
    return kind if device.startswith(CUDA) and KIND.fullmatch(kind) else None


def is_hollow(name: str | None) -> bool:
    """Whether a GPU of this name has memory and does no arithmetic, so that only its bytes are meaningful."""
    return name is not None and name.startswith(HOLLOW)


def visible(device: str) -> str:
    """Return torch's device name in the worker: `cuda:0` for a GPU kind, `cuda` or a rehearsed GPU, else unchanged."""
    return f"{CUDA}0" if of(device) or device == "cuda" or device.startswith(REHEARSE) else device


def is_of(kind: str, name: str) -> bool:
    """Whether a GPU's name in its driver matches the kind: every part is a word of the name, `80g` also as `80gb`.

    Whole words are compared, since an L40 is not an L4.
    """
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    return all({piece, f"{piece}b"} & words for piece in re.split("[-_]", kind))
