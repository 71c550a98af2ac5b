"""Turns cases into trials in the order in which they run, and splits such a schedule into shards."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from profiler.core import by_key
from profiler.core.case import OPERATORS, OWN, PASSES, Case, Choice, Key, Trial, Whole
from profiler.core.errors import UserError

DDP_SETTLING = 3  # steps before memory is read: DDP rebuilds its buckets in the second, and reports that in the third
REHEARSED_PASSES = ("flops", "memory")
MOST_SHARDS = 100_000
PAIRS = (1, 3, 3)  # minimum of pairs in rounds 1, 2 and from 3 on: seven in all, and six have an interval


def measured(cases: Iterable[Case], rounds: int, *, predict: bool = False) -> tuple[Trial, ...]:
    """Return the trials of all rounds; with `predict` also predictions, calibrated by the baselines' operators pass.

    Rehearsed cases have one round, and no passes that need arithmetic or time.
    """
    cases = list(cases)
    if any(case.is_rehearsed for case in cases):
        rehearsals = tuple(Trial(case=case, passes=REHEARSED_PASSES) for case in cases)
        return (*rehearsals, *predicted(case.foreseen for case in cases)) if predict else rehearsals
    trials = in_rounds(cases, rounds)
    if not predict:
        return trials
    first = [
        msgspec.structs.replace(trial, passes=(*trial.passes, OPERATORS))
        if trial.case == trial.case.baseline
        else trial
        for trial in trials
        if trial.round == 1
    ]
    return (*first, *predicted(case.foreseen for case in cases), *(trial for trial in trials if trial.round > 1))


def with_own_rows(trials: Sequence[Trial], is_code: Callable[[str], bool]) -> tuple[Trial, ...]:
    """Return the trials, and after each baseline of user code a trial with the checkpoints that the model itself calls.

    The latter is in the schedule from the start, but runs only if the baseline finds such checkpoints.
    """
    asked = {trial.key for trial in trials}
    planned: list[Trial] = []
    for trial in trials:
        planned.append(trial)
        own = msgspec.structs.replace(trial.case, strategy=Choice(OWN))
        is_baseline = trial.case == trial.case.baseline and not trial.case.is_predicted
        if is_baseline and is_code(trial.case.model.name) and (own, trial.round) not in asked:
            passes = tuple(name for name in trial.passes if name != OPERATORS)
            planned.append(Trial(case=own, round=trial.round, passes=passes, if_own=True))
    return tuple(planned)


def predicted(cases: Iterable[Case], *, calibrate: bool = False) -> tuple[Trial, ...]:
    """Return a prediction of each case; with `calibrate`, after measuring the baselines on a device of that kind."""
    cases = list(cases)
    kinds = {"cuda": "cuda:0"}  # the device that measures for each kind, where it is not called as the kind is
    baselines = [case for case in cases if case == case.baseline] if calibrate else []
    real = dict.fromkeys(
        msgspec.structs.replace(case, device=kinds.get(case.twin.device, case.twin.device)) for case in baselines
    )
    passes = ("memory", OPERATORS, "time")
    return (
        *(Trial(case=case, passes=passes) for case in real),
        *(Trial(case=case, passes=("memory",)) for case in cases),
    )


def in_rounds(cases: Iterable[Case], rounds: int) -> tuple[Trial, ...]:
    """Return rounds over all cases, every second one reversed, so that drift and heat favor no case.

    Only the first round verifies and reads the memory, both exact; the others add samples of time. Of three rounds or
    more the first may take a single pair of steps, so that every row appears soon; the later ones, which share a
    process, take more.
    """
    forth = list(cases)
    has_look = rounds >= len(PAIRS) and all(case.has_switch for case in forth)
    return tuple(
        Trial(
            case=case,
            round=number,
            passes=PASSES if number == 1 else ("time",),
            least_pairs=PAIRS[min(number, len(PAIRS)) - 1] if has_look and case.sampling else UNSET,
        )
        for number in range(1, rounds + 1)
        for case in (forth if number % 2 else reversed(forth))
    )


def is_time_alone(trial: Trial) -> bool:
    """Whether a trial measures only the time of a strategy that can share a process with others of its model."""
    case = trial.case
    is_alone = trial.passes == ("time",) and trial.is_paired and not (case.is_predicted or case.is_rehearsed)
    return is_alone and not (case.ranks or case.repair_batchnorm) and case.has_switch


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a sweep that a run executes."""

    index: Whole  # from 1
    count: Whole  # number of shards
    places: tuple[Whole, ...] = ()  # places of its trials in the whole schedule, from 0
    sweep: str | UnsetType = UNSET  # digest of the whole schedule

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_shard(text: str) -> Shard:
    """Return the shard of a text such as `2/8`, the second of eight. Raises UserError."""
    numbers = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip(), flags=re.ASCII)
    index, count = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if not 1 <= index <= count <= MOST_SHARDS:
        raise UserError(f"--shard cannot be '{text}'", hint="write which of how many: 1/8 is the first of eight")
    return Shard(index=index, count=count)


def cut(trials: Sequence[Trial], shard: Shard) -> tuple[tuple[Trial, ...], Shard]:
    """Return the trials of one shard, in order, and the shard with their places; none if there are too few pairings."""
    places = deal(trials, shard.count)[shard.index - 1]
    placed = msgspec.structs.replace(shard, places=tuple(places), sweep=digest(trials))
    return tuple(trials[place] for place in places), placed


def digest(trials: Iterable[Trial]) -> str:
    """Return a digest of a whole schedule: which cases in which rounds, in order."""
    text = "".join(f"{trial.case.id} {trial.round}\n" for trial in trials)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def deal(trials: Sequence[Trial], count: int) -> list[list[int]]:
    """Return the places of the trials of each of `count` shards: every trial is in exactly one.

    A pairing is never split, since ratios are taken within one round on one device. The largest pairings are dealt
    first, each to the shard with the fewest trials, the first of equals. So shards differ by no more than the largest
    pairing.
    """
    places_of = by_key((pairing(trial), place) for place, trial in enumerate(trials))
    shards: list[list[int]] = [[] for _ in range(count)]
    for places in sorted(places_of.values(), key=len, reverse=True):
        min(shards, key=len).extend(places)
    return [sorted(shard) for shard in shards]


def pairing(trial: Trial) -> Key:
    """Return the key of trials that stay together: a baseline in one round, with its comparisons and predictions."""
    return trial.case.baseline.twin, trial.round
