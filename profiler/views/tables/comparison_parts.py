"""A comparison -> tables and lines of text, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from profiler.analysis.comparison import Cell, Comparison, Match
from profiler.analysis.fit import SideAdvice
from profiler.analysis.ranking import Order
from profiler.analysis.ratio_contrast import Contrast
from profiler.core.units import MIB, MISSING, byte_unit, change_range_text, change_text, count_text, scaled, second_unit
from profiler.views.tables.grid import Column, numbers, words

MAX_SWAPPED = 3  # pairs that one line names before it only counts them


class ComparisonPart(msgspec.Struct, frozen=True, kw_only=True):
    """Lines above, one table, and lines below it; any of them may be missing."""

    heading: str = ""
    above: tuple[str, ...] = ()
    pieces: tuple[tuple[Column, ...], ...] = ()  # names, values, changes: the table may be cut between them
    lines: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The whole table."""
        return tuple(column for piece in self.pieces for column in piece)


def parts(found: Comparison) -> list[ComparisonPart]:
    """All that is shown: the differences first, since they are what the numbers are to be read by."""
    groups: dict[str, list[Match]] = {}
    for match in found.matches:
        groups.setdefault(_group(match), []).append(match)
    shown = [_differences(found)]
    for name, matches in groups.items():
        shown += [_peaks(found, name, matches), *_times(found, name, matches), *_missing(found, matches)]
    notes = [ComparisonPart(lines=tuple(f"note: {remark}" for remark in found.remarks))] if found.remarks else []
    return [*shown, *_orders(found), *_advice(found), *notes]


def _differences(found: Comparison) -> ComparisonPart:
    runs = [f"{side.label}: {side.run}" for side in found.sides]
    name = words("differs", "", [one.what for one in found.differences])
    columns = tuple(
        words(side.name, "", [one.values[place] for one in found.differences]) for place, side in enumerate(found.sides)
    )
    same = ", ".join(f"{one.what} {one.values[0]}" for one in found.same if one.values[0] != MISSING)
    lines = (f"{'' if found.differences else 'nothing differs; '}the same in all: {same}",) if same else ()
    return ComparisonPart(
        above=(f"{runs[0]}, the baseline", *runs[1:]),
        pieces=((name,), columns) if found.differences else (),
        lines=lines,
    )


def _group(match: Match) -> str:
    return ", ".join(_worded(name, text) for name, text in match.key.items() if name != "strategy") or "all rows"


def _worded(name: str, text: str) -> str:
    return text if name in ("model", "precision") else f"{name.replace('_size', '')} {text}"


def _peaks(found: Comparison, group: str, matches: Sequence[Match]) -> ComparisonPart:
    size, unit = byte_unit([cell.peak_bytes for match in matches for cell in match.cells if cell])
    return _table(
        found,
        matches,
        heading=f"peak: {group}",
        unit=unit,
        value=lambda cell: scaled(cell.peak_bytes, size),
        contrast=lambda cell: cell.peak,
    )


def _times(found: Comparison, group: str, matches: Sequence[Match]) -> list[ComparisonPart]:
    seconds = [cell.step_seconds for match in matches for cell in match.cells if cell]
    if all(second is None for second in seconds):
        return []
    size, unit = second_unit(seconds)
    return [
        _table(
            found,
            matches,
            heading=f"step: {group}",
            unit=unit,
            value=lambda cell: scaled(cell.step_seconds, size),
            contrast=lambda cell: cell.time,
        )
    ]


def _table(
    found: Comparison, matches: Sequence[Match], *, heading: str, unit: str,
    value: Callable[[Cell], str], contrast: Callable[[Cell], Contrast | None],
) -> ComparisonPart:  # fmt: skip
    """A column of values for each side, then the changes against the first."""
    values = []
    for place, side in enumerate(found.sides):
        cells = tuple(_value(match.cells[place], value) for match in matches)
        shown = unit if side.evidence == "measured" else f"{side.evidence} {unit}"
        values.append(numbers(side.name, shown, cells))
    pieces = [(words("strategy", "", [_name(match) for match in matches]),), tuple(values)]
    for place, side in list(enumerate(found.sides))[1:]:
        beside = [match.cells[place] for match in matches]
        held = [contrast(cell) if cell else None for cell in beside]
        changes = tuple(_change(one) for one in held)
        verdicts = tuple(one.verdict if one else MISSING for one in held)
        change = numbers(side.label, f"against {found.sides[0].label}", changes)
        pieces.append((change, words(side.label, "is", verdicts)))
    return ComparisonPart(heading=heading, pieces=tuple(pieces))


