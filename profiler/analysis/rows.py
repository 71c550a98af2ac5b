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
    built = [_row(case, rounds, pooled, peaks, drifts.get(case.baseline)) for case in rounds]
    frontiers = _frontiers(built)
    return tuple(
        msgspec.structs.replace(row, on_frontier=True) if _point(row) in frontiers[group(row)] else row for row in built
    )


def latest(records: Iterable[Record]) -> list[Record]:
    """The last word on each round of each case: a trial that was run again replaces its first attempt."""
    return list({(record.case, record.round): record for record in records}.values())


def group(row: Row) -> Case:
    """What rows must share to be compared: everything but the strategy."""
    return row.case.baseline


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


def _row(
    case: Case, rounds: dict[Case, list[Record]], pooled: dict[Case, Record], peaks: TwinPeaks, drift: Note | None
) -> Row:
    record, own_rounds, baseline = pooled[case], rounds[case], case.baseline
    none = pooled.get(baseline)
    ratios = _time_ratios(own_rounds, rounds.get(baseline, [])) if record.outcome == "ok" else []
    baseline_peak = none.readings.peak_bytes if none and record.outcome == "ok" else None
    seconds = record.readings.step_seconds
    error, against = _prediction_error(record, peaks.get(case.twin, [])) if peaks else (None, None)
    doubts = trust.doubts(own_rounds, ratios, baseline=rounds.get(baseline, []))
    notes = [*(note for record in own_rounds for note in record.notes), *([drift] if drift else []), *doubts]
    return Row(
        case=case,
        outcome=record.outcome,
        detail=record.detail,
        built=record.built,
        readings=record.readings,
        equality=record.equality,
        environment=record.environment,
        gradients=verdict(record),
        static_bytes=static(record.readings),
        peak_ratio=_ratio(record.readings.peak_bytes, baseline_peak),
        step_seconds=median(seconds) if seconds else None,
        step_spread=spread(seconds) if seconds else None,
        step_interval=interval(seconds) if seconds else None,
        rounds=tuple(sorted(own_rounds, key=lambda record: record.round)),
        time_ratio=median(ratios) if ratios else None,
        time_ratio_range=(min(ratios), max(ratios)) if ratios else None,
        prediction_error=error,
        prediction_against=against,
        notes=tuple({note.code: note for note in notes}.values()),
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


def _time_ratios(rounds: list[Record], baseline: list[Record]) -> list[float]:
    """Each round's median step over the baseline's of the same round, so that drift cancels."""
    of_round = {record.round: record.readings.step_seconds for record in baseline}
    pairs = [(record.readings.step_seconds, of_round.get(record.round)) for record in rounds]
    return [median(mine) / median(none) for mine, none in pairs if mine and none and median(none)]


def _ratio(value: int | None, baseline: int | None) -> float | None:
    return None if value is None or not baseline else value / baseline


def _frontiers(rows: list[Row]) -> dict[Case, set[Point]]:
    """The points of each group that no other has both a lower peak and a lower time than, or one of them as low."""
    points: dict[Case, set[Point]] = {}
    for row in rows:
        points.setdefault(group(row), set()).update([point] if (point := _point(row)) else [])
    frontiers: dict[Case, set[Point]] = {}
    for case, case_points in points.items():
        fastest = float("inf")
        frontiers[case] = set()
        for peak, seconds in sorted(case_points):
            if seconds < fastest:
                fastest = seconds
                frontiers[case].add((peak, seconds))
    return frontiers


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
