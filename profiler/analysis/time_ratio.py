"""The one rule for whether two times can be told apart, and notes on what makes them unsure.

Tables, notes, pictures, plans and comparisons use the rule, which is explained in docs/numbers.md; what the interval
between two runs means is in docs/comparing.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from math import exp, fsum, hypot, inf, log, sqrt
from statistics import NormalDist, fmean, median
from typing import Literal, NamedTuple

import msgspec

from profiler.core.record import Conditions, Note, Readings, Record
from profiler.core.stats import LEVEL, RoundSteps, calm_ratios, drift, ratio_of_pairs, spread, uncertainty
from profiler.core.units import bytes_text, change_text, count_text, in_unit_text, seconds_text, spread_text

TimeVerdict = Literal["faster", "slower", "same", "cannot be told apart", "too noisy to tell"]
Series = Sequence[Sequence[Conditions]]  # of each round, in order of time
Rounds = Sequence[Sequence[float]]  # the samples of each round, in the order in which they were taken

MARGIN = 0.01  # relative: a smaller difference does not matter to the choice of a strategy
NOISY = 2.0  # an interval that extends from its ratio by more than this factor, +-100 %, tells nothing
NUM_STRETCHES = 10  # how many stretches a single round is cut into
# the t with P(|T| <= t) = LEVEL in Student's distribution, from one degree of freedom on
STUDENT = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139)
VARYING = 0.1  # half the interquartile range over the median; and half the range of the ratios of the rounds
HELD = 0.9  # fraction of the steps' time with a core; if it is less, time was stolen from them
DRIFT = 0.05  # a smaller change is accepted, however certain it is
HOST_BOUND = 0.9  # host's share of a step: the device works alone for no more than a tenth of it
LIMITS = {"samples": "--max-samples", "seconds": "--max-seconds", "limit": "--stage-limit"}  # by Readings.stopped
SLOWED = 0.95  # fraction of the highest clock: a clock held down, or falling, to this is accepted
MORE_WORK = (
    "its step takes {} although it computes {} FLOPs: the memory that it saves (caches, a slow allocator) costs more "
    "here than the recompute; elsewhere it may be slower"
)
SHARE = 0.1  # fraction of all cores that other processes may use
LEAST_SECONDS = 0.5  # in less time no share can be computed, since the system counts in hundredths
APART = 0.05  # a smaller relative difference of clocks is accepted


class TimeRatio(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The ratio of a step's time to another's, and its confidence interval; None if there is none."""

    ratio: float
    low: float | None = None
    high: float | None = None
    num_pairs: int = 0  # pairs of steps that alternated in one process; 0: from rounds, or an estimate

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def has_basis(self) -> bool:
        """Whether it stands on pairs or on several rounds, not on one round of two processes."""
        return self.num_pairs > 0 or self.low is not None

    @property
    def uncertainty(self) -> float | None:
        """The relative distance from the ratio to the farther end of the interval."""
        if self.low is None or self.high is None:
            return None
        return max(self.ratio - self.low, self.high - self.ratio) / self.ratio

    @property
    def is_noisy(self) -> bool:
        """Whether the interval extends from the ratio by more than the factor NOISY, up or down: it tells nothing."""
        low, high = self.interval or (self.ratio, self.ratio)
        return high > NOISY * self.ratio or low * NOISY < self.ratio


def verdict(time: TimeRatio | None, *, floor: float | None = None) -> TimeVerdict:
    """Return the verdict on the ratio of two times.

    `floor` is the noise of the run, how far `none` may be from itself: no ratio nearer to 1 is called a difference.
    """
    if time is None or time.low is None or time.high is None:
        return "cannot be told apart"
    if time.low >= 1 / (1 + MARGIN) and time.high <= 1 + MARGIN:
        return "same"
    if time.is_noisy:
        return "too noisy to tell"
    if time.high >= 1 / (1 + MARGIN) and time.low <= 1 + MARGIN:
        return "cannot be told apart"
    if floor is not None and abs(log(time.ratio)) <= log(1 + floor):
        return "cannot be told apart"
    return "slower" if time.low > 1 + MARGIN else "faster"


def floor_of(itself: TimeRatio | None) -> float | None:
    """Return how far `none` may be from itself, as a fraction: the farther end of its interval; None without one."""
    if itself is None or itself.interval is None:
        return None
    return exp(max(_distance(end) for end in itself.interval)) - 1


def estimated(before: float, after: float) -> TimeRatio | None:
    """Return the ratio of predicted seconds, which have no noise; None if `before` takes no time."""
    return TimeRatio(ratio=after / before, low=after / before, high=after / before) if before > 0 else None


def of_pairs(rounds: Rounds) -> TimeRatio:
    """Return the ratio from the pairs of all rounds, a process each, and its interval: none for fewer than six pairs.

    If the rounds differ by more than their pairs do, the interval is widened to hold the ratio of each.
    """
    ratios = list(chain.from_iterable(rounds))
    ratio, limits = ratio_of_pairs(ratios)
    if limits is None:
        return TimeRatio(ratio=ratio, num_pairs=len(ratios))
    if _differ(rounds):
        middles = [ratio_of_pairs(round_)[0] for round_ in rounds if round_]
        limits = min(limits[0], *middles), max(limits[1], *middles)
    return TimeRatio(ratio=ratio, low=limits[0], high=limits[1], num_pairs=len(ratios))


