"""Notes on what makes the times of a row unsure: noise, drift, and the conditions of their device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from statistics import fmean, median

from profiler.analysis.time_ratio import NOISY as TOO_WIDE
from profiler.analysis.time_ratio import TimeRatio
from profiler.core.record import Conditions, Note, Readings, Record
from profiler.core.stats import drift, spread, uncertainty
from profiler.core.units import bytes_text, change_text, count_text, in_unit_text, seconds_text, spread_text

NOISY = 0.1  # half the interquartile range over the median; and half the range of the ratios of the rounds
HELD = 0.9  # fraction of the steps' time with a core; if it is less, time was stolen from them
DRIFT = 0.05  # a smaller change is accepted, however certain it is
HOST_BOUND = 0.9  # host's share of a step: the device works alone for no more than a tenth of it
LIMITS = {"samples": "--max-samples", "seconds": "--max-seconds", "limit": "--stage-limit"}  # by Readings.stopped
SLOWED = 0.95  # fraction of the highest clock: a clock held down, or falling, to this is accepted
SHARE = 0.1  # fraction of all cores that other processes may use
LEAST_SECONDS = 0.5  # in less time no share can be computed, since the system counts in hundredths
APART = 0.05  # a smaller relative difference of clocks is accepted

Series = Sequence[Sequence[Conditions]]  # of each round, in order of time


def doubts(
    rounds: Sequence[Record], time: TimeRatio | None, *, pairs: TimeRatio | None, baseline: Sequence[Record] = ()
) -> list[Note]:
    """Return a note for every doubt about the times of a measured case, from its rounds and its ratio.

    `pairs` is the ratio of its steps to those without the strategy that alternated with them, of the baseline too.
    """
    timed = [record for record in rounds if record.readings.step_seconds and not record.case.has_estimated_times]
    if not timed:
        return []
    series = [record.readings.step_seconds or () for record in timed]
    seconds = tuple(chain.from_iterable(series))
    is_paired = bool(time and time.num_pairs)  # steps of both alternated in one process, and so on one device
    texts = {
        "GCP012": _noise(timed, seconds, time, pairs),
        "GCP022": None,
        "GCP023": _beside_pairs(seconds, time, baseline) if is_paired and time else None,
        "GCP024": _clocks(timed, baseline, is_paired=is_paired),
        "GCP030": _host_bound(timed),
        "GCP032": _spilled(timed),
        "GCP033": _in_a_row(timed),
        "GCP034": _cut_short(timed),
        "GCP036": None if is_paired else _elsewhere(timed, baseline),
    }
    change = drift(series)
    if change is not None and abs(change) >= DRIFT:  # becoming faster is missing warm-up, becoming slower is drift
        from_to = f"{change_text(1 + change)} from the first third of a round to the last"
        settled = f"the steps had not settled: {from_to}; more --warmup would let them"
        slower = f"the steps drift: {from_to}; let the device rest, and trust the ratios rather than the seconds"
        texts |= {"GCP022": settled, "GCP023": None} if change < 0 else {"GCP023": slower}
    return [Note(code=code, text=text) for code, text in texts.items() if text]


def between_rounds(group: Iterable[Sequence[Record]]) -> list[Note]:
    """Return a note if all cases of a group, each with its rounds, became slower or faster together."""
    medians = [
        [median(record.readings.step_seconds) for record in rounds if record.readings.step_seconds]
        for rounds in group
        if len(rounds) > 1  # a single round is not a series
    ]
    change = drift(medians)
    if change is None or abs(change) < DRIFT:
        return []
    text = (
        f"the steps drift: {change_text(1 + change)} from the first rounds to the last, all strategies "
        "together; ratios are taken within a round and stand, seconds do not: let the device rest"
    )
    return [Note(code="GCP023", text=text)]


def more_work(readings: Readings, none: Readings) -> float | None:
    """Return how many times the baseline's FLOPs the step computes; None if not more, or either is not known."""
    mine, base = readings.flops, none.flops
    return mine / base if mine and base and mine > base else None


