"""Measures a trial in this process, pass by pass; or times several strategies in turn on one model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from profiler.core.case import Trial
from profiler.core.record import Readings, Record
from profiler.measuring.bench import Bench, switches
from profiler.measuring.devices import environment
from profiler.measuring.equality_pass import compare
from profiler.measuring.failure_causes import explained
from profiler.measuring.meters import time as timing
from profiler.measuring.passes import read
from profiler.measuring.ranks import ALONE, Group
from profiler.training.assemble import Build, assemble_beside
from profiler.training.compiled_code import compiled_modules


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
    bench.is_compiled = assembled.applied.changes_kernels or bool(compiled_modules(assembled.workload.module))
    if passes[:1] == ("flops",) and not bench.device.is_hollow:  # there, bytes are read of a model that ran nothing yet
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


def measure_together(
    trials: Sequence[Trial],
    *,
    on_pass: Callable[[str], None] = lambda name: None,
) -> list[Record]:
    """Time the strategies of one baseline and round in turn on one model; return a record of each trial.

    All are compared with the same steps without a strategy. Raises Unsupported if a strategy needs a model of its own,
    and whatever the model raises: the caller then measures each trial by itself.
    """
    benches = [Bench(trial, on_pass) for trial in trials]
    with explained(benches[0]):
        return _timed(benches)


def _timed(benches: list[Bench]) -> list[Record]:
    first, before = benches[0], switches()
    first.begin("build")
    model = first.build(first.trial.case.baseline)
    strategies = [assemble_beside(model, bench.trial.case) for bench in benches]
    first.begin("time")
    _, step = strategies[0].trainer()
    at_work = first  # a step counts for the strategy that is on, or for the first if none is

    def switch(number: int, on: bool) -> None:
        nonlocal at_work
        at_work = benches[number] if on else first
        turn = strategies[number].switch
        assert turn is not None, "strategies beside each other have one"
        turn(on)

    case = first.trial.case
    readings = timing.read_together(
        first.device,
        lambda mark: at_work.counted(step, mark),
        [partial(switch, number) for number in range(len(benches))],
        round_number=first.trial.round,
        warmup=case.warmup,
        samples=case.samples,
        sampling=case.sampling,
        least_pairs=first.trial.least_pairs,
        until=first.limit(),
    )
    own_share = {name: seconds / len(benches) for name, seconds in first.end().items()}
    for bench, strategy in zip(benches, strategies, strict=True):
        bench.listen(strategy)
        bench.tell_checkpoints()
        bench.tell_changes(before)
        bench.tell_untold()
    return [
        Record(
            case=bench.trial.case,
            round=bench.trial.round,
            outcome="ok",
            built=strategy.describe(),
            readings=Readings(**own_readings),
            environment=environment(first.device),
            notes=(*strategy.applied.notes, *bench.all_notes()),
            stage_seconds=own_share,
            num_steps=bench.num_steps,
        )
        for bench, strategy, own_readings in zip(benches, strategies, readings, strict=True)
    ]
