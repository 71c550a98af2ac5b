"""A comparison -> tables and lines of text, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from profiler.analysis.comparison import MOST_STRATEGIES, Cell, Comparison, Match, Order, SideSummary
from profiler.analysis.memory_fit import SideAdvice
from profiler.analysis.pairing import Contrast
from profiler.core.units import MIB, MISSING, byte_unit, change_range_text, change_text, count_text, scaled, second_unit
from profiler.views.tables.evidence import device_word, difference_text
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


def parts(comparison: Comparison) -> list[ComparisonPart]:
    """Return all parts; the differences between the sides come first, since they explain the numbers."""
    groups: dict[str, list[Match]] = {}
    for match in comparison.matches:
        shared = [_worded(name, text) for name, text in match.key.items() if name != "strategy"]
        groups.setdefault(", ".join(shared) or "all rows", []).append(match)
    shown = [_differences(comparison)]
    for name, matches in groups.items():
        shown += [*_quantities(comparison, name, matches), *_missing(comparison, matches)]
    notes = (
        [ComparisonPart(lines=tuple(f"note: {remark}" for remark in comparison.remarks))] if comparison.remarks else []
    )
    return [*shown, *_orders(comparison), *_advice(comparison), *notes]


def _differences(comparison: Comparison) -> ComparisonPart:
    kinds = [f", {side.evidence}" if _is_mixed(comparison) else "" for side in comparison.sides]
    runs = [f"{side.label}: {side.run}{kind}" for side, kind in zip(comparison.sides, kinds, strict=True)]
    name = words("differs", "", [difference.what for difference in comparison.differences])
    columns = tuple(
        words(side.name, "", [device_word(difference.values[place]) for difference in comparison.differences])
        for place, side in enumerate(comparison.sides)
    )
    shared = ", ".join(
        f"{difference.what} {device_word(difference.values[0])}"
        for difference in comparison.same
        if difference.values[0] != MISSING
    )
    lines = (f"{'' if comparison.differences else 'nothing differs; '}the same in all: {shared}",) if shared else ()
    return ComparisonPart(
        above=(f"{runs[0]}, the baseline", *runs[1:]),
        pieces=((name,), columns) if comparison.differences else (),
        lines=lines,
    )


def _is_mixed(comparison: Comparison) -> bool:
    """Whether the sides have different kinds of evidence, which are then named everywhere."""
    return len({side.evidence for side in comparison.sides}) > 1


def _headed(quantity: str, comparison: Comparison, group: str, places: Sequence[int]) -> str:
    """Return the heading of a table, which names the sides whose kind of evidence is not the first one's."""
    first = comparison.sides[0]
    apart = [_named(comparison.sides[place]) for place in places if comparison.sides[place].evidence != first.evidence]
    held = f", {' and '.join(apart)} against {_named(first)}" if apart and 0 in places else ""
    return f"{quantity}{held}: {group}"


def _named(side: SideSummary) -> str:
    return f"{side.label} {side.evidence}"


def _worded(name: str, text: str) -> str:
    return text if name in ("model", "precision") else f"{name.replace('_size', '')} {text}"


class _Quantity(NamedTuple):
    """A quantity that a table shows for every side."""

    name: str
    unit: str
    text_of: Callable[[Cell], str]
    changes_of: Callable[[Comparison, int, Sequence[Match]], tuple[Column, ...]]  # of a side against the first


def _quantities(comparison: Comparison, group: str, matches: Sequence[Match]) -> list[ComparisonPart]:
    """Return the tables of peaks and of step times; a rehearsal has no times, and so no column for them."""
    cells = [cell for match in matches for cell in match.cells if cell]
    size, unit = byte_unit(cell.peak_bytes for cell in cells)
    second, second_name = second_unit(cell.step_seconds for cell in cells)
    peaks = _Quantity("peak", unit, lambda cell: scaled(cell.peak_bytes, size), _peak_changes)
    steps = _Quantity("step", second_name, lambda cell: scaled(cell.step_seconds, second), _time_changes)
    tables = [_table(comparison, group, matches, range(len(comparison.sides)), peaks)]
    if any(cell.step_seconds is not None for cell in cells):
        places = [
            place
            for place, side in enumerate(comparison.sides)
            if side.evidence != "rehearsed" or any(cell and cell.step_seconds for cell in _cells(matches, place))
        ]
        tables.append(_table(comparison, group, matches, places, steps))
    return tables