def _name(match: Match) -> str:
    return match.key.get("strategy", "any")


def _value(cell: Cell | None, text: Callable[[Cell], str]) -> str:
    if cell is None:
        return MISSING
    return text(cell) if cell.outcome == "ok" else cell.outcome.replace("_", " ")


def _change(contrast: Contrast | None) -> str:
    if contrast is None:
        return MISSING
    text, low, high = change_text(contrast.ratio), contrast.low, contrast.high
    return text if low is None or high is None else f"{text} ({change_range_text((low, high))})"


def _missing(found: Comparison, matches: Sequence[Match]) -> list[ComparisonPart]:
    """What is not on every side, and what is not ok."""
    lines = [line for match in matches for line in (*_only(found, match), *_wrong(found, match))]
    return [ComparisonPart(lines=tuple(lines))] if lines else []


def _only(found: Comparison, match: Match) -> list[str]:
    there = [side.label for side, cell in zip(found.sides, match.cells, strict=True) if cell]
    return [] if len(there) == len(found.sides) else [f"{_name(match)}: only in {', '.join(there)}"]


def _wrong(found: Comparison, match: Match) -> list[str]:
    pairs = [(side.label, cell) for side, cell in zip(found.sides, match.cells, strict=True) if cell]
    fine = [label for label, cell in pairs if cell.outcome == "ok"]
    ok = f"; ok in {', '.join(fine)}" if fine else ""
    return [
        f"{_name(match)}: {cell.outcome.replace('_', ' ')} in {label}{': ' + cell.detail if cell.detail else ''}{ok}"
        for label, cell in pairs
        if cell.outcome != "ok"
    ]


def _orders(found: Comparison) -> list[ComparisonPart]:
    groups = dict.fromkeys(order.group for order in found.orders)
    lines = []
    for order in found.orders:
        of = f" ({', '.join(order.group)})" if len(groups) > 1 else ""
        lines.append(f"by {order.quantity}, {order.label} against {found.sides[0].label}{of}: {_agreement(order)}")
    return [ComparisonPart(heading="order of the strategies", lines=tuple(lines))] if lines else []


def _agreement(order: Order) -> str:
    told = order.num_same + len(order.swapped)
    close = (
        f"; {order.num_close} {'equal' if order.quantity == 'peak' else 'too close to tell'}" if order.num_close else ""
    )
    if not told:
        return f"no pair of strategies can be told apart on both{close}"
    if not order.swapped:
        return f"{f'all {told} pairs' if told > 1 else 'the one pair'} in the same order{close}"
    named = "; ".join(f"{first} and {second}" for first, second in order.swapped[:MAX_SWAPPED])
    more = f"; and {len(order.swapped) - MAX_SWAPPED} more" if len(order.swapped) > MAX_SWAPPED else ""
    share = f"{order.num_same} of {count_text(told, 'pair')} in the same order (tau {order.tau:.2f})"
    return f"{share}; swapped: {named}{more}{close}"


def _advice(found: Comparison) -> list[ComparisonPart]:
    kinds = {side.label: "" if side.evidence == "measured" else f" ({side.evidence})" for side in found.sides}
    names = {side.label: f"{side.name}{kinds[side.label]}" for side in found.sides}
    groups: dict[tuple[str, ...], list[SideAdvice]] = {}
    for one in found.advice:
        groups.setdefault(one.group, []).append(one)
    parts = []
    for group, advice in groups.items():
        of_group = f": {', '.join(group)}" if len(groups) > 1 and group else ""
        devices = words("on", "", [names[one.label] for one in advice])
        heading = f"the fastest that fits each memory{of_group}"
        parts.append(ComparisonPart(heading=heading, pieces=((devices,), _advised(advice))))
    return parts


def _advised(rows: Sequence[SideAdvice]) -> tuple[Column, ...]:
    size, unit = second_unit([one.step_seconds for one in rows])
    return (
        words("use", "", [one.strategy or one.reason or MISSING for one in rows]),
        numbers("memory", "MiB", [scaled(one.memory_bytes, MIB) for one in rows]),
        numbers("needs", "MiB", [scaled(one.needed_bytes, MIB) for one in rows]),
        numbers("step", unit, [scaled(one.step_seconds, size) for one in rows]),
    )
