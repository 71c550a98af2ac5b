"""Comparisons of runs of models, of scripts, and with published figures, as tables, as CSV or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from profiler.analysis.comparison import MOST_STRATEGIES, Cell, Comparison, Match, Order
from profiler.analysis.pairing import Contrast, SideSummary
from profiler.analysis.reproduction import ComparedFigure, Reproduction
from profiler.core import by_key, units
from profiler.core.units import MISSING, change_text, in_unit_text, scaled
from profiler.scripts.records import QUANTITIES, WHOLE
from profiler.scripts.records import Comparison as ScriptComparison
from profiler.views.export import csv_text, safe
from profiler.views.tables import Table, numbers, of_lines, words
from profiler.views.tables.columns import SAID, card, device_word

SCHEMA = 1
SCRIPT_KEYS = ("device", "strategy", "values", "process", "phase")  # of a pair of phases
SMALLEST = 0.0005  # of a peak: smaller differences are shown in bytes, since they would read 0.0 %
MAX_SWAPPED = 3  # pairs that one line names before it only counts them


def csv(comparison: Comparison) -> str:
    """Return a CSV line per row and side, the baseline's too; cells without a value are empty."""

    def line(match: Match, side: SideSummary, cell: Cell) -> dict[str, Any]:
        def against(quantity: str, contrast: Contrast | None) -> dict[str, Any]:
            return {f"{quantity}_{name}": getattr(contrast, name, None) for name in ("ratio", "low", "high", "verdict")}

        return {
            **match.key, "side": side.label, "run": side.run, "device": side.device, "predicted": cell.predicted,
            "evidence": cell.evidence, "baseline_evidence": getattr(match.cells[0], "evidence", None),
            "outcome": cell.outcome, "detail": cell.detail, "peak_bytes": cell.peak_bytes, **against("peak", cell.peak),
            "step_seconds": cell.step_seconds, **against("time", cell.time),
        }  # fmt: skip

    lines = [
        line(match, side, cell)
        for match in comparison.matches
        for side, cell in zip(comparison.sides, match.cells, strict=True)
        if cell
    ]
    return csv_text([*map(list, lines[:1]), *(map(safe, one.values()) for one in lines)])


def tables(comparison: Comparison) -> list[Table]:
    """Return what differs, which explains the numbers, then the peak and time of every row, orders, advice, remarks."""
    groups: dict[str, list[Match]] = {}
    for match in comparison.matches:
        shared = [
            text if name in ("model", "precision") else f"{name.replace('_size', '')} {text}"
            for name, text in match.key.items()
            if name != "strategy"
        ]
        groups.setdefault(", ".join(shared) or "all rows", []).append(match)
    is_mixed = _is_mixed(comparison)
    runs = [f"{side.label}: {side.run}{f', {side.evidence}' if is_mixed else ''}" for side in comparison.sides]
    found = comparison.differences
    columns = (
        words("differs", "", [difference.what for difference in found]),
        *(
            words(side.name, "", [device_word(difference.values[place]) for difference in found])
            for place, side in enumerate(comparison.sides)
        ),
    )
    alike = ", ".join(
        f"{same.what} {device_word(same.values[0])}" for same in comparison.same if same.values[0] != MISSING
    )
    below = (f"{'' if found else 'nothing differs; '}the same in all: {alike}",) if alike else ()
    shown = [Table(above=(f"{runs[0]}, the baseline", *runs[1:]), columns=columns if found else (), below=below)]
    for name, matches in groups.items():
        shown += [_quantity(comparison, name, matches, quantity) for quantity in ("peak", "step")]
        shown.append(Table(below=tuple(line for match in matches for line in _troubles(comparison, match))))
    notes = Table(below=tuple(f"note: {remark}" for remark in comparison.remarks))
    first, lines, is_grouped = comparison.sides[0], [], len({order.group for order in comparison.orders}) > 1
    for order in comparison.orders:
        of = f" ({', '.join(order.group)})" if is_grouped else ""
        side = next(side for side in comparison.sides if side.label == order.label)
        is_one_kind = side.evidence == first.evidence
        held = f"{side.label} against {first.label}" if is_one_kind else f"{_named(side)} against {_named(first)}"
        left_out = f", without {order.num_left_out:,} more than {MOST_STRATEGIES}" if order.num_left_out else ""
        lines.append(f"by {order.quantity}, {held}{of}{left_out}: {_agreement(order)}")
    orders = Table(title="order of the strategies", above=tuple(lines)) if lines else Table()
    return [*shown, orders, *_advice(comparison), notes]


