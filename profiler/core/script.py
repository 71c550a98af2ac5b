"""What is stored of a user's own training script: the phases of each process, and how the command ended.

A phase, and what is stored of a process and of a variant besides, are part of a `Record`, and of what
`profiler/scripts/report.py` makes of them.
"""

from __future__ import annotations

import msgspec

from profiler.core.case import Whole


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """All passes through one phase of a process, of its first step or of later ones."""

    name: str
    is_first_step: bool = False
    first_step: Whole  # the number of the step in which it was first, from 0
    num: Whole  # passes
    peak_bytes: Whole  # the largest of them
    live_bytes: Whole  # at the end of the pass with the largest peak
    reserved_bytes: Whole  # the most within it
    line: str  # of the script, in the pass with the largest peak


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a process that used a GPU, besides what its record says in fields of its own."""

    number: Whole  # of the process
    torch: str | None = None  # its version, in the process
    shortages: tuple[str, ...] = ()  # lines at which memory ran out, each time, also where the script went on
    reads: tuple[str, ...] = ()  # lines that read a value of the GPU, which a hollow one does not compute


class VariantFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the command on one kind of GPU, with one set of values; the same for all of its processes."""

    words: dict[str, str]  # what this variant is: its device, its strategy and the values of -L
    gpu_bytes: Whole  # memory of each GPU
    context_bytes: Whole  # of it, taken by CUDA
    outcome: str  # of the whole command
    exit_code: Whole = 0  # its own
    needed_bytes: Whole | None = None  # reserved by one process, and the context, where this GPU has too little
    is_cut: bool = False  # ended before the script would have
