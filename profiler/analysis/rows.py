"""Records -> one row a case, against its baseline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from profiler.analysis import trust
from profiler.core.case import Case
from profiler.core.record import (
    Built,
    Environment,
    Equality,
    Evidence,
    Note,
    Readings,
    Record,
    Shortage,
    evidence,
    is_reproducible,
)
from profiler.core.stats import interval, spread

Point = tuple[int, float]  # peak in bytes, step in seconds


class TwinPeak(NamedTuple):
    """The peak of one of the cases that are the same point, on a device of the same kind."""

    case: Case
    evidence: Evidence
    peak_bytes: int | None


TwinPeaks = dict[Case, list[TwinPeak]]  # by twin; nothing where a run has no predictions, or nothing else


class Row(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All that is known of one case, its rounds pooled. None where a number was not measured."""

    case: Case
    baseline: Case  # the same point without checkpointing: of all rows that may be compared with this one
    outcome: str
    detail: str | None
    built: Built | None
    readings: Readings  # memory of the first round, time samples of all rounds
    equality: Equality | None
    environment: Environment | None
    gradients: str  # "bit-equal", "within noise", "not verifiable", "differ", "missing", "not checked", "-"
    static_bytes: int | None  # the sum over the categories: there in every step, whatever one checkpoints
    peak_ratio: float | None  # to the same case without checkpointing; None where the outcome is not ok: no saving
    step_seconds: float | None  # median over all rounds
    step_spread: float | None  # half the interquartile range over the median
    step_interval: tuple[float, float] | None  # that holds the median at 95 %, over all rounds
    rounds: tuple[Record, ...]  # in order, each with its own samples
    time_ratio: float | None  # median over the rounds of the ratio within a round
    time_ratio_range: tuple[float, float] | None  # smallest and largest of these ratios
    prediction_error: float | None  # predicted over measured peak, less 1; over the rehearsed where none was measured
    prediction_against: Evidence | None  # which of the two
    notes: tuple[Note, ...]
    on_frontier: bool  # no other row of its group has both a lower peak and a lower time

    @property
    def evidence(self) -> Evidence:
        """What its numbers are evidence of."""
        return evidence(self.case, self.environment)


def rows(records: Iterable[Record]) -> tuple[Row, ...]:
    """One row for each case, in the order in which the cases first appear."""
    rounds: dict[Case, list[Record]] = {}
    for record in latest(records):
        rounds.setdefault(record.case, []).append(record)
    pooled = {case: _pool(case_records) for case, case_records in rounds.items()}
    peaks, drifts = _twin_peaks(pooled), trust.between_rounds(rounds)
    baselines: dict[Case, _Baseline] = {}
    built = []
    for case, record in pooled.items():
        own = case.baseline
        if own not in baselines:
            baselines[own] = _Baseline.of(own, rounds.get(own, []), pooled.get(own), drifts.get(own))
        built.append(_row(record, rounds[case], baselines[own], peaks))
    return _with_frontiers(built)


def latest(records: Iterable[Record]) -> list[Record]:
    """The last word on each round of each case: a trial that was run again replaces its first attempt."""
    return list({(record.case, record.round): record for record in records}.values())


def group(row: Row) -> Case:
    """What rows must share to be compared: everything but the strategy."""
    return row.baseline


def static(readings: Readings) -> int | None:
    """All static bytes: there in every step, whatever one checkpoints."""
    return None if readings.static_bytes is None else sum(readings.static_bytes.values())


def _pool(records: list[Record]) -> Record:
    """The first record with the time samples of all; the worst outcome speaks for the case."""
    if len(records) == 1:
        return records[0]
    records = sorted(records, key=lambda record: record.round)
    first = records[0]
    worst = next((record for record in records if record.outcome != "ok"), first)
    names = ("warmup_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds", "step_seconds")
    samples = {name: _joined([getattr(record.readings, name) for record in records]) for name in names}
    readings = msgspec.structs.replace(first.readings, **samples)
    return msgspec.structs.replace(first, readings=readings, outcome=worst.outcome, detail=worst.detail)


def _joined(samples: list[tuple[float, ...] | None]) -> tuple[float, ...] | None:
    measured = [series for series in samples if series]
    return tuple(second for series in measured for second in series) or None


class _Baseline(NamedTuple):
    """What the rows of one group are held against."""

    case: Case
    rounds: list[Record]
    peak_bytes: int | None
    seconds: dict[int, float]  # the median step of each round that has one
    drift: tuple[Note, ...]  # of all rows of the group together

    @classmethod
    def of(cls, case: Case, rounds: list[Record], pooled: Record | None, drift: Note | None) -> _Baseline:
        medians = {record.round: median(record.readings.step_seconds or (0.0,)) for record in rounds}
        return cls(
            case=case,
            rounds=rounds,
            peak_bytes=pooled.readings.peak_bytes if pooled else None,
            seconds={number: seconds for number, seconds in medians.items() if seconds},
            drift=(drift,) if drift else (),
        )


