"""Limits on what a script may take, `--fail-on 'peak:>10GiB,reserved:>90%,out-of-memory'`, and what exceeds them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from profiler.core.errors import UserError
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


def parse(text: str, *, is_change: bool = False) -> tuple[Limit, ...]:
    """Return the limits in a text: bytes, or percentages of the GPU's memory; of changes between runs, percentages.

    Raises UserError.
    """
    hint = HINT_OF_CHANGES if is_change else HINT
    found: dict[str, Limit] = {}
    for word in map(str.strip, text.split(",")):
        rule, most = RULE.fullmatch(word), None
        quantity = rule[1] if rule else OUT_OF_MEMORY if word in SHORT else None
        if rule:
            most = parse_percent(rule[2]) if is_change else parse_memory(rule[2], flag=f"--fail-on: '{word}'")
        if quantity is None or (rule and most is None):
            raise UserError(f"--fail-on cannot be '{word}'", hint=hint)
        if quantity in found:
            raise UserError(f"--fail-on gives {quantity} twice", hint=hint)
        found[quantity] = Limit(quantity=quantity, most=most, text=word)
    return tuple(found.values())


def tripped(variants: Sequence[Variant], limits: Sequence[Limit]) -> list[str]:
    """Return in words what exceeds a limit. A process that ran out of memory exceeds every one."""
    return [text for limit in limits for variant in variants for text in _over(variant, limit)]


def _over(variant: Variant, limit: Limit) -> Iterator[str]:
    whole = variant.gpu_bytes
    for process in variant.processes:
        where = ", ".join(filter(None, (name_of(variant), process.label(variant.processes))))
        phase = process.peak if limit.quantity == "peak" else process.most_reserved
        taken = phase.peak_bytes if limit.quantity == "peak" else phase.reserved_bytes
        if process.outcome == "out_of_memory":
            yield f"{limit.text}: {where}: out of memory {process.detail or ''}".rstrip()
        elif limit.most is not None and taken is not None:
            if isinstance(limit.most, float) and whole is None:
                raise UserError(f"--fail-on {limit.text}: a CPU has no memory of its own", hint="write bytes: 10GiB")
            if taken > (int(limit.most * (whole or 0)) if isinstance(limit.most, float) else limit.most):
                at = f", {phase.line}" if phase.line else ""
                yield f"{limit.text}: {where}: {bytes_text(taken)}, in {phase_text(phase)}{at}"
