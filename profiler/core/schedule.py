"""Cases -> trials in the order in which they are run, and the shards of such a schedule."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec
from msgspec import UNSET

from profiler.core.case import OPERATORS, OWN, PASSES, Case, Choice, Trial, Whole
from profiler.core.errors import UserError
from profiler.core.paired_steps import WITHOUT_SWITCH

DDP_SETTLING = 3  # steps before memory is read: buckets are made anew in the second, and DDP tells of it in the third
REHEARSED_PASSES = ("flops", "memory")
MOST_SHARDS = 100_000
PAIRS = (1, 3, 3)  # of steps, that three rounds take at least: six have an interval
Pairing = tuple[Case, int]


def measured(cases: Iterable[Case], rounds: int, *, predict: bool = False) -> tuple[Trial, ...]:
    """The cases in rounds; with `predict`, each is predicted besides, with what is read of the baseline's operators.

    A rehearsed case has one round, and no passes that need arithmetic or time.
    """
    cases = list(cases)
    if any(case.is_rehearsed for case in cases):
        rehearsals = tuple(Trial(case=case, passes=REHEARSED_PASSES) for case in cases)
        return (*rehearsals, *predicted(case.foreseen for case in cases)) if predict else rehearsals
    trials = in_rounds(cases, rounds)
    if not predict:
        return trials
    first = [_with_operators(trial) for trial in trials if trial.round == 1]
    return (*first, *predicted(case.foreseen for case in cases), *(trial for trial in trials if trial.round > 1))


def with_own_rows(trials: Sequence[Trial], is_code: Callable[[str], bool]) -> tuple[Trial, ...]:
    """The trials, and beside each baseline of code of the user's own that runs the model's own checkpoints.

    It stands in the schedule from the start, and is run where the baseline finds such checkpoints.
    """
    asked = {(trial.case, trial.round) for trial in trials}
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
    """Each case once; with `calibrate`, the baselines are measured before, on a device of that kind."""
    cases = list(cases)
    real = dict.fromkeys(_measurable(case) for case in cases if case == case.baseline) if calibrate else ()
    passes = ("memory", OPERATORS, "time")
    return (
        *(Trial(case=case, passes=passes) for case in real),
        *(Trial(case=case, passes=("memory",)) for case in cases),
    )


def in_one_round(trials: Iterable[Trial], devices: Collection[str]) -> tuple[Trial, ...]:
    """The trials without the later rounds of cases on these devices, which have no times that more rounds could add."""
    return tuple(trial for trial in trials if trial.round == 1 or trial.case.device not in devices)


def _measurable(case: Case) -> Case:
    kind = case.twin.device
    return msgspec.structs.replace(case, device=f"{kind}:0" if kind == "cuda" else kind)


def _with_operators(trial: Trial) -> Trial:
    is_baseline = trial.case == trial.case.baseline
    return msgspec.structs.replace(trial, passes=(*trial.passes, OPERATORS)) if is_baseline else trial


def in_rounds(cases: Iterable[Case], rounds: int) -> tuple[Trial, ...]:
    """Rounds over all cases, every second one reversed, so that drift and heat favour none.

    Only the first round verifies and reads the memory, both exact; the others add samples of time. Of three rounds the
    first takes a pair of steps, so that every row is there soon: the later ones, which share a process, take the rest.
    """
    forth = list(cases)
    has_look = rounds >= len(PAIRS) and not any(case.strategy.name in WITHOUT_SWITCH for case in forth)
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
    """Whether nothing but the time is measured, of a strategy that others of its model can stand beside."""
    case = trial.case
    is_alone = trial.passes == ("time",) and trial.is_paired and not (case.is_predicted or case.is_rehearsed)
    return is_alone and not (case.ranks or case.repair_batchnorm) and case.strategy.name not in WITHOUT_SWITCH


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a sweep a run is."""

    index: Whole  # from 1
    count: Whole  # parts in all
    places: tuple[Whole, ...] = ()  # where its trials stand in the whole plan, from 0

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_shard(text: str) -> Shard:
    """`2/8`, the second of eight. Raises UserError."""
    numbers = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip(), flags=re.ASCII)
    index, count = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if not 1 <= index <= count <= MOST_SHARDS:
        raise UserError(f"--shard cannot be '{text}'", hint="which part of how many: 1/8 is the first of eight")
    return Shard(index=index, count=count)


def cut(trials: Sequence[Trial], shard: Shard) -> tuple[tuple[Trial, ...], Shard]:
    """The trials of one shard, in their order, and the shard with their places; none if there are too few pairings."""
    places = deal(trials, shard.count)[shard.index - 1]
    return tuple(trials[place] for place in places), msgspec.structs.replace(shard, places=tuple(places))


def deal(trials: Sequence[Trial], count: int) -> list[list[int]]:
    """The places of the trials of each of `count` shards: every trial is in exactly one.

    What is never cut is a pairing, since ratios are of one round on one device. The largest come first, each to the
    shard that has the fewest trials; of equals the first. So the shards differ by no more than the largest pairing.
    """
    places_of: dict[Pairing, list[int]] = {}
    for place, trial in enumerate(trials):
        places_of.setdefault(pairing(trial), []).append(place)
    shards: list[list[int]] = [[] for _ in range(count)]
    for places in sorted(places_of.values(), key=len, reverse=True):
        min(shards, key=len).extend(places)
    return [sorted(shard) for shard in shards]


def pairing(trial: Trial) -> Pairing:
    """What must stay together: a baseline in one round, with all that is compared with it or predicted of it."""
    return trial.case.baseline.twin, trial.round


def joined_shards(shards: Sequence[tuple[Shard, Sequence[Trial]]]) -> list[Trial]:
    """The trials of all shards of one sweep in the order of the whole plan."""
    placed = [placed_trial for shard, trials in shards for placed_trial in zip(shard.places, trials, strict=False)]
    return [trial for _, trial in sorted(placed, key=lambda placed_trial: placed_trial[0])]