def of_records(rounds: Sequence[Record]) -> TimeRatio | None:
    """Return the ratio of steps with the strategy to steps without it that alternated with them; None if none did."""
    steps = [
        RoundSteps(own, plain, readings.processor_seconds or (), readings.plain_processor_seconds or ())
        for readings in (record.readings for record in rounds)
        if (own := readings.step_seconds) and (plain := readings.plain_step_seconds)
    ]
    ratios = calm_ratios(steps) if steps else ()
    return of_pairs(ratios) if any(ratios) else None


def of_rounds(ratios: Sequence[float]) -> TimeRatio:
    """Return the median of the ratios of rounds, each of two processes, and their range if there are several."""
    if len(ratios) == 1:
        return TimeRatio(ratio=ratios[0])
    return TimeRatio(ratio=median(ratios), low=min(ratios), high=max(ratios))


def quotient(time: TimeRatio, other: TimeRatio) -> TimeRatio:
    """Return the ratio of two ratios to the same step; how far their intervals reach adds in squares, in logarithms."""
    ratio = time.ratio / other.ratio
    if time.interval is None or other.interval is None:
        return TimeRatio(ratio=ratio)
    down, up = (_distance(end / time.ratio) for end in time.interval)
    other_down, other_up = (_distance(end / other.ratio) for end in other.interval)
    return TimeRatio(ratio=ratio, low=ratio * exp(-hypot(down, other_up)), high=ratio * exp(hypot(up, other_down)))


def _distance(ratio: float) -> float:
    return abs(log(ratio)) if ratio > 0 else inf


def _differ(rounds: Rounds) -> bool:
    """Whether rounds differ by more than their pairs explain, at LEVEL: Kruskal-Wallis test, JASA 47, 1952."""
    series = [round_ for round_ in rounds if round_]
    values = sorted(chain.from_iterable(series))
    counts = Counter(values)
    total = len(values)
    ties = 1 - sum(count**3 - count for count in counts.values()) / (total**3 - total)
    if len(series) < 2 or not ties:
        return False
    first = {value: place for place, value in reversed(list(enumerate(values)))}
    rank = {value: first[value] + (count + 1) / 2 for value, count in counts.items()}
    squares = sum(sum(rank[ratio] for ratio in round_) ** 2 / len(round_) for round_ in series)
    freedom = len(series) - 1
    part = 2 / (9 * freedom)  # the quantile of chi-squared: Wilson and Hilferty, PNAS 17, 1931; within 1 %
    most = freedom * (1 - part + NormalDist().inv_cdf(LEVEL) * sqrt(part)) ** 3
    return (12 / (total * (total + 1)) * squares - 3 * (total + 1)) / ties > most


class Sample(NamedTuple):
    """The statistics of one side's samples, taken without pairs, that a comparison needs."""

    middle: float  # the median
    num_units: int
    mean: float | None = None  # of the logarithms of the units; None if one is not above zero, or there is only one
    spread: float = 0.0  # squared standard error of that mean


@lru_cache(maxsize=2**14)  # a row is compared with many others
def sample(rounds: tuple[tuple[float, ...], ...]) -> Sample:
    """Return the statistics that a comparison needs of one side's samples."""
    seconds, independent = list(chain.from_iterable(rounds)), units(rounds)
    if min(seconds) <= 0 or len(independent) < 2:
        return Sample(median(seconds), len(independent))
    logarithms = list(map(log, independent))
    mean = fsum(logarithms) / len(logarithms)
    # statistics.variance is exact, and takes twenty times as long
    variance = fsum([(value - mean) ** 2 for value in logarithms]) / (len(logarithms) - 1)
    return Sample(median(seconds), len(independent), mean, variance / len(logarithms))