def faster_with_more_work(work: float, ratio: float) -> Note:
    """Return the note on a step that is surely faster than the baseline's, and computes more."""
    text = (
        f"its step takes {change_text(ratio)} although it computes {change_text(work)} FLOPs: the memory "
        "that it saves (caches, a slow allocator) costs more here than the recompute; elsewhere it may be slower"
    )
    return Note(code="GCP061", text=text)


def stolen(rounds: Iterable[Record]) -> float | None:
    """Return by what fraction steps were longer than the time in which they had a core; None if it is small."""
    share = held_share(rounds)
    return 1 / share - 1 if share is not None and 0 < share < HELD else None


def held_share(rounds: Iterable[Record]) -> float | None:
    """Return the fraction of the steps' time in which their thread had a core; None if not measured, as on CUDA."""
    known = [record.readings for record in rounds if record.readings.processor_seconds]
    wall = sum(sum(readings.step_seconds or ()) for readings in known)
    return sum(sum(readings.processor_seconds or ()) for readings in known) / wall if wall else None


def _noise(
    rounds: Sequence[Record], seconds: tuple[float, ...], time: TimeRatio | None, pairs: TimeRatio | None
) -> str | None:
    """Return one sentence on all that makes the times unsure, and what would help; None if nothing does."""
    asked = _missed(rounds, seconds, pairs)
    others, elsewhere = other_processes([record.readings.conditions for record in rounds if record.readings.conditions])
    share = held_share(rounds)
    is_stolen = share is not None and share < HELD
    waited = f"{(1 - (share or 0.0)) * 100:.0f} % of the time was lost by the steps waiting for a core"
    facts = [fact for fact in (asked, _spread(seconds, time), others, waited if is_stolen else None) if fact]
    if not facts:
        return None
    helps = [elsewhere or "a quiet machine"]
    threads = [record.environment.num_threads or 1 for record in rounds if record.environment]
    if is_stolen and rounds[0].case.device == "cpu" and max(threads, default=1) > 1:
        helps.append("OMP_NUM_THREADS=1 (threads of a step wait for each other)")
    hit = {LIMITS[stopped] for record in rounds if (stopped := record.readings.stopped) in LIMITS} if asked else ()
    helps += ["more --rounds", *(f"a larger {flag}" for flag in sorted(hit))]
    helping = f"{', '.join(helps[:-1])} or {helps[-1]}"
    return f"the times are unsure: {'; '.join(facts)}; {helping} would reduce the noise"


def _missed(rounds: Sequence[Record], seconds: tuple[float, ...], pairs: TimeRatio | None) -> str | None:
    """Return a sentence if all rounds together miss the requested precision: of the ratio if steps alternate."""
    sampling = rounds[0].case.sampling
    if not sampling:
        return None
    what, few = ("the ratio", "pair") if pairs else ("the median", "sample")
    reached, wanted = pairs.uncertainty if pairs else uncertainty(seconds), sampling.precision_target
    if reached is None:
        return f"{count_text(pairs.num_pairs if pairs else len(seconds), few)} cannot tell how precise {what} is"
    if reached <= wanted:
        return None
    digits = next(digits for digits in (1, 2, 3) if digits == 3 or f"{reached:.{digits}%}" != f"{wanted:.{digits}%}")
    return f"{what} is known to {spread_text(reached, digits=digits)}, not {spread_text(wanted, digits=digits)}"


def _spread(seconds: tuple[float, ...], time: TimeRatio | None) -> str | None:
    """Return how far the steps of a row are apart if that is much; else its rounds, if the ratio is made of them."""
    width = spread(seconds)
    if width is not None and width > NOISY:
        return f"its steps vary by {spread_text(width)}"
    limits = time.interval if time and not time.num_pairs else None
    if limits and limits[1] - limits[0] > 2 * NOISY:
        return f"its rounds' ratios are {(limits[1] - limits[0]) * 100:.0f} points apart"
    return None