def _is_mixed(comparison: Comparison) -> bool:
    """Whether the sides have different kinds of evidence, which are then named everywhere."""
    return len({side.evidence for side in comparison.sides}) > 1


def _named(side: SideSummary) -> str:
    return f"{side.label} {side.evidence}"


def _quantity(comparison: Comparison, group: str, matches: Sequence[Match], quantity: str) -> Table:
    """Return the table of peaks or of step times: a column of values per side, then the changes against the first."""
    first, is_time, is_mixed = comparison.sides[0], quantity == "step", _is_mixed(comparison)
    read: Callable[[Cell], Any] = attrgetter("step_seconds" if is_time else "peak_bytes")
    known = [read(cell) for match in matches for cell in match.cells if cell]
    size, unit = units.second_unit(known) if is_time else units.byte_unit(known)
    if is_time and not any(known):
        return Table()
    baselines, *_ = cells = [*zip(*(match.cells for match in matches), strict=True)]
    sides = [  # of times without those that were rehearsed, which have none
        (side, own)
        for side, own in zip(comparison.sides, cells, strict=True)
        if not is_time or side.evidence != "rehearsed" or any(cell and cell.step_seconds for cell in own)
    ]
    columns, cuts = [words("strategy", "", map(_name, matches))], [1]
    for side, own in sides:
        is_plain = side.evidence == "measured" and not is_mixed
        bad = [cell.outcome.replace("_", " ") if cell and cell.outcome != "ok" else "" for cell in own]
        texts = [word or scaled(read(cell) if cell else None, size) for word, cell in zip(bad, own, strict=True)]
        columns.append(numbers(side.name, unit if is_plain else f"{side.evidence} {unit}", texts))
    others = sides[1:] if sides and sides[0][0] is first else []
    for side, own in others:
        cuts.append(len(columns))
        contrasts = [(cell.time if is_time else cell.peak) if cell else None for cell in own]
        changes = [*map(_change, contrasts)] if is_time else [*map(_peak_change, baselines, own)]
        if is_time or first.evidence == side.evidence:
            verdicts = [contrast.verdict if contrast else MISSING for contrast in contrasts]
            against = numbers(side.label, f"against {first.label}", changes)
            columns += [against, words(side.label, "verdict", verdicts)]
        else:
            equal = [contrast is not None and contrast.verdict == "same" for contrast in contrasts]
            errors = ["equal" if is_equal else change for is_equal, change in zip(equal, changes, strict=True)]
            columns.append(numbers(_named(side), f"off {_named(first)} by", errors))
    apart = [_named(side) for side, _ in others if side.evidence != first.evidence]
    held = f", {' and '.join(apart)} against {_named(first)}" if apart else ""
    return Table(title=f"{quantity}{held}: {group}", columns=tuple(columns), cuts=tuple(cuts))


def _name(match: Match) -> str:
    return match.key.get("strategy", "any")


def _peak_change(baseline: Cell | None, cell: Cell | None) -> str:
    """Return the change of a peak, in bytes if a percentage would round to zero."""
    before, after = (either.peak_bytes if either else None for either in (baseline, cell))
    if before is None or after is None or cell is None:
        return MISSING
    is_small = before != after and abs(after - before) < SMALLEST * before
    return f"{'+' if after > before else ''}{units.bytes_text(after - before)}" if is_small else _change(cell.peak)


def _change(contrast: Contrast | None) -> str:
    if contrast is None or contrast.verdict == "too noisy to tell":
        return "too noisy" if contrast else MISSING
    text, low, high = change_text(contrast.ratio), contrast.low, contrast.high
    return text if low is None or high is None else f"{text} ({units.change_range_text((low, high))})"


def _troubles(comparison: Comparison, match: Match) -> list[str]:
    """Return the lines on a row that is not on every side, or not ok."""
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


