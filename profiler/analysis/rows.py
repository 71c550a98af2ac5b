"""Turns records into one row per case, compared with its baseline; finds the frontier; names columns for tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from statistics import median
from typing import Any

import msgspec
from msgspec.structs import replace

from profiler.analysis import time_ratio
from profiler.analysis.explanation import reason_of_readings
from profiler.analysis.time_ratio import TimeRatio, TimeVerdict
from profiler.core import by_key
from profiler.core.case import SWITCHES, Case
from profiler.core.record import (
    PHASES,
    Built,
    Environment,
    Equality,
    Evidence,
    Note,
    Readings,
    Record,
    Shortage,
    evidence,
    not_reproducible,
)
from profiler.core.stats import spread
from profiler.core.trace_data import BUCKETS, GATHERED, STATIC
from profiler.core.units import change_text

ITSELF = TimeRatio(ratio=1.0, low=1.0, high=1.0)
SURE = ("faster", "slower")
MOST_COMPARED = 2048  # pairs of rows; but each row is compared with at least one
SAMPLES = ("warmup_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds", "step_seconds")


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
    shown_seconds: float | None  # none's median times the ratio to it, so that the two agree; without one, the median
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
    def has_peak(self) -> bool:
        """Whether it is ok, since wrong gradients are no saving, and its peak is known."""
        return self.outcome == "ok" and self.readings.peak_bytes is not None

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
    rounds = by_key((record.case, record) for record in latest(records))
    groups: dict[Case, dict[Case, list[Record]]] = {}
    pooled: dict[Case, Record] = {}  # the first record with the time samples of all; the worst outcome stands for it
    for case, of_case in rounds.items():
        of_case.sort(key=lambda record: record.round)
        groups.setdefault(case.baseline, {})[case] = of_case
        first = pooled[case] = of_case[0]
        if len(of_case) > 1:
            worst = next((record for record in of_case if record.outcome != "ok"), first)
            joined = {
                name: tuple(chain.from_iterable(getattr(record.readings, name) or () for record in of_case)) or None
                for name in SAMPLES
            }
            readings = replace(first.readings, **joined)
            pooled[case] = replace(first, readings=readings, outcome=worst.outcome, detail=worst.detail)
    errors = prediction_errors(pooled)
    table: dict[Case, Row] = {}
    for baseline, of_group in groups.items():
        built = _built(baseline, of_group, pooled, errors)
        table.update(_judged(built, is_asked=largest is None or len(built) <= largest))
    return tuple([table[case] for case in rounds])


def latest(records: Iterable[Record]) -> list[Record]:
    """Return the last record of each round of each case: a trial that ran again replaces its first attempt."""
    return list({record.key: record for record in records}.values())


def static(readings: Readings) -> int | None:
    """Return the sum of the static bytes, which are live in every step under every strategy; None if not measured."""
    return None if readings.static_bytes is None else sum(readings.static_bytes.values())


def _built(
    baseline: Case,
    group: Mapping[Case, list[Record]],
    pooled: Mapping[Case, Record],
    errors: Mapping[Case, tuple[float, Evidence]],
) -> list[Row]:
    """Return the rows of one group, not compared with each other yet."""
    none_rounds = group.get(baseline, [])
    none_peak = pooled[baseline].readings.peak_bytes if none_rounds else None
    none_seconds = {
        record.round: median(seconds) for record in none_rounds if (seconds := record.readings.step_seconds)
    }
    none_samples = pooled[baseline].readings.step_seconds if none_rounds else None
    none_median = median(none_samples) if none_samples else None
    paired = {case: time_ratio.of_records(rounds) for case, rounds in group.items()}
    drift = time_ratio.between_rounds(group.values())
    data = [record.built.data for of_case in group.values() for record in of_case if record.built]
    built = []
    for case, rounds in group.items():
        record, pairs = pooled[case], paired[case]
        readings, is_ok = record.readings, record.outcome == "ok"
        peak = readings.peak_bytes
        own_seconds = median(readings.step_seconds) if readings.step_seconds else None
        time = pairs or _unpaired(rounds, none_seconds)
        if not is_ok or case == baseline:
            time = ITSELF if is_ok and none_seconds else None
        error, against = errors.get(case, (None, None))
        notes = [note for of_round in rounds for note in of_round.notes]
        notes += [*drift, *time_ratio.doubts(rounds, time, pairs=pairs, baseline=none_rounds)]
        built.append(
            Row(
                case=case,
                baseline=baseline,
                outcome=record.outcome,
                detail=record.detail,
                built=record.built,
                data=record.built.data if record.built else data[-1] if data else None,
                readings=readings,
                equality=record.equality,
                environment=record.environment,
                gradients=verdict(record),
                static_bytes=static(readings),
                peak_ratio=peak / none_peak if is_ok and peak is not None and none_peak else None,
                step_seconds=own_seconds,
                shown_seconds=time.ratio * none_median
                if own_seconds and none_median and time and time.has_basis and not time.is_noisy
                else own_seconds,
                step_spread=spread(readings.step_seconds) if readings.step_seconds else None,
                rounds=tuple(rounds),
                time=time,
                time_verdict=None,
                time_floor=time_ratio.floor_of(paired.get(baseline)),
                prediction_error=error,
                prediction_against=against,
                notes=tuple({note.code: note for note in notes}.values()),
                on_frontier=False,
            )
        )
    return built


def _unpaired(rounds: Sequence[Record], none_seconds: Mapping[int, float]) -> TimeRatio | None:
    """Return the ratio of steps to the baseline's of the same rounds, in other processes: slow drift cancels."""
    pairs = [(record.readings.step_seconds, none_seconds.get(record.round)) for record in rounds]
    ratios = [median(seconds) / none for seconds, none in pairs if seconds and none]
    if ratios and rounds[0].case.has_estimated_times:
        return TimeRatio(ratio=median(ratios), low=min(ratios), high=max(ratios))
    return time_ratio.of_rounds(ratios) if ratios else None