def _beside_pairs(seconds: tuple[float, ...], time: TimeRatio, baseline: Sequence[Record]) -> str | None:
    """Return a sentence if the medians of row and baseline give another ratio than the pairs did."""
    plain = tuple(chain.from_iterable(record.readings.step_seconds or () for record in baseline))
    if not plain:
        return None
    low, high = time.interval or (time.ratio / TOO_WIDE, time.ratio * TOO_WIDE)
    ratio = median(seconds) / median(plain)
    if low / (1 + DRIFT) <= ratio <= high * (1 + DRIFT):
        return None
    return (
        f"the machine's speed changed between this row and its baseline: by their seconds the step takes "
        f"{change_text(ratio)}, by steps side by side {change_text(time.ratio)}; trust the latter"
    )


def other_processes(series: Series) -> tuple[str | None, str | None]:
    """Return a sentence if other processes used the device during timing, and what helps besides a quiet machine."""
    moments = list(chain.from_iterable(series))
    if not moments:
        return None, None
    on_device = max((moment.num_others or 0 for moment in moments), default=0)
    if on_device:
        held_bytes = max(moment.others_bytes or 0 for moment in moments)
        size = f" that hold{'s' if on_device == 1 else ''} {bytes_text(held_bytes)}" if held_bytes else ""
        shared = f"{on_device} other process{'' if on_device == 1 else 'es'}{size}"
        return f"the device is shared with {shared}", "another --device"
    spans = [(round_[0], round_[-1]) for round_ in series if round_[0].others_seconds is not None]
    wall = sum(last.at_seconds - first.at_seconds for first, last in spans)
    busy = sum((last.others_seconds or 0.0) - (first.others_seconds or 0.0) for first, last in spans)
    cores = max((first.num_cores or 0 for first, _ in spans), default=0)
    if wall < LEAST_SECONDS or not cores or busy < SHARE * cores * wall:
        return None, None
    return f"other processes kept {busy / wall:.1f} of {cores} cores busy", None


def _clocks(rounds: Sequence[Record], baseline: Sequence[Record], *, is_paired: bool) -> str | None:
    """Return a sentence if the clock was held down or was not the baseline's, with the change in cycles."""
    conditions = [record.readings.conditions for record in rounds if record.readings.conditions]
    held = clock_held(conditions) if conditions else None
    if is_paired or not conditions:
        return held
    of_round = {record.round: record for record in baseline if record.readings.step_seconds}
    known = [
        (record, base, mine, none)
        for record in rounds
        if record.readings.step_seconds and (base := of_round.get(record.round)) and record.case != base.case
        if (mine := clock(record)) and (none := clock(base))
    ]
    farthest = max(((mine, none) for *_, mine, none in known), key=_apart, default=(1.0, 1.0))
    if not held and _apart(farthest) > APART:
        apart = f"{_megahertz(farthest[0])}, that of its baseline at {_megahertz(farthest[1])}"
        held = f"the clock differed: a round ran at {apart}; nvidia-smi --lock-gpu-clocks makes times comparable"
    ratios = [
        median(record.readings.step_seconds or ()) / median(base.readings.step_seconds or ()) * mine / none
        for record, base, mine, none in known
    ]
    return f"{held}; in cycles the step is {change_text(median(ratios))}" if held and ratios else held


def _apart(clocks: tuple[float, float]) -> float:
    return abs(clocks[0] / clocks[1] - 1)


def clock(record: Record) -> float | None:
    """Return the mean clock while the steps of a round were timed, in hertz; None if it is not known."""
    clocks = [moment.clock_hertz for moment in record.readings.conditions or () if moment.clock_hertz]
    return fmean(clocks) if clocks else None


