"""What makes the times of a row less than sure, as notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from profiler.analysis.device_conditions import clock_held, clocks_apart, in_cycles, other_processes
from profiler.core.case import Case
from profiler.core.record import Note, Record
from profiler.core.stats import drift, spread, uncertainty
from profiler.core.units import bytes_text, change_text, count_text, seconds_text, spread_text

NOISY = 0.1  # half the interquartile range over the median; and half the range of the ratios of the rounds
DRIFT = 0.05  # a smaller change is let pass, however certain it is
HOST_BOUND = 0.9  # of a step; the device has no more than a tenth of it to itself
LIMITS = {"samples": "--max-samples", "seconds": "--max-seconds", "limit": "--stage-limit"}  # by why sampling stopped


def doubts(rounds: Sequence[Record], ratios: Sequence[float], *, baseline: Sequence[Record] = ()) -> tuple[Note, ...]:
    """Of the rounds of one measured case, the ratio of each to its baseline's: one note for every doubt there is."""
    timed = [record for record in rounds if record.readings.step_seconds and not record.case.is_predicted]
    if not timed:
        return ()
    series = [record.readings.step_seconds or () for record in timed]
    seconds = series[0] if len(series) == 1 else _joined(series)
    conditions = [record.readings.conditions for record in timed if record.readings.conditions]
    texts = (
        ("GCP012", _noise(seconds, ratios)),
        ("GCP021", _unsure(seconds, timed)),
        *_within_rounds(drift(series)),
        ("GCP024", _clocks(timed, baseline) if conditions else None),
        ("GCP025", other_processes(conditions)),
        ("GCP030", _host_bound(timed)),
        ("GCP032", _spilled(timed)),
        ("GCP033", _in_a_row(timed)),
        ("GCP034", _cut_short(timed)),
        ("GCP036", _elsewhere(timed, baseline)),
    )
    return tuple([Note(code=code, text=text) for code, text in texts if text])


def between_rounds(rounds_of: Mapping[Case, Sequence[Record]]) -> dict[Case, Note]:
    """By baseline: of all cases that are compared with it, whether they became slower or faster together."""
    groups: dict[Case, list[list[float]]] = {}
    for case, records in rounds_of.items():
        if len(records) == 1:
            continue  # one round is no series
        rounds = sorted(records, key=lambda record: record.round)
        medians = [median(record.readings.step_seconds) for record in rounds if record.readings.step_seconds]
        groups.setdefault(case.baseline, []).append(medians)
    changes = {baseline: drift(series) for baseline, series in groups.items()}
    return {
        baseline: Note(
            code="GCP023",
            text=f"the steps drift: {change_text(1 + change)} from the first rounds to the last, all strategies "
            "together; ratios are taken within a round and stand, seconds do not: let the device rest",
        )
        for baseline, change in changes.items()
        if change is not None and abs(change) >= DRIFT
    }


def _joined(series: Iterable[Sequence[float]]) -> tuple[float, ...]:
    return tuple(second for seconds in series for second in seconds)


def _noise(seconds: tuple[float, ...], ratios: Sequence[float]) -> str | None:
    width = spread(seconds)
    if width is None or (width <= NOISY and (not ratios or max(ratios) - min(ratios) <= 2 * NOISY)):
        return None
    return "the times are noisy; a quiet machine, or more --rounds and --samples, would make them surer"


def _clocks(rounds: Sequence[Record], baseline: Sequence[Record]) -> str | None:
    """Where the clock was held down, or was another than the baseline's; with the ratio that does not know of it."""
    conditions = [record.readings.conditions for record in rounds if record.readings.conditions]
    doubt = clock_held(conditions) or clocks_apart(rounds, baseline)
    return f"{doubt}{in_cycles(rounds, baseline)}" if doubt else None


def _host_bound(rounds: Sequence[Record]) -> str | None:
    """Where the device waits for the host, whose work is most of the time."""
    share = max(record.readings.host_share or 0.0 for record in rounds)
    if share < HOST_BOUND:
        return None
    return (
        f"the host is at work for {share * 100:.0f} % of the step: its time is the host's, and trials beside it "
        "(--devices) change it; a larger --batch-size gives the device more to do"
    )


