"""Turns runs into the sides of a comparison, and compares two of their rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET

from profiler.analysis.cross_run_ratio import Contrast, estimated, exact, sampled
from profiler.analysis.row_times import samples_of_rounds
from profiler.analysis.rows import Row, latest, rows
from profiler.analysis.timing_doubts import stolen
from profiler.core.case import FAKE, SETTINGS, SWITCHES, Case, Choice, as_word
from profiler.core.errors import UserError
from profiler.core.gpu_kinds import REHEARSE
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


class SampledRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row with the times of its steps by round."""

    row: Row
    rounds: tuple[tuple[float, ...], ...]
    stolen: float | None = None  # by what fraction its steps were longer because they had no core; None if it is small

    @property
    def peak_bytes(self) -> int | None:
        """The peak; None if the row is not ok."""
        return self.row.readings.peak_bytes if self.row.outcome == "ok" else None

    @property
    def step_seconds(self) -> float | None:
        """The median step; None if the row is not ok."""
        return self.row.step_seconds if self.row.outcome == "ok" else None


def peaks(before: SampledRow, after: SampledRow) -> Contrast | None:
    """Compare the peaks; None if either row is not ok or has none."""
    first, second = before.peak_bytes, after.peak_bytes
    if first is None or second is None:
        return None
    return exact(first, second, is_of_two_kinds=before.row.evidence != after.row.evidence)


def times(before: SampledRow, after: SampledRow) -> Contrast | None:
    """Compare the steps; None if either row is not ok or was not timed. A prediction has no noise of its own."""
    first, second = before.step_seconds, after.step_seconds
    if first is None or second is None:
        return None
    if before.row.case.has_estimated_times and after.row.case.has_estimated_times:
        return estimated(first, second)
    floors = (noise for point in (before, after) for noise in (point.row.time_floor, point.stolen) if noise is not None)
    return sampled(_rounds(before), _rounds(after), floor=max(floors, default=None))


def _rounds(point: SampledRow) -> tuple[tuple[float, ...], ...]:
    """Return the samples by round; a prediction's twice, as two rounds of equal samples."""
    return point.rounds * 2 if point.row.case.has_estimated_times else point.rounds


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one run on one device."""

    label: str  # A, B, ...
    number: int  # of the run, from 0: the baseline's
    run: str
    device: str
    points: dict[Key, SampledRow]

    @property
    def name(self) -> str:
        """The label with a short name of the device: "B h100"."""
        named = next((row.environment.device_name for row in self.rows if row.environment), None)
        match = SHORT.search(named or "") if self.device.startswith("cuda") else None
        word = match[0] if match else Choice(self.device).name.removeprefix(REHEARSE).removeprefix(FAKE)
        return f"{self.label} {word}"

    @property
    def rows(self) -> list[Row]:
        return [point.row for point in self.points.values()]

    @property
    def evidence(self) -> str:
        """Measured, rehearsed or predicted; several are joined."""
        return ", ".join(sorted({row.evidence for row in self.rows}))


def sides(runs: Iterable[tuple[str, Iterable[Record]]], *, align: Sequence[str]) -> tuple[Side, ...]:
    """Return a side for each run and device, in order; the first is the baseline.

    Raises UserError (exit code 4) if two rows of a side would be one.
    """
    compared: list[Side] = []
    for number, (name, records) in enumerate(runs):
        last = latest(records)
        for device in dict.fromkeys(record.case.device for record in last):
            own = [record for record in last if record.case.device == device]
            label, points = _label(len(compared)), _points(own, name, align)
            compared.append(Side(label=label, number=number, run=name, device=device, points=points))
    return tuple(compared)


def without_strategy(key: Key, align: Sequence[str]) -> Key:
    """Return the key without the strategy: rows that share it have strategies that can be compared."""
    return tuple(text for name, text in zip(align, key, strict=True) if name != "strategy")


def by_group(side: Side, align: Sequence[str]) -> dict[Key, dict[Key, SampledRow]]:
    """Return the rows of a side, grouped by their key without the strategy."""
    groups: dict[Key, dict[Key, SampledRow]] = {}
    for key, point in side.points.items():
        groups.setdefault(without_strategy(key, align), {})[key] = point
    return groups


def value(row: Row, name: str) -> str:
    """Return one of ALLOWED for a row, as text."""
    if name == TORCH:
        return (row.environment.torch or "").partition("+")[0] if row.environment else ""
    if name == BUILT:
        return str(row.built.num_parameters) if row.built else ""
    if name == "data":
        return row.data or row.case.data
    field = row.case.num_ranks if name == "ranks" else getattr(row.case, name)
    if field is UNSET:
        return next(iter(SETTINGS[name].choices), "none") if name in SETTINGS else "none"
    return "own" if field is None else as_word(field)


def _label(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else f"{_label(number // 26 - 1)}{_label(number % 26)}"


def _points(records: list[Record], run: str, align: Sequence[str]) -> dict[Key, SampledRow]:
    rounds: dict[Case, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.round):
        rounds.setdefault(record.case, []).append(record)
    points: dict[Key, SampledRow] = {}
    for row in rows(records):
        key = tuple(value(row, name) for name in align)
        if key in points:
            raise _doubled(run, row, points[key].row, align)
        samples = tuple(samples_of_rounds(rounds[row.case]))
        points[key] = SampledRow(row=row, rounds=samples, stolen=stolen(rounds[row.case]))
    return points


def _doubled(run: str, row: Row, other: Row, align: Sequence[str]) -> UserError:
    between = [name for name in MEANING if name not in align and value(row, name) != value(other, name)]
    shown = ", ".join(between) or "how they were sampled"
    hint = f"--align {','.join([*align, *between])}" if between else "compare runs of one sweep each"
    return UserError(f"two rows of {run} for {row.case.strategy} differ in {shown} alone", hint=hint, exit_code=4)
