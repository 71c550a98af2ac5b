"""What is no longer as it was when a run began: its words, files, versions and device. Knows nothing of commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from profiler.core.case import Case, Trial
from profiler.core.record import HARDWARE, SOFTWARE, Environment
from profiler.runs.store import Manifest


def changes(
    before: Manifest, *, environment: Environment, sources: Mapping[str, str], plan: tuple[Trial, ...] | None = None
) -> tuple[str, ...]:
    """Every difference as `name before -> now`; of the plan only where one was asked for."""
    return (
        *_of_plans(before.plan, plan if plan is not None else before.plan),
        *_of_files(before.sources, sources),
        *_of_environments(before.environment, environment),
    )


def _of_plans(before: Iterable[Trial], now: Iterable[Trial]) -> Iterator[str]:
    first, second = [list(plan) for plan in (before, now)]
    if {_key(trial) for trial in first} == {_key(trial) for trial in second}:
        return
    found = list(_of_fields(first, second))
    yield from found or ["other combinations of the same values"]


def _of_fields(first: list[Trial], second: list[Trial]) -> Iterator[str]:
    for field in Case.__struct_fields__:
        old, new = [dict.fromkeys(_word(getattr(one.case, field)) for one in plan) for plan in (first, second)]
        gone, come = [word for word in old if word not in new], [word for word in new if word not in old]
        if gone or come:
            yield f"{field.replace('_', ' ')} {', '.join(gone) or 'nothing'} -> {', '.join(come) or 'nothing besides'}"
    rounds = [max((trial.round for trial in plan), default=0) for plan in (first, second)]
    if rounds[0] != rounds[1]:
        yield f"rounds {rounds[0]} -> {rounds[1]}"


def _of_files(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name, digest in before.items():
        if digest != now.get(name):
            yield f"{name} {digest} -> {now.get(name, 'not there')}"
    yield from (f"{name} not recorded -> {digest}" for name, digest in now.items() if name not in before)


def _of_environments(before: Environment, now: Environment) -> Iterator[str]:
    for name in (*SOFTWARE, *HARDWARE):
        old, new = getattr(before, name), getattr(now, name)
        if old is not None and old != new:
            yield f"{name} {old} -> {new}"


def _key(trial: Trial) -> tuple[Case, int, tuple[str, ...]]:
    return trial.case, trial.round, trial.passes


def _word(value: Any) -> str:
    if isinstance(value, msgspec.Struct):
        return " ".join(f"{name}={one}" for name, one in msgspec.structs.asdict(value).items())
    return "-" if value is None or value is UNSET else str(value).lower() if isinstance(value, bool) else str(value)