def _agreement(order: Order) -> str:
    num_apart = order.num_same + len(order.swapped)
    alike = "equal" if order.quantity == "peak" else "too close to tell"
    close = f"; {order.num_close} {alike}" if order.num_close else ""
    if not num_apart:
        return f"no pair of strategies can be told apart on both{close}"
    if not order.swapped:
        return f"{f'all {num_apart} pairs' if num_apart > 1 else 'the one pair'} in the same order{close}"
    named = "; ".join(" and ".join(pair) for pair in order.swapped[:MAX_SWAPPED])
    more = f"; and {len(order.swapped) - MAX_SWAPPED} more" if len(order.swapped) > MAX_SWAPPED else ""
    share = f"{order.num_same} of {units.count_text(num_apart, 'pair')} in the same order (tau {order.tau:.2f})"
    return f"{share}; swapped: {named}{more}{close}"


def _advice(comparison: Comparison) -> list[Table]:
    if all(side.evidence == "rehearsed" for side in comparison.sides):
        return []  # nothing is the fastest without times
    plain = "" if _is_mixed(comparison) else "measured"
    kinds = [(side, "" if side.evidence == plain else f" ({side.evidence})") for side in comparison.sides]
    names = {side.label: f"{side.name}{kind}" for side, kind in kinds}
    groups = by_key((side_advice.group, side_advice) for side_advice in comparison.advice)
    shown = []
    for group, advice in groups.items():
        size, unit = units.second_unit(side_advice.step_seconds for side_advice in advice)
        columns = (
            words("on", "", [names[one.label] for one in advice]),
            words("use", "", [one.strategy or one.reason or MISSING for one in advice]),
            numbers("memory", "MiB", [scaled(one.memory_bytes, units.MIB) for one in advice]),
            numbers("needs", "MiB", [scaled(one.needed_bytes, units.MIB) for one in advice]),
            numbers("step", unit, [scaled(one.step_seconds, size) for one in advice]),
        )
        of_group = f": {', '.join(group)}" if len(groups) > 1 and group else ""
        shown.append(Table(title=f"the fastest that fits each memory{of_group}", columns=columns))
    return shown


def script_tables(comparisons: Sequence[ScriptComparison]) -> list[Table]:
    """Return a table for each comparison, without the parts of the key that are the same throughout.

    The line is that at the peak, both where they differ, with an outcome that is not ok.
    """
    tables = []
    for compared in comparisons:
        size, unit = units.byte_unit(
            one.peak_bytes for pair in compared.pairs for one in (pair.before, pair.after) if one
        )
        keys = {at: {pair.key[at] for pair in compared.pairs} for at in range(len(SCRIPT_KEYS))}
        varying = [at for at, values in keys.items() if len(values) > 1 or at == 4]
        figure_heads = [head for quantity in QUANTITIES for head in (f"{quantity} {unit}", "now", "change")]
        lines = []
        for pair in compared.pairs:
            figures = []
            for quantity in QUANTITIES:
                ratio = pair.ratio(quantity)
                change = "same" if ratio == 1 else change_text(ratio)
                figures += [*(scaled(count, size) for count in pair.taken(quantity)), change]
            points = [point for point in (pair.before, pair.after) if point]
            code = " -> ".join(dict.fromkeys(point.line for point in points if point.line))
            bad = [point.outcome.replace("_", " ") for point in points if not point.is_ok and pair.key[-1] == WHOLE]
            code = ", ".join([code, *dict.fromkeys(bad)]) if bad else code
            lines.append([*(pair.key[at] for at in varying), *figures, code])
        bold = {at for at, pair in enumerate(compared.pairs) if WHOLE in pair.key}
        heads = [*(SCRIPT_KEYS[at] for at in varying), *figure_heads, "line"]
        columns = of_lines(heads, lines, numbers=figure_heads, bold=bold)
        notes = tuple(f"note: {remark}" for remark in compared.remarks)
        tables.append(Table(title=f"{compared.before} -> {compared.after}", columns=columns, below=notes))
    return tables


