"""Every raw time sample of every row, for a screen: knows nothing of files or of commands."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from profiler.analysis.rows import Row, spread
from profiler.units import scaled, second_unit, spread_text
from profiler.views.cells import groups, heading, reasons
from profiler.views.plain import plain
from profiler.views.terminal import paragraph

TIMES = ("forward", "backward", "optimizer", "step")


def samples(rows: Sequence[Row], *, width: int | None = None, encoding: str = "utf-8") -> Text:
    """The samples of each row in the order of the rounds, all in one unit, with their spread."""
    return Text("\n\n").join([_group(group, width=width, encoding=encoding) for group in groups(rows)])


def of(row: Row, name: str) -> tuple[float, ...]:
    """The samples of one part of the step, in seconds; empty where it was not measured."""
    found: tuple[float, ...] | None = getattr(row.readings, f"{name}_seconds")
    return found or ()


def _group(rows: Sequence[Row], *, width: int | None, encoding: str) -> Text:
    size, unit = second_unit(second for row in rows for name in TIMES for second in of(row, name))
    parts = [paragraph(f"{heading(rows)}, samples in {unit}", width=width, encoding=encoding, style="bold")]
    for row in rows:
        lines = [_line(row, name, size=size, width=width, encoding=encoding) for name in TIMES if of(row, name)]
        if lines:
            parts += [Text(), Text(plain(row.case.strategy, encoding=encoding), style="bold"), *lines]
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
    noise = plain(spread_text(spread(values)), encoding=encoding)
    start = f"{name:<9}  {noise:>8}  "
    room = max(digits, (width or 10**9) - len(start)) // (digits + 1) * (digits + 1) or digits
    lines = [numbers[at : at + room].rstrip() for at in range(0, len(numbers), room)]
    return Text(start + ("\n" + " " * len(start)).join(lines))