def _spilled(rounds: Sequence[Record]) -> str | None:
    """Where more of a GPU's memory was held than it has: the rest can only be the host's."""
    for record in rounds:
        total = record.environment.device_bytes if record.environment else None
        if not total or record.case.device.startswith("cpu"):
            continue
        held = max(record.readings.reserved_bytes or 0, record.readings.peak_bytes or 0)
        if held > total:
            return (
                f"spill suspected: {bytes_text(held)} on a device of {bytes_text(total)}: the driver holds some of it "
                "in the host's memory (Windows, WSL), and the time is the bus's too; a smaller --batch-size would fit"
            )
    return None


def _in_a_row(rounds: Sequence[Record]) -> str | None:
    most = max(record.readings.steps_per_sample for record in rounds)
    if most == 1:
        return None
    of = f"each sample is the mean of up to {count_text(most, 'step')} in a row"
    return f"a step is too fast for the clock: {of}; a larger --batch-size takes longer"


def _cut_short(rounds: Sequence[Record]) -> str | None:
    """Where another step would have passed the limit of its stage: which of the rules that end sampling was not met."""
    cut = [record for record in rounds if record.readings.stopped == "limit"]
    if not cut:
        return None
    seconds = [record.readings.step_seconds or () for record in cut]
    sampling = cut[0].case.sampling
    unmet = f"--precision-target {sampling.precision_target:.1%}" if sampling else f"--samples {cut[0].case.samples}"
    return (
        f"a round ended after {count_text(min(map(len, seconds)), 'sample')}, before {unmet} was met: "
        f"a step takes {seconds_text(median(_joined(seconds)))}; a larger --stage-limit leaves time for more"
    )


def _elsewhere(rounds: Sequence[Record], baseline: Sequence[Record]) -> str | None:
    """In how many rounds the baseline ran on another device of the same name, as on a cluster."""
    of_round = {record.round: other for record in baseline if (other := _identity(record))}
    if not of_round:
        return None
    pairs = [(_identity(record), of_round.get(record.round)) for record in rounds]
    named = [(mine, other) for mine, other in pairs if mine and other]
    apart = sum(mine != other for mine, other in named)
    if not apart:
        return None
    return (
        f"in {apart} of {count_text(len(named), 'round')} it ran on another GPU than the row that it is compared with: "
        "the ratio holds what the two differ by besides; more --rounds mix them"
    )


def _identity(record: Record) -> str | None:
    return record.environment.device_uuid if record.environment else None


def _unsure(seconds: tuple[float, ...], rounds: Sequence[Record]) -> str | None:
    """Where a precision was asked for, and all rounds together do not give it."""
    sampling = rounds[0].case.sampling
    if not sampling:
        return None
    reached = uncertainty(seconds)
    if reached is not None and reached <= sampling.precision_target:
        return None
    hit = sorted({LIMITS[stopped] for record in rounds if (stopped := record.readings.stopped) in LIMITS})
    more = " or ".join(["more --rounds", *(f"a larger {flag}" for flag in hit)])
    if reached is None:
        return f"{count_text(len(seconds), 'sample')} cannot tell how sure the median is; {more} would"
    asked = spread_text(sampling.precision_target)
    return f"the median is sure to {spread_text(reached)}, not to {asked}; {more} would make it surer"


def _within_rounds(change: float | None) -> tuple[tuple[str, str], ...]:
    """A step that still becomes faster has not warmed up; one that becomes slower drifts."""
    if change is None or abs(change) < DRIFT:
        return ()
    text = f"{change_text(1 + change)} from the first third of a round to the last"
    if change < 0:
        return (("GCP022", f"the steps had not settled: {text}; more --warmup would let them"),)
    return (("GCP023", f"the steps drift: {text}; let the device rest, and trust the ratios rather than the seconds"),)