def _table(
    comparison: Comparison, group: str, matches: Sequence[Match], places: Sequence[int], quantity: _Quantity
) -> ComparisonPart:
    """Return a table with a column of values per side, then the changes against the first, if it is one of them."""
    is_mixed, values = _is_mixed(comparison), []
    for place in places:
        side = comparison.sides[place]
        cells = tuple(_value(cell, quantity.text_of) for cell in _cells(matches, place))
        is_plain = side.evidence == "measured" and not is_mixed
        values.append(numbers(side.name, quantity.unit if is_plain else f"{side.evidence} {quantity.unit}", cells))
    pieces = [(words("strategy", "", [_name(match) for match in matches]),), tuple(values)]
    pieces += [quantity.changes_of(comparison, place, matches) for place in places if place and 0 in places]
    return ComparisonPart(heading=_headed(quantity.name, comparison, group, places), pieces=tuple(pieces))


def _peak_changes(comparison: Comparison, place: int, matches: Sequence[Match]) -> tuple[Column, ...]:
    """Return the changes of a side's peaks against the first; between kinds of evidence there is no better or worse."""
    first, side = comparison.sides[0], comparison.sides[place]
    contrasts = [cell.peak if cell else None for cell in _cells(matches, place)]
    changes = [_peak_change(match.cells[0], match.cells[place]) for match in matches]
    if first.evidence == side.evidence:
        return numbers(side.label, f"against {first.label}", changes), _verdicts(side, contrasts)
    equal = [contrast is not None and contrast.verdict == "same" for contrast in contrasts]
    cells = ["equal" if is_equal else change for is_equal, change in zip(equal, changes, strict=True)]
    return (numbers(_named(side), f"off {_named(first)} by", cells),)


def _time_changes(comparison: Comparison, place: int, matches: Sequence[Match]) -> tuple[Column, ...]:
    first, side = comparison.sides[0], comparison.sides[place]
    contrasts = [cell.time if cell else None for cell in _cells(matches, place)]
    changes = [_change(contrast) for contrast in contrasts]
    return numbers(side.label, f"against {first.label}", changes), _verdicts(side, contrasts)


def _verdicts(side: SideSummary, contrasts: Sequence[Contrast | None]) -> Column:
    return words(side.label, "is", [contrast.verdict if contrast else MISSING for contrast in contrasts])


def _cells(matches: Sequence[Match], place: int) -> list[Cell | None]:
    return [match.cells[place] for match in matches]


def _name(match: Match) -> str:
    return match.key.get("strategy", "any")


def _value(cell: Cell | None, text: Callable[[Cell], str]) -> str:
    if cell is None:
        return MISSING
    return text(cell) if cell.outcome == "ok" else cell.outcome.replace("_", " ")


def _peak_change(baseline: Cell | None, cell: Cell | None) -> str:
    """Return the change of a peak, in bytes if a percentage would round to zero."""
    before, after = (either.peak_bytes if either else None for either in (baseline, cell))
    if before is None or after is None or cell is None:
        return MISSING
    return difference_text(before, after, change=_change(cell.peak))


def _change(contrast: Contrast | None) -> str:
    if contrast is None:
        return MISSING
    text, low, high = change_text(contrast.ratio), contrast.low, contrast.high
    if contrast.verdict == "too noisy to tell":
        return "too noisy"
    return text if low is None or high is None else f"{text} ({change_range_text((low, high))})"


def _missing(comparison: Comparison, matches: Sequence[Match]) -> list[ComparisonPart]:
    """Return the lines on rows that are not on every side, or not ok."""
    lines = [line for match in matches for line in _troubles(comparison, match)]
    return [ComparisonPart(lines=tuple(lines))] if lines else []


