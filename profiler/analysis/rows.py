"""Turns records into one row per case, compared with its baseline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from statistics import median
from typing import NamedTuple

import msgspec
from msgspec.structs import force_setattr

from profiler.analysis import row_times, time_ratio, timing_doubts
from profiler.analysis.prediction_error import TwinPeaks, prediction_error, twin_peaks
from profiler.analysis.row_times import Timed
from profiler.analysis.small_savings import reason_of_readings
from profiler.analysis.time_ratio import TimeRatio, TimeVerdict
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
from profiler.core.stats import spread

ITSELF = TimeRatio(ratio=1.0, low=1.0, high=1.0)


class Row(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All that is known of one case, its rounds pooled. None if a number was not measured."""

    case: Case
    baseline: Case  # the same case without checkpointing; rows that share it are one group, and compared
    outcome: str
    detail: str | None
    built: Built | None
    data: str | None  # the data set of any row of its group that was built; None if none was
    readings: Readings  # memory of the first round, time samples of all rounds
    equality: Equality | None
    environment: Environment | None
    gradients: str  # "bit-equal", "within noise", "not verifiable", "differ", "missing", "not checked", "-"
    static_bytes: int | None  # the sum over the categories: live in every step under every strategy
    peak_ratio: float | None  # to the same case without checkpointing; None if the outcome is not ok: no saving
    step_seconds: float | None  # median over all rounds
    step_spread: float | None  # half the interquartile range over the median
    rounds: tuple[Record, ...]  # in order, each with its own samples
    time: TimeRatio | None  # of the step to the baseline's: from pairs in one process, else from rounds
    time_verdict: TimeVerdict | None  # of the step against the baseline's
    time_floor: float | None  # noise floor of its group: how far `none` may be from itself, as a fraction
    prediction_error: float | None  # predicted over measured peak, minus 1; over the rehearsed if none was measured
    prediction_against: Evidence | None  # whether that peak was measured or rehearsed
    notes: tuple[Note, ...]
    on_frontier: bool  # no other frontier row of its group surely beats it in both peak and time

    @property
    def time_ratio(self) -> float | None:
        """The ratio without its interval."""
        return self.time.ratio if self.time else None

    @property
    def time_ratio_range(self) -> tuple[float, float] | None:
        """The interval of the ratio."""
        return self.time.interval if self.time else None

    @property
    def evidence(self) -> Evidence:
        """Whether its numbers are measured, rehearsed or predicted."""
        return evidence(self.case, self.environment)


def rows(records: Iterable[Record], *, largest: int | None = None) -> tuple[Row, ...]:
    """Return one row per case, in the order in which the cases first appear.

    In groups larger than `largest`, no row is on the frontier and only those that may need a note have a verdict: this
    saves time for callers that show neither.
    """
    rounds: dict[Case, list[Record]] = {}
    data: dict[Case, str] = {}  # data set by baseline
    for record in latest(records):
        rounds.setdefault(record.case, []).append(record)
        if record.built:
            data[record.case.baseline] = record.built.data
    pooled = {case: _pool(case_records) for case, case_records in rounds.items()}
    peaks, drifts = twin_peaks(pooled), timing_doubts.between_rounds(rounds)
    baselines: dict[Case, _Baseline] = {}
    built = []
    for case, record in pooled.items():
        own = case.baseline
        if own not in baselines:
            baselines[own] = _Baseline.of(
                own, rounds.get(own, []), pooled.get(own), drifts.get(own), data=data.get(own)
            )
        built.append(_row(record, rounds[case], baselines[own], peaks))
    return _judged(built, largest=largest)


def latest(records: Iterable[Record]) -> list[Record]:
    """Return the last record of each round of each case: a trial that ran again replaces its first attempt."""
    return list({(record.case, record.round): record for record in records}.values())


def static(readings: Readings) -> int | None:
    """Return the sum of the static bytes, which are live in every step under every strategy; None if not measured."""
    return None if readings.static_bytes is None else sum(readings.static_bytes.values())


def _pool(records: list[Record]) -> Record:
    """Return the first record with the time samples of all; the worst outcome stands for the case."""
    if len(records) == 1:
        return records[0]
    records = sorted(records, key=lambda record: record.round)
    first = records[0]
    worst = next((record for record in records if record.outcome != "ok"), first)
    names = ("warmup_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds", "step_seconds")
    samples = {
        name: tuple(chain.from_iterable(getattr(record.readings, name) or () for record in records)) or None
        for name in names
    }
    readings = msgspec.structs.replace(first.readings, **samples)
    return msgspec.structs.replace(first, readings=readings, outcome=worst.outcome, detail=worst.detail)


class _Baseline(NamedTuple):
    """What the rows of one group are compared with."""

    case: Case
    data: str | None
    rounds: list[Record]
    peak_bytes: int | None
    seconds: dict[int, float]  # the median step of each round that has one
    floor: float | None  # noise floor: how far its steps may be from themselves
    drift: tuple[Note, ...]  # the note on the drift of all rows of the group together

    @classmethod
    def of(
        cls, case: Case, rounds: list[Record], pooled: Record | None, drift: Note | None, *, data: str | None
    ) -> _Baseline:
        medians = {record.round: median(record.readings.step_seconds or (0.0,)) for record in rounds}
        return cls(
            case=case,
            data=data,
            rounds=rounds,
            peak_bytes=pooled.readings.peak_bytes if pooled else None,
            seconds={number: seconds for number, seconds in medians.items() if seconds},
            floor=time_ratio.floor_of(row_times.paired(rounds)),
            drift=(drift,) if drift else (),
        )