def _row(record: Record, rounds: list[Record], baseline: _Baseline, peaks: TwinPeaks) -> Row:
    """The row of a case: its rounds pooled in one record, and each by itself."""
    case, is_ok = record.case, record.outcome == "ok"
    ratios = _time_ratios(rounds, baseline.seconds) if is_ok else []
    seconds = record.readings.step_seconds
    error, against = _prediction_error(record, peaks.get(case.twin, [])) if peaks else (None, None)
    doubts = trust.doubts(rounds, ratios, baseline=baseline.rounds)
    notes = [*[note for record in rounds for note in record.notes], *baseline.drift, *doubts]
    return Row(
        case=case,
        baseline=baseline.case,
        outcome=record.outcome,
        detail=record.detail,
        built=record.built,
        readings=record.readings,
        equality=record.equality,
        environment=record.environment,
        gradients=verdict(record),
        static_bytes=static(record.readings),
        peak_ratio=_ratio(record.readings.peak_bytes, baseline.peak_bytes) if is_ok else None,
        step_seconds=median(seconds) if seconds else None,
        step_spread=spread(seconds) if seconds else None,
        step_interval=interval(seconds) if seconds else None,
        rounds=tuple(sorted(rounds, key=lambda record: record.round)),
        time_ratio=median(ratios) if ratios else None,
        time_ratio_range=(min(ratios), max(ratios)) if ratios else None,
        prediction_error=error,
        prediction_against=against,
        notes=tuple({note.code: note for note in notes}.values()) if notes else (),
        on_frontier=False,
    )


def _twin_peaks(pooled: dict[Case, Record]) -> TwinPeaks:
    """What each point peaks at, by every kind of evidence; nothing where there are no predictions beside others."""
    peaks: TwinPeaks = {}
    if len({case.is_predicted for case in pooled}) < 2:
        return peaks
    for case, record in pooled.items():
        if record.outcome == "ok":
            peak = TwinPeak(case, evidence(case, record.environment), record.readings.peak_bytes)
            peaks.setdefault(case.twin, []).append(peak)
    return peaks


def _prediction_error(record: Record, twins: Sequence[TwinPeak]) -> tuple[float | None, Evidence | None]:
    """How far the predicted peak is off, and what it is held against: the measured peak, else the rehearsed."""
    case, peak = record.case, record.readings.peak_bytes
    held = [twin for twin in twins if foretells(case, twin.case) or foretells(twin.case, case)]
    if record.outcome != "ok" or not held:
        return None, None
    twin = min(held, key=lambda twin: twin.evidence)  # measured before rehearsed
    ratio = _ratio(peak, twin.peak_bytes) if case.is_predicted else _ratio(twin.peak_bytes, peak)
    against = twin.evidence if case.is_predicted else evidence(case, record.environment)
    return (None, None) if ratio is None else (ratio - 1, against)


def foretells(predicted: Case, case: Case) -> bool:
    """Whether a prediction is of its twin, this case; that of another GPU than the rehearsed one is not."""
    if not predicted.is_predicted or case.is_predicted:
        return False
    return not case.is_rehearsed or case.foreseen == predicted


def verdict(record: Record) -> str:
    """What the equality pass says of the gradients, in a word or two."""
    equality = record.equality
    if equality is None:
        is_measured = evidence(record.case, record.environment) == "measured"  # nothing else has gradients
        return "not checked" if is_measured and record.outcome in ("ok", "invalid") else "-"
    if equality.missing:
        return "missing"
    if any(note.code == "GCP014" for note in record.notes):
        return "not verifiable"
    if not is_reproducible(equality, record.case.precision):
        return "not verifiable"
    if record.outcome == "invalid":
        return "differ"
    return "bit-equal" if equality.gradients_equal and equality.loss_equal else "within noise"


def _time_ratios(rounds: list[Record], baseline_seconds: dict[int, float]) -> list[float]:
    """Each round's median step over the baseline's of the same round, so that drift cancels."""
    pairs = [(record.readings.step_seconds, baseline_seconds.get(record.round)) for record in rounds]
    return [median(seconds) / baseline for seconds, baseline in pairs if seconds and baseline]


def _ratio(value: int | None, baseline: int | None) -> float | None:
    return None if value is None or not baseline else value / baseline


def _with_frontiers(rows: list[Row]) -> tuple[Row, ...]:
    """The rows, those marked of whose group no other has both a lower peak and a lower time, or one of them as low."""
    points = [_point(row) for row in rows]
    of_group: dict[Case, set[Point]] = {}
    for row, point in zip(rows, points, strict=True):
        if point is not None:
            of_group.setdefault(row.baseline, set()).add(point)
    frontiers = {case: _frontier(case_points) for case, case_points in of_group.items()}
    return tuple(
        [
            msgspec.structs.replace(row, on_frontier=True)
            if point is not None and point in frontiers[row.baseline]
            else row
            for row, point in zip(rows, points, strict=True)
        ]
    )


def _frontier(points: set[Point]) -> set[Point]:
    frontier: set[Point] = set()
    fastest = float("inf")
    for peak, seconds in sorted(points):
        if seconds < fastest:
            fastest = seconds
            frontier.add((peak, seconds))
    return frontier


def _point(row: Row) -> Point | None:
    peak, seconds = row.readings.peak_bytes, row.step_seconds
    return (peak, seconds) if row.outcome == "ok" and peak is not None and seconds is not None else None


def is_all_out_of_memory(rows: Iterable[Row]) -> bool:
    """Whether nothing that could be tried at all fits; what was skipped was not tried."""
    tried = {row.outcome for row in rows} - {"skipped"}
    return tried == {"out_of_memory"}


def smallest_request(rows: Sequence[Row]) -> Shortage | None:
    """The failed request for the fewest bytes; None where no error told its size."""
    shortages = [record.shortage for row in rows for record in row.rounds if record.shortage]
    requests = [shortage for shortage in shortages if shortage.asked_bytes is not None]
    return min(requests, key=lambda shortage: shortage.asked_bytes or 0, default=None)