def verdict(record: Record) -> str:
    """Return what the equality pass says of the gradients, in a word or two."""
    equality = record.equality
    if equality is None:
        is_measured = evidence(record.case, record.environment) == "measured"  # only measured trials have gradients
        return "not checked" if is_measured and record.outcome in ("ok", "invalid") else "-"
    if equality.missing:
        return "missing"
    if any(note.code == "GCP014" for note in record.notes) or not_reproducible(equality, record.case.precision):
        return "not verifiable"
    if record.outcome == "invalid":
        return "differ"
    return "bit-equal" if equality.gradients_equal and equality.loss_equal else "within noise"


def _judged(group: list[Row], *, is_asked: bool) -> dict[Case, Row]:
    """Return the rows of one group with their time verdicts, its frontier, and what is noted beside the baseline."""
    none = next((row for row in group if row.case == row.baseline), None)
    best = {row.case for row in unbeaten(group)} if is_asked else ()
    judged = {}
    for row in group:
        notes, time_verdict = [], None
        is_checkpointed = row.case.strategy != "none" and all(note.code != "GCP001" for note in row.notes)
        if none and is_checkpointed and row.outcome == "ok":
            why = reason_of_readings(row.readings, none.readings)
            notes += [Note(code="GCP067", text=why)] if why else []
        is_timed = not row.case.has_estimated_times
        more_work = time_ratio.more_work(row.readings, none.readings) if none and is_timed else None
        if none and row.time and (is_asked or more_work):
            time_verdict = time_verdict_of(row, none)
            if more_work and time_verdict == "faster":
                text = time_ratio.MORE_WORK.format(change_text(row.time.ratio), change_text(more_work))
                notes.append(Note(code="GCP061", text=text))
        judged[row.case] = row
        if notes or time_verdict or row.case in best:
            judged[row.case] = replace(
                row, notes=(*row.notes, *notes), time_verdict=time_verdict, on_frontier=row.case in best
            )
    return judged


def against(row: Row, other: Row, *, is_one_run: bool = True) -> TimeRatio | None:
    """Return the ratio of two steps: of one run from their ratios to `none`, else from their seconds.

    Two rows that alternated with `none` are never compared by their seconds, which contain the drift between them.
    """
    if row.step_seconds is None or other.step_seconds is None:
        return None
    if row.case.has_estimated_times and other.case.has_estimated_times:
        return time_ratio.estimated(other.step_seconds, row.step_seconds)
    time, base = row.time, other.time
    if is_one_run and time and base and time.has_basis and base.has_basis:
        return time_ratio.quotient(time, base)
    return time_ratio.of_samples(time_ratio.sample(samples(other)), time_ratio.sample(samples(row)))


def samples(row: Row) -> tuple[tuple[float, ...], ...]:
    """Return the seconds of the steps of each round; those of a first look only if there are no others.

    A prediction has no noise: its step is taken twice, as two rounds of equal samples.
    """
    timed = [record.readings for record in row.rounds if record.readings.step_seconds]
    if len(timed) > 1:
        timed = [readings for readings in timed if readings.stopped != "look"] or timed
    series = tuple([readings.step_seconds or () for readings in timed])
    return series * 2 if row.case.has_estimated_times else series


def time_verdict_of(row: Row, other: Row) -> TimeVerdict:
    """Return whether a row is faster or slower than another of its run, the same, or cannot be told apart from it."""
    return time_ratio.verdict(against(row, other), floor=row.time_floor)


