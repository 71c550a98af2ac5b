"""Measures a trial in this process, pass by pass; or times several strategies in turn on one model."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any

import torch

from profiler.core.case import OPERATORS, Trial
from profiler.core.devices import parse
from profiler.core.gpu_specs import CONTEXT_BYTES, LIBRARY_SHARE
from profiler.core.record import RankBytes, Readings, Record
from profiler.core.units import bytes_text
from profiler.measuring.bench import Bench, switches
from profiler.measuring.devices import environment
from profiler.measuring.equality_pass import compare
from profiler.measuring.failure_causes import explained
from profiler.measuring.meters import memory, memory_growth, operators
from profiler.measuring.meters import time as timing
from profiler.measuring.meters.step_results import StepDigests, weights_kept
from profiler.measuring.passes import (
    COUNTED,
    built_only,
    count_flops,
    counted_step,
    counts_after_memory,
    hidden_bytes,
    of_step,
    time_steps,
)
from profiler.measuring.ranks import ALONE, Group, Ranks
from profiler.training.assemble import Assembled, Build, assemble_beside, is_prepared
from profiler.training.checkpointing.own_checkpoints import compiled_modules
from profiler.training.workload import Mark, Step


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
    is_as_built = not bench.device.is_hollow or is_prepared(bench.trial.case)  # else strategies may have run it
    assembled = bench.build(calls=calls)
    built, notes = assembled.describe(), assembled.applied.notes
    bench.is_compiled = assembled.applied.changes_kernels or bool(compiled_modules(assembled.workload.module))
    if passes[:1] == ("flops",) and is_as_built:
        bench.unused = assembled, calls
    del assembled
    compares = "equality" in passes
    first = [name for name in passes if compares and name == "memory"]  # the equality pass can use digests of its steps
    readings = _read(bench, first)
    verified, reason = compare(bench) if compares else (None, None)
    readings |= _read(bench, [name for name in passes if name not in first])
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


def _read(bench: Bench, passes: Collection[str]) -> dict[str, Any]:
    """Run the requested passes in the order of the table; return the fields of their Readings."""
    readings: dict[str, Any] = {}
    for name, run in TABLE.items():
        if name in passes and not (name == "flops" and counts_after_memory(bench)):
            bench.begin(name)
            readings |= run(bench)
    return readings


def _memory(bench: Bench) -> dict[str, Any]:
    """Return the readings of the rank with the highest peak; with several ranks, also the bytes of each."""
    held_before = bench.leftovers.held_bytes()
    try:
        own, gathered = _own_memory(bench)
    except Exception:  # raised again: whether the step reads values may explain it
        if counts_after_memory(bench):
            bench.device.release()
            count_flops(bench)
        raise
    if bench.device.held_bytes() is not None:  # else the meter counts only what happens within a step
        bench.device.release()
        bench.misread_bytes = bench.leftovers.in_peak(held_before)
    if bench.trial.case.is_rehearsed:
        _tell_edge(bench, int(own["device_bytes"]))
    held = {name: own[name] for name in ("static_bytes", "saved_bytes", "peak_bytes")}
    by_rank = bench.group.gather((own, RankBytes(**held, gathered_bytes=gathered)))
    if len(by_rank) == 1:
        return own
    highest = max((readings for readings, _ in by_rank), key=lambda readings: int(readings["peak_bytes"]))
    return {**highest, "ranks": tuple(rank for _, rank in by_rank)}


def _tell_edge(bench: Bench, taken_bytes: int) -> None:
    """Note that a rehearsed step may not fit, if less memory is left than CUDA and its libraries may take."""
    total = bench.device.facts().total_bytes or 0
    unknown = int(LIBRARY_SHARE * total) + (0 if parse(bench.trial.case.device).context_bytes else CONTEXT_BYTES)
    if total - taken_bytes < unknown:
        text = f"{bytes_text(taken_bytes)} of {bytes_text(total)} are taken: too near to tell whether it fits, since"
        bench.note(
            "GCP042", f"{text} CUDA and its libraries may take {bytes_text(unknown)} more; --context adds CUDA's"
        )


def _own_memory(bench: Bench) -> tuple[dict[str, Any], int | None]:
    """Return this rank's readings and its peak bytes of gathered parameters; the model is freed on return."""
    built, calls = built_only(bench) if counts_after_memory(bench) else (bench.build(), [])
    optimizer, step = built.trainer()
    numbers = count(1)

    def seeded(mark: Mark, **look: operators.Look) -> torch.Tensor:
        built.seed(next(numbers))
        loss = bench.counted(partial(step, **look), mark)
        if not bench.device.is_hollow and not bool(torch.isfinite(loss)):
            text = f"the loss is {float(loss)}: the gradients are meaningless; memory and time are still valid"
            bench.note("GCP007", text)
        return loss

    with _watched(bench, built, seeded) as watched:
        own, left_bytes = memory.read(built.workload, optimizer, bench.device, watched)
    gathered = built.workload.gathered() if built.workload.gathered else None
    if counts_after_memory(bench):
        unknown = f"{COUNTED}, and how long a step takes"
        run = partial(counted_step, bench, built, calls, count=partial(of_step, bench, seeded))
        counted, left_again = memory_growth.left_by(
            built.workload, optimizer, bench.device, lambda: bench.extra(unknown, run)
        )
        own |= counted or {}
        left_bytes = min(left_bytes, left_bytes if left_again is None else left_again)
    if any(bench.group.gather(left_bytes > 0)):
        total, is_known = bench.device.facts().total_bytes, bench.device.held_bytes() is not None
        room = total - own["peak_bytes"] - memory_growth.NUM_STEPS * left_bytes if total and is_known else None
        grows = partial(_tell_growth, bench, built, optimizer, seeded, room)
        bench.extra("whether memory grows from step to step", grows)
    return own, gathered


