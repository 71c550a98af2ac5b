"""A plan -> one of n parts of it, for machines that know nothing of each other: knows nothing of where trials run."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from profiler.core.case import Case, Trial
from profiler.core.errors import UserError
from profiler.core.limits import Whole

MOST = 100_000
Pairing = tuple[Case, int]


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a sweep a run is."""

    index: Whole  # from 1
    count: Whole  # parts in all
    places: tuple[Whole, ...] = ()  # where its trials stand in the whole plan, from 0

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse(text: str) -> Shard:
    """`2/8`, the second of eight. Raises UserError."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip(), flags=re.ASCII)
    index, count = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= index <= count <= MOST:
        raise UserError(f"--shard cannot be '{text}'", hint="which part of how many: 1/8 is the first of eight")
    return Shard(index=index, count=count)


def cut(trials: Sequence[Trial], shard: Shard) -> tuple[tuple[Trial, ...], Shard]:
    """The trials of one part, in their order, and the part with their places; none where there are too few pairings."""
    places = deal(trials, shard.count)[shard.index - 1]
    return tuple(trials[place] for place in places), msgspec.structs.replace(shard, places=tuple(places))


def deal(trials: Sequence[Trial], count: int) -> list[list[int]]:
    """The places of the trials of each of `count` parts: every trial is in exactly one.

    What is never cut is a pairing, since ratios are of one round on one device. The largest come first, each to the
    part that has the fewest trials; of equals the first. So the parts differ by no more than the largest pairing.
    """
    found: dict[Pairing, list[int]] = {}
    for place, trial in enumerate(trials):
        found.setdefault(pairing(trial), []).append(place)
    parts: list[list[int]] = [[] for _ in range(count)]
    for places in sorted(found.values(), key=len, reverse=True):
        min(parts, key=len).extend(places)
    return [sorted(part) for part in parts]


def pairing(trial: Trial) -> Pairing:
    """What must stay together: a baseline in one round, with all that is compared with it or predicted of it."""
    return trial.case.baseline.twin, trial.round


def joined(parts: Sequence[tuple[Shard, Sequence[Trial]]]) -> list[Trial]:
    """The trials of parts of one sweep in the order of the whole plan."""
    placed = [one for shard, trials in parts for one in zip(shard.places, trials, strict=False)]
    return [trial for _, trial in sorted(placed, key=lambda one: one[0])]
