"""Which devices hold a training step, as a table: knows nothing of commands."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from profiler.analysis.fit import Fit
from profiler.core.units import bytes_text, change_text
from profiler.views.tables.columns import Column, batch
from profiler.views.tables.terminal import fitted, paragraph

NOTE = (
    "needed: what the allocator reserves, and 600 MiB for CUDA itself; "
    "of the strategies that fit, the one that recomputes least"
)


def table(found: Sequence[Fit], *, width: int | None = None, encoding: str = "utf-8") -> Text:
    """One table for each case: a line a device, with the strategy that recomputes least of those that it holds."""
    cases = dict.fromkeys(one.case for one in found)
    parts = []
    for case in cases:
        lines = [one for one in found if one.case == case]
        ranks = f", one of {case.ranks} ranks, {case.parallel}" if case.ranks else ""
        head = f"{case.model}, {batch(case)}, {case.optimizer}, {case.precision}{ranks}: predicted, not measured"
        parts += [paragraph(head, width=width, encoding=encoding, style="bold")]
        parts += [fitted(_columns(lines), width=width, encoding=encoding), Text()]
    return Text("\n").join([Text(), *parts, paragraph(NOTE, width=width, encoding=encoding)])


def _columns(found: Sequence[Fit]) -> tuple[Column, ...]:
    return (
        Column(head=("device", ""), cells=tuple(one.device for one in found)),
        Column(head=("memory", ""), cells=tuple(bytes_text(one.memory_bytes) for one in found), is_number=True),
        Column(head=("holds it", ""), cells=tuple(one.strategy or "with no strategy here" for one in found)),
        Column(head=("needed", ""), cells=tuple(bytes_text(one.needed_bytes) for one in found), is_number=True),
        Column(head=("FLOPs", "against none"), cells=tuple(_extra(one) for one in found), is_number=True),
    )


def _extra(one: Fit) -> str:
    return change_text(None if one.extra_flops is None else 1 + one.extra_flops)
