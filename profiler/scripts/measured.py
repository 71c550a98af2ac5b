"""A command measured on the device that is here: memory and gradients of each strategy once, then rounds of time.

Gradients are those that two runs of the script wrote down, compared if the script repeats itself at all.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from profiler.core.record import Gradients
from profiler.core.units import Choice
from profiler.scripts import launch
from profiler.scripts.report import Asked, Ended, Variant

SEED = "0"
LOOKED_AT = 3  # steps of a run for gradients alone: both steps of a second optimizer are in them
ROUNDING = 2.0**-12  # relative: as in profiler/measuring/meters/equality.py, whose differences these are
NOT_COMPARED = "no optimizer of torch.optim made a step with gradients"
IN_BACKWARD = "in-backward"
FREED = f"{IN_BACKWARD} frees gradients before the step at which they are compared"
Line = dict[str, Any]
Lines = Mapping[str, Sequence[Line]]  # of each process
Place = tuple[int, int, str]  # a step, from 1; an optimizer, in the order of their first steps; a process


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured, beside the command."""

    strategies: tuple[str, ...]  # `none` first
    rounds: int
    values: dict[str, str]  # of -L
    say: Callable[[str], None]  # takes a line of progress
    on_line: Callable[[Line], None]  # takes each line of the first run
    stdout: int | None = None  # of the first run; others print nothing there


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    variants: tuple[Variant, ...]
    last: Ended  # the run that ended all, or the last one
    exit_code: int  # of the command's first run


def measure(asked: Asked, request: Request) -> Session:
    """Run the command for each strategy; where one run is ended from outside, nothing follows it.

    `none` is run a second time for its gradients alone. Raises UserError as `launch.run` does.
    """
    with tempfile.TemporaryDirectory(prefix="gcprof-gradients-") as name:
        folder, again = Path(name), None
        request.say("none: memory and gradients")
        measuring = _measuring(asked, "memory", "none", kept=folder)
        plain = last = launch.run(measuring, on_line=request.on_line, stdout=request.stdout)
        ends = {"none": plain}
        if not (plain.is_stopped or plain.exit_code):
            request.say("none: its gradients once more")
            few = msgspec.structs.replace(asked, steps=min(asked.steps or LOOKED_AT, LOOKED_AT))
            again = last = _run(_measuring(few, "gradients", "none", reference=folder))
        for strategy in request.strategies[1:]:
            if last.is_stopped or plain.exit_code:
                break
            request.say(f"{strategy}: memory and gradients")
            ends[strategy] = last = _run(_measuring(asked, "memory", strategy, reference=folder))
    variants = {}
    for strategy, ended in ends.items():
        here = msgspec.structs.replace(asked, gpus=None, strategy=strategy)
        variants[strategy] = variant = Variant.of(ended, here, request.values)
        if again is not None and not again.is_stopped and not ended.exit_code:
            is_freed = IN_BACKWARD in (lever.name for lever in Choice(strategy).parts)
            found = compared(plain.lines, again.lines, (again if strategy == "none" else ended).lines)
            equality = Gradients(verdict="unverified", detail=FREED) if is_freed else found
            variants[strategy] = msgspec.structs.replace(variant, equality=equality)
    if not last.is_stopped and not plain.exit_code:
        last = _time(asked, request, variants) or last
    return Session(variants=tuple(variants.values()), last=last, exit_code=plain.exit_code)


def _time(asked: Asked, request: Request, variants: dict[str, Variant]) -> Ended | None:
    """Add the seconds of each round to the variants that ended well; return the last run."""
    timed = [strategy for strategy, variant in variants.items() if variant.outcome == "ok"]
    ended = None
    for number in range(request.rounds):
        request.say(f"round {number + 1} of {request.rounds}: time of {', '.join(timed)}")
        for strategy in timed[::-1] if number % 2 else timed:
            ended = _run(_measuring(asked, "time", strategy))
            if ended.is_stopped:
                return ended
            found = variants[strategy]
            made = [tuple(row["seconds"] for row in rows if row["kind"] == "seconds") for rows in ended.lines.values()]
            most = max(made, key=len, default=())  # of the process that made most steps
            variants[strategy] = msgspec.structs.replace(found, seconds=(*found.seconds, most))
    return ended


def _run(asked: Asked) -> Ended:
    return launch.run(asked, stdout=subprocess.DEVNULL)


def _measuring(
    asked: Asked, what: str, strategy: str, *, kept: Path | None = None, reference: Path | None = None
) -> Asked:
    variables = {"GCPROF_MEASURE": what, "GCPROF_SEED": SEED, "PYTHONHASHSEED": SEED, "KINETO_LOG_LEVEL": "6"}
    variables |= asked.variables | ({"GCPROF_REFERENCE": str(reference)} if reference else {})
    return msgspec.structs.replace(asked, strategy=strategy, variables=variables, kept=kept)


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
            amounts = [found[place]["differences"].get(name) for name in changed]
            largest = None if None in amounts else max(amounts)
            is_rounding = largest is not None and largest <= ROUNDING
            return Gradients(
                verdict="equal within rounding" if is_rounding else "differ",
                detail="later steps, which follow from it, were not compared" if is_rounding else None,
                parameter=changed[0], step=place[0], num_differing=len(changed), num_gradients=num,
                largest_difference=largest,
            )  # fmt: skip
    return Gradients(verdict="equal", num_gradients=num)


def _changed(expected: Line, found: Line) -> list[str]:
    """Return the parameters whose gradients do not have the same bytes, in the order of the first run."""
    digests, others, missing = expected["digests"], found["digests"], object()
    return [name for name in {**digests, **others} if digests.get(name, missing) != others.get(name, missing)]


def _gradients(lines: Lines) -> dict[Place, Line]:
    found: dict[Place, Line] = {}
    for row in (row for rows in lines.values() for row in rows if row["kind"] == "gradients"):
        key, more = row["key"], 1
        while (place := (row["step"], row["optimizer"], key)) in found:  # processes that are called the same
            more += 1
            key = f"{row['key']} {more}"
        found[place] = row
    return found
