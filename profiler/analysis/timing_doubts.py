"""Notes on what makes the times of a row unsure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from statistics import median

from profiler.analysis import row_times
from profiler.analysis.device_conditions import Series, clock_held, clocks_apart, in_cycles, other_processes
from profiler.analysis.time_ratio import NOISY as TOO_WIDE
from profiler.analysis.time_ratio import TimeRatio
from profiler.core.case import Case
from profiler.core.record import Note, Readings, Record
from profiler.core.stats import drift, spread, uncertainty
from profiler.core.units import bytes_text, change_text, count_text, seconds_text, spread_text

NOISY = 0.1  # half the interquartile range over the median; and half the range of the ratios of the rounds
HELD = 0.9  # fraction of the steps' time with a core; if it is less, time was stolen from them
DRIFT = 0.05  # a smaller change is accepted, however certain it is
HOST_BOUND = 0.9  # host's share of a step: the device works alone for no more than a tenth of it
LIMITS = {"samples": "--max-samples", "seconds": "--max-seconds", "limit": "--stage-limit"}  # by Readings.stopped


def doubts(rounds: Sequence[Record], time: TimeRatio | None, *, baseline: Sequence[Record] = ()) -> tuple[Note, ...]:
    """Return a note for every doubt about the times of a measured case, from its rounds and its ratio."""
    timed = [record for record in rounds if record.readings.step_seconds and not record.case.has_estimated_times]
    if not timed:
        return ()
    series = [record.readings.step_seconds or () for record in timed]
    seconds = series[0] if len(series) == 1 else _joined(series)
    conditions = [record.readings.conditions for record in timed if record.readings.conditions]
    texts = (
        ("GCP012", _noise(seconds, timed, time, conditions)),
        *(_within_rounds(drift(series)) or _beside_pairs(seconds, time, baseline)),
        *(_of_device(timed, time, baseline) if any(map(_tells_device, timed)) else ()),
    )
    return tuple([Note(code=code, text=text) for code, text in texts if text])


def _beside_pairs(
    seconds: tuple[float, ...], time: TimeRatio | None, baseline: Sequence[Record]
) -> tuple[tuple[str, str], ...]:
    """Return a note if the medians of row and baseline give another ratio than the pairs: they ran at other times.

    Too few pairs for an interval may be wrong by the factor beyond which an interval tells nothing.
    """
    plain = _joined(record.readings.step_seconds or () for record in baseline)
    if not (plain and time and time.num_pairs):
        return ()
    low, high = time.interval or (time.ratio / TOO_WIDE, time.ratio * TOO_WIDE)
    ratio = median(seconds) / median(plain)
    if low / (1 + DRIFT) <= ratio <= high * (1 + DRIFT):
        return ()
    text = (
        f"the machine's speed changed between this row and its baseline: by their seconds the step takes "
        f"{change_text(ratio)}, by steps side by side {change_text(time.ratio)}; trust the latter"
    )
    return (("GCP023", text),)


def _of_device(
    rounds: Sequence[Record], time: TimeRatio | None, baseline: Sequence[Record]
) -> tuple[tuple[str, str | None], ...]:
    """Return doubts from the state of the device and the clock that times it, by the code of the note."""
    is_paired = bool(time and time.num_pairs)  # steps of both alternated in one process, and so on one device
    conditions = [record.readings.conditions for record in rounds if record.readings.conditions]
    return (
        ("GCP024", _clocks(rounds, baseline, is_paired=is_paired) if conditions else None),
        ("GCP030", _host_bound(rounds)),
        ("GCP032", _spilled(rounds)),
        ("GCP033", _in_a_row(rounds)),
        ("GCP034", _cut_short(rounds)),
        ("GCP036", None if is_paired else _elsewhere(rounds, baseline)),
    )


def _tells_device(record: Record) -> bool:
    """Whether a record has any of what `_of_device` looks at; of 100,000 records most have none."""
    readings, environment = record.readings, record.environment
    is_known = environment is not None and (environment.device_bytes or environment.device_uuid)
    told = (readings.conditions, readings.host_share, readings.stopped)
    return told != (None, None, None) or readings.steps_per_sample != 1 or bool(is_known)


def between_rounds(rounds_of: Mapping[Case, Sequence[Record]]) -> dict[Case, Note]:
    """Return, by baseline, a note if all cases that are compared with it became slower or faster together."""
    groups: dict[Case, list[list[float]]] = {}
    for case, records in rounds_of.items():
        if len(records) == 1:
            continue  # a single round is not a series
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


def _noise(
    seconds: tuple[float, ...], rounds: Sequence[Record], time: TimeRatio | None, conditions: Series
) -> str | None:
    """Return one sentence on all that makes the times unsure, and what would help; None if nothing does."""
    asked = _missed(seconds, rounds)
    others, elsewhere = other_processes(conditions)
    stolen = _waited(rounds)
    facts = tuple([fact for fact in (asked, _spread(seconds, time), others, stolen) if fact])
    if not facts:
        return None
    hit = {LIMITS[stopped] for record in rounds if (stopped := record.readings.stopped) in LIMITS} if asked else ()
    fewer = ("OMP_NUM_THREADS=1 (threads of a step wait for each other)",) if stolen and _has_threads(rounds) else ()
    helps = (elsewhere or "a quiet machine", *fewer, "more --rounds", *(f"a larger {flag}" for flag in sorted(hit)))
    return _unsure(facts, helps)


def _has_threads(rounds: Sequence[Record]) -> bool:
    """Whether steps on the CPU had several threads."""
    threads = [record.environment.num_threads or 1 for record in rounds if record.environment]
    return rounds[0].case.device == "cpu" and max(threads, default=1) > 1


@lru_cache(maxsize=1024)  # rows of a large run share a few hundred of these
def _unsure(facts: tuple[str, ...], helps: tuple[str, ...]) -> str:
    helping = f"{', '.join(helps[:-1])} or {helps[-1]}"
    return f"the times are unsure: {'; '.join(facts)}; {helping} would reduce the noise"


def _spread(seconds: tuple[float, ...], time: TimeRatio | None) -> str | None:
    """Return how far the steps of a row are apart if that is much; else its rounds, if the ratio is made of them."""
    width = spread(seconds)
    if width is not None and width > NOISY:
        return f"its steps vary by {spread_text(width)}"
    limits = time.interval if time and not time.num_pairs else None
    if limits and limits[1] - limits[0] > 2 * NOISY:
        return f"its rounds' ratios are {(limits[1] - limits[0]) * 100:.0f} points apart"
    return None


def _waited(rounds: Sequence[Record]) -> str | None:
    """Return a sentence if much time was stolen from the steps: they, or threads they waited for, had no core."""
    share = held_share(rounds)
    if share is None or share >= HELD:
        return None
    return f"{(1 - share) * 100:.0f} % of the time was lost by the steps waiting for a core"


def stolen(rounds: Iterable[Record]) -> float | None:
    """Return by what fraction steps were longer than the time in which they had a core; None if it is small."""
    share = held_share(rounds)
    return 1 / share - 1 if share is not None and 0 < share < HELD else None


def held_share(rounds: Iterable[Record]) -> float | None:
    """Return the fraction of the steps' time in which their thread had a core; None if not measured, as on CUDA."""
    known = [record.readings for record in rounds if record.readings.processor_seconds]
    wall = sum(sum(readings.step_seconds or ()) for readings in known)
    return sum(sum(readings.processor_seconds or ()) for readings in known) / wall if wall else None