@contextmanager
def _watched(bench: Bench, built: Assembled, step: Step) -> Iterator[Step]:
    """Yield the training step; digests of its first two runs are taken for the equality pass, if it can use them.

    That takes a known baseline, one process, real arithmetic, no gradient scaler, and a model that settles in one step.
    The weights are restored: a factory may return the same module each time.
    """
    case, trial = bench.trial.case, bench.trial
    is_asked = "equality" in trial.passes and case.verify != "off"
    is_known = case == case.baseline or trial.digests is not None
    is_alone = bench.group.size == 1 and bench.group.mesh is None and not bench.device.is_hollow
    is_plain = case.precision != "amp-fp16" and built.workload.settling == 1
    digests = None
    if is_asked and is_known and is_alone and is_plain:
        with suppress(Exception):  # state of a user's class; the equality pass, which reads it too, tells why
            digests = StepDigests(built.workload)
    if digests is None:
        yield step
        return

    def heard(mark: Mark) -> torch.Tensor:
        with bench.hearing():
            loss: torch.Tensor = step(mark)
            return loss

    with weights_kept(built.workload):
        yield digests.watched(heard)
        digests.finish()
    bench.step_digests = digests if digests.digests else None


def _tell_growth(
    bench: Bench, built: Assembled, optimizer: torch.optim.Optimizer, step: Step, room: int | None
) -> None:
    """Run more steps and note what each leaves behind; called only if a step has left something.

    `room` is what stays free at the peak after these steps, if each leaves as much as the first; None if unknown.
    """
    limit = bench.limit()  # the pass so far took longer than any of NUM_STEPS more steps will
    is_late = limit is not None and time.monotonic() + memory_growth.NUM_STEPS * bench.spent() > limit
    if any(bench.group.gather(is_late)):
        return
    if any(bench.group.gather(room is not None and room < 0)):
        bench.note(
            "GCP048", "the step leaves bytes behind, and more steps would not fit: whether it grows is not known"
        )
        return
    with_operators = not built.applied.changes_kernels
    is_alone = not isinstance(bench.group, Ranks)  # several take part in each other's steps, so all run them all
    grown = memory_growth.read(
        built.workload, optimizer, bench.device, step, with_operators=with_operators, is_alone=is_alone
    )
    if grown:
        bench.note("GCP048", str(grown))


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


TABLE: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "flops": count_flops,
    "memory": _memory,
    OPERATORS: lambda bench: (
        bench.extra("what operators take besides their results", lambda: hidden_bytes(bench)) or {}
    ),
    "time": time_steps,
}