def units(rounds: Rounds) -> Sequence[float]:
    """Return what is taken to be independent: the medians of the rounds, each a process of its own.

    For a single round, the medians of stretches of consecutive steps, since neighbors are correlated.
    """
    measured = [seconds for seconds in rounds if seconds]
    if len(measured) > 1:
        return [median(seconds) for seconds in measured]
    samples = measured[0] if measured else ()
    if len(samples) <= NUM_STRETCHES:
        return samples
    edges = [len(samples) * place // NUM_STRETCHES for place in range(NUM_STRETCHES + 1)]
    return [median(samples[edges[place] : edges[place + 1]]) for place in range(NUM_STRETCHES)]


def of_samples(before: Sample, after: Sample) -> TimeRatio | None:
    """Return the ratio of two medians; None if `before` takes no time.

    Its interval is Welch's t interval of the difference of mean logarithms of the units; it always contains the ratio
    of the medians. A side without noise, such as a prediction, has equal samples.
    """
    if before.middle <= 0:
        return None
    ratio = after.middle / before.middle
    if before.mean is None or after.mean is None:
        return TimeRatio(ratio=ratio)
    both, centre, half = before.spread + after.spread, after.mean - before.mean, 0.0
    if both:  # Welch's degrees of freedom for small samples (Biometrika 34, 1947), within their possible range
        first, second = before.num_units, after.num_units
        freedom = both**2 / (before.spread**2 / (first + 1) + after.spread**2 / (second + 1)) - 2
        half = t_quantile(min(max(freedom, min(first, second) - 1), first + second - 2)) * sqrt(both)
    return TimeRatio(ratio=ratio, low=min(ratio, exp(centre - half)), high=max(ratio, exp(centre + half)))


def t_quantile(freedom: float) -> float:
    """Return the t with P(|T| <= t) = LEVEL in Student's distribution; `freedom` is at least 1.

    Between the degrees of STUDENT the logarithm of t is interpolated in 1 / freedom: within 1 % of t from 2 on, and
    within 4 % below. Above them it is Fisher's expansion (Abramowitz and Stegun 26.7.5), within 0.02 %.
    """
    if freedom >= len(STUDENT):
        z = NormalDist().inv_cdf((1 + LEVEL) / 2)
        first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
        third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
        return z + first / freedom + second / freedom**2 + third / freedom**3
    below = int(freedom)
    low, high = log(STUDENT[below - 1]), log(STUDENT[below])
    return exp(low + (1 / below - 1 / freedom) * below * (below + 1) * (high - low))


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
        **_of_steps(timed, () if is_paired else baseline),
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
    width, limits, apart = spread(seconds), time.interval if time and not time.num_pairs else None, None
    if width is not None and width > VARYING:
        apart = f"its steps vary by {spread_text(width)}"
    elif limits and limits[1] - limits[0] > 2 * VARYING:  # the ratio is made of its rounds
        apart = f"its rounds' ratios are {(limits[1] - limits[0]) * 100:.0f} points apart"
    facts = [fact for fact in (asked, apart, others, waited if is_stolen else None) if fact]
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


def _beside_pairs(seconds: tuple[float, ...], time: TimeRatio, baseline: Sequence[Record]) -> str | None:
    """Return a sentence if the medians of row and baseline give another ratio than the pairs did."""
    plain = tuple(chain.from_iterable(record.readings.step_seconds or () for record in baseline))
    if not plain:
        return None
    low, high = time.interval or (time.ratio / NOISY, time.ratio * NOISY)
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
    known = [[moment.clock_hertz for moment in round_ if moment.clock_hertz is not None] for round_ in series]
    falls = any(after < SLOWED * most for one in known for after, most in zip(one, accumulate(one, max), strict=True))
    if not is_held and not falls:
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


def _megahertz(hertz: float) -> str:
    return in_unit_text(round(hertz / 1e6), "MHz")


def _of_steps(rounds: Sequence[Record], baseline: Sequence[Record]) -> dict[str, str]:
    """Return what makes steps slow or is too fast or slow itself, and if the baseline had another GPU of that name."""
    texts = {}
    share = max(record.readings.host_share or 0.0 for record in rounds)
    if share >= HOST_BOUND:
        texts["GCP030"] = (
            f"the host is at work for {share * 100:.0f} % of the step: the time is the host's, and concurrent trials "
            "(--devices) change it; a larger --batch-size gives the device more to do"
        )
    for record in reversed(rounds):  # the first counts
        total = record.environment.device_bytes if record.environment else None
        held = max(record.readings.reserved_bytes or 0, record.readings.peak_bytes or 0)
        if total and held > total and not record.case.device.startswith("cpu"):  # the rest can only be the host's
            texts["GCP032"] = (
                f"spill suspected: {bytes_text(held)} on a device of {bytes_text(total)}: the driver holds some of it "
                "in the host's memory (Windows, WSL), and the time includes the bus; a smaller --batch-size would fit"
            )
    most = max(record.readings.steps_per_sample for record in rounds)
    if most > 1:
        of = f"each sample is the mean of up to {count_text(most, 'step')} in a row"
        texts["GCP033"] = f"a step is too fast for the clock: {of}; a larger --batch-size takes longer"
    cut = [record for record in rounds if record.readings.stopped == "limit"]
    if cut:
        seconds, case = [record.readings.step_seconds or () for record in cut], cut[0].case
        target = case.sampling and f"--precision-target {case.sampling.precision_target:.1%}"
        texts["GCP034"] = (
            f"a round ended after {count_text(min(map(len, seconds)), 'sample')}, before "
            f"{target or f'--samples {case.samples}'} was met: a step takes "
            f"{seconds_text(median(chain.from_iterable(seconds)))}; a larger --stage-limit leaves time for more"
        )
    of_round = {record.round: record.environment.device_uuid for record in baseline if record.environment}
    pairs = [(record.environment.device_uuid, of_round.get(record.round)) for record in rounds if record.environment]
    apart = [mine != other for mine, other in pairs if mine and other]
    if any(apart):
        texts["GCP036"] = (
            f"in {sum(apart)} of {count_text(len(apart), 'round')} it ran on another GPU than its baseline: the ratio "
            "includes the difference between the GPUs; more --rounds average it out"
        )
    return texts