def is_apart(row: Row, other: Row) -> bool:
    """Whether the times of two rows of one run can be told apart."""
    return time_verdict_of(row, other) in SURE


def is_beaten(row: Row, other: Row) -> bool:
    """Whether the other needs less memory and is surely no slower, or needs as much and is surely faster."""
    mine, theirs = row.readings.peak_bytes, other.readings.peak_bytes
    if mine is None or theirs is None or theirs > mine:
        return False
    return time_verdict_of(row, other) in (("slower",) if mine == theirs else ("slower", "same"))


def unbeaten(rows: Iterable[Row]) -> list[Row]:
    """Return the Pareto frontier of a group: rows that no frontier row dominates with certainty.

    Only rows that are ok, with a peak and a time, count. With many rows, each is compared only with the fastest of the
    frontier, which dominate most, so that the time is linear in the number of rows.
    """
    points = [row for row in rows if row.has_peak and row.step_seconds is not None]
    most = max(1, MOST_COMPARED // max(1, len(points)))
    kept: list[Row] = []
    beating: list[Row] = []
    for row in sorted(points, key=lambda row: (row.readings.peak_bytes, slowness(row))):
        if not any(is_beaten(row, other) for other in beating):
            kept.append(row)
            beating = sorted([*beating, row], key=slowness)[:most]
    return kept


def slowness(row: Row) -> float:
    """Return what rows of one group are sorted by: their ratio to the baseline, else their seconds."""
    return row.time.ratio if row.time else row.step_seconds or 0.0


def time_spans(rows: Sequence[Row]) -> list[tuple[float, float, float]]:
    """Return the low end, the middle and the high end of the step of each row of one group, in seconds.

    They are by their ratios to `none`, else at their medians, so that plots show what the verdicts say: medians of
    processes that ran at different times may be in another order.
    """
    none = next((row.step_seconds for row in rows if row.case == row.baseline and row.step_seconds), None)
    spans = []
    for row in rows:
        if none is not None and row.time and row.time.has_basis:
            low, high = row.time.interval or (row.time.ratio, row.time.ratio)
            spans.append((low * none, row.time.ratio * none, high * none))
        else:
            seconds, spread_ = row.step_seconds or 0.0, row.step_spread or 0.0
            spans.append((seconds * (1 - spread_), seconds, seconds * (1 + spread_)))
    return spans


def is_all_out_of_memory(rows: Iterable[Row]) -> bool:
    """Whether everything that was tried ran out of memory; skipped rows were not tried."""
    tried = {row.outcome for row in rows} - {"skipped"}
    return tried == {"out_of_memory"}


def smallest_request(rows: Sequence[Row]) -> Shortage | None:
    """Return the failed request for the fewest bytes; None if no error tells its size."""
    shortages = [record.shortage for row in rows for record in row.rounds if record.shortage]
    requests = [shortage for shortage in shortages if shortage.asked_bytes is not None]
    return min(requests, key=lambda shortage: shortage.asked_bytes or 0, default=None)


def prediction_errors(pooled: Mapping[Case, Record]) -> dict[Case, tuple[float, Evidence]]:
    """Return the relative error of the predicted peak, and what it is compared with: measured, else rehearsed.

    By case, of the predictions and of what they predict; without those that are not ok, or have no twin.
    """
    errors: dict[Case, tuple[float, Evidence]] = {}
    if len({case.is_predicted for case in pooled}) < 2:
        return errors
    twins = by_key((case.twin, record) for case, record in pooled.items() if record.outcome == "ok")
    for records in twins.values():
        records.sort(key=lambda record: evidence(record.case, record.environment))  # measured before rehearsed
        for record in records:
            case = record.case
            beside = (other for other in records if foretells(case, other.case) or foretells(other.case, case))
            twin = next(beside, None)
            predicted, held = (record, twin) if case.is_predicted else (twin, record)
            if predicted and held and predicted.readings.peak_bytes is not None and held.readings.peak_bytes:
                error = predicted.readings.peak_bytes / held.readings.peak_bytes - 1
                errors[case] = error, evidence(held.case, held.environment)
    return errors


def foretells(predicted: Case, case: Case) -> bool:
    """Whether a prediction of this case's twin is one of this case: a rehearsed case needs one for its own GPU."""
    if not predicted.is_predicted or case.is_predicted:
        return False
    return not case.is_rehearsed or case.foreseen == predicted


TIMES = ("forward", "backward", "optimizer", "step")


def flat_row(row: Row) -> dict[str, Any]:
    """Return all columns of a row, in bytes and seconds; times are medians, with raw samples; None: not measured."""
    return {name: read(row) for name, (_, read) in TABLE.items()}


def _switch(name: str, row: Row) -> bool:
    return bool(getattr(row.case, name))


def _static(category: str, row: Row) -> int | None:
    return (row.readings.static_bytes or {}).get(category)


def _peak(phase: str, row: Row) -> int | None:
    phases = row.readings.phases or {}
    return phases[phase].allocated if phase in phases else None


def _samples(phase: str, row: Row) -> tuple[float, ...] | None:
    return getattr(row.readings, f"{phase}_seconds") or None


def _seconds(phase: str, row: Row) -> float | None:
    samples = _samples(phase, row)
    return median(samples) if samples else None


TABLE: dict[str, tuple[type, Callable[[Row], Any]]] = {  # the type of a column, tuple for samples, and its reader
    "case": (str, lambda row: row.case.id),
    "model": (str, lambda row: str(row.case.model)),
    "strategy": (str, lambda row: str(row.case.label)),
    "split": (str, lambda row: row.built and row.built.split),
    "outcome": (str, lambda row: row.outcome),
    "detail": (str, lambda row: row.detail),
    "predicted": (bool, lambda row: row.case.is_predicted),
    "evidence": (str, lambda row: row.evidence),
    "optimizer": (str, lambda row: str(row.case.optimizer)),
    "batch_size": (int, lambda row: row.case.batch_size),
    "precision": (str, lambda row: row.case.precision),
    "accumulate": (int, lambda row: row.case.accumulate),
    "parallel": (str, lambda row: str(row.case.parallel) if row.case.parallel else None),
    "ranks": (int, lambda row: row.case.ranks or None),
    **{name: (bool, partial(_switch, name)) for name, switch in SWITCHES.items() if switch.has_column},
    "data": (str, lambda row: row.data),
    "seed": (int, lambda row: row.case.seed),
    "num_parameters": (int, lambda row: row.built and row.built.num_parameters),
    "num_blocks": (int, lambda row: row.built and row.built.num_blocks),
    **{
        f"static_{category.replace(' ', '_')}_bytes": (int, partial(_static, category))
        for category in (*STATIC, BUCKETS, GATHERED)
    },
    "static_bytes": (int, lambda row: row.static_bytes),
    "start_bytes": (int, lambda row: row.readings.start_bytes),
    "saved_bytes": (int, lambda row: row.readings.saved_bytes),
    **{f"{phase}_peak_bytes": (int, partial(_peak, phase)) for phase in PHASES},
    "peak_bytes": (int, lambda row: row.readings.peak_bytes),
    "peak_phase": (str, lambda row: row.readings.peak_phase),
    "peak_gradient_bytes": (int, lambda row: row.readings.peak_gradient_bytes),
    "reserved_bytes": (int, lambda row: row.readings.reserved_bytes),
    "device_bytes": (int, lambda row: row.readings.device_bytes),
    "peak_ratio": (float, lambda row: row.peak_ratio),
    "prediction_error": (float, lambda row: row.prediction_error),
    "prediction_against": (str, lambda row: row.prediction_against),
    "forward_flops": (int, lambda row: row.readings.forward_flops),
    "backward_flops": (int, lambda row: row.readings.backward_flops),
    **{f"{phase}_seconds": (float, partial(_seconds, phase)) for phase in TIMES},
    "step_spread": (float, lambda row: row.step_spread),
    "time_ratio": (float, lambda row: row.time_ratio),
    "time_ratio_least": (float, lambda row: row.time_ratio_range and row.time_ratio_range[0]),
    "time_ratio_most": (float, lambda row: row.time_ratio_range and row.time_ratio_range[1]),
    "time_verdict": (str, lambda row: row.time_verdict),
    **{f"{phase}_seconds_samples": (tuple, partial(_samples, phase)) for phase in TIMES},
    "gradients": (str, lambda row: None if row.gradients == "-" else row.gradients),
    "gradients_largest_difference": (float, lambda row: row.equality and row.equality.largest_difference),
    "noise_floor": (float, lambda row: row.equality and row.equality.noise_floor),
    "precision_difference": (float, lambda row: row.equality and row.equality.precision_difference),
    "on_frontier": (bool, lambda row: row.on_frontier),
    "notes": (str, lambda row: "; ".join(f"{note.code} {note.text}" for note in row.notes) or None),
    "device": (str, lambda row: row.case.device),
    "device_name": (str, lambda row: row.environment and row.environment.device_name),
    "device_limit_bytes": (int, lambda row: row.environment and row.environment.device_bytes),
    "torch": (str, lambda row: row.environment and row.environment.torch),
    "python": (str, lambda row: row.environment and row.environment.python),
    "gcprof": (str, lambda row: row.environment and row.environment.gcprof),
    "started": (str, lambda row: row.environment and row.environment.started),
}
COLUMNS = {name: kind for name, (kind, _) in TABLE.items()}
