"""What a sweep will cost, how far a run has come by its records, and which of them stand or are impossible."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import reduce
from math import ceil
from statistics import median
from typing import Any, NamedTuple

import msgspec

from profiler.analysis.rows import latest, static
from profiler.core.case import OPERATORS, Calibration, Case, Key, Trial
from profiler.core.record import Readings, Record, evidence, why_invalid
from profiler.core.schedule import DDP_SETTLING, is_time_alone
from profiler.core.stats import FIRST_LOOK, MOST_STEPS, SHORTEST, most_seconds, num_least
from profiler.core.units import bytes_text

FAILURES = ("failed", "crashed", "timed_out", "invalid")  # out of memory and skipped are results
REFUSALS = ("failed", "skipped", "invalid")  # caused by the model or its code, if nothing was measured
LOST = ("crashed", "timed_out")  # ended from outside, which says nothing about the case
HAS_OWN = "GCP047"  # the note of a baseline whose model itself calls checkpoints


def owed(plan: Iterable[Trial], records: Iterable[Record], *, perhaps: bool = False) -> tuple[Trial, ...]:
    """Return the trials of the plan that are still to be run.

    Later rounds only if the first one was ok, nothing of a model that fails without checkpointing, and a model's own
    checkpoints only if its baseline has found any; with `perhaps` also if that is not known yet.
    """
    outcomes: dict[Key, str] = {}
    refusals = Refusals()
    has_own: set[Case] = set()
    for record in records:
        outcomes[record.key] = record.outcome
        if is_refusal(record):
            refusals.add(record)
        if finds_own(record):
            has_own.add(record.case)
    return tuple(
        trial
        for trial in plan
        if trial.key not in outcomes
        and (trial.round == 1 or outcomes.get((trial.case, 1), "ok") == "ok")
        and not refusals.stop(trial.case)
        and (
            not trial.if_own
            or trial.case.baseline in has_own
            or (perhaps and (trial.case.baseline, trial.round) not in outcomes)
        )
    )


def finds_own(record: Record) -> bool:
    """Whether the record of a baseline says that the model itself calls checkpoints."""
    return any(note.code == HAS_OWN for note in record.notes) and record.case == record.case.baseline


def rows_of(plan: Iterable[Trial], records: Iterable[Record]) -> list[Case]:
    """Return the cases that a run has or will have a row of, in the order of the plan."""
    known = {record.case for record in records}
    has_own = {record.case for record in records if finds_own(record)}
    return list(
        dict.fromkeys(
            trial.case for trial in plan if not trial.if_own or trial.case in known or trial.case.baseline in has_own
        )
    )


def is_refusal(record: Record) -> bool:
    """Whether a baseline failed because of its model, so that nothing else of it can be run.

    A baseline that ran out of memory, crashed or timed out says nothing of the others, nor does one that was built.
    """
    return (
        record.outcome in REFUSALS and record.built is None and (record.round, record.case) == (1, record.case.baseline)
    )


class Refusals:
    """The baselines that were refused; a lookup takes no longer if there are many."""

    def __init__(self, *refusals: Record) -> None:
        self._cases: set[Case] = set()
        self._twins: set[Case] = set()  # twins of baselines that ran and failed: predictions would fail too
        for refusal in refusals:
            self.add(refusal)

    def add(self, refusal: Record) -> None:
        case = refusal.case
        self._cases.add(case)
        if refusal.outcome == "failed" and not (case.is_predicted or case.is_rehearsed):
            self._twins.add(case.twin)

    def stop(self, case: Case) -> bool:
        """Whether a case is not run because of a refusal: it is compared with the baseline, or predicts what failed."""
        if not self._cases:
            return False
        baseline = case.baseline
        return baseline in self._cases or (case.is_predicted and baseline.twin in self._twins)


def settled(records: Iterable[Record]) -> list[Record]:
    """Return the records that stay valid when a run goes on: the last of each trial.

    Trials that crashed or timed out are measured again, and so are those of a first round whose baseline did.
    """
    last = latest(records)
    first = (record for record in last if record.round == 1 and record.outcome in LOST)
    lost = {record.case.twin for record in first if record.case == record.case.baseline}
    return [
        record
        for record in last
        if record.outcome not in LOST and (record.round > 1 or record.case.baseline.twin not in lost)
    ]


def status(plan: Iterable[Trial], records: Iterable[Record]) -> str:
    """Return "complete", or "partial" if trials are owed."""
    return "partial" if owed(plan, records) else "complete"


def exit_code(records: Iterable[Record]) -> int:
    """Return the exit code of a run: 1 if a trial went wrong or nothing could be measured, else 0."""
    outcomes = {record.outcome for record in latest(records)}
    return int(bool(outcomes.intersection(FAILURES)) or "ok" not in outcomes)


def calibrations(records: Iterable[Record]) -> dict[Case, Calibration]:
    """Return the calibration from each measured baseline, by twin: `case.baseline.twin` of the cases that it is for."""
    by_twin: dict[Case, Calibration] = {}
    for record in records:
        seconds, hidden = record.readings.step_seconds, record.readings.hidden_bytes
        if hidden is not None:
            name = record.environment.device_name if record.environment else None
            step = median(seconds) if seconds else None
            by_twin.setdefault(record.case.twin, Calibration(hidden_bytes=hidden, device_name=name, step_seconds=step))
    return by_twin


class Bounds(NamedTuple):
    """The lower and upper bound of a quantity."""

    least: float
    most: float

    def plus(self, other: Bounds) -> Bounds:
        return Bounds(self.least + other.least, self.most + other.most)

    def times(self, factor: float) -> Bounds:
        return Bounds(self.least * factor, self.most * factor)


class SweepCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a schedule, or of the rest of it."""

    num_trials: int
    num_predicted: int  # of these, predictions, which need no device
    num_rehearsed: int  # of these, rehearsals, which need none either
    steps: Bounds  # of the other trials; if their speed is not known, with one step per timed sample
    sampling_seconds: float  # time limit of a round's timed steps, once there are enough; 0 for a fixed number
    gpu_seconds: Bounds | None  # of the trials whose speed is known, summed over ranks; None if there are none
    num_unknown: int  # measured trials whose speed is not known