def _row(record: Record, rounds: list[Record], baseline: _Baseline, peaks: dict[Case, TwinPeaks]) -> Row:
    """Return the row of a case, from the record of its pooled rounds and from each round."""
    case, is_ok = record.case, record.outcome == "ok"
    time = _time(rounds, baseline) if is_ok else None
    seconds = record.readings.step_seconds
    error, against = prediction_error(record, peaks.get(case.twin)) if peaks else (None, None)
    doubts = timing_doubts.doubts(rounds, time, baseline=baseline.rounds)
    notes = (*(note for record in rounds for note in record.notes), *baseline.drift, *doubts)
    return Row(
        case=case,
        baseline=baseline.case,
        outcome=record.outcome,
        detail=record.detail,
        built=record.built,
        data=record.built.data if record.built else baseline.data,
        readings=record.readings,
        equality=record.equality,
        environment=record.environment,
        gradients=verdict(record),
        static_bytes=static(record.readings),
        peak_ratio=_ratio(record.readings.peak_bytes, baseline.peak_bytes) if is_ok else None,
        step_seconds=_middle(seconds),
        step_spread=spread(seconds) if seconds else None,
        rounds=tuple(rounds) if len(rounds) == 1 else tuple(sorted(rounds, key=lambda record: record.round)),
        time=time,
        time_verdict=None,
        time_floor=baseline.floor,
        prediction_error=error,
        prediction_against=against,
        notes=tuple({note.code: note for note in notes}.values()) if len(notes) > 1 else notes,
        on_frontier=False,
    )


def verdict(record: Record) -> str:
    """Return what the equality pass says of the gradients, in a word or two."""
    equality = record.equality
    if equality is None:
        is_measured = evidence(record.case, record.environment) == "measured"  # only measured trials have gradients
        return "not checked" if is_measured and record.outcome in ("ok", "invalid") else "-"
    if equality.missing:
        return "missing"
    if record.notes and any(note.code == "GCP014" for note in record.notes):
        return "not verifiable"
    if not is_reproducible(equality, record.case.precision):
        return "not verifiable"
    if record.outcome == "invalid":
        return "differ"
    return "bit-equal" if equality.gradients_equal and equality.loss_equal else "within noise"


def _time(rounds: list[Record], baseline: _Baseline) -> TimeRatio | None:
    """Return the ratio to the baseline: 1 for the baseline itself, else from pairs if there are any, or rounds."""
    if rounds[0].case == baseline.case:
        return ITSELF if baseline.seconds else None
    return row_times.paired(rounds) or row_times.unpaired(rounds, baseline.seconds)


def _middle(values: Sequence[float] | None) -> float | None:
    """Return the median, None if there are no values; of 100,000 rows most have one, which needs no computation."""
    if not values:
        return None
    return values[0] if len(values) == 1 else median(values)


def _ratio(value: int | None, baseline: int | None) -> float | None:
    return None if value is None or not baseline else value / baseline


def _judged(rows: list[Row], *, largest: int | None) -> tuple[Row, ...]:
    """Return the rows with their time verdicts, and with those of each group's Pareto frontier marked."""
    groups: dict[Case, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.baseline, []).append(row)
    for of_group in groups.values():
        baseline = next((Timed(row) for row in of_group if row.case == row.baseline), None)
        if baseline is not None:
            for row in of_group:
                _tell_unlowered(row, baseline.row)
        is_asked = largest is None or len(of_group) <= largest
        asked = of_group if is_asked else _computing_more(of_group, baseline)
        timed = [_judged_beside(row, baseline) for row in asked]
        for row in row_times.unbeaten(timed) if is_asked else ():
            force_setattr(row, "on_frontier", True)  # the rows are not shared yet
    return tuple(rows)


def _tell_unlowered(row: Row, baseline: Row) -> None:
    """Add a note to a new row whose peak is no lower than the baseline's: what holds it."""
    is_told = any(note.code == "GCP001" for note in row.notes)  # it checkpoints nothing
    if row.outcome == "ok" and row.case != row.baseline and not is_told:
        why = reason_of_readings(row.readings, baseline.readings)
        force_setattr(row, "notes", (*row.notes, Note(code="GCP067", text=why)) if why else row.notes)


def _computing_more(rows: Iterable[Row], baseline: Timed | None) -> list[Row]:
    """Return the rows whose verdicts may need a note: those that compute more than the baseline."""
    if baseline is None:
        return []
    return [row for row in rows if timing_doubts.computes_more(row.readings, baseline.row.readings)]


def _judged_beside(row: Row, baseline: Timed | None) -> Timed:
    """Set the time verdict of a new row, with a note if it is faster than the baseline although it computes more."""
    timed = Timed(row)
    if baseline is None or row.time is None:
        return timed
    time_verdict = timed.verdict(baseline)
    force_setattr(row, "time_verdict", time_verdict)
    if time_verdict == "faster" and timing_doubts.computes_more(row.readings, baseline.row.readings):
        note = timing_doubts.faster_with_more_work(row.readings, baseline.row.readings, row.time.ratio)
        force_setattr(row, "notes", (*row.notes, note))
    return timed


def is_all_out_of_memory(rows: Iterable[Row]) -> bool:
    """Whether everything that was tried ran out of memory; skipped rows were not tried."""
    tried = {row.outcome for row in rows} - {"skipped"}
    return tried == {"out_of_memory"}


def smallest_request(rows: Sequence[Row]) -> Shortage | None:
    """Return the failed request for the fewest bytes; None if no error tells its size."""
    shortages = [record.shortage for row in rows for record in row.rounds if record.shortage]
    requests = [shortage for shortage in shortages if shortage.asked_bytes is not None]
    return min(requests, key=lambda shortage: shortage.asked_bytes or 0, default=None)