def _missed(seconds: tuple[float, ...], rounds: Sequence[Record]) -> str | None:
    """Return a sentence if all rounds together miss the requested precision: of the ratio if steps alternate."""
    sampling = rounds[0].case.sampling
    if not sampling:
        return None
    ratio = row_times.paired(rounds)
    what, count = ("the ratio", ratio.num_pairs) if ratio else ("the median", len(seconds))
    reached = ratio.uncertainty if ratio else uncertainty(seconds)
    if reached is not None and reached <= sampling.precision_target:
        return None
    if reached is None:
        few = count_text(count, "pair" if ratio else "sample")
        return f"{few} cannot tell how precise {what} is"
    wanted = sampling.precision_target
    digits = next(digits for digits in (1, 2, 3) if digits == 3 or f"{reached:.{digits}%}" != f"{wanted:.{digits}%}")
    return f"{what} is known to {spread_text(reached, digits=digits)}, not {spread_text(wanted, digits=digits)}"


def computes_more(readings: Readings, none: Readings) -> bool:
    """Whether the step computes more FLOPs than the baseline's; False if either is not known."""
    mine, base = _flops(readings), _flops(none)
    return bool(mine and base and mine > base)


def faster_with_more_work(readings: Readings, none: Readings, ratio: float) -> Note:
    """Return the note on a step that is surely faster than the baseline's, and computes more."""
    work = (_flops(readings) or 0) / (_flops(none) or 1)
    text = (
        f"its step takes {change_text(ratio)} although it computes {change_text(work)} FLOPs: the memory "
        "that it saves (caches, a slow allocator) costs more here than the recompute; elsewhere it may be slower"
    )
    return Note(code="GCP061", text=text)