def script_csv(comparisons: Sequence[ScriptComparison]) -> str:
    """Return a line for each pair, in bytes."""
    figures = [f"{quantity}_bytes_{side}" for quantity in QUANTITIES for side in ("before", "after")]
    lines: list[list[Any]] = [["run", "against", *SCRIPT_KEYS, *figures, "outcome"]]
    for compared, pair in ((each, pair) for each in comparisons for pair in each.pairs):
        taken = [count for quantity in QUANTITIES for count in pair.taken(quantity)]
        lines.append([compared.after, compared.before, *pair.key, *taken, pair.after and pair.after.outcome])
    return csv_text([safe(value) for value in line] for line in lines)


def script_document(comparisons: Sequence[ScriptComparison]) -> list[dict[str, Any]]:
    """Return what a document has of each comparison: each pair with its key's parts by name."""
    return [
        {
            "run": compared.after,
            "against": compared.before,
            "remarks": compared.remarks,
            "pairs": [
                {**dict(zip(SCRIPT_KEYS, pair.key, strict=True)), "before": pair.before, "after": pair.after}
                for pair in compared.pairs
            ],
        }
        for compared in comparisons
    ]


# ---- published figures beside ours


def published_table(reproduction: Reproduction) -> Table:
    """Return every published figure beside ours, then what the source does not say and what was reduced."""
    lines, environment = reproduction.lines, reproduction.environment
    name = card(environment.device_name if environment else None) or device_word(reproduction.device)
    torch = [f"torch {environment.torch}"] if environment and environment.torch else []
    size = "reduced size" if reproduction.reduced else "the published size"
    evidence = [SAID[reproduction.evidence]] if reproduction.evidence in SAID else []
    columns = (
        words("what", "", [line.what for line in lines]),
        words("published", "", map(_published, lines)),
        numbers("ours", "", map(_ours, lines)),
        numbers("difference", "", map(_difference, lines)),
    )
    title = ", ".join([f"{reproduction.name}: {reproduction.title}", size, name, *evidence, *torch])
    reasons: dict[str, dict[str, None]] = {}
    for line in lines:
        if line.reason:
            reasons.setdefault(line.reason, {})[line.what.partition(": ")[0]] = None
    below = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
    notes = {line.note: line.what for line in reversed(lines) if line.note}
    below += [f"note: {figure}: {note}" for note, figure in reversed(notes.items())]
    if any(line.spread is not None for line in lines):
        below.append(
            "±: half the interquartile range of the steps, its own or the baseline's, or half the range of the rounds"
        )
    if any(line.unit == "M" for line in lines):
        below.append("M: the source does not say which unit; differences take it for MiB")
    below.append(f"source: {reproduction.source}")
    below += [f"the source does not say: {'; '.join(reproduction.unsaid)}"] if reproduction.unsaid else []
    if reproduction.reduced:
        below.append(f"reduced for a CPU: {reproduction.reduced}; --full runs the published size")
    return Table(title=title, columns=columns, below=tuple(below))


def _published(line: ComparedFigure) -> str:
    if line.published is None:
        return "not given"
    said = str(line.published)
    if isinstance(line.published, (int, float)):  # unrounded
        sign = "+" if line.kind == "change" and line.published > 0 else ""
        said = f"{sign}{line.published:,} {line.unit}".rstrip()
    return f"{said} (by hand)" if line.arithmetic else said


def _ours(line: ComparedFigure) -> str:
    if line.ours is None:
        return "no fit" if line.kind == "number" and line.reason is None and "power" in line.what else MISSING
    if isinstance(line.ours, str):
        return line.ours
    unit = "MiB" if line.unit == "M" else line.unit
    ours = in_unit_text(line.ours, unit, signed=line.kind == "change")
    return ours if line.spread is None else f"{ours} {units.spread_text(line.spread)}"


def _difference(line: ComparedFigure) -> str:
    if line.ours is None or line.published is None:
        return MISSING
    if line.other_size:
        return "other size"
    if line.difference is None:
        are_texts = isinstance(line.ours, str) and isinstance(line.published, str)
        return ("none" if line.ours == line.published else "differs") if are_texts else MISSING
    if line.difference == 0:
        return "none"
    if line.kind in ("change", "share"):
        return in_unit_text(line.difference, "points", signed=True)
    if line.kind == "number" or line.unit == "B" or line.relative is None:
        return in_unit_text(line.difference, line.unit, signed=True)
    return in_unit_text(100 * line.relative, "%", signed=True)
