"""Limits on what a script may take, `--fail-on 'peak:>10GiB,reserved:>90%,out-of-memory'`, and what exceeds them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from profiler.core.errors import UserError
from profiler.core.script import Phase
from profiler.core.units import bytes_text, parse_memory, parse_percent
from profiler.scripts.report import Variant, name_of, phase_text

RULE = re.compile(r"\s*(peak|reserved)\s*:\s*>\s*(\S.*?)\s*", re.ASCII | re.DOTALL)
SHORT = ("out-of-memory", "out_of_memory")
OUT_OF_MEMORY = SHORT[0]
HINT = "write --fail-on 'peak:>10GiB,reserved:>90%,out-of-memory'; a percentage is of the GPU's memory"
HINT_OF_CHANGES = "write --fail-on 'peak:>2%,reserved:>2%,out-of-memory'"


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity, and the most that it may be: bytes, or a fraction; None for `out-of-memory`."""

    quantity: str  # peak, reserved, out-of-memory
    most: int | float | None = None
    text: str

    def most_bytes(self, whole: int | None) -> int:
        """Return the bytes that it may be, of the GPU's memory if it is a fraction. Raises UserError on a CPU."""
        assert self.most is not None, "running out of memory has no limit"
        if not isinstance(self.most, float):
            return self.most
        if whole is None:
            raise UserError(f"--fail-on {self.text}: a CPU has no memory of its own", hint="write bytes: 10GiB")
        return int(self.most * whole)


def parse(text: str) -> tuple[Limit, ...]:
    """Return the limits in a text: bytes, or percentages of the GPU's memory. Raises UserError."""
    return tuple(_limits(text, hint=HINT, is_change=False))


def parse_changes(text: str) -> tuple[Limit, ...]:
    """Return the limits on changes between two runs, which are percentages. Raises UserError."""
    return tuple(_limits(text, hint=HINT_OF_CHANGES, is_change=True))


def tripped(variants: Sequence[Variant], limits: Sequence[Limit]) -> list[str]:
    """Return in words what exceeds a limit. A process that ran out of memory exceeds every one."""
    return [text for limit in limits for variant in variants for text in _over(variant, limit)]


def _limits(text: str, *, hint: str, is_change: bool) -> Iterator[Limit]:
    seen = set()
    for piece in text.split(","):
        rule = RULE.fullmatch(piece)
        word = piece.strip()
        quantity = rule[1] if rule else OUT_OF_MEMORY if word in SHORT else None
        if quantity is None:
            raise UserError(f"--fail-on cannot be '{word}'", hint=hint)
        if quantity in seen:
            raise UserError(f"--fail-on gives {quantity} twice", hint=hint)
        seen.add(quantity)
        most: int | float | None = None
        if rule:
            most = parse_percent(rule[2]) if is_change else parse_memory(rule[2], flag=f"--fail-on: '{word}'")
            if most is None:
                raise UserError(f"--fail-on cannot be '{word}'", hint=hint)
        yield Limit(quantity=quantity, most=most, text=word)


def _over(variant: Variant, limit: Limit) -> Iterator[str]:
    for process in variant.processes:
        where = ", ".join(filter(None, (name_of(variant), process.label(variant.processes))))
        if process.outcome == "out_of_memory":
            yield f"{limit.text}: {where}: out of memory {process.detail or ''}".rstrip()
        elif limit.most is not None:
            peak = process.peak if limit.quantity == "peak" else process.most_reserved
            taken = peak.peak_bytes if limit.quantity == "peak" else peak.reserved_bytes
            if taken is not None and taken > limit.most_bytes(variant.gpu_bytes):
                yield f"{limit.text}: {where}: {bytes_text(taken)}, {in_phase(peak)}"


def in_phase(phase: Phase) -> str:
    """Return where a phase is: `in the backward of later steps, train.py:12`."""
    return f"in {phase_text(phase)}{f', {phase.line}' if phase.line else ''}"