def _flops(readings: Readings) -> int | None:
    forward, backward = readings.forward_flops, readings.backward_flops
    return None if forward is None or backward is None else forward + backward


def _clocks(rounds: Sequence[Record], baseline: Sequence[Record], *, is_paired: bool) -> str | None:
    """Return a sentence if the clock was held down or was not the baseline's, with the ratio in clock cycles."""
    conditions = [record.readings.conditions for record in rounds if record.readings.conditions]
    if is_paired:  # steps of both alternated at one clock
        return clock_held(conditions)
    doubt = clock_held(conditions) or clocks_apart(rounds, baseline)
    return f"{doubt}{in_cycles(rounds, baseline)}" if doubt else None


def _host_bound(rounds: Sequence[Record]) -> str | None:
    """Return a sentence if the device waits for the host for most of the step."""
    shares = [record.readings.host_share or 0.0 for record in rounds]
    share = max(shares)
    if share < HOST_BOUND:
        return None
    return (
        f"the host is at work for {share * 100:.0f} % of the step: the time is the host's, and concurrent trials "
        "(--devices) change it; a larger --batch-size gives the device more to do"
    )


def _spilled(rounds: Sequence[Record]) -> str | None:
    """Return a sentence if more memory was held than the GPU has: the rest can only be the host's."""
    for record in rounds:
        total = record.environment.device_bytes if record.environment else None
        if not total or record.case.device.startswith("cpu"):
            continue
        held = max(record.readings.reserved_bytes or 0, record.readings.peak_bytes or 0)
        if held > total:
            return (
                f"spill suspected: {bytes_text(held)} on a device of {bytes_text(total)}: the driver holds some of it "
                "in the host's memory (Windows, WSL), and the time includes the bus; a smaller --batch-size would fit"
            )
    return None


def _in_a_row(rounds: Sequence[Record]) -> str | None:
    counts = [record.readings.steps_per_sample for record in rounds]
    most = max(counts)
    if most == 1:
        return None
    of = f"each sample is the mean of up to {count_text(most, 'step')} in a row"
    return f"a step is too fast for the clock: {of}; a larger --batch-size takes longer"


def _cut_short(rounds: Sequence[Record]) -> str | None:
    """Return a sentence if a round hit its stage time limit before its sampling target."""
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
    """Return a sentence if the baseline ran on another device of the same name in some rounds, as on a cluster."""
    of_round = {record.round: other for record in baseline if (other := _identity(record))}
    if not of_round:
        return None
    pairs = [(_identity(record), of_round.get(record.round)) for record in rounds]
    named = [(mine, other) for mine, other in pairs if mine and other]
    apart = sum(mine != other for mine, other in named)
    if not apart:
        return None
    return (
        f"in {apart} of {count_text(len(named), 'round')} it ran on another GPU than its baseline: the ratio "
        "includes the difference between the GPUs; more --rounds average it out"
    )


def _identity(record: Record) -> str | None:
    return record.environment.device_uuid if record.environment else None


def _within_rounds(change: float | None) -> tuple[tuple[str, str], ...]:
    """Return a note if steps change within rounds: becoming faster is missing warm-up, becoming slower is drift."""
    if change is None or abs(change) < DRIFT:
        return ()
    text = f"{change_text(1 + change)} from the first third of a round to the last"
    if change < 0:
        return (("GCP022", f"the steps had not settled: {text}; more --warmup would let them"),)
    return (("GCP023", f"the steps drift: {text}; let the device rest, and trust the ratios rather than the seconds"),)
