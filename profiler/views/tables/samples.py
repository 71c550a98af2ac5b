"""Every raw time sample of every row, for a screen: knows nothing of files or of commands."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from profiler.analysis.rows import Row
from profiler.core.record import Record
from profiler.core.stats import spread, uncertainty
from profiler.core.units import count_text, scaled, second_unit, spread_text
from profiler.views.sanitize import plain
from profiler.views.tables.columns import groups, heading, reasons
from profiler.views.tables.terminal import paragraph

TIMES = ("forward", "backward", "optimizer", "step")
STOPPED = {
    "target": "sure enough",
    "samples": "--max-samples reached",
    "seconds": "--max-seconds reached",
    "limit": "--stage-limit near",
}


def samples(rows: Sequence[Row], *, width: int | None = None, encoding: str = "utf-8") -> Text:
    """The samples of each row in the order of the rounds, all in one unit, with their spread, and why they ended."""
    return Text("\n\n").join([_group(group, width=width, encoding=encoding) for group in groups(rows)])


def of(row: Row, name: str) -> tuple[float, ...]:
    """The samples of one part of the step, in seconds; empty where it was not measured."""
    found: tuple[float, ...] | None = getattr(row.readings, f"{name}_seconds")
    return found or ()


def sampled(row: Row) -> str:
    """How sure the median is, and of each round how many steps were warm-up and samples, and why there are no more."""
    reached = uncertainty(of(row, "step"))
    sure = (
        f"the median is sure to {spread_text(reached)}"
        if reached is not None
        else "too few samples to be sure of the median"
    )
    return f"{sure}; " + "; ".join(_round(record) for record in row.rounds if record.readings.step_seconds)


def _round(record: Record) -> str:
    readings = record.readings
    warmup = len(readings.warmup_seconds or ())
    found = warmup - 1 - record.case.warmup
    settled = [f"{warmup} of warm-up" + (f", {found} of them found" if found > 0 else "")] if warmup else []
    is_asked = not record.case.sampling and readings.stopped != "limit"
    why = [] if readings.stopped is None else ["as asked" if is_asked else STOPPED[readings.stopped]]
    return ", ".join(
        [f"round {record.round}: {count_text(len(readings.step_seconds or ()), 'sample')}", *why, *settled]
    )


def _group(rows: Sequence[Row], *, width: int | None, encoding: str) -> Text:
    size, unit = second_unit(second for row in rows for name in TIMES for second in of(row, name))
    parts = [paragraph(f"{heading(rows)}, samples in {unit}", width=width, encoding=encoding, style="bold")]
    for row in rows:
        names = [name for name in ("warmup", *TIMES) if of(row, name)]
        lines = [_line(row, name, size=size, width=width, encoding=encoding) for name in names]
        if lines:
            parts += [Text(), Text(plain(row.case.strategy, encoding=encoding), style="bold"), *lines]
            parts += [paragraph(sampled(row), width=width, encoding=encoding)] if of(row, "step") else []
    untimed = [
        str(row.case.strategy) for row in rows if row.outcome == "ok" and not any(of(row, name) for name in TIMES)
    ]
    below = [*reasons(rows), *(f"{name}: time not measured" for name in untimed)]
    parts += [Text()] if below else []
    return Text("\n").join([*parts, *(paragraph(line, width=width, encoding=encoding) for line in below)])


def _line(row: Row, name: str, *, size: float, width: int | None, encoding: str) -> Text:
    values = of(row, name)
    digits = max(len(scaled(value, size)) for value in values)
    numbers = " ".join(scaled(value, size).rjust(digits) for value in values)
    noise = "" if name == "warmup" else plain(spread_text(spread(values)), encoding=encoding)
    start = f"{'warm-up' if name == 'warmup' else name:<9}  {noise:>8}  "
    room = max(digits, (width or 10**9) - len(start)) // (digits + 1) * (digits + 1) or digits
    lines = [numbers[at : at + room].rstrip() for at in range(0, len(numbers), room)]
    return Text(start + ("\n" + " " * len(start)).join(lines))