def _troubles(comparison: Comparison, match: Match) -> list[str]:
    pairs = [(side.label, cell) for side, cell in zip(comparison.sides, match.cells, strict=True) if cell]
    labels = ", ".join(label for label, _ in pairs)
    only = [f"{_name(match)}: only in {labels}"] if len(pairs) < len(comparison.sides) else []
    fine = [label for label, cell in pairs if cell.outcome == "ok"]
    ok = f"; ok in {', '.join(fine)}" if fine else ""
    return only + [
        f"{_name(match)}: {cell.outcome.replace('_', ' ')} in {label}{': ' + cell.detail if cell.detail else ''}{ok}"
        for label, cell in pairs
        if cell.outcome != "ok"
    ]


def _orders(comparison: Comparison) -> list[ComparisonPart]:
    groups, lines = dict.fromkeys(order.group for order in comparison.orders), []
    sides, first = {side.label: side for side in comparison.sides}, comparison.sides[0]
    for order in comparison.orders:
        of = f" ({', '.join(order.group)})" if len(groups) > 1 else ""
        side = sides[order.label]
        is_one_kind = side.evidence == first.evidence
        held = f"{side.label} against {first.label}" if is_one_kind else f"{_named(side)} against {_named(first)}"
        left_out = f", without {order.num_left_out:,} more than {MOST_STRATEGIES}" if order.num_left_out else ""
        lines.append(f"by {order.quantity}, {held}{of}{left_out}: {_agreement(order)}")
    return [ComparisonPart(heading="order of the strategies", lines=tuple(lines))] if lines else []


def _agreement(order: Order) -> str:
    num_apart = order.num_same + len(order.swapped)
    close = (
        f"; {order.num_close} {'equal' if order.quantity == 'peak' else 'too close to tell'}" if order.num_close else ""
    )
    if not num_apart:
        return f"no pair of strategies can be told apart on both{close}"
    if not order.swapped:
        return f"{f'all {num_apart} pairs' if num_apart > 1 else 'the one pair'} in the same order{close}"
    named = "; ".join(f"{first} and {second}" for first, second in order.swapped[:MAX_SWAPPED])
    more = f"; and {len(order.swapped) - MAX_SWAPPED} more" if len(order.swapped) > MAX_SWAPPED else ""
    share = f"{order.num_same} of {count_text(num_apart, 'pair')} in the same order (tau {order.tau:.2f})"
    return f"{share}; swapped: {named}{more}{close}"


def _advice(comparison: Comparison) -> list[ComparisonPart]:
    if all(side.evidence == "rehearsed" for side in comparison.sides):
        return []  # nothing is the fastest without times
    plain = "" if _is_mixed(comparison) else "measured"
    kinds = {side.label: "" if side.evidence == plain else f" ({side.evidence})" for side in comparison.sides}
    names = {side.label: f"{side.name}{kinds[side.label]}" for side in comparison.sides}
    groups: dict[tuple[str, ...], list[SideAdvice]] = {}
    for side_advice in comparison.advice:
        groups.setdefault(side_advice.group, []).append(side_advice)
    parts = []
    for group, advice in groups.items():
        of_group = f": {', '.join(group)}" if len(groups) > 1 and group else ""
        devices = words("on", "", [names[side_advice.label] for side_advice in advice])
        heading = f"the fastest that fits each memory{of_group}"
        parts.append(ComparisonPart(heading=heading, pieces=((devices,), _advised(advice))))
    return parts


def _advised(advice: Sequence[SideAdvice]) -> tuple[Column, ...]:
    size, unit = second_unit([side_advice.step_seconds for side_advice in advice])
    return (
        words("use", "", [side_advice.strategy or side_advice.reason or MISSING for side_advice in advice]),
        numbers("memory", "MiB", [scaled(side_advice.memory_bytes, MIB) for side_advice in advice]),
        numbers("needs", "MiB", [scaled(side_advice.needed_bytes, MIB) for side_advice in advice]),
        numbers("step", unit, [scaled(side_advice.step_seconds, size) for side_advice in advice]),
    )
