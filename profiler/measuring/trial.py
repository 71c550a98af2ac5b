"""Measures one trial in this process, pass by pass."""

from __future__ import annotations

from collections.abc import Callable

from profiler.core.case import Trial
from profiler.core.record import Readings, Record
from profiler.measuring.bench import Bench, switches
from profiler.measuring.devices import environment
from profiler.measuring.equality_pass import compare
from profiler.measuring.failure_causes import explained
from profiler.measuring.passes import read
from profiler.measuring.ranks import ALONE, Group
from profiler.training.assemble import Build


def measure(
    trial: Trial,
    *,
    on_pass: Callable[[str], None] = lambda name: None,
    build: Build | None = None,
    group: Group = ALONE,
) -> Record:
    """Run the passes of a trial, each on a fresh model with the same seed.

    `on_pass` is called with the name of each pass as it begins: build, equality, memory, time. All ranks of a group
    measure together; apart from what is a rank's own, their records are equal. Raises Unsupported if the model or the
    strategy is not available, and whatever the model raises.
    """
    bench = Bench(trial, on_pass, build, group)
    with explained(bench):
        return _measured(trial, bench)


def _measured(trial: Trial, bench: Bench) -> Record:
    """Run the passes; the record's case has the requested device, while the bench's has that of its rank."""
    passes = bench.passes()
    before = switches()
    bench.begin("build")
    calls: list[int] = []
    assembled = bench.build(calls=calls)
    built, notes = assembled.describe(), assembled.applied.notes
    if passes[:1] == ("flops",):
        bench.unused = assembled, calls
    del assembled
    compares = "equality" in passes
    first = [name for name in passes if compares and name == "memory"]  # the equality pass can use digests of its steps
    readings = read(bench, first)
    verified, reason = compare(bench) if compares else (None, None)
    readings |= read(bench, [name for name in passes if name not in first])
    bench.tell_checkpoints()
    bench.tell_warnings()
    bench.tell_changes(before)
    reason = bench.tell_leftovers() or reason
    return Record(
        case=trial.case,
        round=trial.round,
        outcome="invalid" if reason else "ok",
        detail=reason,
        built=built,
        readings=Readings(**readings),
        equality=verified,
        environment=environment(bench.device),
        notes=(*notes, *bench.all_notes()),
        stage_seconds=bench.end(),
        num_steps=bench.num_steps,
    )