def clock_held(series: Series) -> str | None:
    """Return a sentence if the clock was held down, or fell, during timing: by what, how far, how hot it was."""
    moments = list(chain.from_iterable(series))
    clocks = [moment.clock_hertz for moment in moments if moment.clock_hertz is not None]
    most = {
        name: max((value for moment in moments if (value := getattr(moment, name)) is not None), default=None)
        for name in ("highest_clock_hertz", "celsius", "watts", "limit_watts")
    }
    highest, celsius, watts, limit = most.values()
    reasons = list(dict.fromkeys(chain.from_iterable(moment.held_by for moment in moments)))
    is_held = bool(reasons) and (not clocks or highest is None or min(clocks) < SLOWED * highest)
    if not is_held and not any(map(_falls, series)):
        return None
    state = []
    if clocks:
        of_highest = "" if highest is None else f" of {_megahertz(highest)}"
        state.append(f"{_megahertz(min(clocks))} to {_megahertz(max(clocks))}{of_highest}")
    if celsius is not None:
        state.append(f"up to {in_unit_text(round(celsius), 'C')}")
    if watts is not None:
        of_limit = "" if limit is None else f" of {in_unit_text(round(limit), 'W')}"
        state.append(f"up to {in_unit_text(round(watts), 'W')}{of_limit}")
    by = f" by {' and '.join(reasons)}" if reasons else ""
    held = f"the clock was held down{by}: {', '.join(state)}"
    return f"{held}; cooling, or nvidia-smi --lock-gpu-clocks, makes times comparable"


def _falls(round_: Sequence[Conditions]) -> bool:
    clocks = [moment.clock_hertz for moment in round_ if moment.clock_hertz is not None]
    return any(later < SLOWED * highest for later, highest in zip(clocks[1:], accumulate(clocks, max), strict=False))


def _megahertz(hertz: float) -> str:
    return in_unit_text(round(hertz / 1e6), "MHz")


def _host_bound(rounds: Sequence[Record]) -> str | None:
    """Return a sentence if the device waits for the host for most of the step."""
    share = max(record.readings.host_share or 0.0 for record in rounds)
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
        held = max(record.readings.reserved_bytes or 0, record.readings.peak_bytes or 0)
        if total and held > total and not record.case.device.startswith("cpu"):
            return (
                f"spill suspected: {bytes_text(held)} on a device of {bytes_text(total)}: the driver holds some of it "
                "in the host's memory (Windows, WSL), and the time includes the bus; a smaller --batch-size would fit"
            )
    return None


def _in_a_row(rounds: Sequence[Record]) -> str | None:
    most = max(record.readings.steps_per_sample for record in rounds)
    of = f"each sample is the mean of up to {count_text(most, 'step')} in a row"
    return f"a step is too fast for the clock: {of}; a larger --batch-size takes longer" if most > 1 else None


def _cut_short(rounds: Sequence[Record]) -> str | None:
    """Return a sentence if a round hit its stage time limit before its sampling target."""
    cut = [record for record in rounds if record.readings.stopped == "limit"]
    if not cut:
        return None
    seconds, case = [record.readings.step_seconds or () for record in cut], cut[0].case
    unmet = f"--precision-target {case.sampling.precision_target:.1%}" if case.sampling else f"--samples {case.samples}"
    return (
        f"a round ended after {count_text(min(map(len, seconds)), 'sample')}, before {unmet} was met: "
        f"a step takes {seconds_text(median(chain.from_iterable(seconds)))}; "
        "a larger --stage-limit leaves time for more"
    )


def _elsewhere(rounds: Sequence[Record], baseline: Sequence[Record]) -> str | None:
    """Return a sentence if the baseline ran on another device of the same name in some rounds, as on a cluster."""
    of_round = {record.round: record.environment.device_uuid for record in baseline if record.environment}
    pairs = [(record.environment.device_uuid, of_round.get(record.round)) for record in rounds if record.environment]
    named = [(mine, other) for mine, other in pairs if mine and other]
    apart = sum(mine != other for mine, other in named)
    if not apart:
        return None
    return (
        f"in {apart} of {count_text(len(named), 'round')} it ran on another GPU than its baseline: the ratio "
        "includes the difference between the GPUs; more --rounds average it out"
    )