def cost(trials: Iterable[Trial], speeds: Mapping[Case, Bounds], *, start_seconds: float) -> SweepCost:
    """Return the cost of trials, from the predicted speeds of their baselines (by `case.baseline.twin`).

    A speed is the seconds of a step without checkpointing and of one that recomputes everything; `start_seconds` is how
    long a trial takes to start. The time of copies, digests and readings of the allocator is not counted.
    """
    planned = list(trials)
    measured = [trial for trial in planned if not trial.case.is_predicted and not trial.case.is_rehearsed]
    asked = []
    for trial in measured:
        speed = speeds.get(trial.case.baseline.twin)
        is_baseline = trial.case == trial.case.baseline
        asked.append((trial, Bounds(speed.least, speed.least) if speed and is_baseline else speed))
    start, nothing = Bounds(start_seconds, start_seconds), Bounds(0, 0)
    seconds = [
        start.plus(step_seconds(trial, speed)).times(trial.case.num_ranks)
        for trial, speed in asked
        if speed is not None
    ]
    samplings = [trial.case.sampling for trial in measured if "time" in trial.passes]
    num_predicted = sum(trial.case.is_predicted for trial in planned)
    return SweepCost(
        num_trials=len(planned),
        num_predicted=num_predicted,
        num_rehearsed=len(planned) - len(measured) - num_predicted,
        steps=reduce(Bounds.plus, (num_steps(trial, speed) for trial, speed in asked), nothing),
        sampling_seconds=max((sampling.max_seconds for sampling in samplings if sampling), default=0.0),
        gpu_seconds=reduce(Bounds.plus, seconds, nothing) if seconds else None,
        num_unknown=len(measured) - len(seconds),
    )


def num_steps(trial: Trial, speed: Bounds | None = None) -> Bounds:
    """Return the training steps of one rank."""
    return _untimed(trial).plus(_either(num_timed(trial, seconds) for seconds in speed or (None,)))


def step_seconds(trial: Trial, speed: Bounds) -> Bounds:
    """Return the seconds of these steps: each at least as long as the baseline's, and at most a forward longer."""
    least, most = _untimed(trial)
    timed = _either(num_timed(trial, seconds).times(seconds) for seconds in speed)
    return timed.plus(Bounds(least * speed.least, most * speed.most))


def _either(spans: Iterable[Bounds]) -> Bounds:
    lowest, highest = zip(*spans, strict=True)
    return Bounds(min(lowest), max(highest))


def num_timed(trial: Trial, seconds: float | None) -> Bounds:
    """Return the number of timed steps if each takes so long, by the rules of `meters.time` and `core.stats`."""
    case = trial.case
    if "time" not in trial.passes:
        return Bounds(0, 0)
    per_sample = 1 if seconds is None else min(MOST_STEPS, max(1, ceil(SHORTEST / seconds)))
    if trial.is_paired and case.has_switch:
        pairs = Bounds(2 * case.samples, 2 * case.samples)
        if case.sampling:
            least, limit = num_least(case.samples, trial.least_pairs), case.sampling.max_samples
            longest = most_seconds(case.sampling, least)
            in_time = limit if seconds is None else 2 * ceil(longest / (seconds * per_sample * 2))
            pairs = Bounds(min(2 * least, limit), min(max(in_time, 4 * least), limit + limit % 2))
        shared = pairs.least // 2 if is_time_alone(trial) else 0  # those without a strategy, shared with others
        return Bounds(pairs.least - shared, pairs.most).times(per_sample)
    if not case.sampling:
        return Bounds(case.samples, case.samples).times(per_sample)
    limit = case.sampling.max_samples
    in_time = limit if seconds is None else min(limit, ceil(case.sampling.max_seconds / (seconds * per_sample)))
    least = case.samples if seconds is None or in_time <= case.samples else max(case.samples, FIRST_LOOK)
    # the first steps may turn out to be warm-up, at most as many as are left
    return Bounds(least, max(in_time, 2 * case.samples)).times(per_sample)


