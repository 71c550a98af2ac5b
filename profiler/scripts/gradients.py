"""Compares the gradients that two runs of a script wrote down, if the script repeats itself at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from profiler.core.script import Gradients

ROUNDING = 2.0**-12  # relative: as in profiler/measuring/meters/equality.py, whose differences these are
NOT_COMPARED = "no optimizer of torch.optim made a step with gradients"
Lines = Mapping[str, Sequence[dict[str, Any]]]  # of each process
Place = tuple[int, int, str]  # a step, from 1; an optimizer, in the order of their first steps; a process


def compared(plain: Lines, again: Lines, other: Lines) -> Gradients:
    """Compare a run with `plain`, at the steps in which `again`, the same command, has the gradients of `plain`."""
    expected, repeated, found = _gradients(plain), _gradients(again), _gradients(other)
    places: list[Place] = []
    for place in sorted(expected.keys() & repeated.keys()):
        if changed := _changed(expected[place], repeated[place]):
            if places and place[0] > 1:
                break  # what follows cannot be compared; the first step can
            why = f"the script's own two runs differ from parameter {changed[0]} on"
            return Gradients(verdict="not comparable", detail=why, parameter=changed[0], step=place[0])
        places.append(place)
    first = [digest for place in places if place[0] == 1 for digest in expected[place]["digests"].values()]
    num = sum(digest is not None for digest in first)
    if not num:
        return Gradients(verdict="unverified", detail=NOT_COMPARED)
    for place in places:
        if place not in found:
            return Gradients(verdict="differ", detail="a step of an optimizer is missing", step=place[0])
        if changed := _changed(expected[place], found[place]):
            return _differ(place, changed, found[place]["differences"], num)
    return Gradients(verdict="equal", num_gradients=num)


def _differ(place: Place, changed: list[str], differences: Mapping[str, float | None], num: int) -> Gradients:
    amounts = [differences.get(name) for name in changed]
    known = [amount for amount in amounts if amount is not None]
    largest = max(known) if len(known) == len(changed) else None
    is_rounding = largest is not None and largest <= ROUNDING
    return Gradients(
        verdict="equal within rounding" if is_rounding else "differ",
        detail="later steps, which follow from it, were not compared" if is_rounding else None,
        parameter=changed[0], step=place[0], num_differing=len(changed), num_gradients=num, largest_difference=largest,
    )  # fmt: skip


def _changed(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return the parameters whose gradients do not have the same bytes, in the order of the first run."""
    digests, others = expected["digests"], found["digests"]
    missing = object()
    names = [*digests, *(name for name in others if name not in digests)]
    return [name for name in names if digests.get(name, missing) != others.get(name, missing)]


def _gradients(lines: Lines) -> dict[Place, dict[str, Any]]:
    found: dict[Place, dict[str, Any]] = {}
    for rows in lines.values():
        for row in rows:
            if row["kind"] == "gradients":
                key, more = row["key"], 1
                while (place := (row["step"], row["optimizer"], key)) in found:  # processes that are called the same
                    more += 1
                    key = f"{row['key']} {more}"
                found[place] = row
    return found
