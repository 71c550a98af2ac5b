"""A command measured on the device that is here: memory and gradients of each strategy once, then rounds of time."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from profiler.scripts import launch
from profiler.scripts.gradients import compared
from profiler.scripts.launch import Asked, Ended
from profiler.scripts.report import Variant, outcome_of, why_skipped

SEED = "0"
LOOKED_AT = 3  # steps of a run for gradients alone: both steps of a second optimizer are in them
Line = dict[str, Any]


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
    is_whole: bool  # nothing ended it early


def measure(asked: Asked, request: Request) -> Session:
    """Run the command for each strategy; where one run is ended from outside, nothing follows it.

    Raises UserError as `launch.run` does.
    """
    with tempfile.TemporaryDirectory(prefix="gcprof-gradients-") as folder:
        runs = _memory_runs(asked, request, Path(folder))
        ends: dict[str, Ended] = {}
        again = last = None
        for strategy, last in runs:
            if strategy is None:
                again = last
            else:
                ends[strategy] = last
            if _is_stopped(last) or ends["none"].exit_code:
                break
    plain = ends["none"]
    variants = {strategy: _variant(ended, strategy, request, asked) for strategy, ended in ends.items()}
    for strategy, ended in ends.items():
        if again is not None and not _is_stopped(again) and not ended.exit_code:
            equality = compared(plain.lines, again.lines, (again if strategy == "none" else ended).lines)
            variants[strategy] = msgspec.structs.replace(variants[strategy], equality=equality)
    assert last is not None
    if not _is_stopped(last) and not plain.exit_code:
        last = _time(asked, request, variants) or last
    return Session(
        variants=tuple(variants.values()), last=last, exit_code=plain.exit_code, is_whole=not _is_stopped(last)
    )


def _memory_runs(asked: Asked, request: Request, folder: Path) -> Iterator[tuple[str | None, Ended]]:
    """Run `none`, then `none` again (as None) for its gradients alone, then the other strategies."""
    plain = _measuring(asked, "memory", "none", kept=folder)
    request.say("none: memory and gradients")
    yield "none", launch.run(plain, on_line=request.on_line, stdout=request.stdout)
    steps = min(asked.steps or LOOKED_AT, LOOKED_AT)
    again = _measuring(msgspec.structs.replace(asked, steps=steps), "gradients", "none", reference=folder)
    request.say("none: its gradients once more")
    yield None, _run(again)
    for strategy in request.strategies[1:]:
        request.say(f"{strategy}: memory and gradients")
        yield strategy, _run(_measuring(asked, "memory", strategy, reference=folder))


def _time(asked: Asked, request: Request, variants: dict[str, Variant]) -> Ended | None:
    """Add the seconds of each round to the variants that ended well; return the last run."""
    timed = [strategy for strategy, variant in variants.items() if variant.outcome == "ok"]
    ended = None
    for number in range(request.rounds):
        request.say(f"round {number + 1} of {request.rounds}: time of {', '.join(timed)}")
        for strategy in timed[::-1] if number % 2 else timed:
            ended = _run(_measuring(asked, "time", strategy))
            if _is_stopped(ended):
                return ended
            found = variants[strategy]
            variants[strategy] = msgspec.structs.replace(found, seconds=(*found.seconds, _seconds(ended)))
    return ended


def _run(asked: Asked) -> Ended:
    return launch.run(asked, on_line=lambda line: None, stdout=subprocess.DEVNULL)


def _measuring(
    asked: Asked, what: str, strategy: str, *, kept: Path | None = None, reference: Path | None = None
) -> Asked:
    variables = {"GCPROF_MEASURE": what, "GCPROF_SEED": SEED, "PYTHONHASHSEED": SEED, "KINETO_LOG_LEVEL": "6"}
    variables |= asked.variables | ({"GCPROF_REFERENCE": str(reference)} if reference else {})
    return msgspec.structs.replace(asked, strategy=strategy, variables=variables, kept=kept)


def _is_stopped(ended: Ended) -> bool:
    return ended.timed_out or ended.interrupted is not None


def _variant(ended: Ended, strategy: str, request: Request, asked: Asked) -> Variant:
    outcome = outcome_of(ended)
    why = why_skipped(ended, outcome) if strategy != "none" else None
    device, size = _device(ended)
    trained = [process for process in ended.processes if any(phase.name != "start" for phase in process.phases)]
    has_all_steps = any(asked.steps is not None and process.num_steps >= asked.steps for process in trained)
    return Variant(
        words={"strategy": strategy, "device": device, **request.values},
        gpu_bytes=size,
        context_bytes=0,
        outcome="skipped" if why else outcome,
        detail=why,
        is_cut=has_all_steps or bool(asked.batches) or _is_stopped(ended),
        processes=tuple(trained),
        exit_code=ended.exit_code,
        unguarded=ended.unguarded,
        device="cpu" if size is None else "cuda",
        command=asked.words,
    )


def _device(ended: Ended) -> tuple[str, int | None]:
    """Return the device that was used, and the bytes of a GPU."""
    rows = [row for rows in ended.lines.values() for row in rows if row["kind"] == "device"]
    row = next((row for row in rows if row["bytes"] is not None), None)
    return (row["name"], row["bytes"]) if row else ("cpu", None)


def _seconds(ended: Ended) -> tuple[float, ...]:
    """Return the seconds of the steps of the process that made most of them, the first such one."""
    found = [tuple(row["seconds"] for row in rows if row["kind"] == "seconds") for rows in ended.lines.values()]
    return max(found, key=len, default=())