def _untimed(trial: Trial) -> Bounds:
    """Return the steps of the other passes, and those before the timed ones, as `measuring` runs them."""
    case, passes = trial.case, trial.passes
    steps = Bounds(0, 0)
    if "equality" in passes and case.verify != "off":
        # a run has two steps. The baseline runs twice, in another precision also one step each against fp32. Others
        # run once if digests match, else also the baseline, once or twice, and once more from the baseline's weights.
        # The steps of the memory pass serve as one of these runs, if they leave the same results
        own = 4 if case.precision == "fp32" else 6
        shared = 2 if "memory" in passes and not case.ranks else 0
        steps = steps.plus(Bounds(own - shared, own) if case == case.baseline else Bounds(2 - shared, 8))
        if case.ranks and case == case.baseline:
            # against one process with the batches of all ranks, and once more if bits differ
            steps = steps.plus(Bounds(1 + case.ranks, 1 + 2 * case.ranks))
    settling = DDP_SETTLING if (case.parallel or "").startswith("ddp") else 1
    is_paired = trial.is_paired and case.has_switch  # a step without it always warms up
    warmup = max(1, case.warmup) if is_paired else case.warmup
    always = {"flops": 1, "memory": settling + 1, OPERATORS: 2, "time": 1 + warmup}
    number = sum(count for name, count in always.items() if name in passes)
    is_look = is_paired and trial.least_pairs == 1 and case.torch_device == "cpu"  # one step warms up for both
    return steps.plus(Bounds(number - (is_time_alone(trial) or is_look), number))


ESTIMATED = "GCP016"  # the note that says that times are of the roofline model
LARGEST = 2**63  # more bytes, FLOPs or seconds than occur
COUNTED = ("built", "equality", "shortage", "stage_seconds", "num_steps")  # no number in these can be below zero either


def impossible(record: Record, passes: Collection[str] | None) -> Iterator[str]:
    """Yield each impossible number, in words; `passes` are those of its trial, None if they are not known."""
    readings = record.readings
    parts = {"": readings, **{name: getattr(record, name) for name in COUNTED}}
    outside = [pair for of, part in parts.items() for pair in _out_of_range(msgspec.to_builtins(part), of)]
    yield from dict.fromkeys([*(f"{name} is {value}" for name, value in outside), *impossible_reading(readings)])
    if (ranks := readings.ranks) is not None:  # the record's bytes are those of the rank with the highest peak
        if len(ranks) != record.case.num_ranks:
            yield f"it has {len(ranks)} of {record.case.num_ranks} ranks"
        highest = max((rank.peak_bytes for rank in ranks), default=0)
        if highest != readings.peak_bytes:
            yield f"the peak is not the highest of its ranks, {bytes_text(highest)}"
        for number, rank in enumerate(ranks):
            static_bytes = sum(rank.static_bytes.values())
            yield from _below(f"rank {number}'s peak", rank.peak_bytes, static=static_bytes, saved=rank.saved_bytes)
    kind = evidence(record.case, record.environment)
    is_estimate = record.case.is_rehearsed and any(note.code == ESTIMATED for note in record.notes)
    if kind == "rehearsed" and (record.equality or (readings.step_seconds and not is_estimate)):
        yield "a device that computes nothing gave times or gradients"
    is_timed = passes is not None and "time" in passes and kind == "measured"
    if is_timed and record.outcome == "ok" and not readings.step_seconds:
        yield "the outcome is ok, but the step has no time samples"
    if record.outcome == "ok" and record.equality and (reason := why_invalid(record.case, record.equality)):
        yield f"the outcome is ok, but {reason}"


def unsound(record: Record) -> str | None:
    """Return why a stored record that says ok is not, by its own numbers; None if it is, or says something else.

    Of the numbers only those are looked at that runs are compared by: `impossible` takes a tenth of a millisecond.
    """
    if record.outcome != "ok":
        return None
    wrong = next(impossible_reading(record.readings), None)
    return wrong or (why_invalid(record.case, record.equality) if record.equality else None)


def impossible_reading(readings: Readings) -> Iterator[str]:
    """Yield a sentence for a peak or a step that takes nothing, and for a peak below the static or the saved bytes."""
    peak = readings.peak_bytes
    for name, least in {"peak_bytes": peak, "step_seconds": min(readings.step_seconds or (), default=None)}.items():
        if least is not None and least <= 0:
            yield f"{name} is {least}"
    yield from _below("the peak", peak, static=static(readings), saved=readings.saved_bytes)


def _below(what: str, peak: int | None, **floors: int | None) -> Iterator[str]:
    """Yield each of these bytes that is more than the peak."""
    for name, floor in floors.items():
        if peak is not None and floor is not None and peak < floor:
            yield f"{what} of {bytes_text(peak)} is below the {name} {bytes_text(floor)}"


def _out_of_range(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number below zero or above LARGEST in nested data, with its dotted name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _out_of_range(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _out_of_range(inner, name)
    elif isinstance(value, int | float) and not 0 <= value <= LARGEST:
        yield name, value
