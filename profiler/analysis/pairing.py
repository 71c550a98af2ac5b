"""Turns runs into the sides of a comparison, compares two of their rows, and refuses sides that cannot be compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET

from profiler.analysis import time_ratio
from profiler.analysis.rows import Row, against, latest, rows
from profiler.analysis.time_ratio import TimeVerdict, stolen
from profiler.core.case import SETTINGS, SWITCHES, as_word
from profiler.core.errors import UserError
from profiler.core.gpu_specs import parse
from profiler.core.record import Record

ALIGN = ("model", "strategy", "batch_size", "precision")
MEANING = (
    *ALIGN, "optimizer", "accumulate", *SWITCHES, "blocks", "data", "seed", "parallel",
    "ranks", "routing",
)  # fmt: skip
BUILT = "num_parameters"  # distinguishes models of the same name
TORCH = "torch"
ALLOWED = (*MEANING, BUILT, TORCH)  # what --allow-different takes
SHORT = re.compile(r"\b(?:RTX )?[A-Z]{0,3}\d{2,4}[A-Z]?\b|\b[A-Z]\d\b")  # H100, RTX 4090, T4

Key = tuple[str, ...]  # the values, as text, that rows are aligned by
Verdict = TimeVerdict | Literal["better", "worse", "off"]  # of bytes; off: different, but of two kinds of evidence


class Contrast(msgspec.Struct, frozen=True, kw_only=True):
    """A value over the baseline's; less is better."""

    ratio: float | None  # None if the baseline is zero
    low: float | None = None  # the interval at LEVEL; None if there is none: exact, or a single sample
    high: float | None = None
    verdict: Verdict


def peak_of(row: Row) -> int | None:
    """Return the peak; None if the row is not ok."""
    return row.readings.peak_bytes if row.outcome == "ok" else None


def seconds_of(row: Row) -> float | None:
    """Return the median step; None if the row is not ok."""
    return row.step_seconds if row.outcome == "ok" else None


def peaks(before: Row, after: Row) -> Contrast | None:
    """Compare the peaks, exactly; None if either row is not ok or has none.

    Between two kinds of evidence, such as a measurement and a rehearsal, neither is better.
    """
    first, second = peak_of(before), peak_of(after)
    if first is None or second is None:
        return None
    if first == second:
        return Contrast(ratio=1.0, verdict="same")
    verdict: Verdict = "off" if before.evidence != after.evidence else "better" if second < first else "worse"
    return Contrast(ratio=second / first if first else None, verdict=verdict)


def times(before: Row, after: Row) -> Contrast | None:
    """Compare the steps; None if either row is not ok or was not timed. A prediction has no noise of its own."""
    first, second = seconds_of(before), seconds_of(after)
    if first is None or second is None:
        return None
    time = against(after, before, is_one_run=False)
    are_estimates = before.case.has_estimated_times and after.case.has_estimated_times
    if time is None or time.interval is None:
        is_same = first == second and (are_estimates or first == 0)
        return Contrast(ratio=time.ratio if time else None, verdict="same" if is_same else "cannot be told apart")
    if are_estimates:
        return Contrast(ratio=time.ratio, verdict=time_ratio.verdict(time))
    floors = (before.time_floor, after.time_floor, stolen(before.rounds), stolen(after.rounds))
    floor = max((noise for noise in floors if noise is not None), default=None)
    return Contrast(ratio=time.ratio, low=time.low, high=time.high, verdict=time_ratio.verdict(time, floor=floor))


# by quantity: what a row has of it, and how two rows compare
QUANTITIES: dict[str, tuple[Callable[[Row], float | None], Callable[[Row, Row], Contrast | None]]] = {
    "peak": (peak_of, peaks),
    "time": (seconds_of, times),
}


class SideSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run on one device, without its rows."""

    label: str  # A, B, ...
    name: str  # the label with a short name of the device: "B h100"
    run: str
    device: str
    predicted: bool
    evidence: str  # measured, rehearsed or predicted; several are joined


class Side(SideSummary, frozen=True, kw_only=True):
    """The rows of one run on one device."""

    number: int  # of the run, from 0: the baseline's
    points: dict[Key, Row]

    @property
    def rows(self) -> list[Row]:
        return list(self.points.values())

    @property
    def summary(self) -> SideSummary:
        return SideSummary(**{name: getattr(self, name) for name in SideSummary.__struct_fields__})

    def __str__(self) -> str:
        return f"{self.label} ({self.run})"


def read_sides(runs: Iterable[tuple[str, Sequence[Record]]], *, align: Sequence[str]) -> tuple[Side, ...]:
    """Return a side for each run, by name, and device, in order; the first is the baseline.

    Raises UserError (exit code 4) if there are fewer than two, a run has no records, or two rows would be one.
    """
    compared: list[Side] = []
    for number, (name, records) in enumerate(runs):
        if not records:
            raise UserError(f"'{name}' has no records yet", hint="let it run to its end, or leave it out", exit_code=4)
        last = latest(records)
        for device in dict.fromkeys(record.case.device for record in last):
            points = _points([record for record in last if record.case.device == device], name, align)
            label, kinds = _label(len(compared)), {row.evidence for row in points.values()}
            named = next((row.environment.device_name for row in points.values() if row.environment), None)
            short = SHORT.search(named or "") if device.startswith("cuda") else None
            compared.append(
                Side(
                    label=label,
                    name=f"{label} {short[0] if short else parse(device).name}",
                    run=name,
                    device=device,
                    predicted=parse(device).is_predicted,
                    evidence=", ".join(sorted(kinds)),
                    number=number,
                    points=points,
                )
            )
    if len(compared) < 2:
        raise UserError("there is only one run on one device here", hint="name two runs", exit_code=4)
    return tuple(compared)


def _label(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else f"{_label(number // 26 - 1)}{_label(number % 26)}"


def _points(records: list[Record], run: str, align: Sequence[str]) -> dict[Key, Row]:
    points: dict[Key, Row] = {}
    for row in rows(records):
        key = tuple(value(row, name) for name in align)
        if key in points:
            apart = [name for name in MEANING if name not in align and value(row, name) != value(points[key], name)]
            shown = ", ".join(apart) or "how they were sampled"
            hint = f"--align {','.join([*align, *apart])}" if apart else "compare runs of one sweep each"
            raise UserError(f"two rows of {run} for {row.case.label} differ in {shown} alone", hint=hint, exit_code=4)
        points[key] = row
    return points


def value(row: Row, name: str) -> str:
    """Return one of ALLOWED for a row, as text."""
    if name == TORCH:
        return (row.environment.torch or "").partition("+")[0] if row.environment else ""
    if name == BUILT:
        return str(row.built.num_parameters) if row.built else ""
    if name == "data":
        return row.data or row.case.data
    if name == "strategy":
        return row.case.label
    field = row.case.num_ranks if name == "ranks" else getattr(row.case, name)
    if field is UNSET:
        return next(iter(SETTINGS[name].choices), "none") if name in SETTINGS else "none"
    return "own" if field is None else as_word(field)


def by_group(side: Side, align: Sequence[str]) -> dict[Key, dict[Key, Row]]:
    """Return the rows of a side, grouped by their key without the strategy: strategies that can be compared."""
    groups: dict[Key, dict[Key, Row]] = {}
    for key, row in side.points.items():
        group = tuple(text for name, text in zip(align, key, strict=True) if name != "strategy")
        groups.setdefault(group, {})[key] = row
    return groups


def refuse_mixed(sides: Sequence[Side], *, align: Sequence[str], allowed: Sequence[str]) -> None:
    """Raise UserError (exit code 4) if rows that are compared differ in a setting that is not allowed to differ.

    Also if a side has no row in common with the baseline.
    """
    baseline, *others = sides
    implied = (BUILT,) if "model" in allowed else ()
    names = [name for name in ALLOWED if name not in (*align, *allowed, *implied)]
    for side in others:
        sentences, wrong = [], [name for name in names if unequal(baseline, side, name)]
        values = {name: unequal(baseline, side, name) or ("", "") for name in wrong}
        if not any(key in side.points for key in baseline.points):
            sentences = [f"no row of {side} is in {baseline}"]
            every = {name: [{value(row, name): None for row in one.rows} for one in (baseline, side)] for name in align}
            values = {name: (" or ".join(a), " or ".join(b)) for name, (a, b) in every.items() if not set(a) & set(b)}
        sentences += [f"{name} is {mine} in {baseline}, {theirs} in {side}" for name, (mine, theirs) in values.items()]
        hint = f"to compare them anyway: --allow-different {','.join(values)}"
        if sentences:
            hint = hint if values else "`gcprof show` lists the rows of each"
            raise UserError("; ".join(sentences), hint=hint, exit_code=4)


def unequal(baseline: Side, side: Side, name: str) -> tuple[str, str] | None:
    """Return the first two values of a setting, of rows that are compared, that differ; None if none do."""
    shared = ((row, side.points[key]) for key, row in baseline.points.items() if key in side.points)
    pairs = ((value(row, name), value(other, name)) for row, other in shared)
    return next(((first, second) for first, second in pairs if first and second and first != second), None)
