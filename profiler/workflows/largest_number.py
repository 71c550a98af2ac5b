"""Finds the largest number with which a user's command fits: its batch, say."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import msgspec

from profiler.analysis.advice import largest_that_fits
from profiler.core import gpu_specs
from profiler.core.units import bytes_text
from profiler.scripts.report import Ended, Variant
from profiler.workflows.fit_command import Say, memory_bytes

FIRST = 8  # is tried first


def largest(
    run: Callable[[int], tuple[Ended, Variant]], name: str, gpus: gpu_specs.Device, *, unit: int, say: Say
) -> tuple[Ended, Variant, str]:
    """Find the largest multiple of a unit, to 1 %, with which a command fits; if none does, take the smallest.

    `run` rehearses the command with a number in place of {name}. Returns what it returned, and a sentence on that and
    on one that does not fit. The search ends where the command is interrupted, fails otherwise, makes no step or takes
    no more with twice the number: then this is returned, as failed; where it was interrupted, the largest that fits.
    """
    ran: dict[int, tuple[Ended, Variant]] = {}
    steps: dict[int, list[tuple[str, int | None]]] = {}  # the phases of what fits, and their peaks
    limit_bytes = memory_bytes(gpus)

    def needed(count: int) -> int | None:
        end, variant = ran[count] = run(count * unit)
        if variant.outcome == "out_of_memory" and not end.interrupted:
            size = variant.needed_bytes
            say(f"{name}={count * unit}: does not fit{f': it needs {bytes_text(size)}' if size else ''}")
            return size if size and size > limit_bytes else None  # memory was torn, or shared with another process
        phases = chain.from_iterable(process.phases for process in variant.processes)
        peaks = [(phase.name, phase.peak_bytes) for phase in phases]
        same = next((number for number, before in steps.items() if 2 * number <= count and before == peaks), None)
        if variant.outcome != "ok":
            raise _Halted(variant.why or variant.outcome.replace("_", " "))
        if all(phase != "backward" for phase, _ in peaks):
            raise _Halted("it made no step of training")
        if same:
            caught = any(process.shortages for process in variant.processes)
            why = "memory ran out, and the script went on" if caught else "its data may have no more"
            raise _Halted(f"it takes no more than with {same * unit}: {why}")
        steps[count] = peaks
        size = (variant.largest.reserved_bytes or 0) + variant.context_bytes
        say(f"{name}={count * unit}: fits: it needs {bytes_text(size)}")
        return size

    try:
        count = largest_that_fits(needed, limit=limit_bytes, start=max(1, FIRST // unit), within=0.01)
    except _Halted as halted:
        number, (end, variant) = [*ran.items()][-1]
        most = max(steps, default=0)
        fits = f"{most * unit} fits; " if most else ""
        if end.interrupted:
            return end, ran[most or number][1], f"interrupted: {fits}the largest {name} is not known"
        where = "" if variant.outcome in ("ok", "skipped") else f" (-L '{name} {number * unit}' shows where)"
        if variant.outcome == "ok":
            variant = msgspec.structs.replace(variant, outcome="failed", detail=str(halted))
        return end, variant, f"the largest {name} is not known: {fits}with {number * unit}: {halted}{where}"
    found = f"the largest {name} that fits is {count * unit}" if count else f"no {name} fits"
    beyond = min((number for number in ran if number > count), default=None)
    if beyond is None:
        return *ran[count], f"every {name} that was tried fits, up to {count * unit}"
    size = ran[beyond][1].needed_bytes
    return *ran[count or beyond], f"{found}: {beyond * unit} {f'needs {bytes_text(size)}' if size else 'does not'}"


class _Halted(Exception):
    """A command of which no largest number is found, and why."""
